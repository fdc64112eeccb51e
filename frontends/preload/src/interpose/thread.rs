//! `pthread_create` and C11's `thrd_create`: a new thread begins with the signals of [`signals::OWN`] blocked that its
//! creator has blocked, as with all other signals.
//!
//! These signals are not in a thread's mask in the kernel, and a new thread has no note of them. So the creator really blocks them while
//! it makes the thread. The thread inherits the creator's mask, notes the signals, and unblocks them. Handlers of the program are kept
//! out of both threads meanwhile. So a signal finds the new thread either with the signal blocked, or with the note.
//!
//! ```text
//! creator   block ---- clone ---- unblock
//!                        \
//! thread                  `- C library - begin: note, unblock - the program's function
//! ```

use crate::arch;
use alloc::alloc::{alloc, dealloc};
use anyring_interpose::next;
use anyring_runtime::sys;
use anyring_trap::signals;
use core::alloc::Layout;
use core::ffi::{c_int, c_void};
use linux_raw_sys::errno::EAGAIN;

/// The program's function for a thread, with its argument.
#[repr(C)]
#[derive(Clone, Copy)]
struct Start {
    function: *const c_void,
    argument: *mut c_void,
}

/// The data that the creator passes to the thread.
#[derive(Clone, Copy)]
struct Given {
    start: Start,
    /// The creator's mask.
    mask: u64,
    /// The signals of [`signals::OWN`] that are blocked in addition.
    inherited: u64,
}

const GIVEN: Layout = Layout::new::<Given>();

/// `pthread_create(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    function: *const c_void,
    argument: *mut c_void,
) -> c_int {
    create(Start { function, argument }, EAGAIN as c_int, |Start { function, argument }| {
        next!(
            c"pthread_create",
            fn(*mut c_void, *const c_void, *const c_void, *mut c_void) -> c_int,
            thread,
            attributes,
            function,
            argument,
        )
    })
}

/// `thrd_create(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thrd_create(
    thread: *mut c_void,
    function: *const c_void,
    argument: *mut c_void,
) -> c_int {
    create(Start { function, argument }, NO_MEMORY, |Start { function, argument }| {
        next!(
            c"thrd_create",
            fn(*mut c_void, *const c_void, *mut c_void) -> c_int,
            thread,
            function,
            argument,
        )
    })
}

/// `thrd_nomem` of glibc and musl.
const NO_MEMORY: c_int = 3;

/// Lets the C library `make` a thread that runs `start` and begins with its creator's blocked signals. `no_memory` is the result
/// if there is no memory.
fn create(start: Start, no_memory: c_int, make: impl FnOnce(Start) -> c_int) -> c_int {
    let inherited = if signals::active() { signals::untold() } else { 0 };
    if inherited == 0 {
        return make(start);
    }
    // SAFETY: the layout has a size that is not zero.
    let given = unsafe { alloc(GIVEN) }.cast::<Given>();
    if given.is_null() {
        return no_memory;
    }
    let mask = sys::block_signals(signals::HANDLED | inherited);
    // SAFETY: the memory has this layout, and nothing else refers to it yet.
    unsafe { given.write(Given { start, mask, inherited }) };
    let result = make(Start { function: (begin as *const ()).cast(), argument: given.cast() });
    sys::set_signal_mask(mask);
    if result != 0 {
        // SAFETY: from `alloc` above; no thread was made that could use it.
        unsafe { dealloc(given.cast(), GIVEN) };
    }
    result
}

/// The first function of the thread.
///
/// # Safety
/// Called once, with what [`create`] gave the thread.
#[unsafe(naked)]
unsafe extern "C" fn begin(given: *mut c_void) -> *mut c_void {
    arch::begin_thread!(begins)
}

/// Takes over the data from the creator, and returns the function that the thread is to run.
///
/// # Safety
/// As for [`begin`].
unsafe extern "C" fn begins(given: *mut Given) -> Start {
    // SAFETY: by the caller's promise, the creator made the data for this thread.
    let Given { start, mask, inherited } = unsafe { *given };
    // The thread's attributes may have set another mask, which has none of these signals.
    if sys::unblock_signals(0) & inherited == inherited {
        signals::note(Some(inherited));
        sys::set_signal_mask(mask & !inherited);
    }
    // SAFETY: from `alloc` in `create`, and not used any more.
    unsafe { dealloc(given.cast(), GIVEN) };
    start
}
