//! Threads that the C library ends in a call that sleeps (`pthread_cancel`).

use core::ffi::{c_int, c_void};

/// What the C library has of a function that is to be called when the thread ends here: a list in the thread's frames.
#[repr(C)]
struct Buffer {
    words: [usize; 4],
}

type Routine = unsafe extern "C" fn(*mut c_void);

unsafe extern "C" {
    fn _pthread_cleanup_push(buffer: *mut Buffer, routine: Routine, argument: *mut c_void);
    fn _pthread_cleanup_pop(buffer: *mut Buffer, execute: c_int);
}

unsafe extern "C" fn run(ended: *mut c_void) {
    // SAFETY: as `may_end_in` has passed it on; it has not returned.
    unsafe { (*ended.cast::<&mut dyn FnMut()>())() }
}

/// Makes a call that sleeps, the only one in the engine with the thread's own signal mask. Where the C library ends the thread in it, `ended` is
/// called before what the program wants to be called then.
pub fn may_end_in(call: &mut dyn FnMut(), mut ended: &mut dyn FnMut()) {
    let mut buffer = Buffer { words: [0; 4] };
    // SAFETY: both are there until the second call takes them back, or the routine has run.
    unsafe {
        _pthread_cleanup_push(&raw mut buffer, run, (&raw mut ended).cast());
        call();
        _pthread_cleanup_pop(&raw mut buffer, 0);
    }
}
