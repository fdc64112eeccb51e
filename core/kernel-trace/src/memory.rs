//! A ring's memory for a reader that only observes.
//!
//! Memory of the kernel is mapped a second time. Memory of the program (`IORING_SETUP_NO_MMAP`) is read where the
//! program has it, and may be unmapped. So all of it is read as memory that may not exist.

use core::sync::atomic::{Ordering, fence};

use anyring_engine::abi::{
    Errno, IORING_CQE_F_32, IORING_CQE_F_SKIP, IORING_SETUP_CQE_MIXED, IORING_SETUP_SQE_MIXED, Sqe,
};
use anyring_engine::ops::TABLE;
use anyring_engine::os::{Fd, user};
use anyring_engine::queue::Cqe;
use anyring_mapping::{Lengths, Mapping, is_single};
use linux_raw_sys::io_uring::{
    IORING_OFF_CQ_RING, IORING_OFF_SQ_RING, IORING_OFF_SQES, IORING_SETUP_CQE32, IORING_SETUP_NO_MMAP,
    IORING_SETUP_NO_SQARRAY, IORING_SETUP_SQE128, io_uring_params,
};

const SMALL_CQE: u32 = 16;
const BIG_CQE: u32 = 32;

/// The owner of the mapping of a ring's memory.
#[expect(dead_code, reason = "they are kept, and unmapped with it")]
enum Held {
    /// Mapped here: while the mapping exists, the ring cannot end.
    Here { sq_ring: Mapping, cq_ring: Option<Mapping>, sqes: Mapping },
    /// Memory of the program.
    ByProgram,
}

/// The addresses and sizes of a ring's queues.
pub struct Memory {
    held: Held,
    sq_head: u64,
    sq_tail: u64,
    /// The index array of the SQ; `None` if a position is itself the index of its entry.
    array: Option<u64>,
    sqes: u64,
    sqe_bytes: u32,
    sq_entries: u32,
    mixed_sqes: bool,
    cq_head: u64,
    cq_tail: u64,
    cqes: u64,
    cqe_bytes: u32,
    cq_entries: u32,
    mixed: bool,
}

/// Returns the sizes of SQEs and CQEs in bytes, of a ring with these setup flags.
fn entry_bytes(flags: u32) -> (u32, u32) {
    let of_sqes = size_of::<Sqe>() as u32 * if flags & IORING_SETUP_SQE128 != 0 { 2 } else { 1 };
    (of_sqes, if flags & IORING_SETUP_CQE32 != 0 { BIG_CQE } else { SMALL_CQE })
}

impl Memory {
    /// Returns the memory of a ring with these parameters, as the setup has returned them.
    ///
    /// # Errors
    /// The errors of `mmap`.
    pub fn of(fd: Fd, params: &io_uring_params) -> Result<Memory, Errno> {
        let (sqe_bytes, cqe_bytes) = entry_bytes(params.flags);
        let (held, sq_ring, cq_ring, sqes) = if params.flags & IORING_SETUP_NO_MMAP != 0 {
            let rings = params.cq_off.user_addr;
            (Held::ByProgram, rings, rings, params.sq_off.user_addr)
        } else {
            let lengths = Lengths::of(params, sqe_bytes as usize, cqe_bytes as usize);
            let sq_ring = Mapping::new(fd, IORING_OFF_SQ_RING, lengths.sq_ring)?;
            let single = is_single(params);
            let cq_ring =
                if single { None } else { Some(Mapping::new(fd, IORING_OFF_CQ_RING, lengths.cq_ring)?) };
            let sqes = Mapping::new(fd, IORING_OFF_SQES, lengths.sqes)?;
            let at = |mapping: &Mapping| mapping.address().addr().get() as u64;
            let places = (at(&sq_ring), at(cq_ring.as_ref().unwrap_or(&sq_ring)), at(&sqes));
            (Held::Here { sq_ring, cq_ring, sqes }, places.0, places.1, places.2)
        };
        let has_array = params.flags & IORING_SETUP_NO_SQARRAY == 0;
        Ok(Memory {
            held,
            sq_head: sq_ring + u64::from(params.sq_off.head),
            sq_tail: sq_ring + u64::from(params.sq_off.tail),
            array: has_array.then(|| sq_ring + u64::from(params.sq_off.array)),
            sqes,
            sqe_bytes,
            sq_entries: params.sq_entries,
            mixed_sqes: params.flags & IORING_SETUP_SQE_MIXED != 0,
            cq_head: cq_ring + u64::from(params.cq_off.head),
            cq_tail: cq_ring + u64::from(params.cq_off.tail),
            cqes: cq_ring + u64::from(params.cq_off.cqes),
            cqe_bytes,
            cq_entries: params.cq_entries,
            mixed: params.flags & IORING_SETUP_CQE_MIXED != 0,
        })
    }

    /// True if the ring is mapped here, so that it cannot end.
    pub fn holds_ring(&self) -> bool {
        matches!(self.held, Held::Here { .. })
    }

    /// Reads a word that the other side stores by a release: what the other side wrote before the store is visible after this read.
    /// Everything that this thread has read before was read before the word.
    fn word(address: u64) -> Option<u32> {
        // Keeps reads of entries before the read of the word that says whether the entries were intact.
        fence(Ordering::Acquire);
        let word = user::read(address).ok();
        // Pairs with the release store of the kernel or the program.
        fence(Ordering::Acquire);
        word
    }

    /// The SQ head: the number of SQEs that the kernel has taken.
    pub fn sq_head(&self) -> Option<u32> {
        Memory::word(self.sq_head)
    }

    /// The SQ tail: the number of SQEs that the program has queued.
    pub fn sq_tail(&self) -> Option<u32> {
        Memory::word(self.sq_tail)
    }

    /// The CQ head: the number of CQEs that the program has reaped.
    pub fn cq_head(&self) -> Option<u32> {
        Memory::word(self.cq_head)
    }

    /// The CQ tail: the number of CQEs that the kernel has posted.
    pub fn cq_tail(&self) -> Option<u32> {
        Memory::word(self.cq_tail)
    }

    /// The size of the SQ in entries.
    pub fn sq_entries(&self) -> u32 {
        self.sq_entries
    }

    /// The size of the CQ in entries of the small size.
    pub fn cq_entries(&self) -> u32 {
        self.cq_entries
    }

    /// True if CQEs of both sizes are in the queue.
    pub fn is_mixed(&self) -> bool {
        self.mixed
    }

    /// Returns the SQE at a position of the queue, or `None` if the program names none there, and how many of the `left` submitted
    /// positions it takes: two if the queue has entries of two sizes and a long operation's second half is submitted, too.
    pub fn sqe(&self, position: u32, left: u32) -> (Option<Sqe>, u32) {
        let Some(index) = self.sqe_index(position) else { return (None, 1) };
        let sqe = user::read::<Sqe>(self.sqes + u64::from(index) * u64::from(self.sqe_bytes)).ok();
        let has_second = left > 1 && index + 1 < self.sq_entries;
        let places = |sqe: &Sqe| TABLE.lookup(sqe.opcode).places(self.mixed_sqes, has_second);
        (sqe, sqe.as_ref().map_or(1, places))
    }

    /// Returns the index of the SQE that is queued at a position.
    fn sqe_index(&self, position: u32) -> Option<u32> {
        let place = position & (self.sq_entries - 1);
        let index = match self.array {
            Some(array) => user::read::<u32>(array + u64::from(place) * size_of::<u32>() as u64).ok()?,
            None => place,
        };
        (index < self.sq_entries).then_some(index)
    }

    /// Returns the CQE at a position, or `None` for a CQE that only fills a place, and how many places it takes.
    pub fn cqe(&self, position: u32) -> (Option<Cqe>, u32) {
        let place = position & (self.cq_entries - 1);
        let address = self.cqes + u64::from(place) * u64::from(self.cqe_bytes);
        let Ok([user_data, result]) = user::read::<[u64; 2]>(address) else { return (None, 1) };
        let (res, flags) = (result as i32, (result >> 32) as u32);
        if self.mixed && flags & IORING_CQE_F_SKIP != 0 {
            return (None, 1);
        }
        let is_long = self.mixed && flags & IORING_CQE_F_32 != 0;
        let has_more = is_long || self.cqe_bytes == BIG_CQE;
        let big =
            if has_more { user::read(address + u64::from(SMALL_CQE)).unwrap_or_default() } else { [0; 2] };
        (Some(Cqe { user_data, res, flags, big }), if is_long { 2 } else { 1 })
    }
}
