//! `mmap`: a ring of the user engine has SQ and CQ at offset 0.
//!
//! The trap catches mappings of completion rings, too, but not under valgrind: valgrind makes the program's calls itself, where the filter
//! has no effect.

use super::load;
use anyring_interpose::calls;
use anyring_interpose::next::Next;
use core::ffi::{c_int, c_void};
use linux_raw_sys::general as raw;
use linux_raw_sys::io_uring::IORING_OFF_CQ_RING;

/// The C library's function. Memory allocators call `mmap` at times when they cannot wait: the function is not looked up then.
#[unsafe(link_section = "anyring_next")]
static NEXT: Next = Next::new(c"mmap");

/// # Safety
/// As in C.
unsafe fn map(arguments: [usize; 6]) -> *mut c_void {
    let [address, length, protection, flags, fd, offset] = arguments;
    if protection & raw::PROT_EXEC as usize != 0 && fd as c_int >= 0 {
        load::code_comes();
    }
    let next = NEXT.known();
    if next.is_null() || offset == IORING_OFF_CQ_RING as usize {
        // SAFETY: the program's promise.
        return unsafe { calls::mmap(arguments) };
    }
    type Mmap = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> *mut c_void;
    // SAFETY: the C library's function of this name has this type in the calling convention.
    let next: Mmap = unsafe { core::mem::transmute(next) };
    // SAFETY: the program's promise.
    unsafe { next(address, length, protection, flags, fd, offset) }
}

anyring_interpose::export_mmap!(map);
