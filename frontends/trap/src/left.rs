//! Memory that a child of `vfork` leaves behind when it executes a program: the memory is its parent's, and the child cannot free it
//! afterwards. The parent's thread, which has waited for the child, frees it when it next has such a child.

use crate::exec::Plan;
use crate::signals;
use alloc::boxed::Box;
use anyring_runtime::log;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The memory left to one thread. A child of `vfork` has the thread pointer of the thread that made it. Where that is not known, memory that
/// is left is never freed.
struct Place {
    thread: AtomicUsize,
    plan: AtomicPtr<Plan>,
}

/// Memory left to threads beyond these is never freed. A place of a thread that has ended serves later threads at the same address.
static PLACES: [Place; 64] =
    [const { Place { thread: AtomicUsize::new(0), plan: AtomicPtr::new(null_mut()) } }; 64];

fn place() -> Option<&'static Place> {
    let own = crate::frontend().map_or(0, |frontend| frontend.thread_pointer());
    if own == 0 {
        return None;
    }
    PLACES.iter().find(|place| {
        // Only threads with the same thread pointer use a place, one after the other.
        let seen = place.thread.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
        seen.is_ok() || seen == Err(own)
    })
}

/// Notes that the calling thread is about to execute `plan`, which stays valid until the program is executed or this has failed.
pub fn note(plan: &mut Plan) {
    // A filter of the program may forbid the call that tells the process's id.
    if !signals::active() || log::is_filtered() || signals::is_owner() {
        return;
    }
    let Some(place) = place() else { return };
    let kept = Box::into_raw(Box::new(plan.take_memory()));
    let before = place.plan.swap(kept, Ordering::Relaxed);
    if !before.is_null() {
        // SAFETY: from `into_raw` above; the child that left it has executed a program, or has failed and notes another plan now.
        drop(unsafe { Box::from_raw(before) });
    }
}
