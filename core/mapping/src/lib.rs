//! A ring's memory, as mapped by its user; and memory that processes share by its path ([`SharedFile`]).
//!
//! The crate `anyring`, the small rings of `kernel-ring` and those of `uepoll` map their memory by [`RingMemory`].
//! liburing's structure contains addresses and lengths that programs read, so that front end uses [`Lengths`] only. The
//! rings of tests and benchmarks have code of their own, because their results must not depend on the code under test.
#![no_std]

extern crate alloc;

mod shared;

use anyring_engine::abi::Errno;
use anyring_engine::os::{self, Fd, nr};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::io_uring::{
    IORING_FEAT_SINGLE_MMAP, IORING_OFF_CQ_RING, IORING_OFF_SQ_RING, IORING_OFF_SQES,
    IORING_SETUP_NO_SQARRAY, io_uring_params,
};
pub use shared::SharedFile;

/// Shared memory of a descriptor, unmapped on drop.
pub struct Mapping {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: memory of the process; its owner is responsible for the order of accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `fd` at `offset`, readable and writable.
    ///
    /// # Errors
    /// The errors of `mmap`.
    pub fn new(fd: Fd, offset: u32, length: usize) -> Result<Mapping, Errno> {
        let address = os::map_shared(fd, offset.into(), length)?;
        // `mmap` maps nothing at 0 unless asked for that address.
        let address = NonNull::new(address).ok_or(Errno::ENOMEM)?;
        Ok(Mapping { address, length })
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the address at an offset.
    ///
    /// # Safety
    /// `offset` must be within the mapping.
    pub unsafe fn at<T>(&self, offset: u32) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.address.as_ptr().add(offset as usize).cast() }
    }

    /// Removes the mapping from future children of `fork`.
    pub fn dont_fork(&self) {
        let arguments = [self.address.as_ptr().addr(), self.length, nr::MADV_DONTFORK as usize, 0, 0, 0];
        // SAFETY: advice on the mapping's own memory. It cannot fail.
        let _ = unsafe { os::call(nr::__NR_madvise, arguments) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped at creation, and used only through its owner.
        unsafe { os::unmap(self.address.as_ptr(), self.length) };
    }
}

/// The lengths of the parts of a ring's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// The submission ring; if one mapping contains both rings, that mapping.
    pub sq_ring: usize,
    /// The completion ring; if one mapping contains both rings, that mapping.
    pub cq_ring: usize,
    /// The SQEs.
    pub sqes: usize,
}

impl Lengths {
    /// Computes the lengths for a ring with these parameters and sizes of entries.
    pub fn of(params: &io_uring_params, sqe_bytes: usize, cqe_bytes: usize) -> Lengths {
        let (sq_entries, cq_entries) = (params.sq_entries as usize, params.cq_entries as usize);
        let array = if has_array(params) { sq_entries * size_of::<u32>() } else { 0 };
        let mut sq_ring = params.sq_off.array as usize + array;
        let mut cq_ring = params.cq_off.cqes as usize + cq_entries * cqe_bytes;
        if is_single(params) {
            sq_ring = sq_ring.max(cq_ring);
            cq_ring = sq_ring;
        }
        Lengths { sq_ring, cq_ring, sqes: sq_entries * sqe_bytes }
    }
}

/// True if one mapping contains both rings.
pub fn is_single(params: &io_uring_params) -> bool {
    params.features & IORING_FEAT_SINGLE_MMAP != 0
}

/// True if the submission ring has an array of indices.
fn has_array(params: &io_uring_params) -> bool {
    params.flags & IORING_SETUP_NO_SQARRAY == 0
}

/// The memory of a ring.
pub struct RingMemory {
    sq_ring: Mapping,
    /// `None` if the submission ring's mapping contains it.
    cq_ring: Option<Mapping>,
    sqes: Mapping,
}

impl RingMemory {
    /// Maps the memory of a ring with these parameters and sizes of entries. If the submission ring has an array of
    /// indices, each entry of the array is set to its own index.
    ///
    /// # Errors
    /// The errors of `mmap`.
    pub fn map(
        fd: Fd,
        params: &io_uring_params,
        sqe_bytes: usize,
        cqe_bytes: usize,
    ) -> Result<RingMemory, Errno> {
        let lengths = Lengths::of(params, sqe_bytes, cqe_bytes);
        let sq_ring = Mapping::new(fd, IORING_OFF_SQ_RING, lengths.sq_ring)?;
        let cq_ring = if is_single(params) {
            None
        } else {
            Some(Mapping::new(fd, IORING_OFF_CQ_RING, lengths.cq_ring)?)
        };
        let sqes = Mapping::new(fd, IORING_OFF_SQES, lengths.sqes)?;
        let memory = RingMemory { sq_ring, cq_ring, sqes };
        if has_array(params) {
            for index in 0..params.sq_entries {
                let place = params.sq_off.array + index * size_of::<u32>() as u32;
                // SAFETY: the array is within the mapping, whose length was computed from it.
                let place = unsafe { AtomicU32::from_ptr(memory.sq_ring.at(place)) };
                place.store(index, Ordering::Relaxed);
            }
        }
        Ok(memory)
    }

    /// Returns the mapping of the submission ring.
    pub fn sq_ring(&self) -> &Mapping {
        &self.sq_ring
    }

    /// Returns the mapping of the completion ring.
    pub fn cq_ring(&self) -> &Mapping {
        self.cq_ring.as_ref().unwrap_or(&self.sq_ring)
    }

    /// Returns the mapping of the SQEs.
    pub fn sqes(&self) -> &Mapping {
        &self.sqes
    }

    /// Removes the mappings from future children of `fork`.
    pub fn dont_fork(&self) {
        self.sq_ring.dont_fork();
        self.cq_ring.iter().for_each(Mapping::dont_fork);
        self.sqes.dont_fork();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(flags: u32, features: u32) -> io_uring_params {
        // SAFETY: integers only.
        let mut params: io_uring_params = unsafe { core::mem::zeroed() };
        (params.flags, params.features) = (flags, features);
        (params.sq_entries, params.cq_entries) = (8, 16);
        params.sq_off.array = 320;
        params.cq_off.cqes = 64;
        params
    }

    #[test]
    fn rings_in_one_mapping_have_the_length_of_the_longer() {
        let one = Lengths::of(&params(0, IORING_FEAT_SINGLE_MMAP), 64, 16);
        assert_eq!(one, Lengths { sq_ring: 352, cq_ring: 352, sqes: 512 });
        let two = Lengths::of(&params(0, 0), 128, 32);
        assert_eq!(two, Lengths { sq_ring: 352, cq_ring: 576, sqes: 1024 });
        let without = Lengths::of(&params(IORING_SETUP_NO_SQARRAY, 0), 64, 16);
        assert_eq!(without, Lengths { sq_ring: 320, cq_ring: 320, sqes: 512 });
    }
}
