//! The memory that the program maps by the descriptor: header and items, and behind them the index ring.

use core::sync::atomic::{AtomicU32, AtomicU64};

use anyring_engine::abi::Errno;
use anyring_engine::os::page_bytes;

/// The first word of the header.
pub const MAGIC: u32 = 0xeb01_eb01;

/// Where the items begin.
pub const HEADER_BYTES: usize = 128;

/// The most items: one more, all of them being inserted at a time, would not fit into 16 bits of the counter.
pub const MOST_ITEMS: u32 = u16::MAX as u32;

/// One registered file, or one event that threads raise.
#[repr(C)]
pub struct Item {
    /// The events that happened since the program last took the item; 0 where it is not in the ring.
    pub ready_events: AtomicU32,
    /// The events that the item is registered for; 0 where it is not.
    pub events: AtomicU32,
    /// The program's own word.
    pub data: AtomicU64,
}

/// The first 128 bytes. What the program need not know lies on the second cache line.
#[repr(C, align(64))]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU32,
    /// Bytes of header and items, whole pages: the index ring begins there.
    pub header_length: AtomicU32,
    /// Bytes of the index ring, a power of two.
    pub index_length: AtomicU32,
    /// How many items there can be.
    pub max_items_nr: AtomicU32,
    /// Up to where the program has taken events; only the program writes it.
    pub head: AtomicU32,
    /// Up to where there are events.
    pub tail: AtomicU32,
    unused: [u32; 10],
    /// The counter of [`crate::insert`].
    pub shadow: AtomicU64,
    /// Whether somebody sleeps for the ring, and how.
    pub sleeper: AtomicU32,
    unused_too: [u32; 13],
}

const _: () = assert!(size_of::<Item>() == 16);
const _: () = assert!(size_of::<Header>() == HEADER_BYTES);
const _: () = assert!(core::mem::offset_of!(Header, tail) == 20);

/// How long the parts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// How many items there can be.
    pub items: u32,
    /// Bytes of header and items.
    pub header_length: usize,
    /// Bytes of the index ring.
    pub index_length: usize,
}

impl Geometry {
    /// Of a ring for so many items.
    ///
    /// # Errors
    /// `EINVAL` for none, or more than [`MOST_ITEMS`].
    pub fn of(items: u32) -> Result<Geometry, Errno> {
        if items == 0 || items > MOST_ITEMS {
            return Err(Errno::EINVAL);
        }
        let header_length = HEADER_BYTES + items as usize * size_of::<Item>();
        let index_length = items.next_power_of_two() as usize * size_of::<u32>();
        Ok(Geometry {
            items,
            header_length: header_length.next_multiple_of(page_bytes()),
            // Whole pages, for the program maps it by itself: a power of two all the same.
            index_length: index_length.next_multiple_of(page_bytes()),
        })
    }

    /// The mask that cuts a position in the ring to an index.
    pub fn index_mask(&self) -> u32 {
        (self.index_length / size_of::<u32>()) as u32 - 1
    }

    /// Bytes of all of it.
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
