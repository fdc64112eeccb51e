//! Code in which the C library may end the thread (`pthread_cancel`).

use core::ffi::{c_int, c_void};

/// A function that the C library is to call when the thread ends here: an entry of its list in the thread's frames.
#[repr(C)]
pub struct Buffer {
    words: [usize; 4],
}

type Routine = unsafe extern "C" fn(*mut c_void);
/// `_pthread_cleanup_push`, as glibc and musl have it for old programs: it needs no `setjmp`.
pub type Push = unsafe extern "C" fn(*mut Buffer, Routine, *mut c_void);
/// `_pthread_cleanup_pop`.
pub type Pop = unsafe extern "C" fn(*mut Buffer, c_int);

unsafe extern "C" fn run(ended: *mut c_void) {
    // SAFETY: as `may_end_in` has passed it on; it has not returned.
    unsafe { (*ended.cast::<&mut dyn FnMut()>())() }
}

/// Makes a call in which the C library may end the thread: before it goes on to what the program wants to be called then, it calls
/// `ended`.
///
/// # Safety
/// The two functions must be the C library's.
pub unsafe fn may_end_in(push: Push, pop: Pop, call: &mut dyn FnMut(), mut ended: &mut dyn FnMut()) {
    let mut buffer = Buffer { words: [0; 4] };
    let buffer = &raw mut buffer;
    // SAFETY: all is there until the second function takes it back, or the routine has run.
    unsafe {
        push(buffer, run, (&raw mut ended).cast());
        call();
        pop(buffer, 0);
    }
}
