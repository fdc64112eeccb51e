//! The memory that program and engine share: both rings and the SQE array, in the kernel's layout.
//!
//! ```text
//!   memfd offset
//!   0           header (heads, tails, masks, flags), CQEs, SQ array     IORING_OFF_SQ_RING
//!   0x8000000   nothing: the CQ lies at 0 too (IORING_FEAT_SINGLE_MMAP)  IORING_OFF_CQ_RING
//!   0x10000000  SQEs                                                     IORING_OFF_SQES
//!   0x20000000  the parameter region, if one is registered               IORING_MAP_OFF_PARAM_REGION
//!   0x30000000  refill rings of zero-copy receives, every 64 KiB         IORING_MAP_OFF_ZCRX_REGION
//!   0x80000000  provided buffer rings, one every 64 KiB                  IORING_OFF_PBUF_RING
//! ```
//!
//! With `IORING_SETUP_NO_MMAP`, rings and SQEs lie in pages that the program passes, and the memfd
//! holds only the rest.
//!
//! The program can overwrite all of this memory at any time, so nothing read from it is trusted:
//! indices are masked with sizes that the engine keeps in its own memory, counts are bounded, and an
//! SQE is copied once and only the copy is used.

mod cq;
mod resize;
mod sq;
mod waiting;

use core::mem::offset_of;

use crate::abi::layout::{CQES_OFFSET, Layout, OFFER_OFFSET, SQES_OFFSET, Word};
use crate::abi::{Errno, Sqe};
use crate::os::region::Region;
use crate::os::{self, pages};
use crate::wait::loan::Posted;

pub use cq::Cq;
pub use sq::Sq;

/// A completion, with the second half that only big CQEs carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cqe {
    /// The `user_data` of the SQE.
    pub user_data: u64,
    /// A result or a negative errno.
    pub res: i32,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
    /// The second half.
    pub big: [u64; 2],
}

/// The value that chaos writes over consumed SQEs and reaped CQEs, which must not be read any more.
pub const RUBBISH: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// Replaces an SQE whose memory is gone. No operation has this number.
const NO_SQE: Sqe = Sqe { opcode: u8::MAX, ..Sqe::EMPTY };

/// The origin of ring memory.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// A memfd, which the caller keeps and closes.
    File(os::Fd),
    /// Pages of the program (`IORING_SETUP_NO_MMAP`).
    Program {
        /// Address of the rings.
        rings: u64,
        /// Address of the SQEs.
        sqes: u64,
        /// The ring's own file, which the caller keeps and closes.
        memfd: os::Fd,
    },
}

impl Source {
    /// Maps the memory for rings and SQEs of these sizes.
    fn regions(self, layout: &Layout) -> Result<(Region, Region), Errno> {
        let (rings_length, sqes_length) =
            (pages::whole(layout.rings_length()), pages::whole(layout.sqes_length()));
        match self {
            Source::File(memfd) => {
                os::grow_memfd(memfd, SQES_OFFSET + sqes_length as u64)?;
                Ok((Region::map(memfd, 0, rings_length)?, Region::map(memfd, SQES_OFFSET, sqes_length)?))
            }
            Source::Program { rings, sqes, memfd } => {
                let rings = Region::of_program(rings, rings_length as u64, memfd)?;
                Ok((rings, Region::of_program(sqes, sqes_length as u64, memfd)?))
            }
        }
    }
}

/// The queues that a ring shares with its program.
pub struct Queues {
    /// Shared memory.
    pub memory: RingMemory,
    /// The position in the submission ring.
    pub sq: Sq,
    /// The position in the completion ring.
    pub cq: Cq,
}

impl Queues {
    /// Makes the queues of a ring with these `IORING_SETUP_*` flags.
    pub fn new(memory: RingMemory, setup_flags: u32) -> Queues {
        Queues { memory, sq: Sq::new(setup_flags), cq: Cq::new(setup_flags) }
    }

    /// Moves the contents of the rings to other memory.
    ///
    /// # Errors
    /// `EOVERFLOW` if the contents do not fit.
    pub fn move_to(&mut self, memory: RingMemory) -> Result<(), Errno> {
        self.memory.move_to(memory, &self.sq, &self.cq)
    }

    /// Returns the tail of the CQ, and the number of CQEs that wait to be reaped.
    pub fn left(&self) -> (u32, u32) {
        (self.cq.tail(), self.cq_ready())
    }

    /// Returns the position up to which the program has reaped the CQ.
    pub fn cq_head(&self) -> u32 {
        self.cq.tail().wrapping_sub(self.cq_ready())
    }

    /// True if one more CQE would be visible at once. False on a ring whose CQEs are not all of the ordinary size.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.cq.is_plain() && self.has_room_for(1)
    }

    /// Returns the tail of the CQ, and the number of CQEs that are kept.
    #[inline]
    pub fn posted(&self) -> Posted {
        (self.cq.tail(), self.cq.kept())
    }
}

/// The engine's view of a ring's memory.
pub struct RingMemory {
    layout: Layout,
    rings: Region,
    sqes: Region,
}

impl RingMemory {
    /// Maps and initialises the memory of a new ring.
    pub fn create(source: Source, layout: Layout) -> Result<RingMemory, Errno> {
        let memory = RingMemory::map(source, layout)?;
        memory.rings.clear(CQES_OFFSET);
        memory.initialise();
        Ok(memory)
    }

    /// Maps memory of this layout, and keeps its content.
    pub fn map(source: Source, layout: Layout) -> Result<RingMemory, Errno> {
        let (rings, sqes) = source.regions(&layout)?;
        Ok(RingMemory { layout, rings, sqes })
    }

    fn initialise(&self) {
        self.store(Word::SqMask, self.layout.sq_entries - 1);
        self.store(Word::SqEntries, self.layout.sq_entries);
        self.store(Word::CqMask, self.layout.cq_entries - 1);
        self.store(Word::CqEntries, self.layout.cq_entries);
    }

    /// Stores the offer of records on demand, for watchers.
    pub fn store_offer(&self, offer: [u64; 4]) {
        self.rings.store_words(OFFER_OFFSET, offer);
    }

    /// Returns sizes and offsets.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Loads a word that program and engine share, with acquire ordering. Returns `otherwise` if the
    /// program has unmapped the memory.
    #[inline]
    pub fn load(&self, word: Word, otherwise: u32) -> u32 {
        self.rings.load(word as usize, otherwise)
    }

    /// Stores a word that program and engine share, with release ordering.
    #[inline]
    pub fn store(&self, word: Word, value: u32) {
        self.rings.store(word as usize, value);
    }

    /// Sets and clears bits of `sq_flags`, which only the engine writes, under the ring's lock.
    pub fn change_sq_flags(&self, set: u32, clear: u32) {
        let flags = self.load(Word::SqFlags, 0);
        let changed = flags & !clear | set;
        if changed != flags {
            self.store(Word::SqFlags, changed);
        }
    }

    /// Increments a word that only the engine writes, under the ring's lock.
    pub fn count(&self, word: Word) {
        self.store(word, self.load(word, 0).wrapping_add(1));
    }

    /// Returns the index of the SQE at ring position `position`, or `None` if the entry in the program's index array is invalid.
    #[inline]
    pub fn sqe_index(&self, position: u32) -> Option<u32> {
        let index = position & (self.layout.sq_entries - 1);
        let Some(array) = self.layout.array_offset else { return Some(index) };
        // If the index array is unmapped, its entries count as invalid.
        let index = self.rings.load(array + 4 * index as usize, u32::MAX);
        (index < self.layout.sq_entries).then_some(index)
    }

    /// Copies an SQE.
    #[inline(always)]
    pub fn sqe(&self, index: u32) -> Sqe {
        let index = (index & (self.layout.sq_entries - 1)) as usize;
        // Copied by words, which are fewer than fields.
        Sqe::from_words(self.sqes.value(index << self.layout.sqe_shift, || *NO_SQE.words()))
    }

    /// Reads [`Sqe::first_word`] of an SQE in ring memory.
    #[inline]
    pub fn first_word(&self, index: u32) -> u64 {
        let index = (index & (self.layout.sq_entries - 1)) as usize;
        self.sqes.value(index << self.layout.sqe_shift, || u64::MAX)
    }

    /// Reads `len` of an SQE in ring memory.
    #[inline]
    pub fn length(&self, index: u32) -> u32 {
        let index = (index & (self.layout.sq_entries - 1)) as usize;
        self.sqes.value((index << self.layout.sqe_shift) + offset_of!(Sqe, len), || 0)
    }

    /// Overwrites an SQE with [`RUBBISH`].
    pub fn scrub_sqe(&self, index: u32) {
        let index = (index & (self.layout.sq_entries - 1)) as usize;
        for offset in (0..1 << self.layout.sqe_shift).step_by(8) {
            self.sqes.store_words((index << self.layout.sqe_shift) + offset, [RUBBISH]);
        }
    }

    /// Overwrites the CQE at ring position `position` with [`RUBBISH`].
    pub fn scrub_cqe(&self, position: u32) {
        let index = (position & (self.layout.cq_entries - 1)) as usize;
        for offset in (0..1 << self.layout.cqe_shift).step_by(8) {
            self.rings.store_words(CQES_OFFSET + (index << self.layout.cqe_shift) + offset, [RUBBISH]);
        }
    }

    /// Stores `cqe` at ring position `position`, with its second half if `big`. The caller
    /// publishes it by storing the tail.
    #[inline(always)]
    pub fn store_cqe(&self, position: u32, cqe: &Cqe, big: bool) {
        let index = (position & (self.layout.cq_entries - 1)) as usize;
        let offset = CQES_OFFSET + (index << self.layout.cqe_shift);
        let words = [cqe.user_data, u64::from(cqe.res as u32) | (u64::from(cqe.flags) << 32)];
        self.rings.store_words(offset, words);
        if big {
            self.rings.store_words(offset + size_of_val(&words), cqe.big);
        }
    }
}
