//! `pthread_setcanceltype(3)`: a thread that the program lets the C library end at any instruction must not end with a lock of the
//! engine.

use crate::inside;
use anyring_interpose::next;
use anyring_interpose::next::Next;
use core::ffi::{c_int, c_void};

/// `PTHREAD_CANCEL_DEFERRED`.
pub const DEFERRED: c_int = 0;
/// `PTHREAD_CANCEL_ASYNCHRONOUS`.
pub const ASYNCHRONOUS: c_int = 1;

/// Sets the calling thread's type by the C library. It may end in here.
pub fn set(kind: c_int) {
    let mut before = 0;
    set_by_library(kind, &raw mut before);
}

fn set_by_library(kind: c_int, before: *mut c_int) -> c_int {
    next!(c"pthread_setcanceltype", fn(c_int, *mut c_int) -> c_int, kind, before)
}

/// `pthread_setcanceltype(3)`.
///
/// # Safety
/// As in C.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int {
    // First: with the new type the thread may end at once.
    inside::note_ends_anywhere(kind == ASYNCHRONOUS);
    PUSH.get();
    POP.get();
    set_by_library(kind, before)
}

/// What the C library has of a function that is to be called when the thread ends here: a list in the thread's frames.
#[repr(C)]
struct Buffer {
    words: [usize; 4],
}

unsafe extern "C" fn call(cleanup: *mut c_void) {
    // SAFETY: as `with_cleanup` has passed it on; it has not returned.
    unsafe { (*cleanup.cast::<&mut dyn FnMut()>())() }
}

/// The C library's functions of these names, once the program has asked for threads that end anywhere: who sleeps in the trap's handler
/// must not look for them.
static PUSH: Next = Next::new(c"_pthread_cleanup_push");
static POP: Next = Next::new(c"_pthread_cleanup_pop");

/// Does something in which the C library may end the thread: before it goes on to what the program wants to be called then, it calls
/// `cleanup`. These functions, which the C libraries have for old programs, need no `setjmp`.
pub fn with_cleanup(mut cleanup: &mut dyn FnMut(), body: impl FnOnce()) {
    type Push = unsafe extern "C" fn(*mut Buffer, unsafe extern "C" fn(*mut c_void), *mut c_void);
    type Pop = unsafe extern "C" fn(*mut Buffer, c_int);
    let (push, pop) = (PUSH.get(), POP.get());
    if push.is_null() || pop.is_null() {
        return body();
    }
    // SAFETY: glibc and musl give it this type.
    let push: Push = unsafe { core::mem::transmute(push) };
    // SAFETY: as above.
    let pop: Pop = unsafe { core::mem::transmute(pop) };
    let mut buffer = Buffer { words: [0; 4] };
    let buffer = &raw mut buffer;
    // SAFETY: both stay until they are taken back, or the function has been called.
    unsafe { push(buffer, call, (&raw mut cleanup).cast()) };
    body();
    // SAFETY: as above.
    unsafe { pop(buffer, 0) };
}
