//! `pthread_setcanceltype(3)`: a thread that the program lets the C library end at any instruction must not end with a lock of the
//! engine.

use crate::inside;
use anyring_interpose::next;
use core::ffi::c_int;

/// `PTHREAD_CANCEL_DEFERRED`.
pub const DEFERRED: c_int = 0;
/// `PTHREAD_CANCEL_ASYNCHRONOUS`.
pub const ASYNCHRONOUS: c_int = 1;

/// Sets the calling thread's type by the C library. It may end in here.
pub fn set(kind: c_int) {
    let mut before = 0;
    set_by_library(kind, &raw mut before);
}

fn set_by_library(kind: c_int, before: *mut c_int) -> c_int {
    next!(c"pthread_setcanceltype", fn(c_int, *mut c_int) -> c_int, kind, before)
}

/// `pthread_setcanceltype(3)`.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int {
    // First: with the new type the thread may end at once.
    inside::note_ends_anywhere(kind == ASYNCHRONOUS);
    set_by_library(kind, before)
}
