//! `fork` and the ends of the process.

use crate::{start, sys};
use core::ffi::{CStr, c_int, c_void};

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const core::ffi::c_char) -> *mut c_void;
    static __dso_handle: u8;
}

type Hook = Option<extern "C" fn()>;

fn find(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with zero; null is `RTLD_DEFAULT`.
    unsafe { dlsym(core::ptr::null_mut(), name.as_ptr()) }
}

/// Asks the C library to tell the child of each fork.
pub fn register_fork() {
    // glibc's `pthread_atfork` is linked statically into each object and calls this.
    let register = find(c"__register_atfork");
    if !register.is_null() {
        // SAFETY: glibc's function of this name has this type.
        let register: unsafe extern "C" fn(Hook, Hook, Hook, *const u8) -> c_int =
            unsafe { core::mem::transmute(register) };
        // SAFETY: the hook and the handle live as long as this library.
        unsafe { register(None, None, Some(start::forked), &raw const __dso_handle) };
        return;
    }
    let register = find(c"pthread_atfork");
    if !register.is_null() {
        // SAFETY: POSIX gives it this type.
        let register: unsafe extern "C" fn(Hook, Hook, Hook) -> c_int =
            unsafe { core::mem::transmute(register) };
        // SAFETY: the hook lives as long as this library.
        unsafe { register(None, None, Some(start::forked)) };
    }
}

/// `_exit(2)`: destructors do not run.
#[unsafe(no_mangle)]
pub extern "C" fn _exit(code: c_int) -> ! {
    start::end();
    sys::exit_group(code)
}

/// `_Exit(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn _Exit(code: c_int) -> ! {
    start::end();
    sys::exit_group(code)
}
