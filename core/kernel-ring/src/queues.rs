//! The queues of a ring with entries of the standard sizes.

use anyring_engine::abi::{Errno, Sqe};
use anyring_engine::os::Fd;
use anyring_mapping::RingMemory;
use core::sync::atomic::AtomicU32;
use linux_raw_sys::io_uring::io_uring_params;

/// A CQE of the standard size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Cqe {
    /// The user data of the SQE.
    pub user_data: u64,
    /// The result.
    pub res: i32,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
}

/// The queues of a ring, mapped into this process.
pub struct Queues {
    memory: RingMemory,
    params: io_uring_params,
}

impl Queues {
    /// Maps the memory of a ring that was created with these parameters.
    pub fn map(fd: Fd, params: io_uring_params) -> Result<Queues, Errno> {
        let memory = RingMemory::map(fd, &params, size_of::<Sqe>(), size_of::<Cqe>())?;
        Ok(Queues { memory, params })
    }

    fn in_sq(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the offsets lie in the mapping; the kernel or engine accesses them atomically, too.
        unsafe { AtomicU32::from_ptr(self.memory.sq_ring().at(offset)) }
    }

    fn in_cq(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: as for `in_sq`.
        unsafe { AtomicU32::from_ptr(self.memory.cq_ring().at(offset)) }
    }

    /// Returns the number of entries of the submission queue.
    pub fn sq_entries(&self) -> u32 {
        self.params.sq_entries
    }

    /// Returns the position up to which SQEs were consumed.
    pub fn sq_head(&self) -> &AtomicU32 {
        self.in_sq(self.params.sq_off.head)
    }

    /// Returns the position up to which SQEs were published.
    pub fn sq_tail(&self) -> &AtomicU32 {
        self.in_sq(self.params.sq_off.tail)
    }

    /// Returns the position up to which CQEs were reaped.
    pub fn cq_head(&self) -> &AtomicU32 {
        self.in_cq(self.params.cq_off.head)
    }

    /// Returns the position up to which CQEs were posted.
    pub fn cq_tail(&self) -> &AtomicU32 {
        self.in_cq(self.params.cq_off.tail)
    }

    /// Fills the entry for a position of the submission queue.
    ///
    /// # Safety
    /// The entry must be free, and no other thread may fill entries at the same time.
    pub unsafe fn fill(&self, position: u32, sqe: Sqe) {
        let index = (position & (self.params.sq_entries - 1)) as usize;
        // SAFETY: in the mapping; the caller's promise.
        unsafe { self.memory.sqes().at::<Sqe>(0).add(index).write(sqe) };
    }

    /// Returns the CQE at a position.
    ///
    /// # Safety
    /// The CQE must have been posted, and not been reaped.
    pub unsafe fn cqe(&self, position: u32) -> Cqe {
        let index = (position & (self.params.cq_entries - 1)) as usize;
        // SAFETY: in the mapping; the caller's promise.
        unsafe { self.memory.cq_ring().at::<Cqe>(self.params.cq_off.cqes).add(index).read() }
    }
}
