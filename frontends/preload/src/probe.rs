//! Questions that `anyring` asks the library before relying on it: whether it loads into a program, and whether a ring call
//! traps there; and of a program, whether all its closes are seen. A program that is used for a question ends before its `main`.

use crate::patch::unseen;
use anyring_runtime::config::variable;
use anyring_runtime::{arch, process, sys};
use core::ffi::{CStr, c_char};
use linux_raw_sys::general::__NR_io_uring_setup;

/// The value of `ANYRING_PROBE` that asks whether the library loads.
const LOADS: &CStr = c"loads";
const TRAPS: &CStr = c"traps";
const CLOSES: &CStr = c"closes";

/// Answers a question by ending the process, if one was asked: with [`process::LOADED`] if the user engine is active.
///
/// # Safety
/// `environment` must be null or a list of strings that ends with null.
pub unsafe fn answer(environment: *const *const c_char, ours: bool) {
    // SAFETY: the caller's promise.
    let question = unsafe { variable(environment, "ANYRING_PROBE") };
    if question == Some(TRAPS) && ours {
        // The call is made by an instruction of this library, which bypasses interposed functions and the stub page.
        // SAFETY: makes no ring, and reads no memory.
        unsafe { arch::syscall(__NR_io_uring_setup as usize, [0; 6]) };
        crate::interpose::process::end();
    } else if question != Some(LOADS) {
        return;
    }
    sys::exit_group(if ours { process::LOADED } else { 1 });
}

/// Answers the question about closes, if it was asked, after call sites were patched. If some closes may be unseen, the log names the
/// code that may make them.
///
/// # Safety
/// As for [`answer`].
pub unsafe fn answer_after_patching(environment: *const *const c_char) {
    // SAFETY: the caller's promise.
    if unsafe { variable(environment, "ANYRING_PROBE") } == Some(CLOSES) {
        sys::exit_group(if unseen::closes() { process::MISSES_CLOSES } else { process::SEES_CLOSES });
    }
}
