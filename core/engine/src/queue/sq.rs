//! The submission ring: what the engine has taken out of it.

use crate::abi::layout::Word;
use crate::abi::{Errno, IORING_SETUP_SQ_REWIND};
use crate::queue::RingMemory;

/// The engine's side of a submission ring.
#[derive(Default)]
pub struct Sq {
    /// The engine's own count of SQEs taken; the program sees it when it is [published](Sq::publish).
    head: u32,
    /// SQEs that the current submission still has to take.
    left: u32,
    /// Each submission begins at the first SQE, and the program publishes nothing (`IORING_SETUP_SQ_REWIND`).
    rewinds: bool,
}

impl Sq {
    /// The engine's side of a ring with these flags.
    pub fn new(flags: u32) -> Sq {
        Sq { rewinds: flags & IORING_SETUP_SQ_REWIND != 0, ..Sq::default() }
    }

    /// The count of SQEs taken.
    #[inline]
    pub fn head(&self) -> u32 {
        self.head
    }

    /// SQEs that the program has published and the engine has not taken, as far as they can be.
    #[inline]
    pub fn pending(&self, memory: &RingMemory) -> u32 {
        let entries = memory.layout().sq_entries;
        if self.rewinds { entries } else { self.published(memory).min(entries) }
    }

    /// As many as the program says that it has published.
    #[inline]
    pub(crate) fn published(&self, memory: &RingMemory) -> u32 {
        // Acquire pairs with the program's release store of its tail after it wrote SQEs.
        memory.load(Word::SqTail, self.head).wrapping_sub(self.head)
    }

    /// A submission of `count` SQEs begins; they are [pending](Sq::pending).
    #[inline]
    pub fn begin(&mut self, count: u32) {
        self.left = count;
    }

    /// SQEs that the current submission still has to take.
    #[inline]
    pub fn left(&self) -> u32 {
        self.left
    }

    /// The current submission takes no more.
    #[inline]
    pub fn end(&mut self) {
        self.left = 0;
    }

    /// Takes the next SQE of the current submission: where it lies. `None` where there is no more, or where the
    /// program's index array names none, which is counted, and ends the submission.
    #[inline]
    pub fn take(&mut self, memory: &RingMemory) -> Option<u32> {
        let (head, left) = (self.head, self.left);
        if left == 0 {
            return None;
        }
        let index = memory.sqe_index(head);
        self.head = head.wrapping_add(1);
        if index.is_some() {
            self.left = left - 1;
        } else {
            memory.count(Word::SqDropped);
        }
        index
    }

    /// Gives the SQE back that was taken last.
    pub fn give_back(&mut self) {
        self.head = self.head.wrapping_sub(1);
        self.left += 1;
    }

    /// Where the SQE lies that the current submission takes next.
    #[inline]
    pub fn next(&self, memory: &RingMemory) -> Option<u32> {
        if self.left > 0 { memory.sqe_index(self.head) } else { None }
    }

    /// Takes the [next](Sq::next).
    #[inline]
    pub fn take_next(&mut self) {
        debug_assert!(self.left > 0, "the submission has it still to take");
        self.head = self.head.wrapping_add(1);
        self.left -= 1;
    }

    /// Where the next `count` SQEs lie.
    pub fn ahead(&self, memory: &RingMemory, count: u32) -> impl Iterator<Item = u32> {
        (0..count).filter_map(|ahead| memory.sqe_index(self.head.wrapping_add(ahead)))
    }

    /// Takes the place of the second half of the SQE at `index`, which was taken before.
    ///
    /// # Errors
    /// `EINVAL` where the submission ends before, or the ring does.
    pub fn take_second_half(&mut self, memory: &RingMemory, index: u32) -> Result<(), Errno> {
        if self.left == 0 || index + 1 >= memory.layout().sq_entries {
            return Err(Errno::EINVAL);
        }
        self.take_next();
        Ok(())
    }

    /// Lets the program know what was consumed.
    #[inline]
    pub fn publish(&mut self, memory: &RingMemory) {
        if self.rewinds {
            self.head = 0;
            return;
        }
        // Release pairs with the program's acquire load of the head: it may overwrite these SQEs now.
        memory.store(Word::SqHead, self.head);
    }

    /// Takes over what another process has consumed.
    pub fn resync(&mut self, memory: &RingMemory) {
        self.head = memory.load(Word::SqHead, self.head);
    }
}
