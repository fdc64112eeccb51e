//! Memory that a child of `vfork` leaves behind where it executes a program: it is in its parent's memory, and nobody comes back
//! to give it back. The parent's thread, which has waited for that, does so when it next has such a child.

use alloc::boxed::Box;
use anyring_runtime::arch::thread_pointer;
use anyring_runtime::log;
use anyring_trap::exec::Plan;
use anyring_trap::signals;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// One thread's. A child of `vfork` has the thread pointer of the thread that made it.
struct Place {
    thread: AtomicUsize,
    plan: AtomicPtr<Plan>,
}

/// Of threads beyond these, it stays. The places of those that have ended are for others at the same address.
static PLACES: [Place; 64] =
    [const { Place { thread: AtomicUsize::new(0), plan: AtomicPtr::new(null_mut()) } }; 64];

fn place() -> Option<&'static Place> {
    let own = thread_pointer().get();
    PLACES.iter().find(|place| {
        // Only threads at one address read and write what is behind it, one after the other.
        let seen = place.thread.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
        seen.is_ok() || seen == Err(own)
    })
}

/// The calling thread is about to execute what `plan` says, which stays valid until it does or has failed.
pub fn note(plan: &mut Plan) {
    // A filter of the program's own may forbid the look at who the process is.
    if !signals::active() || log::is_filtered() || signals::is_owner() {
        return;
    }
    let Some(place) = place() else { return };
    let kept = Box::into_raw(Box::new(plan.take_memory()));
    let before = place.plan.swap(kept, Ordering::Relaxed);
    if !before.is_null() {
        // SAFETY: from `into_raw` above; the child that left it has executed a program, or has failed to and says so again.
        drop(unsafe { Box::from_raw(before) });
    }
}
