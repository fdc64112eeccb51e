//! Threads as a sanitizer's run-time knows them: made by the C library, in whose `pthread_create` it stands.
//!
//! Used in place of [`crate::threads`] as it else is, by `scripts/check-sanitizers`. A program whose
//! threads all end by `pthread_exit` does not end with such threads about.

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

/// The child of a fork has none of the parent's threads.
pub fn forked() {}

/// Whether the thread of this number is known to be one of ours: nobody keeps a list of them.
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
    // The new thread inherits the mask: it never sees a signal of the program's.
    let mask = sys::set_signal_mask(sys::OF_OWN_THREADS);
    // SAFETY: `run` takes over what `start` points to.
    let error = unsafe { pthread_create(&mut thread, ptr::null(), run, start.cast()) };
    if error == 0 {
        // SAFETY: the thread was just made, and nobody joins it.
        unsafe { pthread_detach(thread) };
    } else {
        // SAFETY: no thread has taken it.
        drop(unsafe { Box::from_raw(start) });
    }
    sys::set_signal_mask(mask);
    if error == 0 { Ok(()) } else { Err(error) }
}

/// A thread's first function of ours.
extern "C" fn run(start: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` made it for this thread.
    let start = unsafe { Box::from_raw(start.cast::<Start>()) };
    // SAFETY: the name ends with zero.
    unsafe { sys::prctl(PR_SET_NAME, start.name.as_ptr() as usize) };
    let Start { entry, argument, .. } = *start;
    // SAFETY: in a new thread, once, as who gave them wants it.
    unsafe { entry(argument) };
    ptr::null_mut()
}

/// From `<linux/prctl.h>`.
const PR_SET_NAME: u32 = 15;
