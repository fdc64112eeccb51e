//! The functions of the image that the engine and the trap call. A static program may have no C library and no thread-local storage, so state of threads is found
//! by the thread's number.

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
/// The front end that the trap calls.
pub static FRONTEND: &dyn Frontend = &INJECTED;
/// The host that the engine calls.
pub static HOST: &dyn Host = &INJECTED;

/// The signals that wait until a thread leaves the trap.
struct Note {
    /// The thread's number; 0: the note is free.
    thread_id: AtomicU32,
    signals: AtomicU64,
}

static NOTES: [Note; 64] = [const { Note { thread_id: AtomicU32::new(0), signals: AtomicU64::new(0) } }; 64];
/// Number of notes that are not free.
static NOTED: AtomicU32 = AtomicU32::new(0);

/// The signals of [`signals::OWN`] that the program wants blocked in a thread: the thread's number in the lower half, its signals in the upper; 0: free.
/// C libraries block all signals in every thread that starts or ends.
static BLOCKED: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
/// Number of entries of [`BLOCKED`] that are not free.
static BLOCKED_COUNT: AtomicU32 = AtomicU32::new(0);

const _: () = assert!(signals::OWN < 1 << 32);

/// Returns the calling thread's place in [`BLOCKED`].
fn blocked() -> Option<&'static AtomicU64> {
    if BLOCKED_COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let thread_id = sys::thread_id();
    BLOCKED.iter().find(|place| place.load(Ordering::Relaxed) as u32 == thread_id)
}

/// Makes the calling thread's entry for [`BLOCKED`].
fn entry(signals: u64) -> u64 {
    signals << 32 | u64::from(sys::thread_id())
}

/// Gives the calling thread a place in [`BLOCKED`], perhaps that of a thread that has ended. If there is none, nothing is noted.
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

/// Returns the note of a thread.
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
        // If no note is free, the signal comes when the program unblocks it.
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
        // The thread pointer may be 0, but C libraries, Go and Zig set a different one for each thread.
        NonZeroUsize::new(arch::thread_pointer())
            .or_else(|| NonZeroUsize::new(sys::thread_id() as usize))
            .unwrap_or(NonZeroUsize::MIN)
    }

    fn interrupt_signal(&self) -> Option<u32> {
        // The trap sets the action of SIGSYS before the first ring.
        Some(linux_raw_sys::general::SIGSYS)
    }

    fn faults_resume(&self) -> bool {
        signals::active()
    }

    fn sees_closes(&self) -> bool {
        patched::sees_closes()
    }

    fn finds_unseen_closes(&self) -> Option<fn() -> bool> {
        // The tracer has examined the code already. A filter of the program's may kill a process that starts a thread.
        (patched::sees_closes() && !log::is_filtered()).then_some(|| false)
    }

    unsafe fn sleep(&self, number: usize, arguments: [usize; 6]) -> Option<isize> {
        // SAFETY: the caller's promise.
        unsafe { patched::sleep(number, arguments) }
    }
}
