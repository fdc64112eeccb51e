//! Signals of [`OWN`] that are sent (not raised by an instruction) while the program wants them blocked. In the kernel they are not
//! blocked, and do not stay pending: they are kept here until the program unblocks them, or takes them by `sigwait` or a similar
//! call. Kept here, too, are signals that arrive while a thread is inside the engine, or in a thread of the engine.
//!
//! ```text
//!  sent to a thread -+- the program wants it blocked --> hold --> unblocked --> take_one   (the program's handler runs)
//!                    +- which is inside the engine ----/    \----> wait                   (a thread that waits for it takes it)
//!                    +- of the engine --> pass_on -----/
//! ```
//!
//! A *wake* tells a thread that a signal is kept for it: a signal with the same number and special information ([`is_wake`]). `hold`
//! wakes all threads that wait for the signal, which have it blocked in the kernel; `pass_on` wakes the main thread, `unblocked` the
//! calling thread. The kept signal stays here until a thread takes it: the kernel has at most one pending signal of each number for
//! a thread, and would drop a second. A wake that arrives after another thread has taken the signal is ignored.
//!
//! For the same reason no wake may be pending when its thread traps: the kernel would drop the trap's signal, and the call would
//! return its own number. So a thread that ends its wait, or interrupts it for a handler of the program, continues only when no
//! other thread is about to wake it (`Waiter::leave`). Only `pass_on` may wake the main thread at such a moment.
//!
//! `sigsuspend`, `ppoll` and similar calls, which unblock signals temporarily, do not see kept signals, nor does `signalfd`.

use crate::fork;
use crate::signals::{self, OWN};
use anyring_runtime::arch::syscall;
use anyring_runtime::sys::{self, signal_bit};
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use linux_raw_sys::errno::ESRCH;
use linux_raw_sys::general::{self as raw, SI_QUEUE, SI_USER, SIGBUS, SIGSEGV, SIGSYS};

/// The words of `siginfo_t`: the signal and an errno, the code, the sender, and the value sent with the signal.
pub type Information = [u64; 16];
const SENDER: usize = 2;
const VALUE: usize = 3;

/// A kept signal of one number, at most one, as for other signals below the real-time ones.
struct Pending {
    signal: u32,
    state: AtomicU8,
    information: UnsafeCell<Information>,
}

// SAFETY: only the thread that has changed the state to `BUSY` accesses the information.
unsafe impl Sync for Pending {}

static PENDING: [Pending; 3] = [Pending::none(SIGSYS), Pending::none(SIGSEGV), Pending::none(SIGBUS)];
const _: () = assert!(signal_bit(SIGSYS) | signal_bit(SIGSEGV) | signal_bit(SIGBUS) == OWN);

const NONE: u8 = 0;
const BUSY: u8 = 1;
const THERE: u8 = 2;

/// The threads that wait for signals of [`OWN`]. A thread that finds no place takes a kept signal only when it begins a wait.
static WAITERS: [Waiter; 64] = [const { Waiter { entry: AtomicU64::new(0), wakers: AtomicU32::new(0) } }; 64];

/// The place of a waiting thread.
struct Waiter {
    /// The thread's number in the lower half, the signals that it waits for in the upper; 0: free.
    entry: AtomicU64,
    /// Number of threads that may be about to wake the waiting thread.
    wakers: AtomicU32,
}

const _: () = assert!(OWN < 1 << 32);

/// A guard that has all signals blocked in the calling thread: a handler that jumps away would leave a change half done.
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

    /// Changes the state from `from` to `BUSY`, and gives the information to the caller; returns false if the state was not `from`.
    fn begin(&self, from: u8, _: &Blocked) -> bool {
        // Pairs with `end`. In one order with the accesses of `WAITERS`: a thread that puts a signal here and a thread that
        // begins to wait do not both miss each other.
        self.state.compare_exchange(from, BUSY, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn end(&self, state: u8) {
        self.state.store(state, Ordering::SeqCst);
    }

    fn is_there(&self) -> bool {
        // In one order with the accesses of `WAITERS`, like `begin`: a thread that resumes a wait has registered before this load.
        self.state.load(Ordering::SeqCst) == THERE
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

impl Waiter {
    /// Returns the signals that the thread waits for.
    fn awaited(&self) -> u64 {
        self.entry.load(Ordering::SeqCst) >> 32
    }

    /// Wakes the thread if it waits for `signal` and is not the calling thread; returns true if so. The calling thread has signals
    /// blocked, because a thread that leaves this place waits until the wake is sent.
    fn wake(&self, signal: u32, _: &Blocked) -> bool {
        // In one order with `leave`: either `leave` sees this waker, or the load below sees that the place is free.
        self.wakers.fetch_add(1, Ordering::SeqCst);
        let entry = self.entry.load(Ordering::SeqCst);
        let thread = entry as u32;
        // If the calling thread is in a handler that interrupts its own wait, its next wait takes the signal.
        let mut waits = entry >> 32 & signal_bit(signal) != 0 && thread != sys::thread_id();
        if waits && wake(thread, signal) == -(ESRCH as isize) {
            // The thread has ended in its wait.
            let _ = self.entry.compare_exchange(entry, 0, Ordering::SeqCst, Ordering::SeqCst);
            waits = false;
        }
        // Pairs with `leave`: the wake is sent.
        self.wakers.fetch_sub(1, Ordering::Release);
        waits
    }

    /// Ends the wait of the calling thread, whose place this is. When this returns, no more wakes are sent to it; one may be pending.
    fn leave(&self) {
        self.entry.store(0, Ordering::SeqCst);
        while self.wakers.load(Ordering::SeqCst) != 0 {
            // Sleeping lets a waker of a lower priority run.
            let time: Time = [0, 50_000];
            // SAFETY: a time that is read.
            unsafe { syscall(raw::__NR_nanosleep as usize, [time.as_ptr().addr(), 0, 0, 0, 0, 0]) };
        }
    }

    fn is_reset(&self) -> bool {
        self.entry.load(Ordering::SeqCst) == 0 && self.wakers.load(Ordering::SeqCst) == 0
    }

    /// Frees the place in a child of `fork`, in which no other thread runs.
    fn reset(&self) {
        self.entry.store(0, Ordering::SeqCst);
        self.wakers.store(0, Ordering::SeqCst);
    }
}

/// Returns the entries for the signals of a mask.
fn of(signals: u64) -> impl Iterator<Item = &'static Pending> {
    PENDING.iter().filter(move |pending| signals & signal_bit(pending.signal) != 0)
}

/// Takes a kept signal that is in `signals`; returns its number and information.
fn take(signals: u64, blocked: &Blocked) -> Option<(u32, Information)> {
    of(signals).find_map(|pending| Some((pending.signal, pending.take(blocked)?)))
}

/// Resets the state in a child of `fork`, which has no pending signals. As a rule nothing changes: a page that is only read is not copied.
pub fn forked() {
    PENDING
        .iter()
        .filter(|pending| pending.state.load(Ordering::SeqCst) != NONE)
        .for_each(|pending| pending.end(NONE));
    WAITERS.iter().filter(|waiter| !waiter.is_reset()).for_each(Waiter::reset);
    if MAIN_HAS_ENDED.load(Ordering::Relaxed) {
        MAIN_HAS_ENDED.store(false, Ordering::Relaxed);
    }
}

/// Keeps a signal of [`OWN`], and wakes the threads that wait for it; returns true if any does.
pub fn hold(signal: u32, information: &Information) -> bool {
    let blocked = Blocked::all();
    of(signal_bit(signal)).for_each(|pending| pending.put(information, &blocked));
    // Not only the first thread is woken: it may have left its wait by a jump out of a handler.
    WAITERS.iter().fold(false, |waits, place| place.wake(signal, &blocked) | waits)
}

/// True if a thread waits for this signal.
pub fn is_awaited_one(signal: u32) -> bool {
    WAITERS.iter().any(|waiter| waiter.awaited() & signal_bit(signal) != 0)
}

/// Sends a thread a wake for `signal`; returns 0 or a negative errno.
fn wake(thread: u32, signal: u32) -> isize {
    sys::queue_to_thread(thread, signal, wake_of(signal).as_ptr().cast())
}

/// Returns the information of a wake, which [`is_wake`] recognizes.
fn wake_of(signal: u32) -> Information {
    let mut information = [0; 16];
    information[0] = u64::from(signal);
    information[1] = SI_QUEUE as u32 as u64;
    information[SENDER] = u64::from(sys::process_id());
    information[VALUE] = wake_value();
    information
}

/// True if the main thread has ended before the process, as far as the front end notices that.
static MAIN_HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// Notes that the calling thread ends.
pub fn thread_ends() {
    if sys::thread_id() == sys::process_id() {
        MAIN_HAS_ENDED.store(true, Ordering::Relaxed);
    }
}

/// Keeps a signal of [`OWN`] that was sent to the process and arrived in a thread of the engine, which runs no handlers of the program.
/// The main thread takes the signal; if that has ended, the next thread that calls the engine. The signal itself is not sent on: if an
/// instruction or a trap raises the same signal in the main thread, the kernel keeps only one of the two.
pub fn pass_on(signal: u32, information: &Information) {
    let waits = hold(signal, information);
    if !waits && !MAIN_HAS_ENDED.load(Ordering::Relaxed) {
        wake(sys::process_id(), signal);
    }
}

/// True if this is the information of a wake, which ends a wait or makes a thread take a kept signal.
pub fn is_wake(information: &Information) -> bool {
    let said = information[1] as u32 == SI_QUEUE as u32 && information[VALUE] == wake_value();
    // If the limit of pending signals is reached, the kernel sends a signal without its information.
    let signal = information[0] as u32;
    let lost = information[1] as u32 == SI_USER && information[SENDER] == 0;
    said || lost && of(signal_bit(signal)).any(Pending::is_there)
}

/// Returns the value that marks a wake; no other sender uses it.
fn wake_value() -> u64 {
    (&raw const WAITERS).addr() as u64
}

/// A thread's wait, which a handler of the program interrupts.
pub struct Interrupted {
    awaited: u64,
}

/// Suspends the calling thread's wait, if it is in one, before a handler of the program runs: while the handler runs, and if it
/// jumps away, the thread does not wait.
pub fn interrupt() -> Option<Interrupted> {
    if !is_awaited() {
        return None;
    }
    let _blocked = Blocked::all();
    let place = own_place()?;
    let awaited = place.awaited();
    place.leave();
    Some(Interrupted { awaited })
}

impl Interrupted {
    /// Resumes the wait when the handler returns, perhaps before the waiting call. [`OWN`] stays blocked until the handler has returned.
    pub fn resume(self) {
        register(self.awaited);
        // This wake ends the wait; if it arrives after the wait, it is ignored.
        if let Some(pending) = of(self.awaited).find(|pending| pending.is_there()) {
            wake(sys::thread_id(), pending.signal);
        }
    }
}

/// Wakes the calling thread, which has unblocked `signals`, for each of them that is kept; the thread then [takes](take_one) the signal.
/// The signal itself is not sent: the kernel drops a signal if one of the same number is pending for the thread.
pub fn unblocked(signals: u64) {
    // Signals that are kept for a process are not for its child of `vfork`, which shares its memory.
    if !of(signals).any(Pending::is_there) || !signals::is_owner() {
        return;
    }
    for pending in of(signals).filter(|pending| pending.is_there()) {
        wake(sys::thread_id(), pending.signal);
    }
}

/// Takes this signal, if it is kept; returns its information.
pub fn take_one(signal: u32) -> Option<Information> {
    let blocked = Blocked::all();
    Some(take(signal_bit(signal), &blocked)?.1)
}

/// Returns the mask of the kept signals.
pub fn mask() -> u64 {
    PENDING
        .iter()
        .filter(|pending| pending.is_there())
        .fold(0, |mask, pending| mask | signal_bit(pending.signal))
}

/// True if a thread waits for signals of [`OWN`]; such a thread has them blocked in the kernel.
pub fn is_awaited() -> bool {
    WAITERS.iter().any(|waiter| waiter.entry.load(Ordering::Relaxed) != 0)
}

/// Returns the calling thread's place in [`WAITERS`].
fn own_place() -> Option<&'static Waiter> {
    let own = sys::thread_id();
    WAITERS.iter().find(|place| place.entry.load(Ordering::Relaxed) as u32 == own)
}

/// Registers the calling thread as waiting for `awaited`, if there is a free place.
fn register(awaited: u64) {
    let own = sys::thread_id();
    let process = sys::process_id();
    let entry = awaited << 32 | u64::from(own);
    let take = |place: &&'static Waiter, other| {
        place.entry.compare_exchange(other, entry, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    };
    // The thread still has a place if it has left a wait by a jump out of a handler, or was cancelled there.
    if let Some(place) = own_place() {
        place.entry.store(entry, Ordering::SeqCst);
        return;
    }
    let _ = WAITERS.iter().find(|place| {
        let other = place.entry.load(Ordering::Relaxed);
        (other == 0 || !sys::is_thread(process, other as u32)) && take(place, other)
    });
}

/// Ends the calling thread's wait. If a handler has interrupted and resumed the wait, the place may be another one.
fn unregister() {
    if let Some(place) = own_place() {
        place.leave();
    }
}

/// Seconds and nanoseconds.
pub type Time = [i64; 2];

/// Waits for signals by the function `wait`, for `time` at most; `own` are the signals of [`OWN`] among them. Like `wait`, returns the
/// number of the signal that was taken, with its `information`, or a result below 1.
pub fn wait(
    own: u64,
    information: &mut Information,
    time: Option<Time>,
    mut wait: impl FnMut(&mut Information, Option<&Time>) -> c_int,
) -> c_int {
    // In the child of an unannounced fork, this forgets the other threads, which were perhaps about to wake this one.
    fork::notice();
    let Some([seconds, nanoseconds]) = time else {
        return loop {
            if let Some(result) = wait_once(own, information, |information| wait(information, None)) {
                break result;
            }
        };
    };
    // An invalid time is refused by `wait`.
    let length = seconds.saturating_mul(SECOND).saturating_add(nanoseconds);
    let end = sys::monotonic_ns().saturating_add(length);
    let mut time = [seconds, nanoseconds];
    loop {
        if let Some(result) = wait_once(own, information, |information| wait(information, Some(&time))) {
            return result;
        }
        let left = end.saturating_sub(sys::monotonic_ns()).max(0);
        time = [left / SECOND, left % SECOND];
    }
}

const SECOND: i64 = 1_000_000_000;

/// Waits once, like [`wait`]; returns `None` if a wake has ended the wait, but another thread has taken the signal.
fn wait_once(
    own: u64,
    information: &mut Information,
    wait: impl FnOnce(&mut Information) -> c_int,
) -> Option<c_int> {
    let mut blocked = Blocked::all();
    let before = blocked.0;
    register(own);
    if let Some((signal, its_information)) = take(own, &blocked) {
        unregister();
        *information = its_information;
        return Some(signal as c_int);
    }
    // From here on, the kernel keeps the signals pending for the wait. SIGSYS may be blocked, because a waiting thread traps
    // only in handlers, for which it is unblocked.
    blocked.0 = before | own;
    drop(blocked);
    let result = wait(information);
    let blocked = Blocked::all();
    unregister();
    let came = if result > 0 { signal_bit(result as u32) } else { 0 };
    let kept = take(own & came, &blocked);
    drop(blocked);
    // The mask is not set to `before`: a handler that ran meanwhile may have changed it permanently.
    sys::unblock_signals(own & !before);
    if let Some((_, its_information)) = kept {
        *information = its_information;
    } else if own & came != 0 && is_wake(information) {
        return None;
    }
    Some(result)
}
