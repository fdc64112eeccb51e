//! How a ring is to be.

use crate::low::{self, Completion, Submission};
use crate::{Engine, Error, engine};
use linux_raw_sys::io_uring as abi;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Says how a ring is to be, and builds it.
///
/// Each method stands for a flag of `io_uring_setup(2)`, where it is explained at length. Both engines have
/// them all, as far as the kernel is new enough.
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
    /// A ring with room for `entries` submissions (rounded up to a power of two), and for twice as many
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

    /// Which engine it is to have.
    pub fn engine(mut self, engine: Engine) -> Builder<'a> {
        self.engine = engine;
        self
    }

    fn flag(mut self, flag: u32) -> Builder<'a> {
        self.flags |= flag;
        self
    }

    /// Room for so many completions (`IORING_SETUP_CQSIZE`).
    pub fn cq_entries(mut self, entries: u32) -> Builder<'a> {
        self.cq_entries = entries;
        self.flag(abi::IORING_SETUP_CQSIZE)
    }

    /// More entries than there may be are cut down, not refused (`IORING_SETUP_CLAMP`).
    pub fn clamp(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_CLAMP)
    }

    /// Completions of files opened with `O_DIRECT` are polled for (`IORING_SETUP_IOPOLL`).
    pub fn io_poll(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_IOPOLL)
    }

    /// Such polling sleeps for a part of the time that it is likely to take (`IORING_SETUP_HYBRID_IOPOLL`).
    pub fn hybrid_io_poll(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_HYBRID_IOPOLL)
    }

    /// A thread of the engine looks for submissions, and sleeps after it has found none for `idle`
    /// (`IORING_SETUP_SQPOLL`). Submitting takes no system call while it is awake.
    pub fn sq_poll(mut self, idle: Duration) -> Builder<'a> {
        self.sq_thread_idle = u32::try_from(idle.as_millis()).unwrap_or(u32::MAX);
        self.flag(abi::IORING_SETUP_SQPOLL)
    }

    /// That thread stays on this processor (`IORING_SETUP_SQ_AFF`).
    pub fn sq_poll_cpu(mut self, cpu: u32) -> Builder<'a> {
        self.sq_thread_cpu = cpu;
        self.flag(abi::IORING_SETUP_SQ_AFF)
    }

    /// Shares workers, and the polling thread, with another ring (`IORING_SETUP_ATTACH_WQ`), which stays open until
    /// this one is built:
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

    /// The ring takes no submissions before it is enabled: what restricts it comes first (`IORING_SETUP_R_DISABLED`).
    pub fn start_disabled(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_R_DISABLED)
    }

    /// An entry that is refused does not end its batch (`IORING_SETUP_SUBMIT_ALL`).
    pub fn submit_all(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_SUBMIT_ALL)
    }

    /// Completions do not interrupt the thread, but wait for its next system call (`IORING_SETUP_COOP_TASKRUN`).
    pub fn coop_taskrun(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_COOP_TASKRUN)
    }

    /// A flag in the ring says that completions wait so (`IORING_SETUP_TASKRUN_FLAG`).
    pub fn taskrun_flag(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_TASKRUN_FLAG)
    }

    /// One thread submits, the one that builds or enables the ring (`IORING_SETUP_SINGLE_ISSUER`).
    ///
    /// A ring that another thread drops cannot be waited for: the memory of what is in flight is not freed then.
    pub fn single_issuer(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_SINGLE_ISSUER)
    }

    /// Completions are made when that thread waits for them, at no other time
    /// (`IORING_SETUP_DEFER_TASKRUN`, which takes [`single_issuer`](Builder::single_issuer)).
    pub fn defer_taskrun(self) -> Builder<'a> {
        self.flag(abi::IORING_SETUP_DEFER_TASKRUN)
    }

    /// Children of `fork` do not have the ring's memory. One that uses the ring all the same is killed; with the
    /// safe interface it gets an error.
    pub fn dont_fork(mut self) -> Builder<'a> {
        self.dont_fork = true;
        self
    }

    /// The ring's descriptor can be polled: it is readable while there are completions. Over the kernel this is
    /// always so; over anyring's engine only then, for it costs a little.
    pub fn pollable(mut self) -> Builder<'a> {
        self.pollable = true;
        self
    }

    /// `IORING_SETUP_*` flags: those that the methods above stand for, and `IORING_SETUP_NO_SQARRAY`. Building a ring with
    /// any other is refused (`EINVAL`), for it might have other memory than is taken for granted here.
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

    /// Builds a ring that takes whatever it is told, with entries of the sizes that its type says.
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
