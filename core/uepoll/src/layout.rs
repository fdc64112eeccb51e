//! The memory that the program maps by the descriptor: header and items, followed by the index ring.

use core::sync::atomic::{AtomicU32, AtomicU64};

use anyring_engine::abi::Errno;
use anyring_engine::os::page_bytes;

/// The first word of the header.
pub const MAGIC: u32 = 0xeb01_eb01;

/// The offset of the items.
pub const HEADER_BYTES: usize = 128;

/// The maximal number of items: one more, if all were inserted at the same time, would overflow the 16 bits of the counter.
pub const MOST_ITEMS: u32 = u16::MAX as u32;

/// One registered file, or one event that threads raise.
#[repr(C)]
pub struct Item {
    /// The events since the program last took the item; 0 if the item is not in the ring.
    pub ready_events: AtomicU32,
    /// The events that the item is registered for; 0 if it is not registered.
    pub events: AtomicU32,
    /// The program's own data.
    pub data: AtomicU64,
}

/// The first 128 bytes. The second cache line contains fields that the program does not need.
#[repr(C, align(64))]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU32,
    /// Length of header and items in bytes, whole pages: the index ring begins there.
    pub header_length: AtomicU32,
    /// Length of the index ring in bytes, a power of two.
    pub index_length: AtomicU32,
    /// The maximal number of items.
    pub max_items_nr: AtomicU32,
    /// The position up to which the program has taken events; only the program writes it.
    pub head: AtomicU32,
    /// The position up to which there are events.
    pub tail: AtomicU32,
    unused: [u32; 10],
    /// The counter of [`crate::insert`].
    pub shadow: AtomicU64,
    /// The state of a sleeping consumer ([`crate::sleeper`]).
    pub sleeper: AtomicU32,
    unused_too: [u32; 13],
}

const _: () = assert!(size_of::<Item>() == 16);
const _: () = assert!(size_of::<Header>() == HEADER_BYTES);
const _: () = assert!(core::mem::offset_of!(Header, tail) == 20);

/// The lengths of the parts of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The maximal number of items.
    pub items: u32,
    /// Length of header and items in bytes.
    pub header_length: usize,
    /// Length of the index ring in bytes.
    pub index_length: usize,
}

impl Geometry {
    /// Computes the lengths for a ring of `items` items.
    ///
    /// # Errors
    /// `EINVAL` for 0 or more than [`MOST_ITEMS`].
    pub fn of(items: u32) -> Result<Geometry, Errno> {
        if items == 0 || items > MOST_ITEMS {
            return Err(Errno::EINVAL);
        }
        let header_length = HEADER_BYTES + items as usize * size_of::<Item>();
        let index_length = items.next_power_of_two() as usize * size_of::<u32>();
        Ok(Geometry {
            items,
            header_length: header_length.next_multiple_of(page_bytes()),
            // Whole pages, because the program maps it separately: still a power of two.
            index_length: index_length.next_multiple_of(page_bytes()),
        })
    }

    /// Returns the mask that reduces a position in the ring to an index.
    pub fn index_mask(&self) -> u32 {
        (self.index_length / size_of::<u32>()) as u32 - 1
    }

    /// Returns the length of all parts in bytes.
    pub fn length(&self) -> usize {
        self.header_length + self.index_length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_ring_is_a_power_of_two() {
        for items in 1..=MOST_ITEMS {
            let geometry = Geometry::of(items).unwrap();
            assert!((geometry.index_mask() + 1).is_power_of_two());
            assert!(geometry.index_mask() >= items - 1);
            assert!(geometry.header_length >= HEADER_BYTES + 16 * items as usize);
        }
        assert!(Geometry::of(0).is_err());
        assert!(Geometry::of(MOST_ITEMS + 1).is_err());
    }
}
