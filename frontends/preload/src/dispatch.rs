//! The way from functions and patched call sites into the engine.

use crate::{frontend as host, inside, threads};
use anyring_engine::{Caller, frontend};
use anyring_runtime::{beside, calls, process};
use anyring_trap::{fork, stub};
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::general as raw;

/// One of the three calls, made by a patched call site, or by a function: only then are the closes seen that go with it.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn called(number: usize, a: [usize; 6], by_function: bool) -> isize {
    if process::watches_kernel() {
        // SAFETY: the caller's promise.
        return unsafe { watched(number, a) };
    }
    if beside::asks_kernel()
        // SAFETY: the caller's promise.
        && let Some(result) = unsafe { by_kernel(number, a) }
    {
        return result;
    }
    let _inside = inside::enter();
    threads::seen();
    let caller = Caller { tells_closes: by_function, signal_mask: inside::program_mask() };
    // SAFETY: the caller's promise.
    let result = unsafe { calls::call(number, a, &caller) };
    calls::explain(number, result);
    result
}

/// The kernel's answer, in a process where it answers first; none where our engine is to be asked.
///
/// # Safety
/// As for the call that `number` names.
#[cold]
#[inline(never)]
unsafe fn by_kernel(number: usize, a: [usize; 6]) -> Option<isize> {
    if beside::is_shared() && beside::is_ours(number, a) {
        return None;
    }
    // SAFETY: the caller's promise, or parameters of ours.
    let kernel = |number, a| unsafe { stub::syscall(number, a) };
    if number != raw::__NR_io_uring_setup as usize {
        return Some(kernel(number, a));
    }
    let closed = |fd| {
        let _inside = inside::enter();
        frontend::closed(fd);
    };
    let result = beside::set_up(a, kernel, closed);
    if result.is_none() {
        begin_beside();
    }
    result
}

/// Puts the engine in place in a program that runs, whose other rings are the kernel's.
fn begin_beside() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    inside::block_signals();
    // Threads that come here at the same time go on with a whole engine; only the hooks are for once.
    process::adopt(&host::BESIDE);
    if !BEGUN.swap(true, Ordering::Relaxed) {
        #[cfg(not(test))]
        crate::interpose::process::register_fork();
        threads::prepare();
    }
    beside::share();
}

/// Makes a call that the kernel answers: while it does, signals come as they would without us.
///
/// # Safety
/// As for the call that `number` names.
#[cold]
#[inline(never)]
unsafe fn watched(number: usize, a: [usize; 6]) -> isize {
    let inside = inside::enter();
    fork::notice();
    let mut left = None;
    let result = calls::watched(number, a, || {
        drop(inside);
        // SAFETY: the caller's promise.
        let result = unsafe { stub::syscall(number, a) };
        left = Some(inside::enter());
        result
    });
    drop(left);
    result
}
