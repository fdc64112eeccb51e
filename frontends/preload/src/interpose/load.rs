//! Functions that load code, which may close descriptors by instructions of its own.

use crate::arch::go_on_in;
use crate::inside;
use anyring_engine::frontend;
use anyring_interpose::next::Next;
use core::ffi::{c_char, c_int, c_long, c_void};

/// Reports that code is about to come.
pub fn code_comes() {
    let _inside = inside::enter();
    frontend::code_comes();
}

#[unsafe(link_section = "anyring_next")]
static DLOPEN: Next = Next::new(c"dlopen");
#[unsafe(link_section = "anyring_next")]
static DLMOPEN: Next = Next::new(c"dlmopen");

/// `dlopen(3)`. The C library's function looks at its caller, in whose library it finds where to search: it must be called by that.
///
/// # Safety
/// As in C.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(path: *const c_char, mode: c_int) -> *mut c_void {
    go_on_in!(next_dlopen)
}

/// `dlmopen(3)`.
///
/// # Safety
/// As in C.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlmopen(namespace: c_long, path: *const c_char, mode: c_int) -> *mut c_void {
    go_on_in!(next_dlmopen)
}

extern "C" fn next_dlopen() -> *const c_void {
    load_by(&DLOPEN)
}

extern "C" fn next_dlmopen() -> *const c_void {
    load_by(&DLMOPEN)
}

/// Returns the C library's function, or one that loads nothing.
fn load_by(next: &Next) -> *const c_void {
    extern "C" fn nothing() -> *const c_void {
        core::ptr::null()
    }
    code_comes();
    let address = next.get();
    if address.is_null() { nothing as *const c_void } else { address }
}
