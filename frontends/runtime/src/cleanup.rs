//! Calls during which the C library may end the thread (`pthread_cancel`).

use core::ffi::{c_int, c_void};

/// A cleanup handler that the C library calls if the thread ends here: an entry of the list in the thread's frames.
#[repr(C)]
pub struct Buffer {
    words: [usize; 4],
}

type Routine = unsafe extern "C" fn(*mut c_void);
/// `_pthread_cleanup_push`, which glibc and musl have for old programs: it needs no `setjmp`.
pub type Push = unsafe extern "C" fn(*mut Buffer, Routine, *mut c_void);
/// `_pthread_cleanup_pop`.
pub type Pop = unsafe extern "C" fn(*mut Buffer, c_int);

unsafe extern "C" fn run(ended: *mut c_void) {
    // SAFETY: `may_end_in` passed the pointer, and has not returned.
    unsafe { (*ended.cast::<&mut dyn FnMut()>())() }
}

/// Makes a call during which the C library may end the thread. If it does, it calls `ended` before the program's own cleanup
/// handlers.
///
/// # Safety
/// The two functions must be the C library's.
pub unsafe fn may_end_in(push: Push, pop: Pop, call: &mut dyn FnMut(), mut ended: &mut dyn FnMut()) {
    let mut buffer = Buffer { words: [0; 4] };
    let buffer = &raw mut buffer;
    // SAFETY: buffer and closure live until `pop` has removed the handler, or the handler has run.
    unsafe {
        push(buffer, run, (&raw mut ended).cast());
        call();
        pop(buffer, 0);
    }
}
