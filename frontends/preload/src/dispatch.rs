//! The way from functions and patched call sites into the engine.

use crate::{inside, threads};
use anyring_engine::Caller;
use anyring_runtime::{calls, process};
use anyring_trap::{fork, stub};

/// One of the three calls, made by a patched call site, or by a function: only then are the closes seen that go with it.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn called(number: usize, a: [usize; 6], by_function: bool) -> isize {
    if process::watches_kernel() {
        // SAFETY: the caller's promise.
        return unsafe { watched(number, a) };
    }
    let _inside = inside::enter();
    threads::seen();
    // SAFETY: the caller's promise.
    unsafe { calls::call(number, a, &Caller { tells_closes: by_function, ..Caller::default() }) }
}

/// The same where the kernel answers: while it does, signals come as they would without us.
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
