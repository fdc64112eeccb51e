//! The engine's side of the submission ring: which SQEs it has consumed.

use crate::abi::layout::Word;
use crate::abi::{Errno, IORING_SETUP_SQ_REWIND};
use crate::queue::{Queues, RingMemory};

/// The engine's side of a submission ring.
#[derive(Default)]
pub struct Sq {
    /// The engine's own copy of the SQ head; the program sees it when it is [published](Queues::publish_sq_head).
    head: u32,
    /// SQEs that the current submission still has to consume.
    left: u32,
    /// Each submission begins at the first SQE, and the program stores no tail (`IORING_SETUP_SQ_REWIND`).
    rewinds: bool,
}

impl Sq {
    /// Makes the SQ of a ring with these `IORING_SETUP_*` flags.
    pub fn new(flags: u32) -> Sq {
        Sq { rewinds: flags & IORING_SETUP_SQ_REWIND != 0, ..Sq::default() }
    }

    /// Returns the engine's SQ head.
    #[inline]
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Returns tail minus head, which may exceed the size of the SQ: the program writes the tail.
    #[inline]
    pub(crate) fn published(&self, memory: &RingMemory) -> u32 {
        // Acquire pairs with the program's release store of its tail after it wrote SQEs.
        memory.load(Word::SqTail, self.head).wrapping_sub(self.head)
    }

    /// Begins a submission of `count` SQEs, which are [pending](Queues::sq_pending).
    #[inline]
    pub fn begin(&mut self, count: u32) {
        self.left = count;
    }

    /// Returns the number of SQEs that the current submission still has to consume.
    #[inline]
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Ends the current submission.
    #[inline]
    pub fn end(&mut self) {
        self.left = 0;
    }

    /// Undoes the last [`Queues::take_sqe`].
    pub fn give_back(&mut self) {
        self.head = self.head.wrapping_sub(1);
        self.left += 1;
    }

    /// Consumes the [next](Queues::next_sqe) SQE.
    #[inline]
    pub fn take_next(&mut self) {
        debug_assert!(self.left > 0, "the submission has it still to take");
        self.head = self.head.wrapping_add(1);
        self.left -= 1;
    }

    /// Reads the SQ head, which another process may have moved.
    pub(super) fn resync(&mut self, memory: &RingMemory) {
        self.head = memory.load(Word::SqHead, self.head);
    }
}

impl Queues {
    /// Returns the number of SQEs that can be consumed, at most the size of the SQ.
    #[inline]
    pub fn sq_pending(&self) -> u32 {
        let entries = self.memory.layout().sq_entries;
        if self.sq.rewinds { entries } else { self.sq.published(&self.memory).min(entries) }
    }

    /// Consumes the next SQE of the current submission and returns its index. `None` if no SQE is left, or if
    /// the entry in the program's index array is invalid. An invalid entry is counted as dropped.
    #[inline]
    pub fn take_sqe(&mut self) -> Option<u32> {
        let (head, left) = (self.sq.head, self.sq.left);
        if left == 0 {
            return None;
        }
        let index = self.memory.sqe_index(head);
        self.sq.head = head.wrapping_add(1);
        if index.is_some() {
            self.sq.left = left - 1;
        } else {
            self.memory.count(Word::SqDropped);
        }
        index
    }

    /// Returns the index of the SQE that the current submission consumes next.
    #[inline]
    pub fn next_sqe(&self) -> Option<u32> {
        if self.sq.left > 0 { self.memory.sqe_index(self.sq.head) } else { None }
    }

    /// Returns the indices of the next `count` SQEs.
    pub fn sqes_ahead(&self, count: u32) -> impl Iterator<Item = u32> {
        (0..count).filter_map(|ahead| self.memory.sqe_index(self.sq.head.wrapping_add(ahead)))
    }

    /// Consumes the second half of the 128-byte SQE at `index`, whose first half is consumed already.
    ///
    /// # Errors
    /// `EINVAL` if the submission or the ring ends before the second half.
    pub fn take_second_half(&mut self, index: u32) -> Result<(), Errno> {
        if self.sq.left == 0 || index + 1 >= self.memory.layout().sq_entries {
            return Err(Errno::EINVAL);
        }
        self.sq.take_next();
        Ok(())
    }

    /// Stores the SQ head for the program.
    #[inline]
    pub fn publish_sq_head(&mut self) {
        if self.sq.rewinds {
            self.sq.head = 0;
            return;
        }
        // Release pairs with the program's acquire load of the head: the program may overwrite the consumed SQEs now.
        self.memory.store(Word::SqHead, self.sq.head);
    }
}
