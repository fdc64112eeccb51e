//! A ring, and its queues.

use super::entry::{Completion, Cqe, Sqe, Sqe128, SqeMixed, Submission};
use super::queue::{CompletionQueue, Cq, Full, Sq, SubmissionQueue};
use super::submitter::{Submitter, Wait};
use crate::error::ErrorContext;
use crate::{Builder, Engine, Error, engine};
use anyring_mapping::RingMemory;
use linux_raw_sys::io_uring::{self as abi, io_uring_params};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// A low-level ring: each [`push`](SubmissionQueue::push) is a promise of the caller.
///
/// The types `S` and `C` say the sizes of its entries. [`split`](Ring::split) lends its parts to different users.
pub struct Ring<S: Submission = Sqe, C: Completion = Cqe> {
    sq: Sq<S>,
    cq: Cq<C>,
    submitter: Submitter,
    /// Operations that the kernel lacks are done in user space.
    extended: bool,
    /// Children do not get the ring's memory.
    dont_fork: bool,
    /// Last field, so that the memory is unmapped after the descriptor is closed.
    memory: RingMemory,
}

/// A ring's memory, and the queues in it.
struct Queues<S, C> {
    sq: Sq<S>,
    cq: Cq<C>,
    memory: RingMemory,
}

impl<S: Submission, C: Completion> Queues<S, C> {
    /// Maps the memory of a ring with these parameters.
    fn map(engine: Engine, fd: RawFd, p: &io_uring_params) -> Result<Queues<S, C>, Error> {
        let memory = RingMemory::map(fd, p, size_of::<S>(), size_of::<C>())
            .map_err(|errno| Error::new(engine, ErrorContext::Map, -errno.negated()))?;
        // SAFETY: the memory is mapped as the parameters say, and is kept with the queues.
        let (sq, cq) = unsafe { (Sq::new(&memory, p), Cq::new(&memory, p)) };
        Ok(Queues { sq, cq, memory })
    }
}

impl<S: Submission, C: Completion> Ring<S, C> {
    pub(crate) fn build(builder: &Builder<'_>, engine: Engine) -> Result<Ring<S, C>, Error> {
        // Other flags may change the content or the place of the ring's memory, or the call's result: the types determine the
        // sizes of entries, and flags of newer kernels are unknown here.
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
        // The array is of no use; the kernel can do without it since 6.6.
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

    /// Builds a ring with the engine that [`Engine::Auto`] stands for; with anyring's engine if the kernel is too old for the ring's flags.
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

    /// Returns the parameters of `io_uring_setup`.
    fn parameters(builder: &Builder<'_>, flags: u32) -> io_uring_params {
        // SAFETY: a structure of integers.
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
        // SAFETY: the structures are this function's own.
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

    /// Makes the descriptor pollable.
    fn show(engine: Engine, fd: RawFd, cq: &mut Cq<C>) -> Result<(), Error> {
        engine::show_readiness(engine, fd)
            .map_err(|errno| Error::new(engine, ErrorContext::Use("polling of a ring"), -errno))?;
        cq.shown = (engine == Engine::User).then_some(fd);
        Ok(())
    }

    /// Removes write access to the ring's memory through its descriptor, which any code may duplicate and turn into a file. A
    /// safe ring needs this, because it trusts the content of the memory.
    pub(crate) fn shut_memory(&mut self) -> Result<(), Error> {
        let (engine, fd) = (self.engine(), self.submitter.fd());
        // The descriptor of a pollable ring is an eventfd; a descriptor that cannot be sealed is made one.
        if self.cq.shown.is_some() || engine::seal(engine, fd) {
            return Ok(());
        }
        Ring::<S, C>::show(engine, fd, &mut self.cq)
    }

    /// The ring's engine.
    pub fn engine(&self) -> Engine {
        self.submitter.engine()
    }

    /// Returns the submission queue.
    #[inline]
    pub fn submission(&mut self) -> SubmissionQueue<'_, S> {
        self.sq.borrow()
    }

    /// Returns the completion queue.
    #[inline]
    pub fn completion(&mut self) -> CompletionQueue<'_, C> {
        self.cq.borrow()
    }

    /// True if the submission queue has room for `count` entries.
    #[inline(always)]
    pub(crate) fn has_room(&self, count: usize) -> bool {
        self.sq.has_room(count)
    }

    /// Pushes an entry as [`push`](Ring::push) does, into a queue with room.
    ///
    /// # Safety
    /// As for [`push`](Ring::push), and the queue must have room.
    #[inline(always)]
    pub(crate) unsafe fn push_into_room(&mut self, entry: S) {
        // SAFETY: the caller's promise.
        unsafe { self.sq.push(entry) };
    }

    /// Returns the next completion, which stays in the queue.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<C> {
        self.cq.peek()
    }

    /// Gives back the place of the completion that [`peek`](Ring::peek) returned.
    #[inline(always)]
    pub(crate) fn pass(&mut self) {
        self.cq.pass();
    }

    /// Returns the submitter, which makes the ring's calls.
    #[inline]
    pub fn submitter(&self) -> &Submitter {
        &self.submitter
    }

    /// Replaces the queues by queues of other sizes, which keep the entries that are not taken yet. This requires
    /// [`defer_taskrun`](Builder::defer_taskrun), and Linux 6.13 with the kernel's engine.
    ///
    /// # Errors
    /// As `IORING_REGISTER_RESIZE_RINGS`: `EOVERFLOW` if the entries do not fit; `EBUSY` for a
    /// [`pollable`](Builder::pollable) ring of anyring's engine, which cannot be mapped again.
    pub fn resize(&mut self, entries: u32, cq_entries: u32) -> Result<(), Error> {
        const CALL: ErrorContext = ErrorContext::Register("RESIZE_RINGS");
        let (engine, fd) = (self.submitter.engine(), self.submitter.fd());
        if self.cq.shown.is_some() {
            return Err(Error::new(engine, CALL, libc::EBUSY));
        }
        // SAFETY: a structure of integers.
        let mut p: io_uring_params = unsafe { std::mem::zeroed() };
        (p.sq_entries, p.cq_entries, p.flags) = (entries, cq_entries, abi::IORING_SETUP_CQSIZE);
        let code = abi::io_uring_register_op::IORING_REGISTER_RESIZE_RINGS as u32;
        // SAFETY: the structure is complete; the call writes it.
        unsafe { self.submitter.register("RESIZE_RINGS", code, (&raw mut p).cast_const().cast(), 1)? };
        // The call does not return the features and the setup flags, which stay the same.
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

    /// Registers the ring's own descriptor with the calling thread, so that calls need not look up the descriptor.
    /// Returns its index in the thread's table. From then on, no other thread may enter the ring.
    ///
    /// # Errors
    /// As `IORING_REGISTER_RING_FDS`.
    pub fn register_ring_fd(&mut self) -> Result<u32, Error> {
        self.submitter.register_ring_fd()
    }

    /// Unregisters the ring's own descriptor.
    ///
    /// # Errors
    /// As `IORING_UNREGISTER_RING_FDS`.
    pub fn unregister_ring_fd(&mut self) -> Result<(), Error> {
        self.submitter.unregister_ring_fd()
    }

    /// Borrows the ring's parts, for threads that do different things with it.
    pub fn split(&mut self) -> (&Submitter, SubmissionQueue<'_, S>, CompletionQueue<'_, C>) {
        (&self.submitter, self.sq.borrow(), self.cq.borrow())
    }

    /// Calls [`SubmissionQueue::push`].
    ///
    /// # Errors
    /// [`Full`].
    ///
    /// # Safety
    /// As for [`SubmissionQueue::push`].
    #[inline]
    pub unsafe fn push(&mut self, entry: impl Into<S>) -> Result<(), Full> {
        // SAFETY: the caller's promise.
        unsafe { self.sq.borrow().push(entry) }
    }

    /// Calls [`Submitter::submit`], after starting what [`serve_private_operations`](Ring::serve_private_operations) has enabled.
    ///
    /// # Errors
    /// As for the method of [`Submitter`].
    #[inline]
    pub fn submit(&mut self) -> Result<usize, Error> {
        self.submit_and_wait(0)
    }

    /// Calls [`Submitter::submit_and_wait`], after starting what [`serve_private_operations`](Ring::serve_private_operations) has enabled.
    ///
    /// # Errors
    /// As for the method of [`Submitter`].
    #[inline]
    pub fn submit_and_wait(&mut self, want: usize) -> Result<usize, Error> {
        if self.extended {
            return self.submit_extended(|submitter| submitter.submit_and_wait(want));
        }
        self.submitter.submit_and_wait(want)
    }

    /// Calls [`Submitter::submit_with`], after starting what [`serve_private_operations`](Ring::serve_private_operations) has enabled.
    ///
    /// # Errors
    /// As for the method of [`Submitter`].
    pub fn submit_with(&mut self, want: usize, wait: &Wait<'_>) -> Result<usize, Error> {
        self.submit_extended(|submitter| submitter.submit_with(want, wait))
    }

    /// Calls [`Submitter::submit_and_flush`], after starting what [`serve_private_operations`](Ring::serve_private_operations) has enabled.
    ///
    /// # Errors
    /// As for the method of [`Submitter`].
    pub fn submit_and_flush(&mut self) -> Result<usize, Error> {
        self.submit_extended(Submitter::submit_and_flush)
    }

    /// Submits on a ring whose entries may include operations that the kernel lacks.
    #[cold]
    fn submit_extended(
        &mut self,
        submit: impl FnOnce(&Submitter) -> Result<usize, Error>,
    ) -> Result<usize, Error> {
        let (fd, setup_flags, features) =
            (self.submitter.fd(), self.submitter.setup_flags(), self.submitter.features());
        let mut taken = 0;
        if self.extended {
            // SAFETY: callers of `push` have promised that the entries are valid.
            let private = unsafe { self.sq.take_private(fd, setup_flags, features) };
            taken = private.count as usize;
            if private.brings_files {
                // These entries bring files for the private operations, which must begin before a thread waits.
                let (count, failed) = self.submit_all();
                anyring_kernel_ring::deliver(fd);
                taken += count;
                if let Some(error) = failed {
                    // The files of the remaining entries come with the next submission.
                    return if taken == 0 { Err(error) } else { Ok(taken) };
                }
            }
        }
        // The kernel, too, reports an error only if nothing was submitted.
        submit(&self.submitter)
            .map(|count| count + taken)
            .or_else(|error| if taken == 0 { Err(error) } else { Ok(taken) })
    }

    /// Submits everything that was pushed to the kernel: after a bad entry, which ends a submission, the rest follows. Returns how many
    /// entries the kernel took, and the error that kept it from taking the rest.
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

    /// Enables operations that no kernel has, [`Getdents`](super::op::Getdents) for example. With the kernel's engine, they are
    /// performed in user space, and their completions are posted to the same queue. Returns true if they are available: always on
    /// anyring's engine; with the kernel's engine they require Linux 6.3, and exclude
    /// [`io_poll`](Builder::io_poll), [`sq_poll`](Builder::sq_poll) and [`start_disabled`](Builder::start_disabled).
    /// Features of newer kernels for timeouts and sockets are included (`docs/private-operations.md`).
    /// This applies to submissions through the ring itself, not to those through its [`Submitter`].
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

    /// Asks which operations the ring has, including those that
    /// [`serve_private_operations`](Ring::serve_private_operations) has enabled.
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
    /// Calls [`SubmissionQueue::push_wide`].
    ///
    /// # Errors
    /// [`Full`].
    ///
    /// # Safety
    /// As for [`SubmissionQueue::push_wide`].
    pub unsafe fn push_wide(&mut self, entry: impl Into<Sqe128>) -> Result<(), Full> {
        // SAFETY: the caller's promise.
        unsafe { self.sq.borrow().push_wide(entry) }
    }
}

impl<S: Submission, C: Completion> Drop for Ring<S, C> {
    fn drop(&mut self) {
        // Frees the place in the thread's table now, instead of when the thread ends.
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
        // SAFETY: the descriptor is open as long as the ring is.
        unsafe { BorrowedFd::borrow_raw(self.submitter.fd()) }
    }
}
