//! Calls that close or duplicate descriptors: the engine keeps readiness registrations by number,
//! and a ring lives as long as a descriptor of it.
//!
//! `closed` is said before the real call, as the number can be reused at once after it.

use crate::{Frontend, next};
use anyring_engine::frontend;
use anyring_runtime::{active, calls, log, process, sys};
use core::ffi::c_int;
use linux_raw_sys::general as raw;

/// From `<linux/close_range.h>`.
const CLOSE_RANGE_CLOEXEC: u32 = 4;

/// Says that `fd` is about to be closed.
#[inline]
pub fn closing<F: Frontend>(fd: c_int) {
    log::closes(fd as u32, fd as u32);
    if calls::rings_exist() {
        closing_among_rings::<F>(fd);
    }
}

/// The same where there may be rings.
fn closing_among_rings<F: Frontend>(fd: c_int) {
    if active() {
        let _stay = F::enter();
        frontend::closed(fd);
    } else if process::watches_kernel() {
        let _stay = F::enter();
        process::closes_watched(fd..=fd);
    }
}

/// Says that `new` is about to become a duplicate of `old`, if `old` is a descriptor.
#[inline]
fn replacing<F: Frontend>(old: c_int, new: c_int) {
    if old != new && (!calls::is_ring(new) || sys::is_open(old)) {
        closing::<F>(new);
    }
}

/// Says that `new` is a duplicate of `old`.
#[inline]
fn duplicated<F: Frontend>(old: c_int, new: c_int) {
    if new >= 0 && active() && calls::rings_exist() {
        let _stay = F::enter();
        frontend::duplicated(old, new);
    }
}

/// `close(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn close<F: Frontend>(fd: c_int) -> c_int {
    closing::<F>(fd);
    next!(c"close", fn(c_int) -> c_int, fd)
}

/// `close_range(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn close_range<F: Frontend>(first: u32, last: u32, flags: c_int) -> c_int {
    if flags as u32 & CLOSE_RANGE_CLOEXEC == 0 {
        closing_from::<F>(first, last);
    }
    next!(c"close_range", fn(u32, u32, c_int) -> c_int, first, last, flags)
}

/// `closefrom(3)`.
///
/// # Safety
/// As in C.
pub unsafe fn closefrom<F: Frontend>(first: c_int) {
    closing_from::<F>(first.max(0) as u32, u32::MAX);
    next!(c"closefrom", fn(c_int) -> isize, first);
}

/// Says so for each number that can be open.
fn closing_from<F: Frontend>(first: u32, last: u32) {
    log::closes(first, last);
    if !calls::rings_exist() {
        return;
    }
    if process::watches_kernel() {
        let _stay = F::enter();
        return process::closes_watched(first as c_int..=last.min(c_int::MAX as u32) as c_int);
    }
    for fd in first..=last.min(sys::descriptor_limit()) {
        closing::<F>(fd as c_int);
    }
}

/// `dup(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn dup<F: Frontend>(old: c_int) -> c_int {
    let new = next!(c"dup", fn(c_int) -> c_int, old);
    duplicated::<F>(old, new);
    new
}

/// `dup2(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn dup2<F: Frontend>(old: c_int, new: c_int) -> c_int {
    replacing::<F>(old, new);
    let result = next!(c"dup2", fn(c_int, c_int) -> c_int, old, new);
    if old != new {
        duplicated::<F>(old, result);
    }
    result
}

/// `dup3(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn dup3<F: Frontend>(old: c_int, new: c_int, flags: c_int) -> c_int {
    replacing::<F>(old, new);
    let result = next!(c"dup3", fn(c_int, c_int, c_int) -> c_int, old, new, flags);
    duplicated::<F>(old, result);
    result
}

/// `fcntl(2)`. Variadic in C; its one argument is passed alike.
///
/// # Safety
/// As in C.
pub unsafe fn fcntl<F: Frontend>(fd: c_int, command: c_int, argument: usize) -> c_int {
    let result = next!(c"fcntl", fn(c_int, c_int, usize) -> c_int, fd, command, argument);
    after_fcntl::<F>(fd, command, result)
}

/// `fcntl64`, what glibc's `fcntl` is called with large files.
///
/// # Safety
/// As in C.
pub unsafe fn fcntl64<F: Frontend>(fd: c_int, command: c_int, argument: usize) -> c_int {
    let result = next!(c"fcntl64", fn(c_int, c_int, usize) -> c_int, fd, command, argument);
    after_fcntl::<F>(fd, command, result)
}

fn after_fcntl<F: Frontend>(fd: c_int, command: c_int, result: c_int) -> c_int {
    if matches!(command as u32, raw::F_DUPFD | raw::F_DUPFD_CLOEXEC) {
        duplicated::<F>(fd, result);
    }
    result
}
