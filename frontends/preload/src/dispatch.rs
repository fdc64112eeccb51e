//! The way from functions and patched call sites into the engine.

use crate::{inside, threads};
use anyring_engine::Caller;
use anyring_runtime::calls;

/// One of the three calls, made by a function or a patched call site.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn called(number: usize, a: [usize; 6]) -> isize {
    let _inside = inside::enter();
    threads::seen();
    // SAFETY: the caller's promise.
    unsafe { calls::call(number, a, &Caller::default()) }
}
