//! The memory that program and engine share: both rings and the SQE array, in the kernel's layout.
//!
//! ```text
//!   memfd offset
//!   0           header (heads, tails, masks, flags), CQEs, SQ array     IORING_OFF_SQ_RING
//!   0x8000000   nothing: the CQ lies at 0 too (IORING_FEAT_SINGLE_MMAP)  IORING_OFF_CQ_RING
//!   0x10000000  SQEs                                                     IORING_OFF_SQES
//!   0x80000000  provided buffer rings, one every 64 KiB                  IORING_OFF_PBUF_RING
//! ```
//!
//! The program can write all of it at any time. So nothing read from here is trusted: indices are
//! masked with sizes that the engine keeps for itself, counts are bounded, an SQE is copied once and
//! only the copy is looked at.

mod layout;
mod sqe;

use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

pub use layout::{CQES_OFFSET, Header, Layout, PBUF_OFFSET, SQES_OFFSET};
pub use sqe::{KNOWN_SQE_FLAGS, Sqe};

use crate::errno::Errno;
use crate::sys;

/// A completion, with the second half that only rings with big CQEs carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cqe {
    /// The SQE's.
    pub user_data: u64,
    /// A result or a negative errno.
    pub res: i32,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
    /// The second half.
    pub big: [u64; 2],
}

/// The engine's own mapping of a ring's memory.
pub struct RingMemory {
    layout: Layout,
    rings: *mut u8,
    sqes: *mut u8,
}

// SAFETY: the mappings belong to the process, and every access through them is atomic or a copy.
unsafe impl Send for RingMemory {}
// SAFETY: as above.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Creates the memory behind a new ring; `memfd` stays the caller's.
    pub fn create(memfd: sys::Fd, layout: Layout) -> Result<RingMemory, Errno> {
        sys::set_memfd_size(memfd, SQES_OFFSET + layout.sqes_length() as u64)?;
        let rings = sys::map_shared(memfd, 0, layout.rings_length())?;
        let sqes = sys::map_shared(memfd, SQES_OFFSET, layout.sqes_length()).inspect_err(|_| {
            // SAFETY: just mapped, not used yet.
            unsafe { sys::unmap(rings, layout.rings_length()) }
        })?;
        let memory = RingMemory { layout, rings, sqes };
        memory.initialise();
        Ok(memory)
    }

    fn initialise(&self) {
        let header = self.header();
        header.sq_mask.store(self.layout.sq_entries - 1, Ordering::Relaxed);
        header.sq_entries.store(self.layout.sq_entries, Ordering::Relaxed);
        header.cq_mask.store(self.layout.cq_entries - 1, Ordering::Relaxed);
        header.cq_entries.store(self.layout.cq_entries, Ordering::Relaxed);
    }

    /// Sizes and offsets.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The words that both sides read and write.
    pub fn header(&self) -> &Header {
        // SAFETY: the mapping begins with the header, is page-aligned and lives as long as `self`.
        unsafe { &*self.rings.cast::<Header>() }
    }

    /// Which SQE is at ring position `position`, or `None` where the program's index array names none.
    #[inline]
    pub fn sqe_index(&self, position: u32) -> Option<u32> {
        let mut index = position & (self.layout.sq_entries - 1);
        if let Some(array) = self.layout.array_offset {
            // SAFETY: the array has `sq_entries` words and the index is masked.
            let entry =
                unsafe { AtomicU32::from_ptr(self.rings.add(array).cast::<u32>().add(index as usize)) };
            // Relaxed: ordered by the acquire load of the tail that precedes it.
            index = entry.load(Ordering::Relaxed);
            if index >= self.layout.sq_entries {
                return None;
            }
        }
        Some(index)
    }

    /// A copy of an SQE.
    #[inline]
    pub fn sqe(&self, index: u32) -> Sqe {
        let index = (index & (self.layout.sq_entries - 1)) as usize;
        // SAFETY: within the SQE array; a volatile copy of memory that the program may be changing, by
        // words, into a type of that size for which every bit pattern is valid.
        unsafe {
            let place = self.sqes.add(index << self.layout.sqe_shift).cast::<u64>();
            let words: [u64; 8] = core::array::from_fn(|word| ptr::read_volatile(place.add(word)));
            core::mem::transmute::<[u64; 8], Sqe>(words)
        }
    }

    /// Stores `cqe` at ring position `position`. The caller publishes it by the tail.
    pub fn store_cqe(&self, position: u32, cqe: &Cqe) {
        let index = (position & (self.layout.cq_entries - 1)) as usize;
        // SAFETY: within the CQE array. The program must not read it before the tail says so; if it
        // does, it reads halves of plain integers.
        unsafe {
            let slot = self.rings.add(CQES_OFFSET + (index << self.layout.cqe_shift)).cast::<u64>();
            slot.write_volatile(cqe.user_data);
            slot.add(1).write_volatile(u64::from(cqe.res as u32) | (u64::from(cqe.flags) << 32));
            if self.layout.cqe_shift > 4 {
                slot.add(2).write_volatile(cqe.big[0]);
                slot.add(3).write_volatile(cqe.big[1]);
            }
        }
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `create` with these lengths; nothing else of the engine points into it.
        unsafe {
            sys::unmap(self.rings, self.layout.rings_length());
            sys::unmap(self.sqes, self.layout.sqes_length());
        }
    }
}
