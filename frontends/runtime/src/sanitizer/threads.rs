//! Threads that a sanitizer's run-time knows: the C library makes them, and the run-time intercepts `pthread_create`.
//!
//! `scripts/check-sanitizers` uses them in place of the regular [`crate::threads`]. A program whose
//! threads all end by `pthread_exit` does not end while such a thread exists.

use crate::sys;
use alloc::boxed::Box;
use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use core::ptr;

/// The function that a thread is to run, with its argument and name.
struct Start {
    name: &'static CStr,
    entry: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
}

unsafe extern "C" {
    fn pthread_create(
        thread: *mut usize,
        attributes: *const c_void,
        run: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void,
    ) -> c_int;
    fn pthread_detach(thread: usize) -> c_int;
}

/// Does nothing: the child of a fork has none of the parent's threads, and no list of them is kept.
pub fn forked() {}

/// True if the thread is known to be one of the engine's; never, because no list of threads is kept.
pub fn is_own(_thread: u32) -> bool {
    false
}

/// Starts a thread that runs `entry(argument)`, with [`sys::OF_OWN_THREADS`] blocked.
///
/// # Errors
/// The errno.
pub fn spawn(
    name: &'static CStr,
    entry: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
    _storage: Range<isize>,
) -> Result<(), i32> {
    let start = Box::into_raw(Box::new(Start { name, entry, argument }));
    let mut thread = 0;
    // The new thread inherits the mask, so it gets no signal of the program.
    let mask = sys::set_signal_mask(sys::OF_OWN_THREADS);
    // SAFETY: `run` takes over what `start` points to.
    let error = unsafe { pthread_create(&mut thread, ptr::null(), run, start.cast()) };
    if error == 0 {
        // SAFETY: the thread was just made, and is not joined.
        unsafe { pthread_detach(thread) };
    } else {
        // SAFETY: no thread has taken over the memory.
        drop(unsafe { Box::from_raw(start) });
    }
    sys::set_signal_mask(mask);
    if error == 0 { Ok(()) } else { Err(error) }
}

/// The first function of a new thread.
extern "C" fn run(start: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` made it for this thread.
    let start = unsafe { Box::from_raw(start.cast::<Start>()) };
    // SAFETY: the name ends with zero.
    unsafe { sys::prctl(PR_SET_NAME, start.name.as_ptr() as usize) };
    let Start { entry, argument, .. } = *start;
    // SAFETY: called once, in a new thread, as the caller of `spawn` requires.
    unsafe { entry(argument) };
    ptr::null_mut()
}

/// From `<linux/prctl.h>`.
const PR_SET_NAME: u32 = 15;
