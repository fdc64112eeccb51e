//! The lowest 4 GiB, where programs linked to a fixed address lie; [`crate::filter`] may let calls from there pass.

use core::ops::Range;

/// The first address that is not low.
const END: usize = 1 << 32;

/// True if `address` lies in the lowest 4 GiB.
pub fn is_low(address: usize) -> bool {
    address < END
}

/// The low addresses.
pub const RANGE: Range<usize> = 0..END;
