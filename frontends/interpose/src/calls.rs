//! `syscall`, and `mmap`.

use crate::{Frontend, Row, credentials, next, rows};
use anyring_runtime::{arch, calls, log};
use core::ffi::{c_int, c_long, c_void};
use linux_raw_sys::general as raw;
use linux_raw_sys::io_uring::IORING_OFF_CQ_RING;

/// `syscall(3)`. Variadic in C; integer arguments are passed in the same way.
///
/// # Safety
/// As for the call that `number` names. Arguments that the caller did not pass have arbitrary values
/// and are not used, as in the C library's function.
#[inline]
pub unsafe fn syscall<F: Frontend>(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    if calls::is_ring_call(number as usize) && F::hands_through(number as usize) {
        // SAFETY: the program's own call.
        let result = unsafe { arch::syscall(number as usize, [a, b, c, d, e, f]) };
        return if result < 0 { next::fail(result) as c_long } else { result as c_long };
    }
    // SAFETY: the program's own call.
    unsafe { answered::<F>(number, a, b, c, d, e, f) }
}

/// Answers a call, if anyring answers it; otherwise makes it. A separate function, so that the path to the kernel is
/// short.
///
/// # Safety
/// As for [`syscall`].
#[inline(never)]
unsafe extern "C" fn answered<F: Frontend>(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let (number, arguments) = (number as usize, [a, b, c, d, e, f]);
    if calls::is_ring_call(number) {
        // SAFETY: the program's own call.
        if let Some(result) = unsafe { F::call(number, arguments) } {
            return next::fail(result) as c_long;
        }
    }
    // SAFETY: the program's own call.
    if let Some(result) = unsafe { Row::answer(rows::<F>(), number, arguments) } {
        return next::fail(result) as c_long;
    }
    // SAFETY: the program's own call.
    if let Some(result) = unsafe { F::other_call(number, arguments) } {
        return next::fail(result) as c_long;
    }
    let filtering = log::sees_call(number, arguments);
    let change = credentials::by_call::<F>(number, arguments);
    // SAFETY: the program's own call.
    let result = unsafe { arch::syscall(number, arguments) };
    filtering.made(result);
    credentials::end::<F>(change);
    next::fail(result) as c_long
}

/// `mmap(2)`, for processes in which no filter traps the mapping of a completion ring: the user engine's rings have SQ and CQ at offset 0.
///
/// # Safety
/// As in C.
#[inline]
pub unsafe fn mmap(mut arguments: [usize; 6]) -> *mut c_void {
    let [.., fd, offset] = arguments;
    if offset == IORING_OFF_CQ_RING as usize && calls::is_ring(fd as c_int) {
        arguments[5] = 0;
    }
    // SAFETY: the program's own call.
    let result = unsafe { arch::syscall(raw::__NR_mmap as usize, arguments) };
    core::ptr::with_exposed_provenance_mut(next::fail(result) as usize)
}
