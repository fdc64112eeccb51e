//! Questions of `anyring` to the library before it relies on it: to load into some program, and perhaps to have a ring call
//! trap there. The program that was taken for that ends before its `main`.

use anyring_runtime::config::variable;
use anyring_runtime::{arch, process, sys};
use core::ffi::{CStr, c_char};
use linux_raw_sys::general::__NR_io_uring_setup;

/// The value of the variable that asks whether the library loads.
const LOADS: &CStr = c"loads";
const TRAPS: &CStr = c"traps";

/// Answers by the end of the process, if it is asked: with [`process::LOADED`] where the engine is in it.
///
/// # Safety
/// `environment` must be null or a list of strings that ends with null.
pub unsafe fn answer(environment: *const *const c_char, ours: bool) {
    // SAFETY: the caller's promise.
    let question = unsafe { variable(environment, "ANYRING_PROBE") };
    if question == Some(TRAPS) && ours {
        // By an instruction of the library's own: neither a function nor the stub page stands in between.
        // SAFETY: creates nothing, reads nothing.
        unsafe { arch::syscall(__NR_io_uring_setup as usize, [0; 6]) };
        crate::interpose::process::end();
    } else if question != Some(LOADS) {
        return;
    }
    sys::exit_group(if ours { process::LOADED } else { 1 });
}
