//! Functions that load code, which may close descriptors by its own instructions, and functions that make memory
//! executable.

use crate::arch::go_on_in;
use crate::inside;
use crate::patch::{is_of_c_library, unseen};
use anyring_engine::frontend;
use anyring_interpose::next::{self, Next};
use anyring_runtime::arch;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use linux_raw_sys::general as raw;

/// Reports that new code is about to be loaded.
pub fn code_comes() {
    let _inside = inside::enter();
    unseen::distrust_sites();
    frontend::code_comes();
}

/// Reports that new code is about to be loaded, if this call by number makes memory executable.
pub fn by_number(number: usize, arguments: [usize; 6]) {
    let makes_executable = match number as u32 {
        raw::__NR_mmap | raw::__NR_mprotect | raw::__NR_pkey_mprotect => {
            arguments[2] & raw::PROT_EXEC as usize != 0
        }
        raw::__NR_shmat => arguments[2] & SHM_EXEC != 0,
        _ => return,
    };
    if makes_executable {
        code_comes();
    }
}

#[unsafe(link_section = "anyring_next")]
static DLOPEN: Next = Next::new(c"dlopen");
#[unsafe(link_section = "anyring_next")]
static DLMOPEN: Next = Next::new(c"dlmopen");

/// `dlopen(3)`. The C library's function examines its caller, whose library determines where it searches. So the program must be
/// its caller.
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

/// Returns the function to which `dlopen` jumps.
extern "C" fn next_dlopen(path: *const c_char, mode: c_int) -> *const c_void {
    report_load(path, mode);
    loader(&DLOPEN)
}

/// Returns the function to which `dlmopen` jumps.
extern "C" fn next_dlmopen(_namespace: c_long, path: *const c_char, mode: c_int) -> *const c_void {
    report_load(path, mode);
    loader(&DLMOPEN)
}

/// Reports the effects of a load: new code, or functions of the C library that are not replaced.
fn report_load(path: *const c_char, mode: c_int) {
    const LOADS_NOTHING: c_int = 4;
    const PREFERS_OWN: c_int = 8;
    if path.is_null() {
        return;
    }
    // SAFETY: the C library's function reads the path up to its zero, too.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    let _inside = inside::enter();
    // If a library prefers its own symbols, it calls the C library's functions instead of this library's. With the handle of the C library,
    // `dlsym` finds the C library's functions.
    let prefers_others = mode & PREFERS_OWN != 0 || is_of_c_library(name);
    if prefers_others {
        frontend::closes_may_be_unseen();
    }
    if prefers_others || mode & LOADS_NOTHING == 0 {
        unseen::distrust_sites();
        frontend::code_comes();
    }
}

/// Returns the C library's function, or one that loads nothing.
fn loader(next: &Next) -> *const c_void {
    extern "C" fn nothing() -> *const c_void {
        core::ptr::null()
    }
    let address = next.get();
    if address.is_null() { nothing as *const c_void } else { address }
}

/// The flag of `shmat` that makes the memory executable.
const SHM_EXEC: usize = 0o100_000;

#[unsafe(link_section = "anyring_next")]
static MPROTECT: Next = Next::new(c"mprotect");
#[unsafe(link_section = "anyring_next")]
static PKEY_MPROTECT: Next = Next::new(c"pkey_mprotect");
#[unsafe(link_section = "anyring_next")]
static SHMAT: Next = Next::new(c"shmat");

/// Makes a call by the C library's function of up to four arguments. Memory allocators call these functions at times when they cannot wait: the
/// function is not looked up then.
///
/// # Safety
/// As for the call.
unsafe fn call(next: &Next, number: u32, [a, b, c, d]: [usize; 4]) -> isize {
    by_number(number as usize, [a, b, c, d, 0, 0]);
    let next = next.known();
    if next.is_null() {
        // SAFETY: the caller's promise.
        return next::fail(unsafe { arch::syscall(number as usize, [a, b, c, d, 0, 0]) });
    }
    type Function = unsafe extern "C" fn(usize, usize, usize, usize) -> isize;
    // SAFETY: the C library's function of this name has this type in the calling convention, or fewer arguments, or an `int` as its result.
    let next: Function = unsafe { core::mem::transmute(next) };
    // SAFETY: the caller's promise.
    unsafe { next(a, b, c, d) }
}

/// `mprotect(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(address: usize, length: usize, access: c_int) -> c_int {
    // SAFETY: the program's own call.
    unsafe { call(&MPROTECT, raw::__NR_mprotect, [address, length, access as usize, 0]) as c_int }
}

/// `pkey_mprotect(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pkey_mprotect(address: usize, length: usize, access: c_int, key: c_int) -> c_int {
    let arguments = [address, length, access as usize, key as usize];
    // SAFETY: the program's own call.
    unsafe { call(&PKEY_MPROTECT, raw::__NR_pkey_mprotect, arguments) as c_int }
}

/// `shmat(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(id: c_int, address: usize, flags: c_int) -> isize {
    // SAFETY: the program's own call.
    unsafe { call(&SHMAT, raw::__NR_shmat, [id as usize, address, flags as usize, 0]) }
}
