//! Resizing of rings, which keeps their pending SQEs and CQEs.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::abi::layout::{CQES_OFFSET, OFFER_OFFSET, Word};
use crate::queue::{Cq, RingMemory, Sq};

/// The pending SQEs and unreaped CQEs, in ring order, as words.
struct Content {
    sqes: Vec<[u64; 8]>,
    cqes: Vec<[u64; 2]>,
}

type Positions = core::ops::Range<u32>;

impl RingMemory {
    /// Moves the pending SQEs and CQEs to `other`, which may be the same pages.
    ///
    /// # Errors
    /// `EOVERFLOW` if `other` is too small for them, `ENOMEM`.
    pub fn move_to(&mut self, other: RingMemory, sq: &Sq, cq: &Cq) -> Result<(), Errno> {
        let head = self.load(Word::CqHead, cq.tail());
        let pending = sq.published(self);
        if pending > other.layout.sq_entries || cq.tail().wrapping_sub(head) > other.layout.cq_entries {
            return Err(Errno::EOVERFLOW);
        }
        self.replace(other, sq.head()..sq.head().wrapping_add(pending), head..cq.tail())
    }

    /// Replaces this memory by `other`, with the entries at these positions.
    fn replace(&mut self, other: RingMemory, pending: Positions, ready: Positions) -> Result<(), Errno> {
        let content = self.content(&pending, &ready)?;
        let words = [Word::SqDropped, Word::SqFlags, Word::CqFlags, Word::CqOverflow];
        let values = words.map(|word| self.load(word, 0));
        let offer = self.rings.value(OFFER_OFFSET, Default::default);
        *self = other;
        self.store_offer(offer);
        self.initialise();
        for (word, value) in words.into_iter().zip(values) {
            self.store(word, value);
        }
        self.fill(&content, pending.start, ready.start);
        let indices =
            [(Word::SqHead, pending.start), (Word::SqTail, pending.end), (Word::CqHead, ready.start)];
        for (word, value) in indices.into_iter().chain([(Word::CqTail, ready.end)]) {
            self.store(word, value);
        }
        Ok(())
    }

    fn content(&self, pending: &Positions, ready: &Positions) -> Result<Content, Errno> {
        let (sqe_words, cqe_words) = (self.sqe_parts(), self.cqe_parts());
        let mut content = Content { sqes: Vec::new(), cqes: Vec::new() };
        let counts = [pending, ready].map(|range| range.end.wrapping_sub(range.start) as usize);
        content.sqes.try_reserve_exact(counts[0] * sqe_words).map_err(|_| Errno::ENOMEM)?;
        content.cqes.try_reserve_exact(counts[1] * cqe_words).map_err(|_| Errno::ENOMEM)?;
        for offset in (0..counts[0]).flat_map(|index| self.sqe_offsets(pending.start, index)) {
            content.sqes.push(self.sqes.value(offset, Default::default));
        }
        for offset in (0..counts[1]).flat_map(|index| self.cqe_offsets(ready.start, index)) {
            content.cqes.push(self.rings.value(offset, Default::default));
        }
        Ok(content)
    }

    fn fill(&self, content: &Content, sq_head: u32, cq_head: u32) {
        if let Some(array) = self.layout.array_offset {
            for index in 0..self.layout.sq_entries {
                // The program fills the index array again. Until then every entry names the first SQE, as in the kernel.
                self.rings.store(array + 4 * index as usize, 0);
            }
        }
        for (index, parts) in content.sqes.chunks(self.sqe_parts()).enumerate() {
            for (offset, &part) in self.sqe_offsets(sq_head, index).zip(parts) {
                self.sqes.store_words(offset, part);
            }
        }
        for (index, parts) in content.cqes.chunks(self.cqe_parts()).enumerate() {
            for (offset, &part) in self.cqe_offsets(cq_head, index).zip(parts) {
                self.rings.store_words(offset, part);
            }
        }
    }

    /// Returns the number of 64-byte pieces of an SQE.
    fn sqe_parts(&self) -> usize {
        1 << (self.layout.sqe_shift - 6)
    }

    /// Returns the number of 16-byte pieces of a CQE.
    fn cqe_parts(&self) -> usize {
        1 << (self.layout.cqe_shift - 4)
    }

    fn sqe_offsets(&self, head: u32, index: usize) -> impl Iterator<Item = usize> + use<> {
        let slot = head.wrapping_add(index as u32) & (self.layout.sq_entries - 1);
        let start = (slot as usize) << self.layout.sqe_shift;
        (0..self.sqe_parts()).map(move |part| start + 64 * part)
    }

    fn cqe_offsets(&self, head: u32, index: usize) -> impl Iterator<Item = usize> + use<> {
        let slot = head.wrapping_add(index as u32) & (self.layout.cq_entries - 1);
        let start = CQES_OFFSET + ((slot as usize) << self.layout.cqe_shift);
        (0..self.cqe_parts()).map(move |part| start + 16 * part)
    }
}
