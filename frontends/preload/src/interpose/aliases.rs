//! Other names under which glibc exports functions that close or replace descriptors.

use super::Interposed;
use anyring_interpose::{descriptors, streams};
use core::ffi::{c_int, c_void};

/// `close(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __close(fd: c_int) -> c_int {
    // SAFETY: the program's promise.
    unsafe { descriptors::close::<Interposed>(fd) }
}

/// `dup2(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: the program's promise.
    unsafe { descriptors::dup2::<Interposed>(old, new) }
}

/// `fcntl(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the program's promise.
    unsafe { descriptors::fcntl::<Interposed>(fd, command, argument) }
}

/// `fclose(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _IO_fclose(stream: *mut c_void) -> c_int {
    // SAFETY: the program's promise.
    unsafe { streams::fclose::<Interposed>(stream) }
}

/// `endmntent(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __endmntent(stream: *mut c_void) -> c_int {
    // SAFETY: the program's promise.
    unsafe { streams::endmntent::<Interposed>(stream) }
}
