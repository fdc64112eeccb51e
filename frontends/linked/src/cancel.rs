//! Threads that the C library ends in a call that sleeps (`pthread_cancel`).

use anyring_runtime::cleanup::{self, Buffer};
use core::ffi::{c_int, c_void};

unsafe extern "C" {
    fn _pthread_cleanup_push(
        buffer: *mut Buffer,
        routine: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    );
    fn _pthread_cleanup_pop(buffer: *mut Buffer, execute: c_int);
}

/// Makes a call that sleeps, the only one in the engine with the thread's own signal mask. Where the C library ends the thread in it, `ended` is
/// called before what the program wants to be called then.
pub fn may_end_in(call: &mut dyn FnMut(), ended: &mut dyn FnMut()) {
    // SAFETY: the C library's.
    unsafe { cleanup::may_end_in(_pthread_cleanup_push, _pthread_cleanup_pop, call, ended) };
}
