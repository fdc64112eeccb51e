//! `syscall`.

use super::credentials;
use crate::{dispatch, next};
use anyring_trap::{active, arch, calls};
use core::ffi::c_long;
use linux_raw_sys::general as raw;

/// `syscall(3)`. Variadic in C; integers are passed alike.
///
/// # Safety
/// As for the call that `number` names. What the caller did not pass is read as whatever lies there
/// and not used, as in the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let (number, arguments) = (number as usize, [a, b, c, d, e, f]);
    if number == raw::__NR_close as usize {
        // libuv closes its rings so.
        super::descriptors::closing(a as i32);
    }
    let result = if calls::is_ring_call(number) && active() {
        // SAFETY: the program's own call.
        unsafe { dispatch::called(number, arguments) }
    } else {
        let change = credentials::by_call(number, arguments);
        // SAFETY: the program's own call.
        let result = unsafe { arch::syscall(number, arguments) };
        credentials::end(change);
        result
    };
    next::fail(result) as c_long
}
