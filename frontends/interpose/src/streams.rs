//! Functions by which the C library closes a descriptor that the program knows: streams, directories, message queues, terminals. The C
//! library closes it by its own instructions, which no interposed function sees. Other descriptors that it closes were opened by it, and
//! are not known to the program.

use crate::descriptors::closing;
use crate::{Frontend, next};
use anyring_runtime::{arch, descriptors as own};
use core::ffi::{c_char, c_int, c_void};
use linux_raw_sys::general as raw;

/// Reports that the descriptor of a stream is about to be closed, if it has one.
fn closing_stream<F: Frontend>(stream: *mut c_void) {
    let fd = next::keeping_errno(|| next!(c"fileno", fn(*mut c_void) -> c_int, stream));
    closing_visible::<F>(fd);
}

/// Reports that `fd` is about to be closed, if it is a descriptor of the program's.
fn closing_visible<F: Frontend>(fd: c_int) {
    if fd >= 0 && !own::is_engines(fd) {
        closing::<F>(fd);
    }
}

/// `fclose(3)`.
///
/// # Safety
/// As in C.
pub unsafe fn fclose<F: Frontend>(stream: *mut c_void) -> c_int {
    closing_stream::<F>(stream);
    next!(c"fclose", fn(*mut c_void) -> c_int, stream)
}

/// `pclose(3)`.
///
/// # Safety
/// As in C.
pub unsafe fn pclose<F: Frontend>(stream: *mut c_void) -> c_int {
    closing_stream::<F>(stream);
    next!(c"pclose", fn(*mut c_void) -> c_int, stream)
}

/// `endmntent(3)`.
///
/// # Safety
/// As in C.
pub unsafe fn endmntent<F: Frontend>(stream: *mut c_void) -> c_int {
    if !stream.is_null() {
        closing_stream::<F>(stream);
    }
    next!(c"endmntent", fn(*mut c_void) -> c_int, stream)
}

/// Closes a stream by a function of the C library that opens it again. Returns the stream, or null.
fn reopen<F: Frontend>(stream: *mut c_void, opens: impl FnOnce() -> isize) -> *mut c_void {
    closing_stream::<F>(stream);
    core::ptr::with_exposed_provenance_mut(opens() as usize)
}

/// `freopen(3)`.
///
/// # Safety
/// As in C.
pub unsafe fn freopen<F: Frontend>(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut c_void,
) -> *mut c_void {
    reopen::<F>(stream, || {
        next!(c"freopen", fn(*const c_char, *const c_char, *mut c_void) -> isize, path, mode, stream)
    })
}

/// `freopen64`, the name of glibc's `freopen` in programs with large files.
///
/// # Safety
/// As in C.
pub unsafe fn freopen64<F: Frontend>(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut c_void,
) -> *mut c_void {
    reopen::<F>(stream, || {
        next!(c"freopen64", fn(*const c_char, *const c_char, *mut c_void) -> isize, path, mode, stream)
    })
}

/// `closedir(3)`.
///
/// # Safety
/// As in C.
pub unsafe fn closedir<F: Frontend>(directory: *mut c_void) -> c_int {
    if !directory.is_null() {
        let fd = next::keeping_errno(|| next!(c"dirfd", fn(*mut c_void) -> c_int, directory));
        closing_visible::<F>(fd);
    }
    next!(c"closedir", fn(*mut c_void) -> c_int, directory)
}

/// `mq_close(3)`, which is `close(2)` by another name. Before glibc 2.34 it is in a library that may be loaded later, so the function is not
/// looked up, and the system call is made.
///
/// # Safety
/// As in C.
pub unsafe fn mq_close<F: Frontend>(queue: c_int) -> c_int {
    if own::is_engines(queue) {
        return next::fail(own::NONE) as c_int;
    }
    closing::<F>(queue);
    // SAFETY: the program's own call.
    next::fail(unsafe { arch::syscall(raw::__NR_close as usize, [queue as usize, 0, 0, 0, 0, 0]) }) as c_int
}

/// `login_tty(3)`, which replaces the standard streams, and closes the descriptor.
///
/// # Safety
/// As in C.
pub unsafe fn login_tty<F: Frontend>(fd: c_int) -> c_int {
    (0..3).filter(|&stream| stream != fd).for_each(closing_visible::<F>);
    if fd > 2 {
        closing_visible::<F>(fd);
    }
    next!(c"login_tty", fn(c_int) -> c_int, fd)
}
