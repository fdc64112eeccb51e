//! `pthread_setcanceltype(3)`: the program may allow the C library to end a thread at any instruction, but the thread must not end
//! while it holds a lock of the engine.

use crate::inside;
use anyring_interpose::next;
use anyring_interpose::next::Next;
use anyring_runtime::cleanup;
use core::ffi::{c_int, c_void};

/// `PTHREAD_CANCEL_DEFERRED`.
pub const DEFERRED: c_int = 0;
/// `PTHREAD_CANCEL_ASYNCHRONOUS`.
pub const ASYNCHRONOUS: c_int = 1;

/// Sets the calling thread's cancel type by the C library. The thread may end in this call.
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
    // The note comes first, because with the new type the thread may end at any instruction.
    inside::note_ends_anywhere(kind == ASYNCHRONOUS);
    PUSH.get();
    POP.get();
    set_by_library(kind, before)
}

/// The C library's functions of these names, looked up when the program allows a thread to end anywhere, because a thread that sleeps in
/// the trap's handler must not look them up.
#[unsafe(link_section = "anyring_next")]
static PUSH: Next = Next::new(c"_pthread_cleanup_push");
#[unsafe(link_section = "anyring_next")]
static POP: Next = Next::new(c"_pthread_cleanup_pop");

/// Calls `body`, during which the C library may end the thread. If it does, it calls `ended` before the program's own cleanup
/// handlers.
pub fn with_cleanup(body: &mut dyn FnMut(), ended: &mut dyn FnMut()) {
    let (push, pop) = (PUSH.get(), POP.get());
    if push.is_null() || pop.is_null() {
        return body();
    }
    // SAFETY: glibc's and musl's function has this type.
    let push = unsafe { core::mem::transmute::<*mut c_void, cleanup::Push>(push) };
    // SAFETY: as above.
    let pop = unsafe { core::mem::transmute::<*mut c_void, cleanup::Pop>(pop) };
    // SAFETY: the functions are the C library's.
    unsafe { cleanup::may_end_in(push, pop, body, ended) };
}
