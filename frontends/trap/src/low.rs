//! Programs linked to a fixed address lie in the lowest 4 GiB, where [`crate::filter`] may not reach.

use core::ops::Range;

/// The first address that is not low.
const END: usize = 1 << 32;

/// Whether code at `address` lies low.
pub fn is_low(address: usize) -> bool {
    address < END
}

/// The low addresses.
pub const RANGE: Range<usize> = 0..END;
