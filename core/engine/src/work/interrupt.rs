//! Interrupting an attempt whose worker sleeps in a system call, as the kernel interrupts its workers.
//!
//! A worker that may sleep for ever makes its calls by its [`InterruptSlot`]. A thread that ends the request marks the slot, and sends the
//! worker a signal: the call fails with `EINTR`. It also does if the signal comes just before the call, because the handler moves the
//! thread past a call that it has not begun ([`os::interruption_address`]).
//!
//! The signal is the front end's, if that keeps one for this ([`crate::Host::interrupt_signal`]). Otherwise it is the highest real-time
//! signal for which the program has no action of its own; a worker unblocks it only while it makes such a call, and only if the action
//! still is the engine's.

use alloc::sync::Arc;
use core::ffi::c_void;

use crate::abi::Errno;
use crate::os::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Action, Interrupted, SignalInfo, host, nr};

/// The real-time signals that no C library reserves.
const CANDIDATES: core::ops::RangeInclusive<u32> = 35..=64;

/// Signals that may be unblocked in a worker of the engine: those that an instruction raises, that cannot be blocked, or that C libraries
/// reserve.
const NEVER_BLOCKED: u64 = os::signal_bit(nr::SIGKILL)
    | os::signal_bit(nr::SIGSTOP)
    | os::signal_bit(nr::SIGSEGV)
    | os::signal_bit(nr::SIGBUS)
    | os::signal_bit(nr::SIGILL)
    | os::signal_bit(nr::SIGFPE)
    | os::signal_bit(nr::SIGTRAP)
    | os::signal_bit(nr::SIGSYS)
    | os::signal_bit(32)
    | os::signal_bit(33)
    | os::signal_bit(34);

/// The signal that the engine has taken over; 0 before that.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// Signals without an action of the program that the program uses nevertheless: they were received from elsewhere.
static OF_PROGRAM: AtomicU64 = AtomicU64::new(0);

/// The value of the signals of [`InterruptSlot::interrupt`]: the address of this byte, which nobody else sends.
static VALUE: u8 = 0;

/// Held by a thread that takes a signal over.
static TAKING: Mutex<()> = Mutex::new(());

/// Returns the lock that a thread holds that takes a signal over, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &TAKING
}

/// Resets the lock in a child after `fork`, which has the parent's actions.
///
/// # Safety
/// No other thread of this process may use the engine.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { TAKING.reset() };
}

/// The signal by which a worker is interrupted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// The front end's signal, which its threads never block.
    FrontEnd(u32),
    /// A signal that the engine has taken over.
    Own(u32),
    /// No signal can be had.
    Nothing,
}

/// The slot through which a worker can be interrupted, in one piece of work after the other.
pub struct InterruptSlot {
    thread: i32,
    by: By,
    /// Not zero: the current attempt is to end.
    stopped: AtomicU32,
}

impl InterruptSlot {
    /// Makes a slot for the calling thread.
    pub fn of_this_thread() -> InterruptSlot {
        let thread = os::gettid();
        // A sandbox may forbid signals to be sent: then this one would do nothing.
        let refused = matches!(os::signal_thread(thread, 0, 0), Err(Errno::ENOSYS | Errno::EPERM));
        let by = if refused { By::Nothing } else { choose() };
        InterruptSlot { thread, by, stopped: AtomicU32::new(0) }
    }

    /// Makes a system call that [`InterruptSlot::interrupt`] ends with `EINTR`.
    ///
    /// # Safety
    /// As for the system call itself.
    pub unsafe fn call(&self, number: u32, arguments: [usize; 6]) -> Result<usize, Errno> {
        let own = self.own_signal();
        if let Some(signal) = own {
            os::unblock_signals(os::signal_bit(signal));
        }
        let result = loop {
            // SAFETY: passed on to the caller.
            let result = unsafe { os::call_interruptibly(number, arguments, &self.stopped) };
            // A signal for an earlier attempt, which had ended already, ends nothing.
            if result != Err(Errno::EINTR) || self.is_stopped() {
                break result;
            }
        };
        if let Some(signal) = own {
            os::block_signals(os::signal_bit(signal));
        }
        result
    }

    /// Returns the signal that the engine has taken over, if its action still is the engine's: then it has to be unblocked. If not, the
    /// next piece of work has another slot.
    fn own_signal(&self) -> Option<u32> {
        let By::Own(signal) = self.by else { return None };
        is_ours(signal).then_some(signal)
    }

    /// True if the current attempt is to end.
    pub fn is_stopped(&self) -> bool {
        // Relaxed: the signal that came with the change was delivered in this thread.
        self.stopped.load(Ordering::Relaxed) != 0
    }

    /// True if [`InterruptSlot::interrupt`] reaches the worker, as far as is known.
    pub fn can_be_interrupted(&self) -> bool {
        match self.by {
            By::Own(signal) => is_ours(signal),
            By::FrontEnd(_) | By::Nothing => true,
        }
    }

    /// True if there is a signal by which [`InterruptSlot::interrupt`] ends a call. If not, a call has to return now and then to check.
    pub fn is_reached_by_signals(&self) -> bool {
        self.by != By::Nothing
    }

    /// Ends the current attempt. Must be called only while the worker is at it.
    pub fn interrupt(&self) {
        // Release: the thread that gets the signal finds the word changed.
        if self.stopped.swap(1, Ordering::AcqRel) != 0 {
            return;
        }
        let signal = match self.by {
            By::FrontEnd(signal) => signal,
            By::Own(signal) if is_ours(signal) => signal,
            _ => return,
        };
        // If the signal cannot be sent (the signal queue is full), the attempt goes on. The thread that wants it to end may try again.
        if os::signal_thread(self.thread, signal, &raw const VALUE as usize).is_err() {
            self.stopped.store(0, Ordering::Relaxed);
        }
    }
}

/// Returns a slot for the worker's next piece of work: the same slot, unless another signal has to be taken. Must be called between pieces
/// of work.
pub fn renew(mut slot: Arc<InterruptSlot>) -> Arc<InterruptSlot> {
    if let By::Own(signal) = slot.by
        && (signal != TAKEN.load(Ordering::Relaxed) || !is_ours(signal))
    {
        slot = Arc::new(InterruptSlot::of_this_thread());
    }
    slot.stopped.store(0, Ordering::Relaxed);
    slot
}

fn choose() -> By {
    if let Some(signal) = host::get().and_then(host::Host::interrupt_signal) {
        return By::FrontEnd(signal);
    }
    let taking = TAKING.lock();
    let taken = TAKEN.load(Ordering::Relaxed);
    let signal = if taken != 0 && is_ours(taken) { Some(taken) } else { CANDIDATES.rev().find(|&s| take(s)) };
    TAKEN.store(signal.unwrap_or(0), Ordering::Relaxed);
    drop(taking);
    signal.map_or(By::Nothing, By::Own)
}

/// Takes over a signal. Returns false if the program uses it.
fn take(signal: u32) -> bool {
    let ours = Action::handled_by(on_signal);
    if OF_PROGRAM.load(Ordering::Relaxed) & os::signal_bit(signal) != 0 {
        return false;
    }
    // SAFETY: asks only.
    if !unsafe { os::signal_action(signal, None) }.is_ok_and(|action| action.is_default()) {
        return false;
    }
    // SAFETY: the handler is fit for any thread: it touches its context and makes two system calls.
    match unsafe { os::signal_action(signal, Some(&ours)) } {
        Ok(before) if before.is_default() => true,
        Ok(before) => {
            // The program has set an action in between.
            // SAFETY: puts back what was there.
            let _ = unsafe { os::signal_action(signal, Some(&before)) };
            false
        }
        Err(_) => false,
    }
}

/// True if the action still is the engine's. If the program has set the default since, the signal would kill the program.
fn is_ours(signal: u32) -> bool {
    OF_PROGRAM.load(Ordering::Relaxed) & os::signal_bit(signal) == 0
        // SAFETY: asks only.
        && unsafe { os::signal_action(signal, None) }.is_ok_and(|action| action.is_handled_by(on_signal))
}

/// Returns the address at which a thread goes on that got a signal at an instruction; `None` if the signal is not the engine's.
pub fn resumes_at(info: &SignalInfo, instruction_pointer: usize) -> Option<usize> {
    let address = os::interruption_address(instruction_pointer);
    if info.has_value(&raw const VALUE as usize) {
        Some(address.unwrap_or(instruction_pointer))
    } else {
        address.filter(|_| info.is_lost())
    }
}

/// Handles the signal that the engine has taken over. If it comes from elsewhere, it is the program's.
unsafe extern "C" fn on_signal(signal: i32, info: *mut SignalInfo, context: *mut c_void) {
    // SAFETY: the kernel's.
    let (told, mut interrupted) = unsafe { (&*info, Interrupted::new(context)) };
    let bit = os::signal_bit(signal as u32);
    if let Some(address) = resumes_at(told, interrupted.instruction_pointer()) {
        interrupted.go_on_at(address);
        return;
    }
    OF_PROGRAM.fetch_or(bit, Ordering::Relaxed);
    if interrupted.mask() | bit | NEVER_BLOCKED == u64::MAX {
        // In a worker, the signal stays pending until a thread unblocks it, or waits for it.
        interrupted.set_mask(interrupted.mask() | bit);
    } else {
        // SAFETY: the action that the program has set, as far as it knows.
        let _ = unsafe { os::signal_action(signal as u32, Some(&Action::default())) };
    }
    // SAFETY: the kernel's own information.
    unsafe { os::signal_process_again(signal as u32, info) };
}
