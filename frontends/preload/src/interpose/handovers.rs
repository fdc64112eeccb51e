//! Functions that pass descriptors from this process to others or back, except `fork` and those in [`super::exec`]. When a
//! program closes a socket, the engine must know whether another process has it, too.

use super::{Interposed, exec};
use anyring_engine::frontend;
use anyring_interpose::{Frontend, Row, next};
use anyring_runtime::{active, arch, calls};
use core::ffi::{c_char, c_int, c_void};
use linux_raw_sys::general as raw;
use linux_raw_sys::net::mmsghdr;

/// Reports the descriptors that came with each message.
fn received(messages: impl Iterator<Item = *const c_void>) {
    if active() && calls::rings_exist() {
        let _stay = Interposed::enter();
        messages.for_each(|message| frontend::received(message as u64));
    }
}

fn first(messages: *const c_void, count: isize) -> impl Iterator<Item = *const c_void> {
    let count = usize::try_from(count).unwrap_or(0);
    (0..count).map(move |index| messages.wrapping_byte_add(index * size_of::<mmsghdr>()))
}

fn got(fd: isize) {
    if let Ok(fd @ 0..) = c_int::try_from(fd) {
        frontend::received_descriptor(fd);
    }
}

fn gives_own_descriptors(flags: usize) -> bool {
    flags & raw::CLONE_FILES as usize != 0
}

/// `recvmsg(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut c_void, flags: c_int) -> isize {
    let result = next!(c"recvmsg", fn(c_int, *mut c_void, c_int) -> isize, fd, message, flags);
    if result >= 0 {
        received(core::iter::once(message.cast_const()));
    }
    result
}

/// `recvmmsg(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut c_void,
    count: u32,
    flags: c_int,
    timeout: *mut c_void,
) -> c_int {
    let result = next!(
        c"recvmmsg",
        fn(c_int, *mut c_void, u32, c_int, *mut c_void) -> c_int,
        fd,
        messages,
        count,
        flags,
        timeout,
    );
    received(first(messages, result as isize));
    result
}

/// `pidfd_getfd(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pidfd_getfd(process: c_int, fd: c_int, flags: u32) -> c_int {
    let result = next!(c"pidfd_getfd", fn(c_int, c_int, u32) -> c_int, process, fd, flags);
    got(result as isize);
    result
}

/// `unshare(2)`, which may give the calling thread a descriptor table of its own.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    let call = || next!(c"unshare", fn(c_int) -> c_int, flags);
    if gives_own_descriptors(flags as usize) { frontend::handing_over(call) } else { call() }
}

/// `clone(2)`. Variadic in C; arguments that the caller did not pass are not used. The next function of this name may be another library's
/// and return a pointer, so the whole result word is passed on.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    entry: *mut c_void,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut c_void,
    storage: *mut c_void,
    child: *mut c_void,
) -> isize {
    // The child begins at `entry`, and never returns here.
    frontend::handing_over(|| {
        next!(
            c"clone",
            fn(*mut c_void, *mut c_void, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_void) -> isize,
            entry,
            stack,
            flags,
            argument,
            parent,
            storage,
            child,
        )
    })
}

/// `_Fork(3)`, which calls no fork hooks.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> c_int {
    frontend::handing_over(|| next!(c"_Fork", fn() -> c_int,))
}

/// `wordexp(3)`, which may start a shell.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wordexp(words: *const c_char, result: *mut c_void, flags: c_int) -> c_int {
    frontend::handing_over(|| {
        next!(c"wordexp", fn(*const c_char, *mut c_void, c_int) -> c_int, words, result, flags)
    })
}

/// The calls of this module, by number.
pub const ROWS: &[Row] = &[
    Row { numbers: &[raw::__NR_clone, raw::__NR_clone3], call: makes_a_process, hands_over: true },
    Row { numbers: arch::FORKS, call: makes_a_process, hands_over: true },
    Row { numbers: &[raw::__NR_execve, raw::__NR_execveat], call: executes, hands_over: false },
    Row { numbers: &[raw::__NR_unshare], call: unshares, hands_over: true },
    Row { numbers: &[raw::__NR_pidfd_getfd], call: gets, hands_over: true },
    Row { numbers: &[raw::__NR_recvmsg], call: receives, hands_over: true },
    Row { numbers: &[raw::__NR_recvmmsg], call: receives_many, hands_over: true },
];

// The contract of each function is that of [`Row::call`].
unsafe fn makes_a_process(number: usize, a: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    frontend::handing_over(|| unsafe { arch::syscall(number, a) })
}

unsafe fn executes(number: usize, a: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    exec::becoming_another(|| unsafe { arch::syscall(number, a) })
}

unsafe fn unshares(number: usize, a: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    let call = || unsafe { arch::syscall(number, a) };
    if gives_own_descriptors(a[0]) { frontend::handing_over(call) } else { call() }
}

unsafe fn gets(number: usize, a: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    let fd = unsafe { arch::syscall(number, a) };
    got(fd);
    fd
}

unsafe fn receives(number: usize, a: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    let result = unsafe { arch::syscall(number, a) };
    received(first(a[1] as *const c_void, if result < 0 { 0 } else { 1 }));
    result
}

unsafe fn receives_many(number: usize, a: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    let count = unsafe { arch::syscall(number, a) };
    received(first(a[1] as *const c_void, count));
    count
}
