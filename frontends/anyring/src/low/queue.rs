//! The two queues in a ring's memory.

use super::entry::{Completion, Sqe128, SqeMixed, Submission};
use super::op;
use anyring_mapping::RingMemory;
use linux_raw_sys::io_uring::{
    IORING_SQ_CQ_OVERFLOW, IORING_SQ_NEED_WAKEUP, IORING_SQ_TASKRUN, io_uring_params,
};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// The error of a push to a submission queue without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the submission queue is full: submit what is there")
    }
}

impl std::error::Error for Full {}

/// A word in ring memory, which lives as long as the ring.
#[derive(Clone, Copy)]
pub(super) struct Word(*const AtomicU32);

// SAFETY: the word is accessed atomically only.
unsafe impl Send for Word {}
// SAFETY: the word is accessed atomically only.
unsafe impl Sync for Word {}

impl Word {
    /// # Safety
    /// The memory must be mapped whenever the word is used.
    pub(super) unsafe fn new(address: *const AtomicU32) -> Word {
        Word(address)
    }

    #[inline(always)]
    pub(super) fn load(self, order: Ordering) -> u32 {
        // SAFETY: the promise of `new`.
        unsafe { (*self.0).load(order) }
    }

    #[inline(always)]
    fn store(self, value: u32, order: Ordering) {
        // SAFETY: the promise of `new`.
        unsafe { (*self.0).store(value, order) }
    }
}

/// The program's side of the submission queue, into which it puts requests.
pub(super) struct Sq<S> {
    pub(super) head: Word,
    pub(super) tail: Word,
    pub(super) flags: Word,
    dropped: Word,
    entries: u32,
    /// The number of entries minus one.
    mask: u32,
    sqes: *mut S,
    /// The index of the last entry that takes two places.
    last_wide: Option<u32>,
    /// A thread of the engine polls the queue.
    polled: bool,
}

// SAFETY: only the owner of the ring, or of this half of the ring, uses the queue.
unsafe impl<S> Send for Sq<S> {}
// SAFETY: shared access reads atomics only.
unsafe impl<S> Sync for Sq<S> {}

impl<S: Submission> Sq<S> {
    /// # Safety
    /// `memory` must be the memory of a ring with these parameters, and must stay mapped.
    pub(super) unsafe fn new(memory: &RingMemory, p: &io_uring_params) -> Sq<S> {
        let off = &p.sq_off;
        // SAFETY: the offsets are the engine's.
        let word = |offset| unsafe { Word::new(memory.sq_ring().at::<AtomicU32>(offset)) };
        Sq {
            head: word(off.head),
            tail: word(off.tail),
            flags: word(off.flags),
            dropped: word(off.dropped),
            entries: p.sq_entries,
            mask: p.sq_entries - 1,
            // SAFETY: the SQEs begin there.
            sqes: unsafe { memory.sqes().at(0) },
            last_wide: None,
            polled: p.flags & linux_raw_sys::io_uring::IORING_SETUP_SQPOLL != 0,
        }
    }

    #[inline(always)]
    pub(super) fn borrow(&mut self) -> SubmissionQueue<'_, S> {
        // Only the program writes the tail. Acquire pairs with the engine's release after it has read the entries.
        let (head, tail) = (self.head.load(Ordering::Acquire), self.tail.load(Ordering::Relaxed));
        SubmissionQueue { head, tail, sq: self }
    }

    /// True if there is room for `count` entries.
    #[inline(always)]
    pub(super) fn has_room(&self, count: usize) -> bool {
        // Orders as in `borrow`.
        let (head, tail) = (self.head.load(Ordering::Acquire), self.tail.load(Ordering::Relaxed));
        (self.entries - tail.wrapping_sub(head)) as usize >= count
    }

    /// Puts a request into the queue, and makes it visible to the engine.
    ///
    /// # Safety
    /// As for [`SubmissionQueue::push`], and there must be room.
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, entry: S) {
        let tail = self.tail.load(Ordering::Relaxed);
        // SAFETY: a free place of the queue, which the engine does not read until the tail includes it.
        unsafe { self.sqes.add((tail & self.mask) as usize).write(entry) };
        // Release as in `SubmissionQueue::sync`.
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
    }
}

impl<S: Submission> Sq<S> {
    /// Removes the operations that the kernel lacks from the queue, and begins them.
    ///
    /// # Safety
    /// The entries must name valid memory, as promised for `push`; `fd`, `flags` and `features` must be the ring's.
    pub(super) unsafe fn take_private(
        &mut self,
        fd: i32,
        flags: u32,
        features: u32,
    ) -> anyring_kernel_ring::Taken {
        // Acquire as in `borrow`.
        let head = self.head.load(Ordering::Acquire);
        let queue = anyring_kernel_ring::Queue {
            fd,
            flags,
            features,
            sqes: self.sqes.cast(),
            mask: self.mask,
            taken: head,
            head,
            tail: self.tail.load(Ordering::Relaxed),
        };
        // SAFETY: the caller's promise; nothing else uses the queue.
        let taken = unsafe { anyring_kernel_ring::take(&queue) };
        // The kernel reads the tail when it is entered.
        self.tail.store(taken.tail, Ordering::Release);
        taken
    }
}

/// The submission queue of a [`Ring`](super::Ring).
///
/// The engine sees pushed entries when the queue is dropped, or after [`sync`](SubmissionQueue::sync).
pub struct SubmissionQueue<'a, S> {
    /// The head when it was last read: the engine has taken at least the entries before it.
    head: u32,
    tail: u32,
    sq: &'a mut Sq<S>,
}

impl<S: Submission> SubmissionQueue<'_, S> {
    /// Puts a request into the queue. The engine does not read it before the next
    /// [`submit`](super::Submitter::submit) (unless a thread of the engine polls the queue).
    ///
    /// # Errors
    /// [`Full`] if there was no room when the queue's head was last read: when the queue was borrowed, or by
    /// [`sync`](SubmissionQueue::sync).
    ///
    /// # Safety
    /// All memory that the entry names must be as the operation requires, and must stay so until the request's last completion.
    /// Times, paths, addresses and arrays of buffers must stay only until the submission, which copies them. Descriptors must stay
    /// open until the entry is submitted. A ring that is dropped does not wait for its requests.
    ///
    /// An entry that posts a completion to another ring ([`MsgRing`](super::op::MsgRing)) needs the consent of that ring's
    /// owner, who may trust the completion: a safe [`Ring`](crate::Ring) accepts only completions with the user data
    /// `u64::MAX`. The same holds for an entry that changes the user data of another request ([`PollRemove`](super::op::PollRemove)).
    #[inline]
    pub unsafe fn push(&mut self, entry: impl Into<S>) -> Result<(), Full> {
        if self.tail.wrapping_sub(self.head) == self.sq.entries {
            return Err(Full);
        }
        let index = (self.tail & self.sq.mask) as usize;
        // SAFETY: a free place of the queue, which the engine does not read until the tail includes it.
        unsafe { self.sq.sqes.add(index).write(entry.into()) };
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Makes pushed entries visible to the engine, and reads how many entries the engine has taken. Dropping the queue
    /// makes entries visible, too; `sync` is needed only if another thread submits.
    #[inline]
    pub fn sync(&mut self) {
        // Release pairs with the engine's acquire: the entries are written before the tail.
        self.sq.tail.store(self.tail, Ordering::Release);
        // Acquire as in `Sq::borrow`.
        self.head = self.sq.head.load(Ordering::Acquire);
    }

    /// Puts several requests into the queue, all of them or none.
    ///
    /// # Errors
    /// [`Full`].
    ///
    /// # Safety
    /// As for [`push`](SubmissionQueue::push), for each entry.
    #[inline]
    pub unsafe fn push_all(&mut self, entries: &[S]) -> Result<(), Full> {
        if self.free() < entries.len() {
            return Err(Full);
        }
        for &entry in entries {
            // SAFETY: the caller's promise.
            unsafe { self.push(entry)? };
        }
        Ok(())
    }

    /// Removes the entries that the engine has not taken, unless a thread of the engine polls the queue. Returns their user
    /// data.
    pub(crate) fn take_back(&mut self) -> Vec<u64>
    where
        S: AsRef<super::Sqe>,
    {
        if self.sq.polled {
            return Vec::new();
        }
        self.sync();
        let user_data = |place: u32| {
            let index = (self.head.wrapping_add(place) & self.sq.mask) as usize;
            // SAFETY: this side has written the entry, and nothing else accesses it now.
            unsafe { &*self.sq.sqes.add(index) }.as_ref().get_user_data()
        };
        let taken = (0..self.tail.wrapping_sub(self.head)).map(user_data).collect();
        // The engine reads the tail only when it is entered, which does not happen meanwhile.
        self.tail = self.head;
        self.sync();
        taken
    }

    /// The number of entries for which there is room.
    pub fn free(&mut self) -> usize {
        self.sync();
        self.capacity() - self.tail.wrapping_sub(self.head) as usize
    }

    /// The number of entries that the engine has not taken yet.
    pub fn len(&self) -> usize {
        // Acquire as in `Sq::borrow`.
        self.tail.wrapping_sub(self.sq.head.load(Ordering::Acquire)) as usize
    }

    /// True if the engine has taken all entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if there is no room.
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    /// The number of entries for which an empty queue has room.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.sq.entries as usize
    }

    /// The number of invalid entries that the engine has skipped.
    pub fn dropped(&self) -> u32 {
        self.sq.dropped.load(Ordering::Relaxed)
    }

    /// True if completions wait for room in the completion queue.
    pub fn cq_overflow(&self) -> bool {
        self.sq.flags.load(Ordering::Relaxed) & IORING_SQ_CQ_OVERFLOW != 0
    }

    /// True if completions wait for a call of `io_uring_enter`.
    pub fn taskrun(&self) -> bool {
        self.sq.flags.load(Ordering::Relaxed) & IORING_SQ_TASKRUN != 0
    }

    /// True if the polling thread sleeps.
    pub fn needs_wakeup(&self) -> bool {
        // The new tail must be visible before the flag is read, or the thread could sleep without having seen the new
        // entries, while the program does not see the flag.
        fence(Ordering::SeqCst);
        self.sq.flags.load(Ordering::Relaxed) & IORING_SQ_NEED_WAKEUP != 0
    }
}

impl SubmissionQueue<'_, SqeMixed> {
    /// Puts a request of 128 bytes into the queue, which takes two adjacent places. If only the last place before the queue's
    /// end is left, that place gets a [`Nop`](op::Nop) without a completion. After a linked entry the no-op is a member of the
    /// chain; if the chain is broken, the no-op completes with `ECANCELED` and the user data `u64::MAX`.
    ///
    /// # Errors
    /// [`Full`] if the two places, or three with the no-op, are not free.
    ///
    /// # Safety
    /// As for [`push`](SubmissionQueue::push).
    pub unsafe fn push_wide(&mut self, entry: impl Into<Sqe128>) -> Result<(), Full> {
        let entries = self.sq.entries;
        let is_last_place = self.tail & self.sq.mask == entries - 1;
        let needed = if is_last_place { 3 } else { 2 };
        if entries - self.tail.wrapping_sub(self.head) < needed {
            return Err(Full);
        }
        // SAFETY: there is room. The NOP names no memory; for the entry it is the caller's promise.
        unsafe {
            if is_last_place {
                let mut nop = op::Nop::new().build().user_data(u64::MAX).skip_success();
                nop.0.flags |= self.links();
                self.push(nop)?;
            }
            self.sq.last_wide = Some(self.tail);
            entry.into().halves().into_iter().try_for_each(|half| self.push(half))
        }
    }

    /// Returns the flags that link the last entry to the next one, if the engine has not taken the last entry.
    fn links(&self) -> u8 {
        if self.tail == self.head {
            return 0;
        }
        let was_wide = self.sq.last_wide == Some(self.tail.wrapping_sub(2));
        let last = self.tail.wrapping_sub(if was_wide { 2 } else { 1 });
        // SAFETY: this side has written the entry, and nothing else writes it.
        unsafe { &*self.sq.sqes.add((last & self.sq.mask) as usize) }.0.links()
    }
}

impl<S> Drop for SubmissionQueue<'_, S> {
    #[inline]
    fn drop(&mut self) {
        // Release as in `sync`.
        self.sq.tail.store(self.tail, Ordering::Release);
    }
}

/// The program's side of the completion queue, in which it finds results.
pub(super) struct Cq<C> {
    head: Word,
    tail: Word,
    overflow: Word,
    flags: Option<Word>,
    /// The number of entries minus one.
    mask: u32,
    cqes: *const C,
    /// The pollable descriptor of the ring; the engine is told when the queue is found empty.
    pub(super) shown: Option<i32>,
}

// SAFETY: only the owner of the ring, or of this half of the ring, uses the queue.
unsafe impl<C> Send for Cq<C> {}
// SAFETY: shared access reads atomics only.
unsafe impl<C> Sync for Cq<C> {}

impl<C: Completion> Cq<C> {
    /// # Safety
    /// `memory` must be the memory of a ring with these parameters, and must stay mapped.
    pub(super) unsafe fn new(memory: &RingMemory, p: &io_uring_params) -> Cq<C> {
        let off = &p.cq_off;
        let ring = memory.cq_ring();
        // SAFETY: the offsets are the engine's.
        let word = |offset| unsafe { Word::new(ring.at::<AtomicU32>(offset)) };
        Cq {
            head: word(off.head),
            tail: word(off.tail),
            overflow: word(off.overflow),
            flags: (off.flags != 0).then(|| word(off.flags)),
            mask: p.cq_entries - 1,
            // SAFETY: the CQEs begin there.
            cqes: unsafe { ring.at(off.cqes) },
            shown: None,
        }
    }

    #[inline(always)]
    pub(super) fn borrow(&mut self) -> CompletionQueue<'_, C> {
        // Only the program writes the head. Acquire pairs with the release of the thread that posts: the CQEs are written.
        let (head, tail) = (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Acquire));
        if head == tail {
            self.found_nothing();
        }
        CompletionQueue { head, tail, cq: self }
    }

    #[inline(always)]
    fn found_nothing(&self) {
        if let Some(fd) = self.shown {
            crate::engine::found_nothing(fd);
        }
    }

    /// Returns the next completion, which stays in the queue until [`pass`](Cq::pass).
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<C> {
        // Orders as in `borrow`.
        let (head, tail) = (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Acquire));
        if head == tail {
            self.found_nothing();
            return None;
        }
        // SAFETY: the completion was posted, and its place was not given back.
        Some(unsafe { self.cqes.add((head & self.mask) as usize).read() })
    }

    /// Gives back the place of the completion that [`peek`](Cq::peek) returned.
    #[inline(always)]
    pub(super) fn pass(&mut self) {
        // Orders as in `borrow` and `CompletionQueue::sync`.
        self.head.store(self.head.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// The completion queue of a [`Ring`](super::Ring), as an iterator over the completions that are there.
///
/// The places of taken completions are given back to the engine when the queue is dropped, or by
/// [`sync`](CompletionQueue::sync).
pub struct CompletionQueue<'a, C: Completion> {
    head: u32,
    tail: u32,
    cq: &'a mut Cq<C>,
}

impl<C: Completion> CompletionQueue<'_, C> {
    /// Gives the places of taken completions back, and reads how many completions are there now.
    #[inline]
    pub fn sync(&mut self) {
        // Release pairs with the engine's acquire: the CQEs are read before the head moves.
        self.cq.head.store(self.head, Ordering::Release);
        // Acquire as in `Cq::borrow`.
        self.tail = self.cq.tail.load(Ordering::Acquire);
    }

    /// The number of completions that are there.
    #[inline]
    pub fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head) as usize
    }

    /// True if no completion is there.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// True if the queue has no more room.
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    /// The number of completions for which an empty queue has room.
    pub fn capacity(&self) -> usize {
        self.cq.mask as usize + 1
    }

    /// The number of completions that were lost because room or memory was missing.
    pub fn overflow(&self) -> u32 {
        self.cq.overflow.load(Ordering::Relaxed)
    }

    /// Switches the registered eventfd off or on; `false` if this kernel does not have the flag for it.
    pub fn set_eventfd_enabled(&mut self, enabled: bool) -> bool {
        const DISABLED: u32 = linux_raw_sys::io_uring::IORING_CQ_EVENTFD_DISABLED;
        let Some(flags) = self.cq.flags else { return false };
        flags.store(if enabled { 0 } else { DISABLED }, Ordering::Relaxed);
        true
    }
}

impl<C: Completion> Iterator for CompletionQueue<'_, C> {
    type Item = C;

    #[inline]
    fn next(&mut self) -> Option<C> {
        if self.head == self.tail {
            return None;
        }
        let index = self.head & self.cq.mask;
        // SAFETY: the completion was posted, and its place was not given back.
        let cqe = unsafe { self.cq.cqes.add(index as usize).read() };
        self.head = self.head.wrapping_add(1);
        Some(cqe)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len(), Some(self.len()))
    }
}

impl<C: Completion> ExactSizeIterator for CompletionQueue<'_, C> {}

impl<C: Completion> Drop for CompletionQueue<'_, C> {
    #[inline]
    fn drop(&mut self) {
        // Release as in `sync`.
        self.cq.head.store(self.head, Ordering::Release);
    }
}
