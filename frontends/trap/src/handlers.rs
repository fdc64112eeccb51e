//! Alternate stacks on which handlers of the program run. While any does, its thread must not go to another stack by itself: the kernel, which sees
//! a stack pointer outside of the alternate stack, would put the frame of another signal over the handler's.

use crate::arch::Context;
use anyring_runtime::sys;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// How many stacks have handlers on them.
pub static ALTERNATE_STACKS_IN_USE: AtomicU32 = AtomicU32::new(0);

/// A stack with a handler on it.
struct Place {
    /// The handler's thread; 0: free.
    thread_id: AtomicU32,
    address: AtomicUsize,
}

static PLACES: [Place; 64] =
    [const { Place { thread_id: AtomicU32::new(0), address: AtomicUsize::new(0) } }; 64];

/// A stack that [`begins`] has noted.
pub struct Noted(Option<&'static Place>);

/// Whether the thread that was interrupted is on its alternate stack.
fn is_on_alternate(interrupted: &mut Context) -> bool {
    let [_, stack_pointer, ..] = interrupted.pointers();
    let stack = interrupted.alternate_stack();
    stack_pointer.wrapping_sub(stack.address) < stack.bytes
}

/// A handler of the program is about to run, here; nothing to note unless it is the first one on an alternate stack.
pub fn begins(interrupted: &mut Context) -> Option<Noted> {
    let here = 0u8;
    let stack = *interrupted.alternate_stack();
    let is_here = (&raw const here).addr().wrapping_sub(stack.address) < stack.bytes;
    if !is_here || is_on_alternate(interrupted) {
        return None;
    }
    let own = sys::thread_id();
    forget(|thread_id, _| thread_id == own);
    ALTERNATE_STACKS_IN_USE.fetch_add(1, Ordering::SeqCst);
    let take = |place: &&Place| {
        place.thread_id.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    let place = PLACES.iter().find(take);
    if let Some(place) = place {
        place.address.store(stack.address, Ordering::Relaxed);
    }
    Some(Noted(place))
}

/// The handler returns.
pub fn ends(noted: Option<Noted>) {
    let Some(Noted(place)) = noted else { return };
    if let Some(place) = place {
        place.thread_id.store(0, Ordering::Relaxed);
    }
    ALTERNATE_STACKS_IN_USE.fetch_sub(1, Ordering::SeqCst);
}

/// Forgets the stacks of which `is_over` says so, by thread and address: the handlers there have jumped out.
fn forget(is_over: impl Fn(u32, usize) -> bool) {
    for place in &PLACES {
        let thread_id = place.thread_id.load(Ordering::Relaxed);
        if thread_id != 0
            && is_over(thread_id, place.address.load(Ordering::Relaxed))
            && place.thread_id.compare_exchange(thread_id, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            ALTERNATE_STACKS_IN_USE.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A call trapped: the handlers that were on stacks of this thread or of ended ones, and are not any more, are forgotten.
pub fn notice(interrupted: &mut Context) {
    if ALTERNATE_STACKS_IN_USE.load(Ordering::Relaxed) == 0 {
        return;
    }
    let (process, own) = (sys::process_id(), sys::thread_id());
    let stays = is_on_alternate(interrupted).then(|| interrupted.alternate_stack().address);
    forget(
        |thread_id, address| {
            if thread_id == own { stays != Some(address) } else { !sys::is_thread(process, thread_id) }
        },
    );
}

/// The process has forked and this is the child: there is no handler but those below this call, whose thread has another number.
pub fn forked() {
    /// More than any such stack has.
    const BYTES: usize = 1 << 20;
    let here = 0u8;
    let here = (&raw const here).addr();
    let own = sys::thread_id();
    let mut kept = 0;
    for place in PLACES.iter().filter(|place| place.thread_id.load(Ordering::Relaxed) != 0) {
        let stays = here.wrapping_sub(place.address.load(Ordering::Relaxed)) < BYTES;
        place.thread_id.store(if stays { own } else { 0 }, Ordering::Relaxed);
        kept += u32::from(stays);
    }
    ALTERNATE_STACKS_IN_USE.store(kept, Ordering::Relaxed);
}
