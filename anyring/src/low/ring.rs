//! A ring, and the way into it.

use super::entry::{Completion, Cqe, Sqe, Submission};
use super::memory::Mapping;
use super::queue::{CompletionQueue, Cq, Full, Sq, SubmissionQueue, Word};
use crate::error::What;
use crate::{Builder, Engine, Error, engine};
use linux_raw_sys::general::__kernel_timespec;
use linux_raw_sys::io_uring::{self as abi, io_uring_getevents_arg, io_uring_params};
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// A ring that takes whatever it is told: each [`push`](SubmissionQueue::push) is a promise.
///
/// Its type says how large its entries are. [`split`](Ring::split) gives its parts to different owners.
pub struct Ring<S: Submission = Sqe, C: Completion = Cqe> {
    sq: Sq<S>,
    cq: Cq<C>,
    submitter: Submitter,
    /// What the kernel lacks is done beside it.
    extended: bool,
    /// Children do not have its memory.
    dont_fork: bool,
    /// Unmapped after the descriptor is closed, last of all.
    memory: [Option<Mapping>; 3],
}

/// The way into a ring: submissions, waits, registrations.
pub struct Submitter {
    engine: Engine,
    /// What calls name: the descriptor, or where it is registered.
    enter_fd: RawFd,
    enter_flags: u32,
    fd: RawFd,
    setup_flags: u32,
    features: u32,
    sq_head: Word,
    sq_tail: Word,
    sq_flags: Word,
}

/// A ring's memory, and its queues there.
struct Queues<S, C> {
    sq: Sq<S>,
    cq: Cq<C>,
    memory: [Option<Mapping>; 3],
}

impl<S: Submission, C: Completion> Queues<S, C> {
    /// Maps what a ring with these parameters has.
    fn map(engine: Engine, fd: RawFd, p: &io_uring_params) -> Result<Queues<S, C>, Error> {
        let array = if p.flags & abi::IORING_SETUP_NO_SQARRAY == 0 { p.sq_entries as usize * 4 } else { 0 };
        let sq_bytes = p.sq_off.array as usize + array;
        let cq_bytes = p.cq_off.cqes as usize + p.cq_entries as usize * size_of::<C>();
        let one = p.features & abi::IORING_FEAT_SINGLE_MMAP != 0;
        let first = if one { sq_bytes.max(cq_bytes) } else { sq_bytes };
        let rings = Mapping::new(engine, fd, first, abi::IORING_OFF_SQ_RING)?;
        let second =
            if one { None } else { Some(Mapping::new(engine, fd, cq_bytes, abi::IORING_OFF_CQ_RING)?) };
        let sqes = Mapping::new(engine, fd, p.sq_entries as usize * size_of::<S>(), abi::IORING_OFF_SQES)?;
        // SAFETY: mapped as the parameters say, and kept beside.
        let (sq, cq) = unsafe { (Sq::new(&rings, &sqes, p), Cq::new(second.as_ref().unwrap_or(&rings), p)) };
        Ok(Queues { sq, cq, memory: [Some(rings), second, Some(sqes)] })
    }
}

impl<S: Submission, C: Completion> Ring<S, C> {
    pub(crate) fn build(builder: &Builder, engine: Engine) -> Result<Ring<S, C>, Error> {
        const SIZES: u32 = abi::IORING_SETUP_SQE128
            | abi::IORING_SETUP_CQE32
            | anyring_engine::abi::IORING_SETUP_CQE_MIXED
            | abi::IORING_SETUP_NO_MMAP;
        if builder.flags & SIZES != 0 {
            return Err(Error::new(engine, What::Setup, libc::EINVAL));
        }
        // Nobody needs the array; the kernel can do without it since 6.6.
        let flags = builder.flags | S::SETUP_FLAGS | C::SETUP_FLAGS;
        let without = flags | abi::IORING_SETUP_NO_SQARRAY;
        let ring = Ring::with_flags(builder, engine, without);
        if ring.as_ref().is_err_and(|error| error.errno() == libc::EINVAL && error.what() == What::Setup) {
            return Ring::with_flags(builder, engine, flags);
        }
        ring
    }

    fn with_flags(builder: &Builder, engine: Engine, flags: u32) -> Result<Ring<S, C>, Error> {
        // SAFETY: integers only.
        let mut p: io_uring_params = unsafe { std::mem::zeroed() };
        p.flags = flags;
        p.cq_entries = builder.cq_entries;
        p.sq_thread_cpu = builder.sq_thread_cpu;
        p.sq_thread_idle = builder.sq_thread_idle;
        p.wq_fd = builder.wq_fd;
        // SAFETY: structures of ours.
        let result = unsafe { engine::setup(engine, builder.entries, &mut p) };
        let fd = Error::check(engine, What::Setup, result)? as RawFd;
        Ring::map(builder, engine, fd, &p).inspect_err(|_| engine::close(engine, fd))
    }

    fn map(builder: &Builder, engine: Engine, fd: RawFd, p: &io_uring_params) -> Result<Ring<S, C>, Error> {
        let Queues { sq, mut cq, memory } = Queues::map(engine, fd, p)?;
        if builder.pollable {
            engine::show_readiness(engine, fd)
                .map_err(|errno| Error::new(engine, What::Use("polling of a ring"), -errno))?;
            cq.shown = (engine == Engine::User).then_some(fd);
        }
        if builder.dont_fork {
            memory.iter().flatten().for_each(Mapping::dont_fork);
        }
        let submitter = Submitter {
            engine,
            enter_fd: fd,
            enter_flags: 0,
            fd,
            setup_flags: p.flags,
            features: p.features,
            sq_head: sq.head,
            sq_tail: sq.tail,
            sq_flags: sq.flags,
        };
        Ok(Ring { sq, cq, submitter, extended: false, dont_fork: builder.dont_fork, memory })
    }

    /// The engine that it has.
    pub fn engine(&self) -> Engine {
        self.submitter.engine
    }

    /// Where requests are put.
    #[inline]
    pub fn submission(&mut self) -> SubmissionQueue<'_, S> {
        self.sq.borrow()
    }

    /// Where results are found.
    #[inline]
    pub fn completion(&mut self) -> CompletionQueue<'_, C> {
        self.cq.borrow()
    }

    /// The way into it.
    #[inline]
    pub fn submitter(&self) -> &Submitter {
        &self.submitter
    }

    /// Gives it other queues, in which entries stay that are not taken yet. Takes
    /// [`defer_taskrun`](Builder::defer_taskrun), and Linux 6.13 on the kernel's engine.
    ///
    /// # Errors
    /// As `IORING_REGISTER_RESIZE_RINGS`: `EOVERFLOW` where the entries do not fit; `EBUSY` for a ring that is
    /// [`pollable`](Builder::pollable) over anyring's engine, which cannot be mapped again.
    pub fn resize(&mut self, entries: u32, cq_entries: u32) -> Result<(), Error> {
        const CALL: What = What::Register("RESIZE_RINGS");
        let Submitter { engine, fd, .. } = self.submitter;
        if self.cq.shown.is_some() {
            return Err(Error::new(engine, CALL, libc::EBUSY));
        }
        // SAFETY: integers only.
        let mut p: io_uring_params = unsafe { std::mem::zeroed() };
        (p.sq_entries, p.cq_entries, p.flags) = (entries, cq_entries, abi::IORING_SETUP_CQSIZE);
        let code = abi::io_uring_register_op::IORING_REGISTER_RESIZE_RINGS as u32;
        // SAFETY: whole; written by the call.
        unsafe { self.submitter.register("RESIZE_RINGS", code, (&raw mut p).cast_const().cast(), 1)? };
        // The call says nothing of features and of what stays.
        p.features = self.submitter.features;
        p.flags = self.submitter.setup_flags;
        let Queues { sq, cq, memory } = Queues::map(engine, fd, &p)?;
        if self.dont_fork {
            memory.iter().flatten().for_each(Mapping::dont_fork);
        }
        let words = (sq.head, sq.tail, sq.flags);
        (self.submitter.sq_head, self.submitter.sq_tail, self.submitter.sq_flags) = words;
        (self.sq, self.cq, self.memory) = (sq, cq, memory);
        Ok(())
    }

    /// The way into it, to register its descriptor.
    pub fn submitter_mut(&mut self) -> &mut Submitter {
        &mut self.submitter
    }

    /// Its parts, for threads that do different things with it.
    pub fn split(&mut self) -> (&Submitter, SubmissionQueue<'_, S>, CompletionQueue<'_, C>) {
        (&self.submitter, self.sq.borrow(), self.cq.borrow())
    }

    /// [`SubmissionQueue::push`].
    ///
    /// # Errors
    /// [`Full`].
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub unsafe fn push(&mut self, entry: impl Into<S>) -> Result<(), Full> {
        // SAFETY: the caller's promise.
        unsafe { self.sq.borrow().push(entry) }
    }

    /// [`Submitter::submit`], and what [`serve_private_operations`](Ring::serve_private_operations) promises.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn submit(&mut self) -> Result<usize, Error> {
        self.submit_and_wait(0)
    }

    /// [`Submitter::submit_and_wait`], and what [`serve_private_operations`](Ring::serve_private_operations) promises.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn submit_and_wait(&mut self, want: usize) -> Result<usize, Error> {
        if self.extended {
            return self.submit_extended(|submitter| submitter.submit_and_wait(want));
        }
        self.submitter.submit_and_wait(want)
    }

    /// [`Submitter::submit_with`], and what [`serve_private_operations`](Ring::serve_private_operations) promises.
    ///
    /// # Errors
    /// As there.
    pub fn submit_with(&mut self, want: usize, wait: &Wait<'_>) -> Result<usize, Error> {
        self.submit_extended(|submitter| submitter.submit_with(want, wait))
    }

    /// [`Submitter::submit_and_flush`], and what [`serve_private_operations`](Ring::serve_private_operations) promises.
    ///
    /// # Errors
    /// As there.
    pub fn submit_and_flush(&mut self) -> Result<usize, Error> {
        self.submit_extended(Submitter::submit_and_flush)
    }

    /// Where the kernel is not to have all of it.
    #[cold]
    fn submit_extended(
        &mut self,
        submit: impl FnOnce(&Submitter) -> Result<usize, Error>,
    ) -> Result<usize, Error> {
        let Submitter { fd, setup_flags, features, .. } = self.submitter;
        let mut taken = 0;
        if self.extended {
            // SAFETY: the entries are the promise of who pushed them.
            let private = unsafe { self.sq.take_private(fd, setup_flags, features) };
            taken = private.count as usize;
            if private.brings_files {
                // Nobody may wait before what they are for has begun.
                let submitted = self.submitter.submit();
                anyring_kernel_ring::deliver(fd);
                match submitted {
                    Ok(count) => taken += count,
                    Err(error) if taken == 0 => return Err(error),
                    Err(_) => return Ok(taken),
                }
            }
        }
        // As the kernel does, which tells of an error only where nothing was submitted.
        submit(&self.submitter)
            .map(|count| count + taken)
            .or_else(|error| if taken == 0 { Err(error) } else { Ok(taken) })
    }

    /// Lets the ring have operations that no kernel has, [`Getdents`](super::op::Getdents) for one, over the kernel, too:
    /// they are done beside it, and their completions come to the same queue. Whether that can be had: rings of
    /// anyring's engine have them anyway; over the kernel it takes Linux 6.3, and neither
    /// [`io_poll`](Builder::io_poll) nor [`sq_poll`](Builder::sq_poll) nor [`start_disabled`](Builder::start_disabled).
    /// It goes for what is submitted by the ring itself, not by its [`Submitter`].
    pub fn serve_private_operations(&mut self) -> bool {
        if self.engine() == Engine::User || self.extended {
            return true;
        }
        let Submitter { setup_flags, features, .. } = self.submitter;
        self.extended = anyring_kernel_ring::is_possible(features, setup_flags)
            && setup_flags & abi::IORING_SETUP_SQPOLL == 0
            && engine::extend();
        self.extended
    }

    /// Asks which operations there are, those included for which
    /// [`serve_private_operations`](Ring::serve_private_operations) was called.
    ///
    /// # Errors
    /// As [`Submitter::probe`].
    pub fn probe(&self) -> Result<super::Probe, Error> {
        let mut probe = self.submitter.probe()?;
        if self.extended {
            probe.add_private();
        }
        Ok(probe)
    }
}

impl<S: Submission, C: Completion> Drop for Ring<S, C> {
    fn drop(&mut self) {
        // The place in the thread's table is free at once, rather than when the thread ends.
        let _ = self.submitter.unregister_ring_fd();
        if self.extended {
            anyring_kernel_ring::close(self.submitter.fd);
        }
        engine::close(self.submitter.engine, self.submitter.fd);
    }
}

impl<S: Submission, C: Completion> AsRawFd for Ring<S, C> {
    fn as_raw_fd(&self) -> RawFd {
        self.submitter.fd
    }
}

impl<S: Submission, C: Completion> AsFd for Ring<S, C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the ring is.
        unsafe { BorrowedFd::borrow_raw(self.submitter.fd) }
    }
}

/// How [`Submitter::submit_with`] waits.
#[derive(Clone, Copy, Default)]
#[must_use]
pub struct Wait<'a> {
    timeout: Option<Duration>,
    least: Option<Duration>,
    mask: Option<&'a libc::sigset_t>,
    absolute: bool,
}

impl<'a> Wait<'a> {
    /// As long as it takes.
    pub fn new() -> Wait<'a> {
        Wait::default()
    }

    /// For so long at most; then the call fails with `ETIME`.
    pub fn timeout(mut self, time: Duration) -> Wait<'a> {
        (self.timeout, self.absolute) = (Some(time), false);
        self
    }

    /// Until the ring's clock (`CLOCK_MONOTONIC`, or what was registered) shows this, at most.
    pub fn until(mut self, time: Duration) -> Wait<'a> {
        (self.timeout, self.absolute) = (Some(time), true);
        self
    }

    /// So long for all that is wanted; from then on one completion will do. Takes Linux 6.12 on the kernel's
    /// engine, and a timeout.
    pub fn min_wait(mut self, time: Duration) -> Wait<'a> {
        self.least = Some(time);
        self
    }

    /// With this signal mask.
    pub fn signal_mask(mut self, mask: &'a libc::sigset_t) -> Wait<'a> {
        self.mask = Some(mask);
        self
    }
}

pub(crate) fn timespec(time: Duration) -> __kernel_timespec {
    __kernel_timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

impl Submitter {
    /// The engine of the ring.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// `IORING_SETUP_*` that the ring has.
    pub fn setup_flags(&self) -> u32 {
        self.setup_flags
    }

    /// `IORING_FEAT_*` that its engine has.
    pub fn features(&self) -> u32 {
        self.features
    }

    /// The descriptor.
    pub(super) fn fd(&self) -> RawFd {
        self.fd
    }

    /// Where the descriptor is registered, if it is.
    pub(super) fn index(&self) -> Option<u32> {
        (self.enter_flags != 0).then_some(self.enter_fd as u32)
    }

    /// Calls name that place from now on, or the descriptor again.
    pub(super) fn enter_by_index(&mut self, index: Option<u32>) {
        (self.enter_fd, self.enter_flags) = match index {
            Some(index) => (index as RawFd, abi::IORING_ENTER_REGISTERED_RING),
            None => (self.fd, 0),
        };
    }

    #[inline(always)]
    fn has(&self, setup_flag: u32) -> bool {
        self.setup_flags & setup_flag != 0
    }

    /// Gives the engine what was pushed; how many entries it took.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`.
    #[inline]
    pub fn submit(&self) -> Result<usize, Error> {
        self.submit_and_wait(0)
    }

    /// Gives the engine what was pushed, and waits until there are `want` completions; how many entries it took.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`; `EINTR` where a signal handler ran, unless entries were taken.
    #[inline]
    pub fn submit_and_wait(&self, want: usize) -> Result<usize, Error> {
        let Some((submit, flags)) = self.prepare(want) else { return Ok(self.pending()) };
        // SAFETY: no argument; the entries are the promise of who pushed them.
        unsafe { self.enter(submit, want as u32, flags, ptr::null(), 0) }
    }

    /// [`submit_and_wait`](Submitter::submit_and_wait) with more to say about the wait.
    ///
    /// # Errors
    /// As there, and `ETIME` where the time is over, unless entries were taken.
    pub fn submit_with(&self, want: usize, wait: &Wait<'_>) -> Result<usize, Error> {
        let Some((submit, mut flags)) = self.prepare(want) else { return Ok(self.pending()) };
        let time = wait.timeout.map(timespec);
        // SAFETY: integers only.
        let mut argument: io_uring_getevents_arg = unsafe { std::mem::zeroed() };
        if let Some(time) = &time {
            argument.ts = ptr::from_ref(time).expose_provenance() as u64;
        }
        if let Some(mask) = wait.mask {
            argument.sigmask = ptr::from_ref(mask).expose_provenance() as u64;
            argument.sigmask_sz = 8;
        }
        if let Some(least) = wait.least {
            argument.min_wait_usec = u32::try_from(least.as_micros()).unwrap_or(u32::MAX);
        }
        flags |= abi::IORING_ENTER_EXT_ARG;
        if wait.absolute {
            flags |= abi::IORING_ENTER_ABS_TIMER;
        }
        // SAFETY: the argument is whole, and what it names outlives the call.
        unsafe {
            self.enter(submit, want as u32, flags, (&raw const argument).cast(), size_of_val(&argument))
        }
    }

    /// Gives the engine what was pushed, and lets it post what is done, without waiting. Rings with
    /// [`defer_taskrun`](Builder::defer_taskrun), for one, post nothing otherwise.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`.
    pub fn submit_and_flush(&self) -> Result<usize, Error> {
        let (submit, flags) = self.prepare(0).unwrap_or((self.pending() as u32, 0));
        // SAFETY: no argument; the entries are the promise of who pushed them.
        unsafe { self.enter(submit, 0, flags | abi::IORING_ENTER_GETEVENTS, ptr::null(), 0) }
    }

    /// Waits until the polling thread has taken so much that there is room in the submission queue.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`.
    pub fn wait_for_room(&self) -> Result<usize, Error> {
        // SAFETY: no argument.
        unsafe { self.enter(0, 0, abi::IORING_ENTER_SQ_WAIT, ptr::null(), 0) }
    }

    /// `io_uring_enter(2)` as it is.
    ///
    /// # Errors
    /// As the call.
    ///
    /// # Safety
    /// `argument` must be what `flags` say.
    #[inline(always)]
    pub unsafe fn enter(
        &self,
        submit: u32,
        want: u32,
        flags: u32,
        argument: *const c_void,
        argument_bytes: usize,
    ) -> Result<usize, Error> {
        let (fd, flags) = (self.enter_fd, flags | self.enter_flags);
        // SAFETY: the caller's promise.
        let result = unsafe { engine::enter(self.engine, fd, submit, want, flags, argument, argument_bytes) };
        Error::check(self.engine, What::Enter, result).map(|count| count as usize)
    }

    /// Entries that the engine has not taken.
    #[inline(always)]
    fn pending(&self) -> usize {
        // Acquire pairs with the engine's release: it has read the entries.
        self.sq_tail.load(Ordering::Relaxed).wrapping_sub(self.sq_head.load(Ordering::Acquire)) as usize
    }

    /// What to submit and with which flags; nothing where a call is not needed.
    #[inline(always)]
    fn prepare(&self, want: usize) -> Option<(u32, u32)> {
        const WAITING: u32 = abi::IORING_SQ_CQ_OVERFLOW | abi::IORING_SQ_TASKRUN;
        let submit = self.pending() as u32;
        let mut flags = 0;
        let waiting = self.sq_flags.load(Ordering::Relaxed) & WAITING != 0;
        if want > 0 || waiting || self.has(abi::IORING_SETUP_IOPOLL) {
            flags |= abi::IORING_ENTER_GETEVENTS;
        }
        if self.has(abi::IORING_SETUP_SQPOLL) {
            // The new tail first, or thread and program could miss each other.
            fence(Ordering::SeqCst);
            if self.sq_flags.load(Ordering::Relaxed) & abi::IORING_SQ_NEED_WAKEUP != 0 {
                flags |= abi::IORING_ENTER_SQ_WAKEUP;
            } else if want == 0 && !waiting {
                return None;
            }
        }
        Some((submit, flags))
    }

    /// `io_uring_register(2)` as it is; `name` is for the error.
    ///
    /// # Errors
    /// As the call.
    ///
    /// # Safety
    /// `argument` and `count` must be what `opcode` says, and memory that is registered must stay until it is no
    /// longer.
    pub unsafe fn register(
        &self,
        name: &'static str,
        opcode: u32,
        argument: *const c_void,
        count: u32,
    ) -> Result<u32, Error> {
        // SAFETY: the caller's promise.
        let result = unsafe { engine::register(self.engine, self.fd, opcode, argument, count) };
        Error::check(self.engine, What::Register(name), result)
    }
}
