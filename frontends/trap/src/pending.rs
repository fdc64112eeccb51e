//! Signals of [`OWN`] that are sent, not raised by an instruction, while the program wants them blocked: in the kernel they would
//! be pending. They are kept until the program unblocks them, or takes them by `sigwait` and its kin.
//!
//! So it is with those that come while a thread is inside the engine, and with those that the kernel gives to a thread of the engine.
//!
//! ```text
//!  sent to a thread -+- the program wants it blocked --> hold --> unblocked --> take_one   (the program's handler runs)
//!                    +- which is inside the engine ----/    \----> wait                   (a thread that waits for it takes it)
//!                    +- of the engine --> pass_on -----/
//! ```
//!
//! A thread is told that something is there for it by a wake, a signal whose information says so ([`is_wake`]): `hold` tells all
//! that wait for it, which have it blocked in the kernel, `pass_on` the main thread, and `unblocked` the calling thread. The signal itself
//! stays here until somebody takes it: the kernel keeps one of each number for a thread, and would drop one of two. A wake may come
//! late, when another thread has taken what there was, and is none of the program's.
//!
//! For the same reason a wake must not find its thread about to trap: that call would return its own number. A thread that ends its
//! wait, or interrupts it for a handler of the program, goes on when nobody is about to wake it (`Waiter::leave`). Only the main
//! thread may be woken by `pass_on` in that very moment.
//!
//! Not seen by `sigsuspend`, `ppoll` and their kin, whose masks unblock for a while, and not by `signalfd`.

use crate::fork;
use crate::signals::{self, OWN};
use anyring_runtime::arch::syscall;
use anyring_runtime::sys::{self, signal_bit};
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use linux_raw_sys::errno::ESRCH;
use linux_raw_sys::general::{self as raw, SI_QUEUE, SI_USER, SIGBUS, SIGSEGV, SIGSYS};

/// `siginfo_t`: the signal and an errno, the code, the sender, and the value that came with it.
pub type Information = [u64; 16];
const SENDER: usize = 2;
const VALUE: usize = 3;

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

/// The threads that wait for some of them. Of more threads, the rest get theirs when they wait anew.
static WAITERS: [Waiter; 64] = [const { Waiter { entry: AtomicU64::new(0), wakers: AtomicU32::new(0) } }; 64];

/// The place of a thread that waits.
struct Waiter {
    /// The thread's number in the lower half, and which it waits for in the upper; 0: free.
    entry: AtomicU64,
    /// How many threads may be about to wake it.
    wakers: AtomicU32,
}

const _: () = assert!(OWN < 1 << 32);

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
        // Pairs with `end`. In one order with the accesses of `WAITERS`: who puts a signal here and who begins to wait do not
        // both miss the other.
        self.state.compare_exchange(from, BUSY, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn end(&self, state: u8) {
        self.state.store(state, Ordering::SeqCst);
    }

    fn is_there(&self) -> bool {
        // In one order with the accesses of `WAITERS`, like `begin`: who resumes a wait has entered its place before.
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
    /// Which of them the thread waits for.
    fn awaited(&self) -> u64 {
        self.entry.load(Ordering::SeqCst) >> 32
    }

    /// Wakes the thread, if it is another one that waits for `signal`; whether it was. The calling thread has signals blocked: who
    /// leaves the place waits for it.
    fn wake(&self, signal: u32, _: &Blocked) -> bool {
        // In one order with `leave`: either that finds this waker, or this finds that the place is free.
        self.wakers.fetch_add(1, Ordering::SeqCst);
        let entry = self.entry.load(Ordering::SeqCst);
        let thread = entry as u32;
        // In a handler that interrupts its own wait, it is taken by the next.
        let mut waits = entry >> 32 & signal_bit(signal) != 0 && thread != sys::thread_id();
        if waits && wake(thread, signal) == -(ESRCH as isize) {
            // A thread that ended in its wait.
            let _ = self.entry.compare_exchange(entry, 0, Ordering::SeqCst, Ordering::SeqCst);
            waits = false;
        }
        // Pairs with `leave`: the wake is sent.
        self.wakers.fetch_sub(1, Ordering::Release);
        waits
    }

    /// The calling thread, whose place this is, does not wait any more. No wake is sent to it from here on, but one may be pending.
    fn leave(&self) {
        self.entry.store(0, Ordering::SeqCst);
        while self.wakers.load(Ordering::SeqCst) != 0 {
            // The waker may be of a lower priority.
            let time: Time = [0, 50_000];
            // SAFETY: a time that is read.
            unsafe { syscall(raw::__NR_nanosleep as usize, [time.as_ptr().addr(), 0, 0, 0, 0, 0]) };
        }
    }

    /// The process is another one, with this thread alone.
    fn reset(&self) {
        self.entry.store(0, Ordering::SeqCst);
        self.wakers.store(0, Ordering::SeqCst);
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
    WAITERS.iter().for_each(Waiter::reset);
    MAIN_HAS_ENDED.store(false, Ordering::Relaxed);
}

/// One of [`OWN`] came. Whether a thread waits for it.
pub fn hold(signal: u32, information: &Information) -> bool {
    let blocked = Blocked::all();
    of(signal_bit(signal)).for_each(|pending| pending.put(information, &blocked));
    // All of them: some may have left their wait by a jump out of a handler.
    WAITERS.iter().fold(false, |waits, place| place.wake(signal, &blocked) | waits)
}

/// Whether a thread waits for this signal.
pub fn is_awaited_one(signal: u32) -> bool {
    WAITERS.iter().any(|waiter| waiter.awaited() & signal_bit(signal) != 0)
}

/// Tells a thread that `signal` is there for it.
fn wake(thread: u32, signal: u32) -> isize {
    sys::queue_to_thread(thread, signal, wake_of(signal).as_ptr().cast())
}

/// The information that [`is_wake`] knows.
fn wake_of(signal: u32) -> Information {
    let mut information = [0; 16];
    information[0] = u64::from(signal);
    information[1] = SI_QUEUE as u32 as u64;
    information[SENDER] = u64::from(sys::process_id());
    information[VALUE] = wake_value();
    information
}

/// Whether the process goes on without its main thread, as far as the front end hears of that.
static MAIN_HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// The calling thread ends.
pub fn thread_ends() {
    if sys::thread_id() == sys::process_id() {
        MAIN_HAS_ENDED.store(true, Ordering::Relaxed);
    }
}

/// One of [`OWN`] came that was sent to the process, and a thread of the engine was given it, which has no handlers of the program's: the
/// main thread takes it, or where that has ended, the next one that calls the engine. It is not sent on to that thread as it came:
/// the same signal may just be raised there by an instruction or a trap, and the kernel keeps one of the two only.
pub fn pass_on(signal: u32, information: &Information) {
    let waits = hold(signal, information);
    if !waits && !MAIN_HAS_ENDED.load(Ordering::Relaxed) {
        wake(sys::process_id(), signal);
    }
}

/// Whether this is the information of a signal that ends a wait, or has a thread take what is kept.
pub fn is_wake(information: &Information) -> bool {
    let said = information[1] as u32 == SI_QUEUE as u32 && information[VALUE] == wake_value();
    // Where the limit of pending signals is reached, the kernel sends a signal without what it was to say.
    let signal = information[0] as u32;
    let lost = information[1] as u32 == SI_USER && information[SENDER] == 0;
    said || lost && of(signal_bit(signal)).any(Pending::is_there)
}

/// A value that nobody else sends.
fn wake_value() -> u64 {
    (&raw const WAITERS).addr() as u64
}

/// The wait of a thread that a handler of the program interrupts.
pub struct Interrupted {
    awaited: u64,
}

/// A handler of the program is about to run in the calling thread. While it does, and if it jumps away, the thread waits for
/// nothing.
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
    /// The handler returns, maybe to a wait that has not begun yet. The calling thread has [`OWN`] blocked until then.
    pub fn resume(self) {
        register(self.awaited);
        // The wait takes it, or it comes behind the wait, and is none.
        if let Some(pending) = of(self.awaited).find(|pending| pending.is_there()) {
            wake(sys::thread_id(), pending.signal);
        }
    }
}

/// The calling thread has these unblocked: it [takes](take_one) what is kept of them. They stay here until then, for a signal of the same
/// number that is on its way to the thread would swallow another one.
pub fn unblocked(signals: u64) {
    // What is pending in a process is not for a child of `vfork` in its memory.
    if !of(signals).any(Pending::is_there) || !signals::is_owner() {
        return;
    }
    for pending in of(signals).filter(|pending| pending.is_there()) {
        wake(sys::thread_id(), pending.signal);
    }
}

/// Takes this signal, if it is kept.
pub fn take_one(signal: u32) -> Option<Information> {
    let blocked = Blocked::all();
    Some(take(signal_bit(signal), &blocked)?.1)
}

/// The signals that are pending, as a mask.
pub fn mask() -> u64 {
    PENDING
        .iter()
        .filter(|pending| pending.is_there())
        .fold(0, |mask, pending| mask | signal_bit(pending.signal))
}

/// Whether a thread waits for one of them, which has them blocked in earnest.
pub fn is_awaited() -> bool {
    WAITERS.iter().any(|waiter| waiter.entry.load(Ordering::Relaxed) != 0)
}

/// The calling thread's place among those who wait.
fn own_place() -> Option<&'static Waiter> {
    let own = sys::thread_id();
    WAITERS.iter().find(|place| place.entry.load(Ordering::Relaxed) as u32 == own)
}

/// Enters the calling thread as one that waits for `awaited`, where there is room.
fn register(awaited: u64) {
    let own = sys::thread_id();
    let process = sys::process_id();
    let entry = awaited << 32 | u64::from(own);
    let take = |place: &&'static Waiter, other| {
        place.entry.compare_exchange(other, entry, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    };
    // A thread may have left its wait by a jump out of a handler, or have been cancelled there.
    if let Some(place) = own_place() {
        place.entry.store(entry, Ordering::SeqCst);
        return;
    }
    let _ = WAITERS.iter().find(|place| {
        let other = place.entry.load(Ordering::Relaxed);
        (other == 0 || !sys::is_thread(process, other as u32)) && take(place, other)
    });
}

/// The calling thread waits no more. A handler may have taken its place, and got another.
fn unregister() {
    if let Some(place) = own_place() {
        place.leave();
    }
}

/// Seconds and nanoseconds.
pub type Time = [i64; 2];

/// Waits for signals, `own` of [`OWN`] among them, for as long as `time` says, by `wait`, which says which one it took, and its
/// information, or something below 1; the same of the one that was taken.
pub fn wait(
    own: u64,
    information: &mut Information,
    time: Option<Time>,
    mut wait: impl FnMut(&mut Information, Option<&Time>) -> c_int,
) -> c_int {
    // In the child of a fork that nobody told of, no other thread is about to wake this one.
    fork::notice();
    let Some([seconds, nanoseconds]) = time else {
        return loop {
            if let Some(result) = wait_once(own, information, |information| wait(information, None)) {
                break result;
            }
        };
    };
    // What is no time is `wait`'s to refuse.
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

/// [`wait`], but `None` if the wait was ended for a signal that somebody else has taken meanwhile.
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
    // What comes from here on is the kernel's to hand out. Nothing traps in a thread that waits, but in handlers, for
    // which it is unblocked.
    blocked.0 = before | own;
    drop(blocked);
    let result = wait(information);
    let blocked = Blocked::all();
    unregister();
    let came = if result > 0 { signal_bit(result as u32) } else { 0 };
    let kept = take(own & came, &blocked);
    drop(blocked);
    // Not `before`: a handler that ran meanwhile may have changed the mask for good.
    sys::unblock_signals(own & !before);
    if let Some((_, its_information)) = kept {
        *information = its_information;
    } else if own & came != 0 && is_wake(information) {
        return None;
    }
    Some(result)
}
