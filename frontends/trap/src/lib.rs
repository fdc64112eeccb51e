//! The trap, which the front ends of unmodified programs share.
//!
//! System calls that a program makes by itself are trapped by a seccomp filter ([`filter`]) and done
//! in a signal handler ([`trap`]), on threads and in memory of [`anyring_runtime`]. A preloaded library and an image
//! injected into a static program both live by this; what they do differently stands behind [`Frontend`].
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
    /// Whether the calling thread, which a signal has interrupted, is inside the engine by another way than the trap.
    fn is_inside(&self, interrupted: &arch::Context) -> bool;

    /// A signal was kept out of the engine, where the calling thread is; it is blocked until the
    /// thread leaves. The front end takes note, and sees that no sleep begins any more.
    fn kept_out(&self, signal: u64, interrupted: &mut arch::Context);

    /// The signals that were kept out of the engine since the calling thread entered it; they are
    /// forgotten.
    fn take_kept_out(&self) -> u64;

    /// The function that the kernel is to call for handlers of the program, if not [`signals::deliver`]. It goes on in that, or in
    /// [`signals::deliver_blocked`].
    fn front(&self) -> Option<usize> {
        None
    }

    /// The function that the kernel is to call where the program has a handler for SIGSEGV or SIGBUS, if not [`signals::fault`]. It goes on in that, or in
    /// [`signals::fault_blocked`].
    fn front_of_faults(&self) -> Option<usize> {
        None
    }

    /// The context of the handler that has come to this instruction of one of these two functions, if it is there.
    fn context_in_front(&self, _interrupted: &arch::Context) -> Option<*mut arch::Context> {
        None
    }

    /// A handler of the program is about to run in the calling thread, which is not inside. It may be on its way in or out.
    fn settle(&self, _interrupted: &mut arch::Context) {}

    /// The process has forked and this is the child, whose only thread is the calling one.
    fn forked(&self) {}

    /// The calling thread's pointer, by which it is told from others; 0 if it has none, or it cannot be known.
    fn thread_pointer(&self) -> usize {
        0
    }

    /// A call trapped, and the calling thread is about to enter a ring, in which it may end. Called in the handler.
    fn enters(&self) {}

    /// A call trapped; `next` is the address behind its instruction. Called in the handler.
    fn trapped_at(&self, next: usize);

    /// Which of [`signals::OWN`] the program wants blocked in the calling thread; `None` where the thread has not said so
    /// yet. They never are: see [`signals`].
    fn wanted_blocked(&self) -> Option<u64> {
        Some(0)
    }

    /// Notes what [`wanted_blocked`](Self::wanted_blocked) is to say of the calling thread from now on.
    fn note_blocked(&self, _signals: Option<u64>) {}
}

static FRONTEND: AtomicPtr<&'static dyn Frontend> = AtomicPtr::new(core::ptr::null_mut());

/// The front end of this process; set before anything can trap.
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
