//! The entry to the engine from interposed functions and patched call sites.

use crate::patch::unseen;
use crate::{frontend as host, inside, threads};
use anyring_engine::{Caller, frontend};
use anyring_runtime::{beside, calls, process};
use anyring_trap::{fork, stub};
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::general as raw;

/// Makes one of the three calls, for a patched call site or for a function (`by_function`).
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
    unseen::watch_lost_rings();
    let makes_ring = number == raw::__NR_io_uring_setup as usize;
    let tells_closes = by_function || makes_ring && unseen::trust_sites();
    let caller = Caller { tells_closes, signal_mask: inside::program_mask() };
    // SAFETY: the caller's promise.
    let result = unsafe { calls::call(number, a, &caller) };
    calls::explain(number, result);
    result
}

/// Returns the kernel's result, in a process in which the kernel is asked first, or `None` if the user engine is to answer.
///
/// # Safety
/// As for the call that `number` names.
#[cold]
#[inline(never)]
unsafe fn by_kernel(number: usize, a: [usize; 6]) -> Option<isize> {
    if beside::is_shared() && beside::is_ours(number, a) {
        return None;
    }
    // SAFETY: the caller's promise, or parameters of this crate.
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

/// Starts the engine in a running program whose other rings are the kernel's.
fn begin_beside() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    inside::block_signals();
    // Threads that arrive at the same time all continue with a complete engine; only the hooks must be registered once.
    process::adopt(&host::BESIDE);
    if !BEGUN.swap(true, Ordering::Relaxed) {
        #[cfg(not(test))]
        crate::interpose::process::register_fork();
        threads::prepare();
    }
    beside::share();
}

/// Makes a call that the kernel answers. During the call, signals are delivered as without anyring.
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
