//! Programs linked to a fixed address lie in the lowest 4 GiB, where [`crate::filter`] may not reach.

use crate::stub;
use anyring_runtime::sys;
use core::ops::Range;
use linux_raw_sys::general as raw;

/// The first address that is not low.
const END: usize = 1 << 32;

/// Whether code at `address` lies low.
pub fn is_low(address: usize) -> bool {
    address < END
}

/// The low addresses.
pub const RANGE: Range<usize> = 0..END;

/// Makes a call that creates nothing and reads nothing from a page that lies low; its result, `None` where no such page
/// can be had.
pub fn call(number: u32, arguments: [usize; 6]) -> Option<isize> {
    const PAGE: usize = 4096;
    let flags = raw::MAP_FIXED_NOREPLACE;
    for address in (0x1000_0000..0xf000_0000_usize).step_by(0x0101_0000) {
        // SAFETY: replaces nothing.
        let page = unsafe { sys::map(address, PAGE, raw::PROT_READ | raw::PROT_WRITE, flags) };
        let Ok(page) = usize::try_from(page) else { continue };
        let result = if page < END { call_from(page, number, arguments) } else { None };
        // SAFETY: the page was just mapped and nobody else knows it.
        unsafe { sys::unmap(page, PAGE) };
        if page < END {
            return result;
        }
    }
    None
}

/// Makes the call from `page`, which is empty and ours.
fn call_from(page: usize, number: u32, [a, b, c, d, e, f]: [usize; 6]) -> Option<isize> {
    type Call = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> isize;
    // SAFETY: the page is ours and empty, and nobody else knows it.
    let filled = unsafe { stub::fill(page) } == 0;
    // No memory becomes executable here, but what is may move: the stub page, for one call.
    if !filled && !stub::move_to(page) {
        return None;
    }
    // SAFETY: the page holds a function of this type.
    let call: Call = unsafe { core::mem::transmute(page) };
    // SAFETY: creates nothing, reads nothing.
    let result = unsafe { call(number as usize, a, b, c, d, e, f) };
    if !filled {
        stub::move_back(page);
    }
    Some(result)
}
