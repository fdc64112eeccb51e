//! The function that a program may call in the library that was brought into it.

use anyring_runtime::process;
use core::ffi::c_char;

/// Which engine answers this process's ring calls: `user`, `kernel`, or `kernel+user` where each has rings of its own. The
/// string is never freed. Programs look the function up by `dlsym`: without `anyring run` there is none.
#[unsafe(no_mangle)]
pub extern "C" fn anyring_engine() -> *const c_char {
    process::engine().as_ptr()
}
