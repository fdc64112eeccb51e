//! The image's own ways to do things for the engine and for the trap: there is no C library, and no thread-local storage that
//! could be counted on.

use crate::{arch, patched};
use anyring_engine::Host;
use anyring_runtime::{log, sys, threads};
use anyring_trap::arch::Context;
use anyring_trap::{Frontend, signals};
use core::ffi::{CStr, c_void};
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A process without a C library.
pub struct Injected;

static INJECTED: Injected = Injected;
/// The front end that the trap asks.
pub static FRONTEND: &dyn Frontend = &INJECTED;
/// The host that the engine asks.
pub static HOST: &dyn Host = &INJECTED;

/// The signals that were kept out of one thread, from when they came until it leaves the trap.
struct Note {
    /// 0: free.
    thread_id: AtomicU32,
    signals: AtomicU64,
}

static NOTES: [Note; 64] = [const { Note { thread_id: AtomicU32::new(0), signals: AtomicU64::new(0) } }; 64];
/// How many are taken.
static NOTED: AtomicU32 = AtomicU32::new(0);

/// The signals of [`signals::OWN`] that the program wants blocked, by thread: a thread's number in the lower half, and its
/// signals in the upper; 0: free. C libraries block all signals in every thread that starts or ends.
static BLOCKED: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
/// How many there are.
static BLOCKED_COUNT: AtomicU32 = AtomicU32::new(0);

const _: () = assert!(signals::OWN < 1 << 32);

/// The calling thread's place in [`BLOCKED`].
fn blocked() -> Option<&'static AtomicU64> {
    if BLOCKED_COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let thread_id = sys::thread_id();
    BLOCKED.iter().find(|place| place.load(Ordering::Relaxed) as u32 == thread_id)
}

/// The calling thread's entry in [`BLOCKED`].
fn entry(signals: u64) -> u64 {
    signals << 32 | u64::from(sys::thread_id())
}

/// Gives the calling thread a place, perhaps that of one that has ended. Where there is none, it is not noted.
fn enter_blocked(signals: u64) {
    let process = sys::process_id();
    // A child that shares this memory cannot tell whose threads live. Its own place is free when it has ended.
    let is_owner = signals::is_owner();
    for place in &BLOCKED {
        let other = place.load(Ordering::Relaxed);
        let free = other == 0 || is_owner && !sys::is_thread(process, other as u32);
        if free && place.compare_exchange(other, entry(signals), Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            BLOCKED_COUNT.fetch_add(u32::from(other == 0), Ordering::Relaxed);
            return;
        }
    }
}

/// The calling thread's note.
fn note(thread_id: u32) -> Option<&'static Note> {
    NOTES.iter().find(|note| note.thread_id.load(Ordering::Relaxed) == thread_id)
}

impl Frontend for Injected {
    fn is_inside(&self, interrupted: &Context) -> bool {
        // The trap blocks signals.
        patched::is_inside(interrupted)
    }

    fn kept_out(&self, signal: u64, interrupted: &mut Context) {
        if patched::kept_out(signal, interrupted) {
            return;
        }
        let thread_id = sys::thread_id();
        let free = |note: &&Note| {
            // Acquire pairs with the release in `take_kept_out`: the last thread has taken its signals.
            note.thread_id.compare_exchange(0, thread_id, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        if let Some(note) = note(thread_id) {
            note.signals.fetch_or(signal, Ordering::Relaxed);
        } else if let Some(note) = NOTES.iter().find(free) {
            note.signals.store(signal, Ordering::Relaxed);
            NOTED.fetch_add(1, Ordering::Relaxed);
        }
        // Where there is no room, the signal comes when the program unblocks it.
    }

    fn take_kept_out(&self) -> u64 {
        if NOTED.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let Some(note) = note(sys::thread_id()) else { return 0 };
        let signals = note.signals.load(Ordering::Relaxed);
        note.thread_id.store(0, Ordering::Release);
        NOTED.fetch_sub(1, Ordering::Relaxed);
        signals
    }

    fn front(&self) -> Option<usize> {
        patched::front()
    }

    fn front_of_faults(&self) -> Option<usize> {
        patched::front_of_faults()
    }

    fn context_in_front(&self, interrupted: &Context) -> Option<*mut Context> {
        patched::context_in_front(interrupted)
    }

    fn settle(&self, interrupted: &mut Context) {
        patched::settle(interrupted);
    }

    fn thread_pointer(&self) -> usize {
        arch::thread_pointer()
    }

    fn forked(&self) {
        patched::forked();
    }

    fn trapped_at(&self, _next: usize) {
        patched::ring_called();
    }

    fn wanted_blocked(&self) -> Option<u64> {
        blocked().map(|place| place.load(Ordering::Relaxed) >> 32)
    }

    fn note_blocked(&self, signals: Option<u64>) {
        match (blocked(), signals) {
            (None, None) => {}
            (None, Some(signals)) => enter_blocked(signals),
            (Some(place), None) => {
                place.store(0, Ordering::Relaxed);
                BLOCKED_COUNT.fetch_sub(1, Ordering::Relaxed);
            }
            (Some(place), Some(signals)) => place.store(entry(signals), Ordering::Relaxed),
        }
    }
}

impl Host for Injected {
    fn spawn(
        &self,
        name: &'static CStr,
        entry: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), i32> {
        threads::spawn(name, entry, argument, 0..0)
    }

    fn thread_identity(&self) -> NonZeroUsize {
        // What the thread pointer points to is the program's affair: it may be nothing, but C libraries, Go and Zig have one for each thread.
        NonZeroUsize::new(arch::thread_pointer())
            .or_else(|| NonZeroUsize::new(sys::thread_id() as usize))
            .unwrap_or(NonZeroUsize::MIN)
    }

    fn interrupt_signal(&self) -> Option<u32> {
        // Its action is the trap's, which is there before the first ring.
        Some(linux_raw_sys::general::SIGSYS)
    }

    fn faults_resume(&self) -> bool {
        signals::active()
    }

    fn sees_closes(&self) -> bool {
        patched::sees_closes()
    }

    fn finds_unseen_closes(&self) -> Option<fn() -> bool> {
        // The tracer has looked at the code already. A filter of the program's may kill for a thread.
        (patched::sees_closes() && !log::is_filtered()).then_some(|| false)
    }

    unsafe fn sleep(&self, number: usize, arguments: [usize; 6]) -> Option<isize> {
        // SAFETY: the caller's promise.
        unsafe { patched::sleep(number, arguments) }
    }
}
