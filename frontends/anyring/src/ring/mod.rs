//! The safe ring.

mod chain;
mod end;
mod push;
mod ready;
mod resources;
mod wait;

pub use chain::Chain;
pub use push::Raw;

use crate::error::ErrorContext;
use crate::fixed::Table;
use crate::low::{self, Control, Probe, Sqe, Submitter};
use crate::op::Waker;
use crate::provided::Group;
use crate::registered::Memory;
use crate::requests::Requests;
use crate::{Builder, Engine, Error, engine};
use ready::Ready;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// A ring whose requests are safe.
///
/// [`push`](Ring::push) hands an operation over and answers with a token; [`wait`](Ring::wait) answers with the next
/// completion, whose [`take`](crate::Completion::take) gives back, for the token, what came of the operation and the
/// buffers that it was given. [`run`](Ring::run) does both for one operation.
///
/// What is pushed goes to the engine with the next [`submit`](Ring::submit), [`wait`](Ring::wait) or
/// [`poll`](Ring::poll), or when the queue is full.
///
/// A ring that is dropped cancels what is in flight and waits until it has ended: no memory is freed that the engine
/// may still use. Where it cannot wait, because another thread than its own drops a ring with
/// [`single_issuer`](Builder::single_issuer), that memory is never freed.
///
/// In a child of `fork` a ring of the parent is of no use: every call fails, and dropping it does nothing to the
/// parent's.
///
/// ```
/// use anyring::{Ring, op};
/// use std::time::Duration;
///
/// let mut ring = Ring::new(8)?;
/// let nop = ring.push(op::nop())?;
/// let timeout = ring.push(op::timeout(Duration::from_millis(1)))?;
/// while ring.in_flight() > 0 {
///     let completion = ring.wait()?;
///     if completion.is(&nop) {
///         completion.take(nop).expect("it is that one")?;
///     } else if completion.is(&timeout) {
///         completion.take(timeout).expect("it is that one")?;
///     }
/// }
/// # Ok::<(), anyring::Error>(())
/// ```
pub struct Ring {
    low: low::Ring,
    requests: Requests,
    /// Completions that nobody has asked for yet.
    ready: Ready,
    /// Of the process that it was made in.
    generation: u32,
    table: Option<Arc<Table>>,
    /// Wakes the driver that has the ring, if one has it.
    driver: Option<Waker>,
    /// By their numbers.
    groups: Vec<Option<Arc<Group>>>,
    pool: Option<Arc<Memory>>,
    /// The entries of a chain that is being made.
    chain: Vec<Sqe>,
}

impl Ring {
    /// A ring with room for `entries` submissions, and everything else as [`Builder`] has it.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(entries: u32) -> Result<Ring, Error> {
        Ring::builder(entries).build()
    }

    /// How a ring with room for `entries` submissions is to be.
    pub fn builder<'a>(entries: u32) -> Builder<'a> {
        Builder::new(entries)
    }

    pub(crate) fn over(low: low::Ring) -> Ring {
        Ring {
            low,
            requests: Requests::default(),
            ready: Ready::default(),
            generation: engine::generation(),
            table: None,
            driver: None,
            groups: Vec::new(),
            pool: None,
            chain: Vec::new(),
        }
    }

    /// The engine that it has.
    pub fn engine(&self) -> Engine {
        self.low.engine()
    }

    /// The commands to the ring that concern no request's memory, file or number, and the questions to it.
    pub fn control(&self) -> &Control {
        self.low.submitter()
    }

    /// The way into the layer below, with all that is registered there.
    ///
    /// A tag that is registered there comes back as a completion, which could be taken for one of a request's:
    ///
    /// ```compile_fail,E0133
    /// let mut ring = anyring::Ring::new(8)?;
    /// ring.submitter().update_files(0, &[None], Some(&[7]))?;
    /// # Ok::<(), anyring::Error>(())
    /// ```
    ///
    /// # Safety
    /// The ring believes its completions: nothing may post one to it whose user data is not `u64::MAX`, so each tag of a
    /// file or a buffer must be that, or none. What the ring has registered itself must stay as it is: its table of
    /// files, its buffers, its groups of buffers.
    pub unsafe fn submitter(&self) -> &Submitter {
        self.low.submitter()
    }

    /// Which operations the engine has.
    ///
    /// # Errors
    /// Where it cannot tell (Linux 5.5 and older).
    pub fn probe(&mut self) -> Result<Probe, Error> {
        self.low.serve_private_operations();
        self.low.probe()
    }

    /// How many requests have completions to come.
    pub fn in_flight(&self) -> usize {
        self.requests.waited_for() + self.ready.ended()
    }

    pub(crate) fn error(&self, context: ErrorContext, errno: i32) -> Error {
        Error::new(self.engine(), context, errno)
    }

    /// Refuses what a child of `fork` does with its parent's ring.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.generation == engine::generation() { Ok(()) } else { Err(self.foreign()) }
    }

    #[cold]
    fn foreign(&self) -> Error {
        self.error(ErrorContext::Use("use of a ring of the parent process"), libc::EOWNERDEAD)
    }

    /// Does what comes before every wait and submission.
    #[inline]
    fn begin(&mut self) -> Result<(), Error> {
        self.check_process()?;
        self.close_chain();
        if self.table.is_some() {
            self.clean();
        }
        Ok(())
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.low.as_raw_fd()
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.low.as_fd()
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Ring");
        out.field("engine", &self.engine()).field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}
