//! Ring memory, mapped as a program maps it.

use anyring_engine::abi::{Errno, Sqe};
use anyring_engine::os::{self, Fd};
use core::sync::atomic::AtomicU32;
use linux_raw_sys::io_uring::{IORING_OFF_SQ_RING, IORING_OFF_SQES, io_uring_params};

/// A mapping that goes when it is dropped.
struct Mapping {
    address: *mut u8,
    length: usize,
}

impl Mapping {
    fn new(fd: Fd, offset: u32, length: usize) -> Result<Mapping, Errno> {
        os::map_shared(fd, offset.into(), length).map(|address| Mapping { address, length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped here, and its owner uses it no more.
        unsafe { os::unmap(self.address, self.length) };
    }
}

/// A completion of the common size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Cqe {
    /// What the SQE was given.
    pub user_data: u64,
    /// The result.
    pub res: i32,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
}

/// The memory of a ring with entries of the common sizes.
pub struct RingMemory {
    rings: Mapping,
    sqes: Mapping,
    params: io_uring_params,
}

// SAFETY: what other threads change in it is accessed atomically.
unsafe impl Send for RingMemory {}
// SAFETY: as above; who writes entries is up to the owners.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Maps the memory of a ring that was set up with these parameters.
    pub fn map(fd: Fd, params: io_uring_params) -> Result<RingMemory, Errno> {
        let sq_end = params.sq_off.array as usize + params.sq_entries as usize * size_of::<u32>();
        let cq_end = params.cq_off.cqes as usize + params.cq_entries as usize * size_of::<Cqe>();
        let rings = Mapping::new(fd, IORING_OFF_SQ_RING, sq_end.max(cq_end))?;
        let sqes = Mapping::new(fd, IORING_OFF_SQES, params.sq_entries as usize * size_of::<Sqe>())?;
        let memory = RingMemory { rings, sqes, params };
        for index in 0..params.sq_entries {
            let place = params.sq_off.array + index * size_of::<u32>() as u32;
            memory.word(place).store(index, core::sync::atomic::Ordering::Relaxed);
        }
        Ok(memory)
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the offsets lie in the mapping; the other side accesses them atomically, too.
        unsafe { AtomicU32::from_ptr(self.rings.address.add(offset as usize).cast()) }
    }

    /// How many entries the submission queue has.
    pub fn sq_entries(&self) -> u32 {
        self.params.sq_entries
    }

    /// How far SQEs were taken.
    pub fn sq_head(&self) -> &AtomicU32 {
        self.word(self.params.sq_off.head)
    }

    /// How far they were published.
    pub fn sq_tail(&self) -> &AtomicU32 {
        self.word(self.params.sq_off.tail)
    }

    /// How far CQEs were reaped.
    pub fn cq_head(&self) -> &AtomicU32 {
        self.word(self.params.cq_off.head)
    }

    /// How far they were posted.
    pub fn cq_tail(&self) -> &AtomicU32 {
        self.word(self.params.cq_off.tail)
    }

    /// Fills the entry for a position of the submission queue.
    ///
    /// # Safety
    /// It must be free, and nobody else may fill entries at the same time.
    pub unsafe fn fill(&self, position: u32, sqe: Sqe) {
        let index = (position & (self.params.sq_entries - 1)) as usize;
        // SAFETY: in the mapping; the caller's promise.
        unsafe { self.sqes.address.cast::<Sqe>().add(index).write(sqe) };
    }

    /// The CQE at a position.
    ///
    /// # Safety
    /// It must have been posted, and not been reaped.
    pub unsafe fn cqe(&self, position: u32) -> Cqe {
        let index = (position & (self.params.cq_entries - 1)) as usize;
        // SAFETY: in the mapping; the caller's promise.
        unsafe { self.rings.address.add(self.params.cq_off.cqes as usize).cast::<Cqe>().add(index).read() }
    }
}
