//! Calls that close or duplicate descriptors: the engine keeps readiness registrations by number,
//! and a ring lives as long as a descriptor of it.
//!
//! A close is reported before the real call, because the number can be reused immediately after the call. The program's calls
//! leave the engine's own descriptors as they are ([`own`]).

use crate::{Frontend, Row, next};
use anyring_engine::frontend;
use anyring_runtime::descriptors as own;
use anyring_runtime::{active, arch, calls, log, process, sys};
use core::ffi::c_int;
use core::marker::PhantomData;
use linux_raw_sys::general as raw;

/// Reports that `fd` is about to be closed.
#[inline]
pub fn closing<F: Frontend>(fd: c_int) {
    log::closes(fd as u32, fd as u32);
    if calls::rings_exist() {
        closing_among_rings::<F>(fd);
    }
}

/// Reports that `fd` is about to be closed, when there may be rings.
fn closing_among_rings<F: Frontend>(fd: c_int) {
    if active() {
        let _stay = F::enter();
        frontend::closed(fd);
    } else if process::watches_kernel() {
        let _stay = F::enter();
        process::closes_watched(fd..=fd);
    }
}

/// Reports that `new` is about to become a duplicate of `old`, if `old` is a descriptor.
#[inline]
fn replacing<F: Frontend>(old: c_int, new: c_int) {
    if old != new && (!calls::rings_exist() || !matters::<F>(new) || sys::is_open(old)) {
        closing::<F>(new);
    }
}

/// True if the engine needs to know of a close of `fd`, when there may be rings.
fn matters<F: Frontend>(fd: c_int) -> bool {
    let _stay = F::enter();
    if active() { frontend::concerns_close(fd) } else { process::watches_kernel() }
}

/// Reports that `new` is a duplicate of `old`.
#[inline]
fn duplicated<F: Frontend>(old: c_int, new: c_int) {
    if new >= 0 && active() && calls::rings_exist() {
        let _stay = F::enter();
        frontend::duplicated(old, new);
    }
}

/// Fails with `EBADF`, as for a number that is not a descriptor, when the program names a descriptor of the engine.
fn none() -> c_int {
    next::fail(own::NONE) as c_int
}

/// True if `old` or `new` is a descriptor of the engine. Then the program cannot make `new` a duplicate of `old`.
fn is_refused(old: c_int, new: c_int) -> bool {
    own::is_engines(old) || own::is_engines(new)
}

/// `close(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn close<F: Frontend>(fd: c_int) -> c_int {
    if own::is_engines(fd) {
        return none();
    }
    closing::<F>(fd);
    next!(c"close", fn(c_int) -> c_int, fd)
}

/// `close_range(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn close_range<F: Frontend>(first: u32, last: u32, flags: c_int) -> c_int {
    closing_range::<F>(first, last, flags as u32, |first, last, flags| {
        next!(c"close_range", fn(u32, u32, c_int) -> c_int, first, last, flags as c_int) as isize
    }) as c_int
}

/// `closefrom(3)`.
///
/// # Safety
/// As in C.
pub unsafe fn closefrom<F: Frontend>(first: c_int) {
    let least = first.max(0) as u32;
    closing_from::<F>(least, u32::MAX);
    if calls::rings_exist() {
        own::close_from(least);
    } else {
        next!(c"closefrom", fn(c_int) -> isize, first);
    }
}

/// True if the call closes descriptors, or replaces one.
pub fn closes(number: u32) -> bool {
    matches!(number, raw::__NR_close | raw::__NR_close_range) || arch::REPLACING.contains(&number)
}

/// True if the call is one of [`Calls`]: it closes or duplicates descriptors.
pub fn is_call(number: u32) -> bool {
    closes(number) || matches!(number, raw::__NR_dup | raw::__NR_fcntl)
}

/// The calls of this module, by number.
pub struct Calls<F>(PhantomData<F>);

impl<F: Frontend> Calls<F> {
    /// Makes the call if it is one of these, and returns its result.
    ///
    /// # Safety
    /// As for the call that `number` names.
    pub unsafe fn answer(number: usize, a: [usize; 6]) -> Option<isize> {
        // SAFETY: the caller's promise.
        unsafe { Row::answer(Self::ROWS.iter(), number, a) }
    }

    /// A row for each call.
    pub const ROWS: &[Row] = &[
        Row { numbers: &[raw::__NR_close], call: Self::close, hands_over: false },
        Row { numbers: &[raw::__NR_close_range], call: Self::close_range, hands_over: true },
        Row { numbers: &[raw::__NR_dup], call: Self::dup, hands_over: true },
        Row { numbers: &[raw::__NR_fcntl], call: Self::fcntl, hands_over: true },
        Row { numbers: arch::REPLACING, call: Self::replace, hands_over: true },
    ];

    // The contract of each function is that of [`Row::call`].
    unsafe fn close(number: usize, a: [usize; 6]) -> isize {
        let fd = a[0] as c_int;
        if own::is_engines(fd) {
            return own::NONE;
        }
        // libuv closes its rings by this call.
        closing::<F>(fd);
        // SAFETY: the caller's promise.
        unsafe { arch::syscall(number, a) }
    }

    unsafe fn close_range(number: usize, a: [usize; 6]) -> isize {
        closing_range::<F>(a[0] as u32, a[1] as u32, a[2] as u32, |first, last, flags| {
            // SAFETY: the caller's promise.
            unsafe { arch::syscall(number, [first as usize, last as usize, flags as usize, 0, 0, 0]) }
        })
    }

    unsafe fn dup(number: usize, a: [usize; 6]) -> isize {
        let old = a[0] as c_int;
        if own::is_engines(old) {
            return own::NONE;
        }
        // SAFETY: the caller's promise.
        let new = unsafe { arch::syscall(number, a) };
        duplicated::<F>(old, new as c_int);
        new
    }

    unsafe fn fcntl(number: usize, a: [usize; 6]) -> isize {
        let fd = a[0] as c_int;
        if own::is_engines(fd) {
            return own::NONE;
        }
        // SAFETY: the caller's promise.
        let result = unsafe { arch::syscall(number, a) };
        after_fcntl::<F>(fd, a[1] as c_int, result as c_int) as isize
    }

    unsafe fn replace(number: usize, a: [usize; 6]) -> isize {
        let (old, new) = (a[0] as c_int, a[1] as c_int);
        if is_refused(old, new) {
            return own::NONE;
        }
        replacing::<F>(old, new);
        // SAFETY: the caller's promise.
        let result = unsafe { arch::syscall(number, a) };
        if old != new {
            duplicated::<F>(old, result as c_int);
        }
        result
    }
}

/// Makes a `close_range` by `call`, and reports first which descriptors it is about to close.
fn closing_range<F: Frontend>(
    first: u32,
    last: u32,
    flags: u32,
    call: impl Fn(u32, u32, u32) -> isize,
) -> isize {
    let keeps_sharing = || {
        let _stay = F::enter();
        own::keeps_sharing(flags)
    };
    let flags = if calls::rings_exist() && keeps_sharing() { own::sharing(flags) } else { flags };
    if own::closes(flags) {
        closing_from::<F>(first, last);
    }
    let close = || own::close_range(first, last, flags, call);
    if own::unshares(flags) { frontend::handing_over(close) } else { close() }
}

/// Reports the close of each number in the range that can be open.
fn closing_from<F: Frontend>(first: u32, last: u32) {
    log::closes(first, last);
    if !calls::rings_exist() {
        return;
    }
    if process::watches_kernel() {
        let _stay = F::enter();
        return process::closes_watched(first as c_int..=last.min(c_int::MAX as u32) as c_int);
    }
    let numbers = (first..=last.min(sys::descriptor_limit())).map(|fd| fd as c_int);
    numbers.filter(|&fd| !own::is_engines(fd)).for_each(closing::<F>);
}

/// `dup(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn dup<F: Frontend>(old: c_int) -> c_int {
    if own::is_engines(old) {
        return none();
    }
    let new = next!(c"dup", fn(c_int) -> c_int, old);
    duplicated::<F>(old, new);
    new
}

/// `dup2(2)`.
///
/// # Safety
/// As in C.
pub unsafe fn dup2<F: Frontend>(old: c_int, new: c_int) -> c_int {
    if is_refused(old, new) {
        return none();
    }
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
    if is_refused(old, new) {
        return none();
    }
    replacing::<F>(old, new);
    let result = next!(c"dup3", fn(c_int, c_int, c_int) -> c_int, old, new, flags);
    duplicated::<F>(old, result);
    result
}

/// `fcntl(2)`. Variadic in C; its one argument is passed in the same way.
///
/// # Safety
/// As in C.
pub unsafe fn fcntl<F: Frontend>(fd: c_int, command: c_int, argument: usize) -> c_int {
    if own::is_engines(fd) {
        return none();
    }
    let result = next!(c"fcntl", fn(c_int, c_int, usize) -> c_int, fd, command, argument);
    after_fcntl::<F>(fd, command, result)
}

/// `fcntl64`, the name of glibc's `fcntl` in programs with large files.
///
/// # Safety
/// As in C.
pub unsafe fn fcntl64<F: Frontend>(fd: c_int, command: c_int, argument: usize) -> c_int {
    if own::is_engines(fd) {
        return none();
    }
    let result = next!(c"fcntl64", fn(c_int, c_int, usize) -> c_int, fd, command, argument);
    after_fcntl::<F>(fd, command, result)
}

fn after_fcntl<F: Frontend>(fd: c_int, command: c_int, result: c_int) -> c_int {
    if matches!(command as u32, raw::F_DUPFD | raw::F_DUPFD_CLOEXEC) {
        duplicated::<F>(fd, result);
    }
    result
}
