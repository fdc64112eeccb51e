//! Options of a ring that is to be built.

use crate::low::{self, Completion, Submission};
use crate::{Engine, Error, engine};
use linux_raw_sys::io_uring as abi;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Collects the options of a ring, and builds the ring.
///
/// Each method stands for a flag of `io_uring_setup(2)`, which explains the flags at length. Both engines have
/// all of them, as far as the kernel is new enough.
///
/// ```
/// use anyring::{Engine, Ring};
///
/// let ring = Ring::builder(64).cq_entries(256).engine(Engine::User).build()?;
/// assert_eq!(ring.engine(), Engine::User);
/// # Ok::<(), anyring::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder<'a> {
    pub(crate) engine: Engine,
    pub(crate) entries: u32,
    pub(crate) flags: u32,
    pub(crate) cq_entries: u32,
    pub(crate) sq_thread_cpu: u32,
    pub(crate) sq_thread_idle: u32,
    pub(crate) attach_to: Option<BorrowedFd<'a>>,
    pub(crate) dont_fork: bool,
    pub(crate) pollable: bool,
}

impl<'a> Builder<'a> {
    /// Returns a builder of a ring with room for `entries` submissions (rounded up to a power of two), and for twice as many
    /// completions.
    pub fn new(entries: u32) -> Builder<'a> {
        Builder {
            engine: Engine::Auto,
            entries,
            flags: 0,
            cq_entries: 0,
            sq_thread_cpu: 0,
            sq_thread_idle: 0,
            attach_to: None,
            dont_fork: false,
            pollable: false,
        }
    }

    /// Selects the ring's engine.
    pub fn engine(mut self, engine: Engine) -> Builder<'a> {
        self.engine = engine;
        self
    }

    fn flag(mut self, flag: u32) -> Builder<'a> {
        self.flags |= flag;
        self
    }

    /// Gives the completion queue room for `entries` completions (`IORING_SETUP_CQSIZE`).
    pub fn cq_entries(mut self, entries: u32) -> Builder<'a> {
        self.cq_entries = entries;
        self.flag(abi::IORING_SETUP_CQSIZE)
    }

    /// Reduces a number of entries above the limit to the limit, instead of refusing it (`IORING_SETUP_CLAMP`).
    pub fn clamp(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_CLAMP)
    }

    /// Polls for completions of files opened with `O_DIRECT` (`IORING_SETUP_IOPOLL`).
    pub fn io_poll(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_IOPOLL)
    }

    /// With [`io_poll`](Builder::io_poll), sleeps for a part of the expected time before polling (`IORING_SETUP_HYBRID_IOPOLL`).
    pub fn hybrid_io_poll(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_HYBRID_IOPOLL)
    }

    /// Lets a thread of the engine poll the submission queue. The thread sleeps after it has found no submission for `idle`
    /// (`IORING_SETUP_SQPOLL`). While the thread is awake, submitting takes no system call.
    pub fn sq_poll(mut self, idle: Duration) -> Builder<'a> {
        self.sq_thread_idle = u32::try_from(idle.as_millis()).unwrap_or(u32::MAX);
        self.flag(abi::IORING_SETUP_SQPOLL)
    }

    /// Binds the thread of [`sq_poll`](Builder::sq_poll) to this processor (`IORING_SETUP_SQ_AFF`).
    pub fn sq_poll_cpu(mut self, cpu: u32) -> Builder<'a> {
        self.sq_thread_cpu = cpu;
        self.flag(abi::IORING_SETUP_SQ_AFF)
    }

    /// Shares workers and the polling thread with the ring `other` (`IORING_SETUP_ATTACH_WQ`). `other` must stay open until
    /// the new ring is built:
    ///
    /// ```compile_fail,E0505
    /// let other = anyring::Ring::new(8)?;
    /// let builder = anyring::Ring::builder(8).attach(&other);
    /// drop(other);
    /// builder.build()?;
    /// # Ok::<(), anyring::Error>(())
    /// ```
    pub fn attach(mut self, other: &'a impl AsFd) -> Builder<'a> {
        self.attach_to = Some(other.as_fd());
        self.flag(abi::IORING_SETUP_ATTACH_WQ)
    }

    /// Makes the ring refuse submissions until it is enabled, so that restrictions can be registered first (`IORING_SETUP_R_DISABLED`).
    pub fn start_disabled(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_R_DISABLED)
    }

    /// Continues to submit a batch after an entry that is refused (`IORING_SETUP_SUBMIT_ALL`).
    pub fn submit_all(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_SUBMIT_ALL)
    }

    /// Makes completions wait for the thread's next system call instead of interrupting the thread (`IORING_SETUP_COOP_TASKRUN`).
    pub fn coop_taskrun(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_COOP_TASKRUN)
    }

    /// Sets a flag in the ring while completions wait for the thread's next system call (`IORING_SETUP_TASKRUN_FLAG`).
    pub fn taskrun_flag(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_TASKRUN_FLAG)
    }

    /// Restricts submission to one thread, the one that builds or enables the ring (`IORING_SETUP_SINGLE_ISSUER`).
    ///
    /// If another thread drops the ring, the drop cannot wait for the requests in flight: their memory is never freed then.
    pub fn single_issuer(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_SINGLE_ISSUER)
    }

    /// Posts completions only while the submitting thread waits for them
    /// (`IORING_SETUP_DEFER_TASKRUN`, which requires [`single_issuer`](Builder::single_issuer)).
    pub fn defer_taskrun(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_DEFER_TASKRUN)
    }

    /// Leaves the ring's memory out of children of `fork`. A child that uses the ring through the low-level interface is killed;
    /// through the safe interface it gets an error.
    pub fn dont_fork(mut self) -> Builder<'a> {
        self.dont_fork = true;
        self
    }

    /// Makes the ring's descriptor pollable: it is readable while there are completions. Rings of the kernel are
    /// always pollable; rings of anyring's engine only with this option, because it costs a little.
    pub fn pollable(mut self) -> Builder<'a> {
        self.pollable = true;
        self
    }

    /// Adds `IORING_SETUP_*` flags: those that the methods above stand for, and `IORING_SETUP_NO_SQARRAY`. Building a ring with
    /// any other flag is refused (`EINVAL`), because its memory may have a layout that this crate does not handle.
    pub fn setup_flags(self, flags: u32) -> Builder<'a> {
        self.flag(flags)
    }

    /// Builds a ring whose requests are safe.
    ///
    /// # Errors
    /// As `io_uring_setup(2)`; the error's text says more.
    pub fn build(self) -> Result<crate::Ring, Error> {
        let mut low = self.build_low()?;
        low.shut_memory()?;
        Ok(crate::Ring::over(low))
    }

    /// Builds a ring of the low-level interface, whose type says the sizes of its SQEs and CQEs.
    ///
    /// ```
    /// use anyring::low::{Cqe32, Ring, Sqe128};
    ///
    /// let ring: Ring<Sqe128, Cqe32> = anyring::Builder::new(8).build_low()?;
    /// # Ok::<(), anyring::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `io_uring_setup(2)`; the error's text says more.
    pub fn build_low<S: Submission, C: Completion>(self) -> Result<low::Ring<S, C>, Error> {
        if self.engine == Engine::Auto {
            return low::Ring::build_by_either(&self);
        }
        engine::begin(self.engine);
        low::Ring::build(&self, self.engine)
    }
}
