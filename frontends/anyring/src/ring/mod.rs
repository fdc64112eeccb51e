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
/// [`push`](Ring::push) adds an operation to the submission queue and returns a token. [`wait`](Ring::wait) returns the next
/// completion; the completion's [`take`](crate::Completion::take) exchanges the token for the operation's output, with the
/// buffers that it was given. [`run`](Ring::run) does all of this for one operation.
///
/// Pushed operations go to the engine with the next [`submit`](Ring::submit), [`wait`](Ring::wait) or
/// [`poll`](Ring::poll), or when the queue is full.
///
/// Dropping a ring cancels the requests in flight and waits until they have ended: no memory is freed that the engine
/// may still use. If it cannot wait, because another thread than its own drops a ring with
/// [`single_issuer`](Builder::single_issuer), that memory is never freed.
///
/// In a child of `fork`, a ring of the parent is unusable: every call fails, and dropping it leaves the parent's ring as
/// it is.
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
    /// Completions that were reaped, but not returned to the program yet.
    ready: Ready,
    /// The generation of the process that made the ring.
    generation: u32,
    table: Option<Arc<Table>>,
    /// Wakes the driver that owns the ring, if there is one.
    driver: Option<Waker>,
    /// Groups of buffers, by their numbers.
    groups: Vec<Option<Arc<Group>>>,
    pool: Option<Arc<Memory>>,
    /// The entries of a chain that is not pushed yet.
    chain: Vec<Sqe>,
}

impl Ring {
    /// Makes a ring with room for `entries` submissions, and with the defaults of [`Builder`].
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(entries: u32) -> Result<Ring, Error> {
        Ring::builder(entries).build()
    }

    /// Returns a builder of a ring with room for `entries` submissions.
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

    /// The ring's engine.
    pub fn engine(&self) -> Engine {
        self.low.engine()
    }

    /// Returns the commands and queries that concern no request's memory, file or number.
    pub fn control(&self) -> &Control {
        self.low.submitter()
    }

    /// Returns the calls of the low-level interface, with all registrations.
    ///
    /// The tag of a resource that is registered there is posted as a completion, which could be taken for a completion of a request:
    ///
    /// ```compile_fail,E0133
    /// let mut ring = anyring::Ring::new(8)?;
    /// ring.submitter().update_files(0, &[None], Some(&[7]))?;
    /// # Ok::<(), anyring::Error>(())
    /// ```
    ///
    /// # Safety
    /// The ring trusts its completions: any that are not posted by its own requests must have the user data `u64::MAX`. So each tag
    /// of a file or a buffer must be `u64::MAX`, or none. The ring's own registrations must stay as they are: its table of files, its
    /// buffers, its groups of buffers.
    pub unsafe fn submitter(&self) -> &Submitter {
        self.low.submitter()
    }

    /// Returns the operations that the engine supports.
    ///
    /// # Errors
    /// If the engine cannot report them (Linux 5.5 and older).
    pub fn probe(&mut self) -> Result<Probe, Error> {
        self.low.serve_private_operations();
        self.low.probe()
    }

    /// The number of requests whose last completion the program has not taken.
    pub fn in_flight(&self) -> usize {
        self.requests.waited_for() + self.ready.ended()
    }

    pub(crate) fn error(&self, context: ErrorContext, errno: i32) -> Error {
        Error::new(self.engine(), context, errno)
    }

    /// Refuses a child of `fork` the use of its parent's ring.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.generation == engine::generation() { Ok(()) } else { Err(self.foreign()) }
    }

    #[cold]
    fn foreign(&self) -> Error {
        self.error(ErrorContext::Use("use of a ring of the parent process"), libc::EOWNERDEAD)
    }

    /// Does the common first steps of every wait and submission.
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
