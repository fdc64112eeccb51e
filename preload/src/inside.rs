//! Which threads are inside the engine, so that [`crate::signals`] keeps handlers out of it.
//!
//! A thread that came through a function of ours or a patched call site notes it in a word of
//! thread-local storage, of the kind that needs no allocation (initial-exec: the C library makes
//! room for it before the program starts). The trap notes nothing: it runs with all signals blocked
//! anyway, and its return puts the mask back. Nor do threads of ours, which have no such storage.

use crate::signals::ASYNCHRONOUS;
use crate::{arch, sys};
use core::cell::Cell;
use core::sync::atomic::{Ordering, compiler_fence};

/// One thread's note. Only its own thread and that thread's signal handlers see it.
#[repr(C)]
struct Note {
    /// Calls of the engine that the thread is in.
    depth: Cell<u32>,
    /// Whether the thread's signals were blocked since it entered.
    blocked: Cell<bool>,
    /// The mask to put back when it leaves, if so.
    mask: Cell<u64>,
}

const _: () = assert!(size_of::<Note>() == arch::NOTE_BYTES);

fn note() -> &'static Note {
    // SAFETY: the storage is the thread's own, zeroed at its start, and nobody keeps the reference
    // beyond the thread.
    unsafe { &*arch::note().cast::<Note>() }
}

/// A thread's stay in the engine.
pub struct Inside(());

/// The calling thread enters the engine. Not for threads of ours.
pub fn enter() -> Inside {
    let note = note();
    note.depth.set(note.depth.get() + 1);
    // A handler on this very thread must see the note before anything of the engine changes.
    compiler_fence(Ordering::SeqCst);
    Inside(())
}

impl Drop for Inside {
    fn drop(&mut self) {
        let note = note();
        compiler_fence(Ordering::SeqCst);
        let depth = note.depth.get() - 1;
        note.depth.set(depth);
        compiler_fence(Ordering::SeqCst);
        // From here on handlers run at once; one that was kept out comes with the unblocking.
        if depth == 0 && note.blocked.get() {
            note.blocked.set(false);
            sys::set_signal_mask(note.mask.get());
        }
    }
}

/// Whether the calling thread is inside.
pub fn active() -> bool {
    note().depth.get() != 0
}

/// A signal came while the thread was inside with `mask`; it is blocked until it leaves.
pub fn postponed(mask: u64) {
    let note = note();
    if note.depth.get() != 0 && !note.blocked.get() {
        note.mask.set(mask);
        note.blocked.set(true);
    }
}

/// Blocks signals until the thread leaves and returns the program's mask, to sleep with: a signal
/// that comes before the sleep, or was kept out already, then ends it.
pub fn block_signals() -> Option<u64> {
    if !active() {
        return None;
    }
    let mask = sys::set_signal_mask(ASYNCHRONOUS);
    postponed(mask);
    Some(note().mask.get())
}
