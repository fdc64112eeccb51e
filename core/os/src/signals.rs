//! Signals: actions, masks, and sending a signal to a thread.

use core::ffi::c_void;

use crate::{arch, call, getpid, nr};
use anyring_abi::Errno;

/// A handler with `SA_SIGINFO`: signal number, `siginfo_t`, `ucontext_t`.
pub type Handler = unsafe extern "C" fn(i32, *mut SignalInfo, *mut c_void);

/// Length of the kernel's signal set in bytes.
const SET_BYTES: usize = 8;

/// `SIG_DFL`.
pub const DEFAULT: usize = 0;

/// `struct sigaction` in the kernel's layout.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Action {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

impl Action {
    /// Makes an action that runs `handler` on the thread's alternate stack, if any, with all signals blocked. It interrupts system calls.
    pub fn handled_by(handler: Handler) -> Action {
        Action {
            handler: handler as usize,
            flags: (nr::SA_SIGINFO | nr::SA_ONSTACK) as usize | arch::RESTORER_FLAG,
            restorer: arch::signal_return(),
            mask: u64::MAX,
        }
    }

    /// True if the action is `SIG_DFL`.
    pub fn is_default(&self) -> bool {
        self.handler == DEFAULT
    }

    /// True if the action runs this handler.
    pub fn is_handled_by(&self, handler: Handler) -> bool {
        self.handler == handler as usize
    }
}

/// `siginfo_t` of a signal with a value.
#[repr(C)]
pub struct SignalInfo {
    signal: i32,
    error: i32,
    code: i32,
    padding: i32,
    sender: i32,
    user: u32,
    value: usize,
    rest: [usize; 12],
}

const _: () = assert!(size_of::<SignalInfo>() == 128);

impl SignalInfo {
    /// True if the signal was sent by [`signal_thread`] with this value.
    pub fn has_value(&self, value: usize) -> bool {
        self.code == nr::SI_QUEUE && self.value == value
    }

    /// True if the kernel had no memory to record the sender and value of the signal.
    pub fn is_lost(&self) -> bool {
        self.code == nr::SI_USER as i32 && self.sender == 0
    }
}

/// Sets the action of a signal, if one is given, and returns the previous action.
///
/// # Errors
/// `EINVAL` for a signal whose action cannot be changed.
///
/// # Safety
/// A handler must be able to run in any thread at any instruction.
pub unsafe fn signal_action(signal: u32, new: Option<&Action>) -> Result<Action, Errno> {
    let mut old = Action::default();
    let new = new.map_or(0, |new| core::ptr::from_ref(new) as usize);
    let arguments = [signal as usize, new, &raw mut old as usize, SET_BYTES, 0, 0];
    // SAFETY: reads and writes actions of ours; the caller guarantees that the handler is sound.
    unsafe { call(nr::__NR_rt_sigaction, arguments) }?;
    Ok(old)
}

/// Returns the bit of a signal in a mask.
pub const fn signal_bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

/// Unblocks signals in the calling thread.
pub fn unblock_signals(mask: u64) {
    change_mask(nr::SIG_UNBLOCK, mask);
}

/// Blocks signals in the calling thread.
pub fn block_signals(mask: u64) {
    change_mask(nr::SIG_BLOCK, mask);
}

fn change_mask(how: u32, mask: u64) {
    let arguments = [how as usize, &raw const mask as usize, 0, SET_BYTES, 0, 0];
    // SAFETY: reads a mask of ours.
    let changed = unsafe { call(nr::__NR_rt_sigprocmask, arguments) };
    debug_assert!(changed.is_ok(), "the arguments are right");
}

/// Runs `act`, which may make a file longer, without SIGXFSZ if the file exceeds the limit of file sizes.
pub fn without_size_signal<T>(act: impl FnOnce() -> T) -> T {
    let bit = signal_bit(nr::SIGXFSZ);
    let mut before = 0u64;
    let arguments =
        [nr::SIG_BLOCK as usize, &raw const bit as usize, &raw mut before as usize, SET_BYTES, 0, 0];
    // SAFETY: reads and writes masks of ours.
    let blocked = unsafe { call(nr::__NR_rt_sigprocmask, arguments) };
    // A signal that was not blocked cannot have been pending.
    let was_pending = before & bit != 0 && pending_signals() & bit != 0;
    let result = act();
    if blocked.is_ok() && !was_pending && pending_signals() & bit != 0 {
        let now = [0u64; 2];
        let arguments = [&raw const bit as usize, 0, &raw const now as usize, SET_BYTES, 0, 0];
        // SAFETY: reads a mask and a time of ours. The signal is the calling thread's own, and does not run away.
        let _ = unsafe { call(nr::__NR_rt_sigtimedwait, arguments) };
    }
    if blocked.is_ok() && before & bit == 0 {
        unblock_signals(bit);
    }
    result
}

fn pending_signals() -> u64 {
    let mut pending = 0u64;
    // SAFETY: writes a mask of ours.
    let _ = unsafe { call(nr::__NR_rt_sigpending, [&raw mut pending as usize, SET_BYTES, 0, 0, 0, 0]) };
    pending
}

/// Sends a signal to a thread of this process, with a value.
///
/// # Errors
/// `ESRCH` if there is no such thread; `EAGAIN` if too many signals are queued.
pub fn signal_thread(thread: i32, signal: u32, value: usize) -> Result<(), Errno> {
    let sender = getpid();
    let (code, padding, user, rest) = (nr::SI_QUEUE, 0, 0, [0; 12]);
    let info = SignalInfo { signal: signal as i32, error: 0, code, padding, sender, user, value, rest };
    let arguments = [sender as usize, thread as usize, signal as usize, &raw const info as usize, 0, 0];
    // SAFETY: the caller knows the effect of the signal.
    unsafe { call(nr::__NR_rt_tgsigqueueinfo, arguments) }.map(drop)
}

/// Sends a signal again to this process with the information it came with. Only the code may change: a process may not
/// claim that the kernel or a plain `kill` sent a signal.
///
/// # Safety
/// `info` must be a complete `siginfo_t` that the caller may change.
pub unsafe fn signal_process_again(signal: u32, info: *mut SignalInfo) {
    // SAFETY: guaranteed by the caller.
    let code = unsafe { &mut (*info).code };
    if *code >= 0 || *code == nr::SI_TKILL {
        *code = nr::SI_QUEUE;
    }
    let arguments = [getpid() as usize, signal as usize, info as usize, 0, 0, 0];
    // SAFETY: reads the signal's own information. If the queue is full, the signal is lost.
    let _ = unsafe { call(nr::__NR_rt_sigqueueinfo, arguments) };
}

/// The context of a thread that a signal interrupted.
pub struct Interrupted(*mut c_void);

impl Interrupted {
    /// Wraps the context that the kernel passed to a handler.
    ///
    /// # Safety
    /// `context` must be the third argument of the running handler.
    pub unsafe fn new(context: *mut c_void) -> Interrupted {
        Interrupted(context)
    }

    /// Returns the instruction at which the thread will continue.
    pub fn instruction_pointer(&self) -> usize {
        // SAFETY: a word of the context.
        unsafe { self.0.byte_add(arch::CONTEXT_POINTER).cast::<usize>().read() }
    }

    /// Makes the thread continue at `address`.
    pub fn go_on_at(&mut self, address: usize) {
        // SAFETY: a word of the context.
        unsafe { self.0.byte_add(arch::CONTEXT_POINTER).cast::<usize>().write(address) };
    }

    /// Returns the thread's signal mask at the interruption.
    pub fn mask(&self) -> u64 {
        // SAFETY: a word of the context.
        unsafe { self.0.byte_add(arch::CONTEXT_MASK).cast::<u64>().read() }
    }

    /// Sets the thread's signal mask after the handler.
    pub fn set_mask(&mut self, mask: u64) {
        // SAFETY: a word of the context.
        unsafe { self.0.byte_add(arch::CONTEXT_MASK).cast::<u64>().write(mask) };
    }
}
