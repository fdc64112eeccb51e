//! `IORING_REGISTER_RESIZE_RINGS`: rings of other sizes, with what is in them carried over.

use alloc::vec::Vec;

use linux_raw_sys::io_uring::{
    IORING_SETUP_CLAMP, IORING_SETUP_CQE32, IORING_SETUP_CQSIZE, IORING_SETUP_DEFER_TASKRUN,
    IORING_SETUP_NO_MMAP, IORING_SETUP_NO_SQARRAY, IORING_SETUP_SQE128, io_uring_params,
};

use crate::abi::layout::{CQES_OFFSET, Layout, Word};
use crate::abi::{Errno, IORING_SETUP_CQE_MIXED};
use crate::os::{Fd, user};
use crate::queue::{Region, RingMemory, Source};
use crate::ring::Core;

/// What the call may ask for.
const ASKED: u32 = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
/// What it takes from the ring as it is.
const INHERITED: u32 = IORING_SETUP_NO_SQARRAY
    | IORING_SETUP_SQE128
    | IORING_SETUP_CQE32
    | IORING_SETUP_NO_MMAP
    | IORING_SETUP_CQE_MIXED;

/// SQEs and CQEs that are in the rings: position by position, as words.
struct Content {
    sqes: Vec<[u64; 8]>,
    cqes: Vec<[u64; 2]>,
}

impl Core {
    /// Gives the ring other sizes. `fd` is the program's descriptor of this ring; the program maps it
    /// anew at the offsets that it knows.
    ///
    /// # Errors
    /// As the kernel's: `EINVAL` where the ring does not defer or the sizes are no sizes; `EOVERFLOW`
    /// where what is in the rings would not fit.
    pub fn resize(&mut self, fd: Fd, argument: u64) -> Result<usize, Errno> {
        if !self.is(IORING_SETUP_DEFER_TASKRUN) {
            return Err(Errno::EINVAL);
        }
        let mut params: io_uring_params = user::read(argument)?;
        if params.flags & !ASKED != 0 {
            return Err(Errno::EINVAL);
        }
        params.flags |= self.setup_flags & INHERITED;
        let layout = Layout::new(params.sq_entries, &params)?;
        let source = if params.flags & IORING_SETUP_NO_MMAP != 0 {
            Source::Program { rings: params.cq_off.user_addr, sqes: params.sq_off.user_addr }
        } else {
            Source::File(fd)
        };
        let (rings, sqes) = source.regions(&layout)?;
        layout.describe(&mut params);
        user::write(argument, &params)?;
        let head = self.memory.load(Word::CqHead, self.cq_tail);
        let tail = self.memory.load(Word::SqTail, self.sq_head);
        if tail.wrapping_sub(self.sq_head) > layout.sq_entries
            || self.cq_tail.wrapping_sub(head) > layout.cq_entries
        {
            return Err(Errno::EOVERFLOW);
        }
        self.memory.move_to(layout, rings, sqes, self.sq_head..tail, head..self.cq_tail)?;
        Ok(0)
    }
}

type Positions = core::ops::Range<u32>;

impl RingMemory {
    /// Takes other regions, which may be the same pages, with what the rings hold at these positions.
    fn move_to(
        &mut self,
        layout: Layout,
        rings: Region,
        sqes: Region,
        pending: Positions,
        ready: Positions,
    ) -> Result<(), Errno> {
        let content = self.content(&pending, &ready)?;
        let words = [Word::SqDropped, Word::SqFlags, Word::CqFlags, Word::CqOverflow];
        let values = words.map(|word| self.load(word, 0));
        *self = RingMemory { layout, rings, sqes };
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
                // The program fills it in anew; until then it names the first SQE, as the kernel's does.
                self.rings.store(array + 4 * index as usize, 0);
            }
        }
        for (index, parts) in content.sqes.chunks(self.sqe_parts()).enumerate() {
            for (offset, part) in self.sqe_offsets(sq_head, index).zip(parts) {
                self.sqes.store_words(offset, part);
            }
        }
        for (index, parts) in content.cqes.chunks(self.cqe_parts()).enumerate() {
            for (offset, part) in self.cqe_offsets(cq_head, index).zip(parts) {
                self.rings.store_words(offset, part);
            }
        }
    }

    /// Into how many pieces of 64 bytes an SQE is copied.
    fn sqe_parts(&self) -> usize {
        1 << (self.layout.sqe_shift - 6)
    }

    /// Into how many pieces of 16 bytes a CQE is copied.
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
