//! The way from functions and patched call sites into the engine.

use crate::{inside, threads};
use anyring_engine::Caller;
use anyring_runtime::calls;

/// One of the three calls, made by a patched call site, or by a function: only then are the closes seen that go with it.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn called(number: usize, a: [usize; 6], by_function: bool) -> isize {
    let _inside = inside::enter();
    threads::seen();
    // SAFETY: the caller's promise.
    unsafe { calls::call(number, a, &Caller { tells_closes: by_function, ..Caller::default() }) }
}
