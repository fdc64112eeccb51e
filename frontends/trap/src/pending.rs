//! Those of [`OWN`] that are sent, not raised by an instruction, while the program wants them blocked: in the kernel they would be
//! pending. They are kept until the program unblocks them, or takes them by `sigwait` and its kin.
//!
//! ```text
//!  sent to a thread -- the program wants it blocked --> hold --> unblocked   (the program's handler runs)
//!                                                         \----> wait        (a thread that waits for it takes it)
//! ```
//!
//! Not seen by `sigsuspend`, `ppoll` and their kin, whose masks unblock for a while, and not by `signalfd`.

use crate::signals::{self, OWN};
use anyring_runtime::sys::{self, signal_bit};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use linux_raw_sys::general::{SIGBUS, SIGSEGV, SIGSYS};

/// `siginfo_t`.
pub type Information = [u64; 16];

/// One such signal: as of others below the real-time ones, there is never more than one.
struct Pending {
    signal: u32,
    state: AtomicU8,
    information: UnsafeCell<Information>,
}

// SAFETY: who changes the state to `BUSY` has the information alone.
unsafe impl Sync for Pending {}

static PENDING: [Pending; 3] = [Pending::none(SIGSYS), Pending::none(SIGSEGV), Pending::none(SIGBUS)];
const _: () = assert!(signal_bit(SIGSYS) | signal_bit(SIGSEGV) | signal_bit(SIGBUS) == OWN);

const NONE: u8 = 0;
const BUSY: u8 = 1;
const THERE: u8 = 2;

/// The thread that waits for some of them, or 0. Others that wait at the same time get theirs when they wait anew.
static WAITER: AtomicU32 = AtomicU32::new(0);

/// The calling thread with all signals blocked: a handler that jumps away would leave what it interrupts half done.
struct Blocked(u64);

impl Blocked {
    fn all() -> Self {
        Self(sys::set_signal_mask(!0))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        sys::set_signal_mask(self.0);
    }
}

impl Pending {
    const fn none(signal: u32) -> Self {
        Self { signal, state: AtomicU8::new(NONE), information: UnsafeCell::new([0; 16]) }
    }

    /// Whether the state was `from`; it is `BUSY` then, and the caller's.
    fn begin(&self, from: u8, _: &Blocked) -> bool {
        // Pairs with `end`. In one order with the accesses of `WAITER`: who puts a signal here and who begins to wait do not
        // both miss the other.
        self.state.compare_exchange(from, BUSY, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn end(&self, state: u8) {
        self.state.store(state, Ordering::SeqCst);
    }

    fn is_there(&self) -> bool {
        self.state.load(Ordering::Relaxed) == THERE
    }

    fn put(&self, information: &Information, blocked: &Blocked) {
        if self.begin(NONE, blocked) {
            // SAFETY: the caller's alone, by `begin`.
            unsafe { *self.information.get() = *information };
            self.end(THERE);
        }
    }

    fn take(&self, blocked: &Blocked) -> Option<Information> {
        self.begin(THERE, blocked).then(|| {
            // SAFETY: the caller's alone, by `begin`.
            let information = unsafe { *self.information.get() };
            self.end(NONE);
            information
        })
    }
}

/// The signals of a mask.
fn of(signals: u64) -> impl Iterator<Item = &'static Pending> {
    PENDING.iter().filter(move |pending| signals & signal_bit(pending.signal) != 0)
}

/// Takes one of these, with its number.
fn take(signals: u64, blocked: &Blocked) -> Option<(u32, Information)> {
    of(signals).find_map(|pending| Some((pending.signal, pending.take(blocked)?)))
}

/// The process has forked and this is the child, which has no pending signals.
pub fn forked() {
    PENDING.iter().for_each(|pending| pending.end(NONE));
    WAITER.store(0, Ordering::SeqCst);
}

/// One of [`OWN`] came.
///
/// # Safety
/// `information` must be the kernel's.
pub unsafe fn hold(signal: u32, information: *const c_void) {
    let blocked = Blocked::all();
    // SAFETY: the caller's promise.
    let information = unsafe { &*information.cast::<Information>() };
    of(signal_bit(signal)).for_each(|pending| pending.put(information, &blocked));
    let waiter = WAITER.load(Ordering::SeqCst);
    // In a handler that interrupts its own wait, it is taken by the next.
    if waiter != 0 && waiter != sys::thread_id() && !sys::kill_thread(waiter, signal) {
        // A thread that ended in its wait.
        let _ = WAITER.compare_exchange(waiter, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// The calling thread has these unblocked.
pub fn unblocked(signals: u64) {
    // What is pending in a process is not for a child of `vfork` in its memory.
    if !of(signals).any(Pending::is_there) || !signals::is_owner() {
        return;
    }
    let blocked = Blocked::all();
    while let Some((signal, information)) = take(signals, &blocked) {
        sys::queue_to_self(signal, information.as_ptr().cast());
    }
}

/// Those that are pending, as a mask.
pub fn mask() -> u64 {
    PENDING
        .iter()
        .filter(|pending| pending.is_there())
        .fold(0, |mask, pending| mask | signal_bit(pending.signal))
}

/// Whether a thread waits for one of them, which has them blocked in earnest.
pub fn is_awaited() -> bool {
    WAITER.load(Ordering::Relaxed) != 0
}

/// Enters the calling thread as the one that waits, unless there is another; whether it is.
fn register() -> bool {
    let own = sys::thread_id();
    let other = WAITER.load(Ordering::Relaxed);
    // A thread may have left its wait by a jump out of a handler, or have been cancelled there.
    let is_free = other == 0 || other == own || !sys::is_thread(sys::process_id(), other);
    is_free && WAITER.compare_exchange(other, own, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

/// Waits for signals by `wait`, `own` of [`OWN`] among them; `taken` says which signal its result tells of. Breaks off where one
/// was pending here, with its number and information; it is not any more. Who put it here has sent another to end the wait.
pub fn wait<T>(
    own: u64,
    wait: impl FnOnce() -> T,
    taken: impl FnOnce(&T) -> u32,
) -> ControlFlow<(u32, Information), T> {
    let mut blocked = Blocked::all();
    let before = blocked.0;
    let is_registered = register();
    if let Some(taken) = take(own, &blocked) {
        unregister(is_registered);
        return ControlFlow::Break(taken);
    }
    // What comes from here on is the kernel's to hand out. Nothing traps in a thread that waits, but in handlers, for
    // which it is unblocked.
    blocked.0 = before | own;
    drop(blocked);
    let result = wait();
    let blocked = Blocked::all();
    unregister(is_registered);
    let came = taken(&result);
    let kept = if came == 0 { None } else { take(own & signal_bit(came), &blocked) };
    drop(blocked);
    // Not `before`: a handler that ran meanwhile may have changed the mask for good.
    sys::unblock_signals(own & !before);
    kept.map_or(ControlFlow::Continue(result), ControlFlow::Break)
}

fn unregister(is_registered: bool) {
    if is_registered {
        WAITER.store(0, Ordering::SeqCst);
    }
}
