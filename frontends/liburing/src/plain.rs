//! The three calls under liburing's names, and liburing's version.

use crate::call;
use crate::queue::SIGNAL_SET_BYTES;
use core::ffi::{c_int, c_uint, c_void};
use linux_raw_sys::io_uring::io_uring_params;

/// The version of liburing whose interface this library has.
const VERSION: (c_int, c_int) = (2, 15);

/// `io_uring_enter(2)`; a negative errno on failure.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_enter(
    fd: c_uint,
    submit: c_uint,
    least: c_uint,
    flags: c_uint,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { call::enter(fd as c_int, submit, least, flags, mask, SIGNAL_SET_BYTES) }
}

/// `io_uring_enter2(2)`; a negative errno on failure.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_enter2(
    fd: c_uint,
    submit: c_uint,
    least: c_uint,
    flags: c_uint,
    argument: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { call::enter(fd as c_int, submit, least, flags, argument, bytes) }
}

/// `io_uring_setup(2)`; a negative errno on failure.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_setup(entries: c_uint, params: *mut io_uring_params) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { call::setup(entries, params) }
}

/// `io_uring_register(2)`; a negative errno on failure.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register(
    fd: c_uint,
    opcode: c_uint,
    argument: *const c_void,
    count: c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { call::register(fd as c_int, opcode, argument, count) }
}

/// `io_uring_major_version(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn io_uring_major_version() -> c_int {
    VERSION.0
}

/// `io_uring_minor_version(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn io_uring_minor_version() -> c_int {
    VERSION.1
}

/// `io_uring_check_version(3)`: true if this library is older than the given version.
#[unsafe(no_mangle)]
pub extern "C" fn io_uring_check_version(major: c_int, minor: c_int) -> bool {
    (major, minor) > VERSION
}
