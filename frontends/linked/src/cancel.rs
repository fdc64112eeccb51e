//! Threads that the C library may end during a call that sleeps (`pthread_cancel`).

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

/// Makes a call that sleeps, the only call of the engine with the thread's own signal mask. If the C library ends the thread during
/// the call, it calls `ended` before the program's own cleanup handlers.
pub fn may_end_in(call: &mut dyn FnMut(), ended: &mut dyn FnMut()) {
    // SAFETY: the functions are the C library's.
    unsafe { cleanup::may_end_in(_pthread_cleanup_push, _pthread_cleanup_pop, call, ended) };
}
