//! Ending an attempt whose worker sleeps in a system call, as the kernel ends those of its workers.
//!
//! A worker that may sleep for ever makes its calls by its [`InterruptSlot`]. A thread that ends the request says so in the slot, and
//! sends the worker a signal: the call fails with `EINTR`, also where the signal comes just before it, for the handler
//! sends the thread past a call that it has not begun ([`os::interruption_address`]).
//!
//! The signal is the front end's, where it keeps one for this ([`crate::Host::interrupt_signal`]). Else it is the highest
//! real-time signal for which the program has no action of its own; a worker lets it through only while it makes such
//! a call, and only if the action still is the engine's.

use crate::os::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use alloc::sync::Arc;
use core::ffi::c_void;

use crate::abi::Errno;
use crate::os::host;
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Action, Interrupted, SignalInfo, nr};

/// The real-time signals that no C library keeps for itself.
const CANDIDATES: core::ops::RangeInclusive<u32> = 35..=64;

/// Signals that a worker of the engine's may have unblocked: those that an instruction raises, that cannot be
/// blocked, and that C libraries keep for themselves.
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

/// The signal that the engine took, 0 before it did.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// Signals that the program uses, though it has no action for them: they came.
static OF_PROGRAM: AtomicU64 = AtomicU64::new(0);

/// The value that the signals of [`InterruptSlot::interrupt`] come with: its address, which nobody else sends.
static VALUE: u8 = 0;

/// Held by whoever takes a signal.
static TAKING: Mutex<()> = Mutex::new(());

/// The lock of whoever takes a signal, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &TAKING
}

/// In a child after `fork`, which has the parent's actions.
///
/// # Safety
/// No other thread of this process may use the engine.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { TAKING.reset() };
}

/// By which signal a worker is interrupted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// The front end's signal, which its threads let through always.
    FrontEnd(u32),
    /// A signal that the engine took.
    Own(u32),
    /// No signal is to be had.
    Nothing,
}

/// The place through which a worker can be interrupted, at one piece of work after the other.
pub struct InterruptSlot {
    thread: i32,
    by: By,
    /// Not zero: the attempt that is under way is to end.
    stopped: AtomicU32,
}

impl InterruptSlot {
    /// The slot of the calling thread.
    pub fn of_this_thread() -> InterruptSlot {
        let thread = os::gettid();
        // A sandbox may keep signals from being sent: this one would do nothing.
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
            // A signal for an attempt before this one, which had ended already, ends nothing.
            if result != Err(Errno::EINTR) || self.is_stopped() {
                break result;
            }
        };
        if let Some(signal) = own {
            os::block_signals(os::signal_bit(signal));
        }
        result
    }

    /// The signal that the engine took, if it is to be let through and still does what it did. What the next piece of
    /// work has is another one then.
    fn own_signal(&self) -> Option<u32> {
        let By::Own(signal) = self.by else { return None };
        is_ours(signal).then_some(signal)
    }

    /// True if the attempt that was under way is to end.
    pub fn is_stopped(&self) -> bool {
        // The signal that came with it was delivered in this thread.
        self.stopped.load(Ordering::Relaxed) != 0
    }

    /// True if [`InterruptSlot::interrupt`] reaches the worker, as far as is known.
    pub fn can_be_interrupted(&self) -> bool {
        match self.by {
            By::Own(signal) => is_ours(signal),
            By::FrontEnd(_) | By::Nothing => true,
        }
    }

    /// True if there is a signal by which [`InterruptSlot::interrupt`] ends a call. Else a call is to look up now and then.
    pub fn is_reached_by_signals(&self) -> bool {
        self.by != By::Nothing
    }

    /// Ends the attempt that is under way. To be called only while the worker is at it.
    pub fn interrupt(&self) {
        // Release: whoever gets the signal finds the word changed.
        if self.stopped.swap(1, Ordering::AcqRel) != 0 {
            return;
        }
        let signal = match self.by {
            By::FrontEnd(signal) => signal,
            By::Own(signal) if is_ours(signal) => signal,
            _ => return,
        };
        // One that cannot be sent (there are so many in the queue as there may be) leaves the attempt as it is. Whoever wants it
        // to end may try again.
        if os::signal_thread(self.thread, signal, &raw const VALUE as usize).is_err() {
            self.stopped.store(0, Ordering::Relaxed);
        }
    }
}

/// A slot for the worker's next piece of work; its own so far, unless another signal is to be taken. To be called while
/// the worker is at nothing.
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

/// Takes a signal that nobody has.
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
            // The program took the signal in between.
            // SAFETY: puts back what was there.
            let _ = unsafe { os::signal_action(signal, Some(&before)) };
            false
        }
        Err(_) => false,
    }
}

/// True if the action is still the engine's. The program would die of a signal for which it has set the default since.
fn is_ours(signal: u32) -> bool {
    OF_PROGRAM.load(Ordering::Relaxed) & os::signal_bit(signal) == 0
        // SAFETY: asks only.
        && unsafe { os::signal_action(signal, None) }.is_ok_and(|action| action.is_handled_by(on_signal))
}

/// Where a thread goes on that got a signal at an instruction; `None` where the signal has nothing to do with the engine.
pub fn resumes_at(info: &SignalInfo, instruction_pointer: usize) -> Option<usize> {
    let address = os::interruption_address(instruction_pointer);
    if info.has_value(&raw const VALUE as usize) {
        Some(address.unwrap_or(instruction_pointer))
    } else {
        address.filter(|_| info.is_lost())
    }
}

/// The handler of the signal that the engine took. One that comes from elsewhere is the program's.
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
        // A worker.
        // The signal waits for a thread that has it unblocked, or waits for it.
        interrupted.set_mask(interrupted.mask() | bit);
    } else {
        // SAFETY: what the program has set, as far as it knows.
        let _ = unsafe { os::signal_action(signal as u32, Some(&Action::default())) };
    }
    // SAFETY: the kernel's own information.
    unsafe { os::signal_process_again(signal as u32, info) };
}
