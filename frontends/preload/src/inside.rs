//! Which threads are inside the engine, so that [`anyring_trap::signals`] keeps handlers out of it.
//!
//! A thread that came through a function of ours or a patched call site notes it in a word of
//! thread-local storage, of the kind that needs no allocation (initial-exec: the C library makes
//! room for it before the program starts). The trap notes no stay: it runs with all signals blocked
//! anyway, and its return puts the mask back. Where the engine comes in late ([`block_signals`]), signals are blocked instead.
//! Threads of ours have zeros where the note would be.

use crate::{arch, cancel};
use anyring_runtime::sys::{self, signal_bit};
use anyring_trap::{signals, sleep};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use linux_raw_sys::general as raw;

/// One thread's note. Only its own thread and that thread's signal handlers see it.
#[repr(C)]
struct Note {
    /// Calls of the engine that the thread is in.
    depth: Cell<u32>,
    /// Whether the thread's signals were blocked since it entered.
    blocked: Cell<bool>,
    /// Whether its end will be told ([`crate::threads`]).
    known: Cell<bool>,
    /// Whether the program lets the C library end the thread at any instruction (`PTHREAD_CANCEL_ASYNCHRONOUS`). In the engine it
    /// does so only where the thread [may end](may_end_in).
    ends_anywhere: Cell<bool>,
    /// Which of [`signals::OWN`] the program wants blocked, a bit each in the order of [`OWN`], with [`SAID`]; 0 where it has
    /// not said so.
    wanted_blocked: Cell<u8>,
    /// The mask to put back when it leaves, if so.
    mask: Cell<u64>,
    /// The signals that were kept out.
    kept_out: Cell<u64>,
}

/// [`signals::OWN`], one by one.
const OWN: [u64; 3] = [signal_bit(raw::SIGSYS), signal_bit(raw::SIGSEGV), signal_bit(raw::SIGBUS)];
const SAID: u8 = 1 << OWN.len();

const _: () = assert!(OWN[0] | OWN[1] | OWN[2] == signals::OWN);

const _: () = assert!(size_of::<Note>() == arch::NOTE_BYTES);

fn note() -> &'static Note {
    // SAFETY: the storage is the thread's own, zeroed at its start, and nobody keeps the reference
    // beyond the thread.
    unsafe { &*arch::note().cast::<Note>() }
}

/// A thread's stay in the engine.
pub struct Inside(());

/// Whether signals are blocked inside, for the program's handlers are not known.
static BLOCKS: AtomicBool = AtomicBool::new(false);

/// From here on signals are blocked inside: the engine comes in when the program has handlers that nobody has seen.
pub fn block_signals() {
    BLOCKS.store(true, Ordering::Relaxed);
}

/// The mask that the program has, where the calling thread is inside with signals blocked.
pub fn program_mask() -> Option<u64> {
    BLOCKS.load(Ordering::Relaxed).then(|| note().mask.get())
}

/// The calling thread enters the engine.
pub fn enter() -> Inside {
    let note = note();
    // A handler that runs before the note says so enters and leaves by itself.
    if note.depth.get() == 0 && BLOCKS.load(Ordering::Relaxed) {
        let mask = sys::set_signal_mask(sys::ASYNCHRONOUS);
        note.mask.set(mask);
        note.blocked.set(true);
    }
    if note.depth.get() == 0 && note.ends_anywhere.get() {
        cancel::set(cancel::DEFERRED);
    }
    note.depth.set(note.depth.get() + 1);
    // A handler on this very thread must see the note before anything of the engine changes.
    compiler_fence(Ordering::SeqCst);
    Inside(())
}

/// Whether the calling thread was known before; it is from now on, or not.
pub fn set_known(known: bool) -> bool {
    note().known.replace(known)
}

/// Which of [`signals::OWN`] the program wants blocked in the calling thread, if it has said so.
pub fn wanted_blocked() -> Option<u64> {
    let noted = note().wanted_blocked.get();
    let wanted = |(place, signal): (usize, u64)| if noted & 1 << place != 0 { signal } else { 0 };
    (noted != 0).then(|| OWN.into_iter().enumerate().map(wanted).sum())
}

/// Notes what [`wanted_blocked`] is to say of the calling thread from now on.
pub fn note_blocked(signals: Option<u64>) {
    let bit = |signals: u64, (place, signal): (usize, u64)| u8::from(signals & signal != 0) << place;
    let bits = |signals| OWN.into_iter().enumerate().map(|one| bit(signals, one)).sum::<u8>();
    note().wanted_blocked.set(signals.map_or(0, |signals| bits(signals) | SAID));
}

/// The calling thread leaves the engine, whose [`Inside`] was forgotten.
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
        // From here on handlers run at once; one that was kept out comes with the unblocking.
        if depth == 0 && note.blocked.get() {
            note.blocked.set(false);
            let mask = note.mask.get();
            signals::let_in(mask);
            sys::set_signal_mask(mask);
            signals::release(mask);
        }
        if depth == 0 && note.ends_anywhere.get() {
            // Here the thread ends, where that was asked for meanwhile.
            cancel::set(cancel::ASYNCHRONOUS);
        }
    }
}

/// Whether the C library may end the calling thread at any instruction, as the program has it.
pub fn note_ends_anywhere(anywhere: bool) {
    note().ends_anywhere.set(anywhere);
}

/// Makes a call that sleeps, in which the calling thread may end: then `ended` is called.
pub fn may_end_in(call: &mut dyn FnMut(), ended: &mut dyn FnMut()) {
    let note = note();
    if !note.ends_anywhere.get() {
        return call();
    }
    let mut leaves = || {
        ended();
        thread_ends();
    };
    // The trap has signals blocked but in the call, among them the one by which the C library ends a thread.
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

/// The calling thread ends. If it was inside, it is not any more.
pub fn thread_ends() {
    let note = note();
    // The C library lets it be cancelled in its destructors, which take the engine's locks, where it ends by itself.
    if note.ends_anywhere.replace(false) {
        cancel::set(cancel::DEFERRED);
    }
    if note.depth.get() != 0 {
        note.depth.set(1);
        leave();
    }
}

/// The signals that were kept out of the calling thread; they are forgotten.
pub fn take_kept_out() -> u64 {
    note().kept_out.take()
}

/// Whether the calling thread is inside.
pub fn active() -> bool {
    note().depth.get() != 0
}

/// A signal came while the thread was inside with `mask`; it is blocked until it leaves.
pub fn kept_out(signal: u64, mask: u64) {
    let note = note();
    note.kept_out.set(note.kept_out.get() | signal);
    if note.depth.get() != 0 && !note.blocked.get() {
        note.mask.set(mask);
        note.blocked.set(true);
    }
}

/// Where a thread's note lies, from its thread pointer.
pub fn note_offset() -> isize {
    arch::note() as isize - anyring_runtime::arch::thread_pointer().get() as isize
}

/// Makes a system call that may sleep, where the calling thread is inside.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn sleep(number: usize, arguments: [usize; 6]) -> Option<isize> {
    // SAFETY: the caller's promise.
    active().then(|| unsafe { sleep::unless(&note().blocked, number, arguments) })
}
