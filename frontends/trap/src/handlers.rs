//! Alternate stacks on which handlers of the program run. While a handler does, its thread must not switch to another stack by
//! itself: the kernel would see a stack pointer outside the alternate stack, and put the next signal's frame over the handler's.

use crate::arch::Context;
use anyring_runtime::{calls, log, sys};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Number of alternate stacks on which handlers of the program run.
pub static IN_USE: AtomicU32 = AtomicU32::new(0);
/// Number of these stacks for which [`PLACES`] had no room.
pub static UNPLACED: AtomicU32 = AtomicU32::new(0);

/// An alternate stack on which a handler runs.
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

    /// Frees the place if it is still this thread's; returns true if it was.
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
        // Release pairs with the acquire in `begins`.
        self.thread_id.store(0, Ordering::Release);
    }
}

/// Most stacks that are noted.
const COUNT: usize = 64;

/// The stacks, and behind them a sentinel with the address [`LAST`].
pub static PLACES: [Place; COUNT + 1] = {
    let mut places = [const { Place::at(0) }; COUNT + 1];
    places[COUNT] = Place::at(LAST);
    places
};
/// The address in the last place, which ends a search.
pub const LAST: usize = usize::MAX;

/// A stack that [`begins`] has noted.
pub struct Noted(Option<(&'static Place, u32)>);

/// True if the interrupted thread was on its alternate stack.
fn is_on_alternate(interrupted: &mut Context) -> bool {
    let [_, stack_pointer, ..] = interrupted.pointers();
    let stack = interrupted.alternate_stack();
    stack_pointer.wrapping_sub(stack.address) < stack.bytes
}

/// Notes the current stack before a handler of the program runs on it, if it is an alternate stack without a handler. Without rings,
/// nothing is noted under a filter of the program's own, which may forbid `gettid`.
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

/// Forgets the stack of a handler that returns.
pub fn ends(noted: Option<Noted>) {
    let Some(Noted(place)) = noted else { return };
    match place {
        // If the place is not this handler's any more, `notice` has taken the handler for one that has jumped out.
        Some((place, own)) if place.leaves(own) => {}
        Some(_) => return,
        None => _ = UNPLACED.fetch_sub(1, Ordering::SeqCst),
    }
    IN_USE.fetch_sub(1, Ordering::SeqCst);
}

/// Forgets the stacks for whose thread and address `is_over` returns true: the handlers there have jumped out.
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

/// Forgets, when a call traps, handlers that have jumped out: those of ended threads, and this thread's on other stacks.
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

/// Updates the notes in a child of `fork`: only handlers on the current stack are left, and their thread has another number.
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
