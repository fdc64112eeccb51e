//! Alternate stacks on which handlers of the program run. While any does, its thread must not go to another stack by itself: the kernel, which sees
//! a stack pointer outside of the alternate stack, would put the frame of another signal over the handler's.

use crate::arch::Context;
use anyring_runtime::{calls, log, sys};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// How many stacks have handlers on them.
pub static IN_USE: AtomicU32 = AtomicU32::new(0);
/// How many of them are in no place.
pub static UNPLACED: AtomicU32 = AtomicU32::new(0);

/// A stack with a handler on it.
#[repr(C)]
pub struct Place {
    /// The lowest address; 0: free.
    pub address: AtomicUsize,
    /// The address behind the highest.
    pub end: AtomicUsize,
    /// The handler's thread; 0: free.
    thread_id: AtomicU32,
}

impl Place {
    const fn at(address: usize) -> Self {
        Self { address: AtomicUsize::new(address), end: AtomicUsize::new(0), thread_id: AtomicU32::new(0) }
    }

    /// Frees the place, if it is still this thread's.
    fn leaves(&self, thread_id: u32) -> bool {
        /// A number that no thread has.
        const LEAVING: u32 = u32::MAX;
        let taken = self.thread_id.compare_exchange(thread_id, LEAVING, Ordering::Relaxed, Ordering::Relaxed);
        if taken.is_ok() {
            self.free();
        }
        taken.is_ok()
    }

    fn free(&self) {
        self.end.store(0, Ordering::Relaxed);
        self.address.store(0, Ordering::Relaxed);
        // Release pairs with the acquire of who takes the place.
        self.thread_id.store(0, Ordering::Release);
    }
}

/// How many stacks are noted.
const COUNT: usize = 64;

/// The stacks, and behind them one at [`LAST`].
pub static PLACES: [Place; COUNT + 1] = {
    let mut places = [const { Place::at(0) }; COUNT + 1];
    places[COUNT] = Place::at(LAST);
    places
};
/// The address in the last place.
pub const LAST: usize = usize::MAX;

/// A stack that [`begins`] has noted.
pub struct Noted(Option<(&'static Place, u32)>);

/// Whether the thread that was interrupted is on its alternate stack.
fn is_on_alternate(interrupted: &mut Context) -> bool {
    let [_, stack_pointer, ..] = interrupted.pointers();
    let stack = interrupted.alternate_stack();
    stack_pointer.wrapping_sub(stack.address) < stack.bytes
}

/// A handler of the program is about to run, here; nothing to note unless it is the first one on an alternate stack. What a filter of the
/// program's own allows is not known; without rings there is nobody to ask.
pub fn begins(interrupted: &mut Context) -> Option<Noted> {
    let here = 0u8;
    let stack = *interrupted.alternate_stack();
    let is_here = (&raw const here).addr().wrapping_sub(stack.address) < stack.bytes;
    if !is_here || log::is_filtered() && !calls::rings_exist() {
        return None;
    }
    let own = sys::thread_id();
    let is_noted = |place: &Place| {
        place.thread_id.load(Ordering::Relaxed) == own
            && place.address.load(Ordering::Relaxed) == stack.address
    };
    if PLACES[..COUNT].iter().any(is_noted) {
        return None;
    }
    let take = |place: &&Place| {
        place.thread_id.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let place = PLACES[..COUNT].iter().find(take);
    match place {
        Some(place) => {
            place.address.store(stack.address, Ordering::Relaxed);
            place.end.store(stack.address + stack.bytes, Ordering::Relaxed);
        }
        None => _ = UNPLACED.fetch_add(1, Ordering::SeqCst),
    }
    IN_USE.fetch_add(1, Ordering::SeqCst);
    Some(Noted(place.map(|place| (place, own))))
}

/// The handler returns.
pub fn ends(noted: Option<Noted>) {
    let Some(Noted(place)) = noted else { return };
    match place {
        // It may have been taken for one that has jumped out.
        Some((place, own)) if place.leaves(own) => {}
        Some(_) => return,
        None => _ = UNPLACED.fetch_sub(1, Ordering::SeqCst),
    }
    IN_USE.fetch_sub(1, Ordering::SeqCst);
}

/// Forgets the stacks of which `is_over` says so, by thread and address: the handlers there have jumped out.
fn forget(is_over: impl Fn(u32, usize) -> bool) {
    for place in &PLACES[..COUNT] {
        let thread_id = place.thread_id.load(Ordering::Relaxed);
        if thread_id != 0
            && is_over(thread_id, place.address.load(Ordering::Relaxed))
            && place.leaves(thread_id)
        {
            IN_USE.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A call trapped: the handlers that were on stacks of this thread or of ended ones, and are not any more, are forgotten.
pub fn notice(interrupted: &mut Context) {
    if IN_USE.load(Ordering::Relaxed) == 0 {
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
    let here = 0u8;
    let here = (&raw const here).addr();
    let own = sys::thread_id();
    let mut kept = 0;
    for place in PLACES[..COUNT].iter().filter(|place| place.thread_id.load(Ordering::Relaxed) != 0) {
        let stack = place.address.load(Ordering::Relaxed)..place.end.load(Ordering::Relaxed);
        if stack.contains(&here) {
            place.thread_id.store(own, Ordering::Relaxed);
            kept += 1;
        } else {
            place.free();
        }
    }
    UNPLACED.store(0, Ordering::Relaxed);
    IN_USE.store(kept, Ordering::Relaxed);
}
