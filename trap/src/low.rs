//! Programs linked to a fixed address lie in the lowest 4 GiB, where [`crate::filter`] may not reach.

use crate::filter::Reach;
use crate::{arch, sys};
use linux_raw_sys::general as raw;

/// The first address that is not low.
const END: usize = 1 << 32;

/// Which calls a filter must trap for a program that begins at `entry`, as far as that is known.
pub fn reach(entry: Option<usize>) -> Reach {
    if entry.is_none_or(|entry| entry < END) { Reach::Everything } else { Reach::High }
}

/// Makes an `io_uring_setup` that can only fail, from a page that lies low; its result, or 0 where
/// no such page can be had.
pub fn ring_call() -> isize {
    const PAGE: usize = 4096;
    let flags = raw::MAP_FIXED_NOREPLACE;
    for address in (0x1000_0000..0xf000_0000_usize).step_by(0x0101_0000) {
        // SAFETY: replaces nothing.
        let page = unsafe { sys::map(address, PAGE, raw::PROT_READ | raw::PROT_WRITE, flags) };
        let Ok(page) = usize::try_from(page) else { continue };
        let result = if page < END { call_from(page) } else { 0 };
        // SAFETY: the page was just mapped and nobody else knows it.
        unsafe { sys::unmap(page, PAGE) };
        if page < END {
            return result;
        }
    }
    0
}

/// Makes the call from `page`, which is empty and ours.
fn call_from(page: usize) -> isize {
    type Call = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> isize;
    let code = page as *mut u8;
    // SAFETY: the page is ours, writable, and longer than the code.
    unsafe {
        code.copy_from_nonoverlapping(arch::STUB_CODE.as_ptr(), arch::STUB_CODE.len());
        #[cfg(target_arch = "aarch64")]
        arch::synchronize_code(code, arch::STUB_CODE.len());
    }
    // SAFETY: nobody else uses the page.
    if unsafe { sys::protect(page, 4096, raw::PROT_READ | raw::PROT_EXEC) } != 0 {
        return 0;
    }
    // SAFETY: the page holds a function of this type.
    let call: Call = unsafe { core::mem::transmute(page) };
    // SAFETY: creates nothing, reads nothing.
    unsafe { call(raw::__NR_io_uring_setup as usize, 0, 0, 0, 0, 0, 0) }
}
