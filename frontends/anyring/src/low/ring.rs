//! A ring, and its queues.

use super::entry::{Completion, Cqe, Sqe, Sqe128, SqeMixed, Submission};
use super::queue::{CompletionQueue, Cq, Full, Sq, SubmissionQueue};
use super::submitter::{Submitter, Wait};
use crate::error::ErrorContext;
use crate::{Builder, Engine, Error, engine};
use anyring_mapping::RingMemory;
use linux_raw_sys::io_uring::{self as abi, io_uring_params};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// A ring that takes whatever it is told: each [`push`](SubmissionQueue::push) is a promise.
///
/// Its type says how large its entries are. [`split`](Ring::split) gives its parts to different owners.
pub struct Ring<S: Submission = Sqe, C: Completion = Cqe> {
    sq: Sq<S>,
    cq: Cq<C>,
    submitter: Submitter,
    /// Operations that the kernel lacks are done beside it.
    extended: bool,
    /// Children do not have its memory.
    dont_fork: bool,
    /// Unmapped after the descriptor is closed, last of all.
    memory: RingMemory,
}

/// A ring's memory, and its queues there.
struct Queues<S, C> {
    sq: Sq<S>,
    cq: Cq<C>,
    memory: RingMemory,
}

impl<S: Submission, C: Completion> Queues<S, C> {
    /// Maps what a ring with these parameters has.
    fn map(engine: Engine, fd: RawFd, p: &io_uring_params) -> Result<Queues<S, C>, Error> {
        let memory = RingMemory::map(fd, p, size_of::<S>(), size_of::<C>())
            .map_err(|errno| Error::new(engine, ErrorContext::Map, -errno.negated()))?;
        // SAFETY: mapped as the parameters say, and kept beside.
        let (sq, cq) = unsafe { (Sq::new(&memory, p), Cq::new(&memory, p)) };
        Ok(Queues { sq, cq, memory })
    }
}

impl<S: Submission, C: Completion> Ring<S, C> {
    pub(crate) fn build(builder: &Builder<'_>, engine: Engine) -> Result<Ring<S, C>, Error> {
        // Others may change what the ring's memory holds, where it is, or what the call answers: the sizes of entries are
        // the types', and what a newer kernel knows is not known here.
        const KNOWN: u32 = abi::IORING_SETUP_IOPOLL
            | abi::IORING_SETUP_HYBRID_IOPOLL
            | abi::IORING_SETUP_SQPOLL
            | abi::IORING_SETUP_SQ_AFF
            | abi::IORING_SETUP_CQSIZE
            | abi::IORING_SETUP_CLAMP
            | abi::IORING_SETUP_ATTACH_WQ
            | abi::IORING_SETUP_R_DISABLED
            | abi::IORING_SETUP_SUBMIT_ALL
            | abi::IORING_SETUP_COOP_TASKRUN
            | abi::IORING_SETUP_TASKRUN_FLAG
            | abi::IORING_SETUP_SINGLE_ISSUER
            | abi::IORING_SETUP_DEFER_TASKRUN
            | abi::IORING_SETUP_NO_SQARRAY;
        if builder.flags & !KNOWN != 0 {
            return Err(Error::new(engine, ErrorContext::Setup, libc::EINVAL));
        }
        // Nobody needs the array; the kernel can do without it since 6.6.
        let flags = builder.flags | S::SETUP_FLAGS | C::SETUP_FLAGS;
        let without = flags | abi::IORING_SETUP_NO_SQARRAY;
        let ring = Ring::with_flags(builder, engine, without);
        if ring
            .as_ref()
            .is_err_and(|error| error.errno() == libc::EINVAL && error.context() == ErrorContext::Setup)
        {
            return Ring::with_flags(builder, engine, flags);
        }
        ring
    }

    /// Builds a ring by the engine that [`Engine::Auto`] stands for: anyring's for a ring with flags that the kernel is too old for.
    pub(crate) fn build_by_either(builder: &Builder<'_>) -> Result<Ring<S, C>, Error> {
        let engine = Engine::Auto.resolve();
        engine::begin(engine);
        let ring = Ring::build(builder, engine);
        let Err(error) = &ring else { return ring };
        let mut p = Ring::<S, C>::parameters(builder, builder.flags | S::SETUP_FLAGS | C::SETUP_FLAGS);
        let is_setup = engine == Engine::Kernel && error.context() == ErrorContext::Setup;
        if !is_setup || !engine::outdoes_kernel(error.errno(), builder.entries, &mut p) {
            return ring;
        }
        engine::begin(Engine::User);
        Ring::build(builder, Engine::User)
    }

    /// The parameters of the call.
    fn parameters(builder: &Builder<'_>, flags: u32) -> io_uring_params {
        // SAFETY: integers only.
        let mut p: io_uring_params = unsafe { std::mem::zeroed() };
        p.flags = flags;
        p.cq_entries = builder.cq_entries;
        p.sq_thread_cpu = builder.sq_thread_cpu;
        p.sq_thread_idle = builder.sq_thread_idle;
        p.wq_fd = builder.attach_to.map_or(0, |ring| ring.as_raw_fd() as u32);
        p
    }

    fn with_flags(builder: &Builder<'_>, engine: Engine, flags: u32) -> Result<Ring<S, C>, Error> {
        let mut p = Ring::<S, C>::parameters(builder, flags);
        // SAFETY: structures of ours.
        let result = unsafe { engine::setup(engine, builder.entries, &mut p) };
        let fd = Error::check(engine, ErrorContext::Setup, result)? as RawFd;
        Ring::map(builder, engine, fd, &p).inspect_err(|_| engine::close(engine, fd))
    }

    fn map(
        builder: &Builder<'_>,
        engine: Engine,
        fd: RawFd,
        p: &io_uring_params,
    ) -> Result<Ring<S, C>, Error> {
        let Queues { sq, mut cq, memory } = Queues::map(engine, fd, p)?;
        if builder.pollable {
            Ring::<S, C>::show(engine, fd, &mut cq)?;
        }
        if builder.dont_fork {
            memory.dont_fork();
        }
        let submitter = Submitter::new(engine, fd, p, &sq);
        Ok(Ring { sq, cq, submitter, extended: false, dont_fork: builder.dont_fork, memory })
    }

    /// Lets the descriptor be polled.
    fn show(engine: Engine, fd: RawFd, cq: &mut Cq<C>) -> Result<(), Error> {
        engine::show_readiness(engine, fd)
            .map_err(|errno| Error::new(engine, ErrorContext::Use("polling of a ring"), -errno))?;
        cq.shown = (engine == Engine::User).then_some(fd);
        Ok(())
    }

    /// Lets nobody write into the ring's memory by its descriptor, which any code may duplicate and make a file of: for
    /// who believes what is in that memory.
    pub(crate) fn shut_memory(&mut self) -> Result<(), Error> {
        let (engine, fd) = (self.engine(), self.submitter.fd());
        // What shows its readiness is an eventfd to the program, and what cannot be sealed becomes one.
        if self.cq.shown.is_some() || engine::seal(engine, fd) {
            return Ok(());
        }
        Ring::<S, C>::show(engine, fd, &mut self.cq)
    }

    /// The engine that it has.
    pub fn engine(&self) -> Engine {
        self.submitter.engine()
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

    /// True if the submission queue has room for so many.
    #[inline(always)]
    pub(crate) fn has_room(&self, count: usize) -> bool {
        self.sq.has_room(count)
    }

    /// [`push`](Ring::push) where there is room.
    ///
    /// # Safety
    /// As there, and there must be.
    #[inline(always)]
    pub(crate) unsafe fn push_into_room(&mut self, entry: S) {
        // SAFETY: the caller's promise.
        unsafe { self.sq.push(entry) };
    }

    /// The next completion, which stays where it is.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<C> {
        self.cq.peek()
    }

    /// Takes what [`peek`](Ring::peek) has found.
    #[inline(always)]
    pub(crate) fn pass(&mut self) {
        self.cq.pass();
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
        const CALL: ErrorContext = ErrorContext::Register("RESIZE_RINGS");
        let (engine, fd) = (self.submitter.engine(), self.submitter.fd());
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
        p.features = self.submitter.features();
        p.flags = self.submitter.setup_flags();
        let Queues { sq, cq, memory } = Queues::map(engine, fd, &p)?;
        if self.dont_fork {
            memory.dont_fork();
        }
        self.submitter.follow(&sq);
        (self.sq, self.cq, self.memory) = (sq, cq, memory);
        Ok(())
    }

    /// Registers the ring's own descriptor with the calling thread, so that its submissions look up no descriptor.
    /// Where in the thread's table it stands. From then on, no other thread may enter the ring.
    ///
    /// # Errors
    /// As `IORING_REGISTER_RING_FDS`.
    pub fn register_ring_fd(&mut self) -> Result<u32, Error> {
        self.submitter.register_ring_fd()
    }

    /// Takes it back.
    ///
    /// # Errors
    /// As `IORING_UNREGISTER_RING_FDS`.
    pub fn unregister_ring_fd(&mut self) -> Result<(), Error> {
        self.submitter.unregister_ring_fd()
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
        let (fd, setup_flags, features) =
            (self.submitter.fd(), self.submitter.setup_flags(), self.submitter.features());
        let mut taken = 0;
        if self.extended {
            // SAFETY: the entries are the promise of who pushed them.
            let private = unsafe { self.sq.take_private(fd, setup_flags, features) };
            taken = private.count as usize;
            if private.brings_files {
                // Nobody may wait before what they are for has begun.
                let (count, failed) = self.submit_all();
                anyring_kernel_ring::deliver(fd);
                taken += count;
                if let Some(error) = failed {
                    // What is left brings its files when it is next submitted.
                    return if taken == 0 { Err(error) } else { Ok(taken) };
                }
            }
        }
        // As the kernel does, which tells of an error only where nothing was submitted.
        submit(&self.submitter)
            .map(|count| count + taken)
            .or_else(|error| if taken == 0 { Err(error) } else { Ok(taken) })
    }

    /// Gives the kernel all that was pushed: a bad entry ends a submission, and the rest follows. How many entries it took, and
    /// why not the rest.
    fn submit_all(&self) -> (usize, Option<Error>) {
        let mut taken = 0;
        while self.submitter.pending() > 0 {
            match self.submitter.submit() {
                Ok(0) => break,
                Ok(count) => taken += count,
                Err(error) => return (taken, Some(error)),
            }
        }
        (taken, None)
    }

    /// Lets the ring have operations that no kernel has, [`Getdents`](super::op::Getdents) for one, over the kernel, too:
    /// they are done beside it, and their completions come to the same queue. Whether that can be had: rings of
    /// anyring's engine have them anyway; over the kernel it takes Linux 6.3, and neither
    /// [`io_poll`](Builder::io_poll) nor [`sq_poll`](Builder::sq_poll) nor [`start_disabled`](Builder::start_disabled).
    /// What newer kernels have of timeouts and sockets comes with it (`docs/private-operations.md`).
    /// It goes for what is submitted by the ring itself, not by its [`Submitter`].
    pub fn serve_private_operations(&mut self) -> bool {
        if self.engine() == Engine::User || self.extended {
            return true;
        }
        let (setup_flags, features) = (self.submitter.setup_flags(), self.submitter.features());
        self.extended = anyring_kernel_ring::is_possible(features, setup_flags)
            && setup_flags & abi::IORING_SETUP_SQPOLL == 0
            && engine::extend();
        self.extended
    }

    /// Asks which operations there are, those included for which
    /// [`serve_private_operations`](Ring::serve_private_operations) was called.
    ///
    /// # Errors
    /// As [`Control::probe`](super::Control::probe).
    pub fn probe(&self) -> Result<super::Probe, Error> {
        let mut probe = self.submitter.probe()?;
        if self.extended {
            probe.add_private();
        }
        Ok(probe)
    }
}

impl<C: Completion> Ring<SqeMixed, C> {
    /// [`SubmissionQueue::push_wide`].
    ///
    /// # Errors
    /// [`Full`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn push_wide(&mut self, entry: impl Into<Sqe128>) -> Result<(), Full> {
        // SAFETY: the caller's promise.
        unsafe { self.sq.borrow().push_wide(entry) }
    }
}

impl<S: Submission, C: Completion> Drop for Ring<S, C> {
    fn drop(&mut self) {
        // The place in the thread's table is free at once, rather than when the thread ends.
        let _ = self.submitter.unregister_ring_fd();
        if self.extended {
            anyring_kernel_ring::close(self.submitter.fd());
        }
        engine::close(self.submitter.engine(), self.submitter.fd());
    }
}

impl<S: Submission, C: Completion> AsRawFd for Ring<S, C> {
    fn as_raw_fd(&self) -> RawFd {
        self.submitter.fd()
    }
}

impl<S: Submission, C: Completion> AsFd for Ring<S, C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the ring is.
        unsafe { BorrowedFd::borrow_raw(self.submitter.fd()) }
    }
}
