//! `mmap`: a ring of ours has both rings at offset 0.
//!
//! Where calls trap, mappings of completion rings do so, too. They do not where no filter of ours acts: under valgrind, which makes the
//! calls of the program in its own name.

use anyring_interpose::{calls, next};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use linux_raw_sys::io_uring::IORING_OFF_CQ_RING;

/// The function that ours stands in front of. Memory allocators call it when they can wait for nothing: it is not looked up then.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Looks it up, before there are threads.
pub fn find() {
    NEXT.store(next::find(next::Place::Next, c"mmap"), Ordering::Relaxed);
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let next = NEXT.load(Ordering::Relaxed);
    if next.is_null() || offset == i64::from(IORING_OFF_CQ_RING) {
        // SAFETY: the program's promise.
        return unsafe { calls::mmap(address, length, protection, flags, fd, offset) };
    }
    type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
    // SAFETY: the C library's function of this name has this type.
    let next: Mmap = unsafe { core::mem::transmute(next) };
    // SAFETY: the program's promise.
    unsafe { next(address, length, protection, flags, fd, offset) }
}

/// What glibc's `mmap` is called with large files.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the program's promise.
    unsafe { mmap(address, length, protection, flags, fd, offset) }
}
