//! SIGSYS as it is sent, not trapped, while the program wants it blocked: in the kernel it would be pending. It is kept until the
//! program unblocks it, or takes it by `sigwait` and its kin.

use anyring_runtime::sys::{self, signal_bit};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use linux_raw_sys::general::SIGSYS;

/// `siginfo_t`.
pub type Information = [u64; 16];

/// One such signal: as of others below the real-time ones, there is never more than one.
struct Pending {
    state: AtomicU8,
    information: UnsafeCell<Information>,
}

// SAFETY: who changes the state to `BUSY` has the information alone.
unsafe impl Sync for Pending {}

static PENDING: Pending = Pending { state: AtomicU8::new(NONE), information: UnsafeCell::new([0; 16]) };
const NONE: u8 = 0;
const BUSY: u8 = 1;
const THERE: u8 = 2;

/// The thread that waits for it, or 0. Others that wait at the same time get it when they wait anew.
static WAITER: AtomicU32 = AtomicU32::new(0);

impl Pending {
    /// Whether the state was `from`; it is `BUSY` then, and the caller's.
    fn begin(&self, from: u8) -> bool {
        // Pairs with `end`. In one order with the accesses of `WAITER`: who puts a signal here and who begins to wait do not
        // both miss the other.
        self.state.compare_exchange(from, BUSY, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn end(&self, state: u8) {
        self.state.store(state, Ordering::SeqCst);
    }

    fn put(&self, information: &Information) {
        if self.begin(NONE) {
            // SAFETY: the caller's alone, by `begin`.
            unsafe { *self.information.get() = *information };
            self.end(THERE);
        }
    }

    fn take(&self) -> Option<Information> {
        self.begin(THERE).then(|| {
            // SAFETY: the caller's alone, by `begin`.
            let information = unsafe { *self.information.get() };
            self.end(NONE);
            information
        })
    }
}

/// The process has forked and this is the child, which has no pending signals.
pub fn forked() {
    PENDING.end(NONE);
    WAITER.store(0, Ordering::SeqCst);
}

/// The signal came.
///
/// # Safety
/// `information` must be the kernel's.
pub unsafe fn hold(information: *const c_void) {
    // SAFETY: the caller's promise.
    PENDING.put(unsafe { &*information.cast::<Information>() });
    let waiter = WAITER.load(Ordering::SeqCst);
    // In a handler that interrupts its own wait, it is taken by the next.
    if waiter != 0 && waiter != sys::thread_id() && !sys::kill_thread(waiter, SIGSYS) {
        // A thread that ended in its wait.
        let _ = WAITER.compare_exchange(waiter, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// The calling thread has it unblocked.
pub fn unblocked() {
    if PENDING.state.load(Ordering::Relaxed) != NONE
        && let Some(information) = PENDING.take()
    {
        sys::queue_to_self(SIGSYS, information.as_ptr().cast());
    }
}

/// What is pending, as a mask of this signal alone.
pub fn mask() -> u64 {
    if PENDING.state.load(Ordering::Relaxed) == THERE { signal_bit(SIGSYS) } else { 0 }
}

/// Whether a thread waits for it, which has it blocked in earnest.
pub fn is_awaited() -> bool {
    WAITER.load(Ordering::Relaxed) != 0
}

/// Waits for signals, this one among them, by `wait`; `has_come` says of its result that this one came. Breaks off where it was
/// pending here, with its information; it is not any more. Who put it here has sent another to end the wait.
pub fn wait<T>(wait: impl FnOnce() -> T, has_come: impl FnOnce(&T) -> bool) -> ControlFlow<Information, T> {
    // What comes from here on is the kernel's to hand out. Nothing traps in a thread that waits, but in handlers, for
    // which it is unblocked.
    let before = sys::block_signals(signal_bit(SIGSYS));
    let own = sys::thread_id();
    let is_free = WAITER.compare_exchange(0, own, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let mut taken = PENDING.take();
    let result = if taken.is_none() { Some(wait()) } else { None };
    if is_free {
        WAITER.store(0, Ordering::SeqCst);
    }
    if result.as_ref().is_some_and(has_come) {
        taken = PENDING.take();
    }
    if before & signal_bit(SIGSYS) == 0 {
        sys::unblock_signals(signal_bit(SIGSYS));
    }
    match (taken, result) {
        (None, Some(result)) => ControlFlow::Continue(result),
        (taken, _) => ControlFlow::Break(taken.unwrap_or_default()),
    }
}
