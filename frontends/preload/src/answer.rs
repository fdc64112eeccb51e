//! The function that a program may call in this library.

use anyring_runtime::process;
use core::ffi::c_char;

/// Returns the engine that answers this process's ring calls: `user`, `kernel`, or `kernel+user` if each has rings of its own. The
/// string is never freed. Programs look the function up by `dlsym`: without `anyring run` it does not exist.
#[unsafe(no_mangle)]
pub extern "C" fn anyring_engine() -> *const c_char {
    process::engine().as_ptr()
}
