//! Calls by which a program starts to use the error queue of a socket, which zero-copy sends would use, too.

use crate::{Door, next};
use anyring_engine::frontend;
use anyring_trap::{active, calls};
use core::ffi::{c_int, c_void};

/// Says that the program looks for errors of `fd` itself.
pub fn watches_errors<D: Door>(fd: c_int) {
    if active() && calls::rings_exist() {
        let _stay = D::enter();
        frontend::watches_errors(fd);
    }
}

/// `setsockopt(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn setsockopt<D: Door>(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: u32,
) -> c_int {
    frontend::sets_option(fd, level, name);
    if frontend::concerns_errors(level, name) {
        watches_errors::<D>(fd);
    }
    next!(c"setsockopt", fn(c_int, c_int, c_int, *const c_void, u32) -> c_int, fd, level, name, value, length,)
}
