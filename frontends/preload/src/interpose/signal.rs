//! Signal actions and masks: see [`anyring_trap::signals`].

use anyring_interpose::next;
use anyring_runtime::sys::signal_bit;
use anyring_trap::arch;
use anyring_trap::signals::{self, Action};
use core::ffi::c_int;
use linux_raw_sys::errno::EINVAL;
use linux_raw_sys::general as raw;

/// `struct sigaction` as C libraries have it, glibc and musl alike.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LibcAction {
    handler: usize,
    mask: [u64; 16],
    flags: c_int,
    restorer: usize,
}

/// Signals that C libraries use themselves.
const INTERNAL: [c_int; 2] = [32, 33];
/// `SIG_ERR`.
const ERROR: usize = usize::MAX;

/// The `sa_restorer` that the kernel needs, on architectures where it does.
fn with_restorer(handler: usize, flags: u32, mask: u64) -> Action {
    let mut action = Action { handler, flags: flags as usize, restorer: 0, mask };
    if cfg!(target_arch = "x86_64") {
        action.flags |= 0x0400_0000;
        action.restorer = arch::anyring_trap_restorer as *const () as usize;
    }
    action
}

/// `sigaction(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const LibcAction, old: *mut LibcAction) -> c_int {
    if !signals::active() {
        return next!(c"sigaction", fn(c_int, *const LibcAction, *mut LibcAction) -> c_int, signal, new, old,);
    }
    if INTERNAL.contains(&signal) || signal <= 0 {
        return next::fail(-(EINVAL as isize)) as c_int;
    }
    // SAFETY: null or as in C.
    let new = unsafe { new.as_ref() }.map(|new| with_restorer(new.handler, new.flags as u32, new.mask[0]));
    let mut before = Action::default();
    // SAFETY: the program's handler.
    let result = unsafe { signals::set_action(signal as usize, new.as_ref(), Some(&mut before)) };
    // SAFETY: null or as in C.
    if let (0, Some(old)) = (result, unsafe { old.as_mut() }) {
        old.handler = before.handler;
        old.mask = [0; 16];
        old.mask[0] = before.mask;
        old.flags = (before.flags & !0x0400_0000) as c_int;
        old.restorer = 0;
    }
    next::fail(result) as c_int
}

/// `signal` and its kin: sets a handler and returns the one before.
unsafe fn set_handler(signal: c_int, handler: usize, flags: u32, mask: u64) -> usize {
    let mut before = Action::default();
    if INTERNAL.contains(&signal) || signal <= 0 || handler == ERROR {
        next::fail(-(EINVAL as isize));
        return ERROR;
    }
    let new = with_restorer(handler, flags, mask);
    // SAFETY: the program's handler.
    let result = unsafe { signals::set_action(signal as usize, Some(&new), Some(&mut before)) };
    if next::fail(result) < 0 { ERROR } else { before.handler }
}

/// `signal(2)`, with BSD's semantics as all but the oldest programs mean it.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(number: c_int, handler: usize) -> usize {
    if !signals::active() {
        return next!(c"signal", fn(c_int, usize) -> usize, number, handler);
    }
    let mask = if (1..=64).contains(&number) { signal_bit(number as u32) } else { 0 };
    // SAFETY: the program's handler.
    unsafe { set_handler(number, handler, raw::SA_RESTART, mask) }
}

/// The same by other names.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsd_signal(number: c_int, handler: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { signal(number, handler) }
}

/// The same by other names.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ssignal(number: c_int, handler: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { signal(number, handler) }
}

/// `signal` with System V's semantics.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(number: c_int, handler: usize) -> usize {
    if !signals::active() {
        return next!(c"sysv_signal", fn(c_int, usize) -> usize, number, handler);
    }
    // SAFETY: the program's handler.
    unsafe { set_handler(number, handler, raw::SA_RESETHAND | raw::SA_NODEFER, 0) }
}

/// What glibc's headers make of `signal` under `_XOPEN_SOURCE`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(number: c_int, handler: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { sysv_signal(number, handler) }
}

/// `sigprocmask(2)` or its kin, by the C library's `change`: SIGSYS is noted and not blocked, for a trap under a blocked
/// SIGSYS kills.
///
/// # Safety
/// `set` must be null or a signal set, and `old` null or room for one.
unsafe fn change_mask(
    how: c_int,
    set: *const [u64; 16],
    old: *mut [u64; 16],
    change: impl FnOnce(*const [u64; 16]) -> c_int,
) -> c_int {
    if !signals::active() {
        return change(set);
    }
    // The first word is all that the kernel knows. `old` may be the same set.
    // SAFETY: the caller's promise.
    let asked = unsafe { set.cast::<u64>().as_ref() }.copied();
    let shown = signals::wanted_trap();
    let mut copy = [0; 16];
    copy[0] = asked.unwrap_or(0) & !signal_bit(raw::SIGSYS);
    let result = change(if asked.is_some() { &raw const copy } else { set });
    if result != 0 {
        return result;
    }
    if let Some(asked) = asked {
        // Of the mask, the C library has seen to the rest.
        signals::change_mask(0, how as u32, asked);
    }
    // SAFETY: the caller's promise.
    if let Some(first) = unsafe { old.cast::<u64>().as_mut() } {
        *first |= shown;
    }
    result
}

/// `sigprocmask(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(how: c_int, set: *const [u64; 16], old: *mut [u64; 16]) -> c_int {
    let change =
        |set| next!(c"sigprocmask", fn(c_int, *const [u64; 16], *mut [u64; 16]) -> c_int, how, set, old,);
    // SAFETY: the caller's promise.
    unsafe { change_mask(how, set, old, change) }
}

/// `pthread_sigmask(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const [u64; 16], old: *mut [u64; 16]) -> c_int {
    let change =
        |set| next!(c"pthread_sigmask", fn(c_int, *const [u64; 16], *mut [u64; 16]) -> c_int, how, set, old,);
    // SAFETY: the caller's promise.
    unsafe { change_mask(how, set, old, change) }
}
