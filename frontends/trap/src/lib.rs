//! The trap, which the front ends of unmodified programs share.
//!
//! A seccomp filter ([`filter`]) makes the `io_uring` calls of a program's own instructions raise SIGSYS, and the handler of that
//! signal ([`trap`]) runs the engine in their stead. Threads and memory are those of [`anyring_runtime`]. The preloaded library and
//! the image that is injected into static programs both use this crate; where they differ, it calls [`Frontend`].
//!
//! Nothing here uses libc or thread-local storage: a static program may have neither.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod altstack;
pub mod arch;
pub mod credentials;
pub mod descriptors;
pub mod exec;
pub mod filter;
pub mod fork;
pub mod handlers;
pub mod left;
pub mod library;
pub mod low;
pub mod pending;
pub mod program;
pub mod signals;
pub mod sites;
pub mod sleep;
pub mod start;
pub mod stub;
pub mod trap;

use core::sync::atomic::{AtomicPtr, Ordering};

/// A front end that uses the trap.
pub trait Frontend: Sync {
    /// True if the calling thread, which a signal has interrupted, is inside the engine, and has not entered it by the trap.
    fn is_inside(&self, interrupted: &arch::Context) -> bool;

    /// Notes a signal that arrived while the calling thread is inside the engine, and is blocked until the thread leaves. From now
    /// until then the thread must not begin to sleep.
    fn kept_out(&self, signal: u64, interrupted: &mut arch::Context);

    /// Returns the signals that were noted by [`kept_out`](Self::kept_out) since the calling thread entered the engine, and forgets them.
    fn take_kept_out(&self) -> u64;

    /// Returns the function that the kernel is to call in place of a handler of the program, if not [`signals::deliver`]. The function
    /// must continue with [`signals::deliver`] or [`signals::deliver_blocked`].
    fn front(&self) -> Option<usize> {
        None
    }

    /// Returns the function that the kernel is to call if the program has a handler for SIGSEGV or SIGBUS, if not [`signals::fault`].
    /// The function must continue with [`signals::fault`] or [`signals::fault_blocked`].
    fn front_of_faults(&self) -> Option<usize> {
        None
    }

    /// Returns the context that the kernel passed to [`front`](Self::front) or [`front_of_faults`](Self::front_of_faults), if `interrupted`
    /// was executing one of them.
    fn context_in_front(&self, _interrupted: &arch::Context) -> Option<*mut arch::Context> {
        None
    }

    /// Prepares the calling thread for a handler of the program. The thread is not inside the engine, but may have been interrupted on
    /// its way in or out.
    fn settle(&self, _interrupted: &mut arch::Context) {}

    /// Adjusts the front end in a child of `fork`, whose only thread is the calling one.
    fn forked(&self) {}

    /// Returns the calling thread's thread pointer, which identifies the thread; 0 if there is none, or it cannot be known.
    fn thread_pointer(&self) -> usize {
        0
    }

    /// Notes that a call has trapped, and that the calling thread is about to enter a ring. The thread may end there. Called in the
    /// handler.
    fn enters(&self) {}

    /// Notes that a call has trapped whose instruction ends at `next`. Called in the handler.
    fn trapped_at(&self, next: usize);

    /// Returns the signals of [`signals::OWN`] that the program wants blocked in the calling thread; `None` if the thread has not yet set
    /// a mask. In the kernel these signals are never blocked: see [`signals`].
    fn wanted_blocked(&self) -> Option<u64> {
        Some(0)
    }

    /// Sets what [`wanted_blocked`](Self::wanted_blocked) returns for the calling thread.
    fn note_blocked(&self, _signals: Option<u64>) {}
}

static FRONTEND: AtomicPtr<&'static dyn Frontend> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the front end of this process, which is set before anything can trap.
fn frontend() -> Option<&'static dyn Frontend> {
    // Acquire pairs with the release store in `set_frontend`.
    let frontend = FRONTEND.load(Ordering::Acquire);
    // SAFETY: null, or from a `&'static` in `set_frontend`.
    unsafe { frontend.as_ref().copied() }
}

/// Sets the front end of this process.
fn set_frontend(frontend: &'static &'static dyn Frontend) {
    // Release pairs with the acquire load in `frontend`.
    FRONTEND.store(core::ptr::from_ref(frontend).cast_mut(), Ordering::Release);
}
