//! Notes of the threads that are inside the engine, by which [`anyring_trap::signals`] keeps signal handlers out of it.
//!
//! A thread that enters through a function of this library or a patched call site notes its stay in thread-local storage, of
//! the kind that needs no allocation (initial-exec: the C library makes room for it before the program starts). A stay in the
//! trap is not noted, because all signals are blocked there anyway, and the return from the trap restores the mask. If the
//! engine starts late ([`block_signals`]), signals are blocked instead. Threads of the engine have zeros where the note would
//! be.

use crate::{arch, cancel};
use anyring_runtime::sys::{self, signal_bit};
use anyring_trap::{signals, sleep};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use linux_raw_sys::general as raw;

/// The note of a thread. Only the thread and its signal handlers access it.
#[repr(C)]
struct Note {
    /// The number of nested calls of the engine that the thread is in.
    depth: Cell<u32>,
    /// True if the thread's signals were blocked since it entered.
    blocked: Cell<bool>,
    /// True if the thread's end will be reported ([`crate::threads`]).
    known: Cell<bool>,
    /// True if the program allows the C library to end the thread at any instruction (`PTHREAD_CANCEL_ASYNCHRONOUS`). Inside the
    /// engine, the thread ends only where it [may end](may_end_in).
    ends_anywhere: Cell<bool>,
    /// The signals of [`signals::OWN`] that the program wants blocked, a bit each in the order of [`OWN`], and [`SAID`]; 0 if
    /// the program has not set them.
    wanted_blocked: Cell<u8>,
    /// The mask to restore when the thread leaves, if `blocked`.
    mask: Cell<u64>,
    /// The signals whose handlers were kept out.
    kept_out: Cell<u64>,
}

/// The signals of [`signals::OWN`], one by one.
const OWN: [u64; 3] = [signal_bit(raw::SIGSYS), signal_bit(raw::SIGSEGV), signal_bit(raw::SIGBUS)];
const SAID: u8 = 1 << OWN.len();

const _: () = assert!(OWN[0] | OWN[1] | OWN[2] == signals::OWN);

const _: () = assert!(size_of::<Note>() == arch::NOTE_BYTES);

fn note() -> &'static Note {
    // SAFETY: the storage is the thread's own, zeroed at its start, and no reference to it outlives the thread.
    unsafe { &*arch::note().cast::<Note>() }
}

/// A thread's stay in the engine.
pub struct Inside(());

/// True if signals are blocked inside the engine, because the program's signal handlers are not known.
static BLOCKS: AtomicBool = AtomicBool::new(false);

/// Makes threads block signals inside the engine from now on, because the program may have set signal handlers that
/// were not seen.
pub fn block_signals() {
    BLOCKS.store(true, Ordering::Relaxed);
}

/// Returns the program's signal mask, if the calling thread is inside with signals blocked.
pub fn program_mask() -> Option<u64> {
    BLOCKS.load(Ordering::Relaxed).then(|| note().mask.get())
}

/// Notes that the calling thread enters the engine.
pub fn enter() -> Inside {
    let note = note();
    // A handler that runs before the note is made enters and leaves completely.
    if note.depth.get() == 0 && BLOCKS.load(Ordering::Relaxed) {
        let mask = sys::set_signal_mask(sys::ASYNCHRONOUS);
        note.mask.set(mask);
        note.blocked.set(true);
    }
    if note.depth.get() == 0 && note.ends_anywhere.get() {
        cancel::set(cancel::DEFERRED);
    }
    note.depth.set(note.depth.get() + 1);
    // A handler in this thread must see the note before the engine changes anything.
    compiler_fence(Ordering::SeqCst);
    Inside(())
}

/// Sets whether the calling thread's end will be reported. Returns the former value.
pub fn set_known(known: bool) -> bool {
    note().known.replace(known)
}

/// Returns the signals of [`signals::OWN`] that the program wants blocked in the calling thread, if it has set them.
pub fn wanted_blocked() -> Option<u64> {
    let noted = note().wanted_blocked.get();
    let wanted = |(place, signal): (usize, u64)| if noted & 1 << place != 0 { signal } else { 0 };
    (noted != 0).then(|| OWN.into_iter().enumerate().map(wanted).sum())
}

/// Sets the result of [`wanted_blocked`] for the calling thread.
pub fn note_blocked(signals: Option<u64>) {
    let bit = |signals: u64, (place, signal): (usize, u64)| u8::from(signals & signal != 0) << place;
    let bits = |signals| OWN.into_iter().enumerate().map(|one| bit(signals, one)).sum::<u8>();
    note().wanted_blocked.set(signals.map_or(0, |signals| bits(signals) | SAID));
}

/// Notes that the calling thread leaves the engine, if its [`Inside`] was forgotten.
pub fn leave() {
    drop(Inside(()));
}

impl Drop for Inside {
    fn drop(&mut self) {
        let note = note();
        compiler_fence(Ordering::SeqCst);
        let depth = note.depth.get() - 1;
        note.depth.set(depth);
        compiler_fence(Ordering::SeqCst);
        // From here on handlers run immediately. A signal that was kept out is delivered when it is unblocked below.
        if depth == 0 && note.blocked.get() {
            note.blocked.set(false);
            let mask = note.mask.get();
            signals::let_in(mask);
            sys::set_signal_mask(mask);
            signals::release(mask);
        }
        if depth == 0 && note.ends_anywhere.get() {
            // If the thread was cancelled meanwhile, it ends here.
            cancel::set(cancel::ASYNCHRONOUS);
        }
    }
}

/// Notes whether the program allows the C library to end the calling thread at any instruction.
pub fn note_ends_anywhere(anywhere: bool) {
    note().ends_anywhere.set(anywhere);
}

/// Makes a call that sleeps, during which the C library may end the calling thread; in that case it calls `ended`.
pub fn may_end_in(call: &mut dyn FnMut(), ended: &mut dyn FnMut()) {
    let note = note();
    if !note.ends_anywhere.get() {
        return call();
    }
    let mut leaves = || {
        ended();
        thread_ends();
    };
    // In the trap all signals are blocked, except during the call. They include the one by which the C library ends a
    // thread.
    let sets = note.depth.get() != 0;
    let mut body = || {
        if sets {
            cancel::set(cancel::ASYNCHRONOUS);
        }
        call();
        if sets {
            cancel::set(cancel::DEFERRED);
        }
    };
    cancel::with_cleanup(&mut body, &mut leaves);
}

/// Notes that the calling thread ends. If the thread was inside the engine, it leaves.
pub fn thread_ends() {
    let note = note();
    // While a thread that ends by itself runs its destructors, which take the engine's locks, the C library would still
    // let it be cancelled.
    if note.ends_anywhere.replace(false) {
        cancel::set(cancel::DEFERRED);
    }
    if note.depth.get() != 0 {
        note.depth.set(1);
        leave();
    }
}

/// Returns and clears the signals that were kept out of the calling thread.
pub fn take_kept_out() -> u64 {
    note().kept_out.take()
}

/// True if the calling thread is inside the engine.
pub fn active() -> bool {
    note().depth.get() != 0
}

/// Notes a signal that came while the calling thread was inside the engine with `mask`. The signal stays blocked until
/// the thread leaves.
pub fn kept_out(signal: u64, mask: u64) {
    let note = note();
    note.kept_out.set(note.kept_out.get() | signal);
    if note.depth.get() != 0 && !note.blocked.get() {
        note.mask.set(mask);
        note.blocked.set(true);
    }
}

/// Returns the offset of a thread's note from its thread pointer.
pub fn note_offset() -> isize {
    arch::note() as isize - anyring_runtime::arch::thread_pointer().get() as isize
}

/// Makes a system call that may sleep, if the calling thread is inside the engine; otherwise returns `None`.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn sleep(number: usize, arguments: [usize; 6]) -> Option<isize> {
    // SAFETY: the caller's promise.
    active().then(|| unsafe { sleep::unless(&note().blocked, number, arguments) })
}
