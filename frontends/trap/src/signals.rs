//! Signal actions: those in the kernel's table, and those that the program has set.
//!
//! The kernel's actions for three signals ([`OWN`]) are the engine's during the whole life of the process: SIGSYS for the trap,
//! SIGSEGV and SIGBUS because the engine's guarded copies may fault, and are resumed. The actions that the program sets for these
//! signals are kept here, and obeyed for each such signal that does not concern the engine.
//!
//! For the other signals, the kernel calls `deliver`, which calls the program's handler, but not inside the engine: a handler that ran
//! while its thread holds one of the engine's locks could enter the same ring, or jump out and never return.
//!
//! ```text
//! a signal that the program handles --> deliver -+- the thread is outside --> the program's handler
//!                                                +- the thread is inside ---> postpone: queued again, everything blocked;
//!                                                                             delivered when the thread leaves the engine,
//!                                                                             whose wait the signal ends as in the kernel
//! SIGSEGV, SIGBUS --> fault -+- of a guarded copy ------> resumed at the copy's end
//!                            +- of other instructions --> the program's action
//!                            +- sent -------------------> the program's action, or kept (`pending`) while the program has the
//!                                                         signal blocked, or its thread is inside the engine
//! SIGSYS --> the trap's handler; if the engine's filter did not raise it, as above
//! ```
//!
//! None of the three is ever blocked in the kernel, which kills a process that traps, or faults in a guarded copy, while the signal
//! is blocked. The front end notes which of them the program wants blocked.

use crate::Frontend;
use crate::altstack;
use crate::arch::{self, Context};
use crate::fork;
use crate::handlers;
use crate::pending;
use crate::stub;
use anyring_engine::frontend;
use anyring_engine::os::user;
use anyring_runtime::arch::syscall;
use anyring_runtime::sys::{self, ASYNCHRONOUS, signal_bit};
use anyring_runtime::threads;
use anyring_runtime::{calls, log};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use linux_raw_sys::errno::EINVAL;
use linux_raw_sys::general as raw;

/// `SIG_DFL`.
pub const DEFAULT: usize = 0;
/// `SIG_IGN`.
pub const IGNORE: usize = 1;
/// One more than the highest signal number.
const SIGNALS: usize = 65;

/// `struct sigaction` as the kernel has it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Action {
    /// The handler, [`DEFAULT`] or [`IGNORE`].
    pub handler: usize,
    /// `SA_*`.
    pub flags: usize,
    /// The function that returns from the handler.
    pub restorer: usize,
    /// The signals that are blocked while the handler runs.
    pub mask: u64,
}

// SAFETY: integers only, without padding.
unsafe impl user::Plain for Action {}

/// A handler, as `SA_SIGINFO` calls it; the others ignore the last two arguments.
type Handler = unsafe extern "C" fn(c_int, *mut c_void, *mut Context);

/// The action that the program has set for one signal.
struct Entry {
    handler: AtomicUsize,
    flags: AtomicUsize,
    restorer: AtomicUsize,
    mask: AtomicU64,
}

static ENTRIES: [Entry; SIGNALS] = [const {
    Entry {
        handler: AtomicUsize::new(DEFAULT),
        flags: AtomicUsize::new(0),
        restorer: AtomicUsize::new(0),
        mask: AtomicU64::new(0),
    }
}; SIGNALS];

/// The lock that keeps an entry and the kernel's action equal. It is taken with signals blocked.
static LOCK: AtomicBool = AtomicBool::new(false);
/// The process whose actions [`ENTRIES`] describes. A child of `vfork` shares this memory, but has a table of actions of its own.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The engine's handlers: that of SIGSYS, and that of SIGSEGV and SIGBUS.
pub static OTHERS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// True if the program's handlers are called by [`deliver`].
static ACTIVE: AtomicBool = AtomicBool::new(false);

impl Entry {
    fn load(&self) -> Action {
        Action {
            handler: self.handler.load(Ordering::Acquire),
            flags: self.flags.load(Ordering::Relaxed),
            restorer: self.restorer.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    fn store(&self, action: &Action) {
        self.flags.store(action.flags, Ordering::Relaxed);
        self.restorer.store(action.restorer, Ordering::Relaxed);
        self.mask.store(action.mask, Ordering::Relaxed);
        self.handler.store(action.handler, Ordering::Release);
    }
}

/// The signals whose action in the kernel's table is always the engine's. None of them is blocked.
pub const OWN: u64 = signal_bit(raw::SIGSYS) | signal_bit(raw::SIGSEGV) | signal_bit(raw::SIGBUS);

/// The signals that a program can block, without [`OWN`] and those of C libraries. SIGILL, SIGFPE and SIGTRAP are among them: the
/// masks that the engine sets ([`ASYNCHRONOUS`]) do not change these three.
const EVERY_OTHER: u64 = !(OWN | signal_bit(raw::SIGKILL) | signal_bit(raw::SIGSTOP) | OF_LIBRARIES);

/// The signals whose handlers a front end with a C library keeps out of the engine: all that the C library lets a program block, except
/// those that an instruction raises.
pub const HANDLED: u64 = OF_TRAP & !OF_LIBRARIES;

/// The signals that are blocked in the trap. No program can block all of them through a C library, which needs some for itself.
pub const OF_TRAP: u64 = ASYNCHRONOUS & !(signal_bit(raw::SIGKILL) | signal_bit(raw::SIGSTOP));

/// The signals of C libraries.
const OF_LIBRARIES: u64 = signal_bit(32) | signal_bit(33) | signal_bit(34);

/// True if the kernel's action for `signal` is always the engine's.
fn is_ours(signal: usize) -> bool {
    OWN & signal_bit(signal as u32) != 0
}

/// Makes an `rt_sigaction(2)` that the filter lets pass.
///
/// # Safety
/// The action's handler must be fit to be one. The stub must be in place.
pub unsafe fn set_kernel_action(signal: usize, action: Option<&Action>, old: Option<&mut Action>) -> isize {
    let new = action.map_or(0, |action| core::ptr::from_ref(action).addr());
    let old = old.map_or(0, |old| core::ptr::from_mut(old).addr());
    // SAFETY: both are null or live actions in the kernel's layout.
    unsafe { stub::syscall(raw::__NR_rt_sigaction as usize, [signal, new, old, 8, 0, 0]) }
}

/// Returns an action with a `sa_restorer`, on architectures whose kernel needs one.
pub fn with_restorer(handler: usize, flags: u32, mask: u64) -> Action {
    let (flag, restorer) = arch::restorer();
    Action { handler, flags: (flags | flag) as usize, restorer, mask }
}

/// Returns an action whose handler is the engine's.
fn own_action(handler: Handler, flags: u32, mask: u64) -> Action {
    with_restorer(handler as usize, flags | raw::SA_SIGINFO, mask)
}

/// Returns the kernel's action for SIGSEGV or SIGBUS if the program's is `action`. The engine's handler calls the program's, and so
/// asks for the stack and the mask that the program asked for.
fn fault_action(action: &Action) -> Action {
    if action.handler <= IGNORE {
        // The handler does not fault. With both signals blocked, signals that are sent without end do not fill the thread's stack.
        let both = signal_bit(raw::SIGSEGV) | signal_bit(raw::SIGBUS);
        // No other handler may run before the guarded copy is resumed: it could not see that its thread is in one.
        return own_action(fault, raw::SA_NODEFER | raw::SA_ONSTACK, both | ASYNCHRONOUS);
    }
    let kept = action.flags as u32 & (raw::SA_NODEFER | raw::SA_ONSTACK) | raw::SA_SIGINFO;
    let front = crate::frontend().and_then(Frontend::front_of_faults);
    let handler = front.unwrap_or(fault as *const () as usize);
    with_restorer(handler, kept, action.mask & !signal_bit(raw::SIGSYS))
}

/// Sets the kernel's actions for the three signals; the actions before become the program's.
///
/// # Errors
/// The negative errno.
pub fn install(trap: Handler) -> Result<(), isize> {
    OWNER.store(sys::process_id(), Ordering::Relaxed);
    OTHERS[0].store(trap as usize, Ordering::Relaxed);
    OTHERS[1].store(fault as *const () as usize, Ordering::Relaxed);
    // No other handler may run while the trap's handler runs the engine, but faults must be handled.
    let flags = raw::SA_NODEFER | raw::SA_ONSTACK;
    let trap = own_action(trap, flags, ASYNCHRONOUS);
    let fault = fault_action(&Action::default());
    for (signal, action) in [(raw::SIGSYS, trap), (raw::SIGSEGV, fault), (raw::SIGBUS, fault)] {
        let mut old = Action::default();
        // SAFETY: both handlers are fit for any thread of the process at any instruction.
        let result = unsafe { set_kernel_action(signal as usize, Some(&action), Some(&mut old)) };
        if result < 0 {
            return Err(result);
        }
        ENTRIES[signal as usize].store(&old);
        // As a rule the program has no handler yet, and the action that was set is right.
        if old.handler > IGNORE {
            follow(signal as usize, &old);
        }
    }
    // A thread that inherited a blocked SIGSYS would die at its first trap.
    sys::unblock_signals(OWN);
    ACTIVE.store(true, Ordering::Release);
    Ok(())
}

/// Sets the action for SIGSYS alone, for a front end that interposes no signal action. The trap runs on the thread's own stack:
/// an alternate one may be just large enough for a handler of the program.
///
/// # Errors
/// The negative errno.
pub fn install_alone(trap: Handler) -> Result<(), isize> {
    let trap = own_action(trap, raw::SA_NODEFER, ASYNCHRONOUS);
    let mut old = Action::default();
    let arguments =
        [raw::SIGSYS as usize, (&raw const trap).addr(), (&raw mut old).addr(), size_of::<u64>(), 0, 0];
    // SAFETY: both actions live in the kernel's layout; the handler is fit for any thread at any instruction.
    let result = unsafe { syscall(raw::__NR_rt_sigaction as usize, arguments) };
    if result < 0 {
        return Err(result);
    }
    ENTRIES[raw::SIGSYS as usize].store(&old);
    sys::unblock_signals(signal_bit(raw::SIGSYS));
    Ok(())
}

/// True if the program's actions are kept here.
pub fn active() -> bool {
    ACTIVE.load(Ordering::Acquire)
}

/// True if this is the process whose actions are kept here, and not a child of `vfork` in its memory. A child of a fork that was not
/// announced is noticed here, and becomes the owner of its copy.
pub fn is_owner() -> bool {
    let process = sys::process_id();
    if OWNER.load(Ordering::Relaxed) != process {
        fork::notice();
    }
    OWNER.load(Ordering::Relaxed) == process
}

/// Adjusts the state in a child of `fork`.
pub fn forked() {
    OWNER.store(sys::process_id(), Ordering::Relaxed);
    LOCK.store(false, Ordering::Release);
    pending::forked();
}

/// Does a `sigaction(2)` of the program; returns a negative errno on failure.
///
/// # Safety
/// The handler must be fit to be one.
pub unsafe fn set_action(signal: usize, new: Option<&Action>, old: Option<&mut Action>) -> isize {
    if signal == 0 || signal >= SIGNALS {
        return -(EINVAL as isize);
    }
    if !is_owner() {
        // A child of `vfork`: the table is not its own.
        if signal == raw::SIGSYS as usize && new.is_some() {
            return 0;
        }
        // SAFETY: the caller's promise.
        return unsafe { set_kernel_action(signal, new, old) };
    }
    // Nothing is unblocked: the mask of a thread that has just begun is the only record of what the program wants blocked there.
    let mask = sys::block_signals(ASYNCHRONOUS);
    while LOCK.swap(true, Ordering::Acquire) {
        core::hint::spin_loop();
    }
    // SAFETY: the caller's promise.
    let result = unsafe { set_locked(signal, new, old) };
    LOCK.store(false, Ordering::Release);
    sys::set_signal_mask(mask);
    // The trap does this at its end.
    if mask & OF_TRAP != OF_TRAP {
        release(mask);
    }
    result
}

/// Does an `rt_sigaction(2)` that has trapped, or that the program makes by its number.
///
/// # Safety
/// The program made the call.
pub unsafe fn called_action(a: [usize; 6]) -> isize {
    let [signal, new, old, set_bytes, ..] = a;
    if set_bytes != size_of::<u64>() {
        return -(EINVAL as isize);
    }
    let given = if new == 0 { None } else { Some(user::read::<Action>(new as u64)) };
    let given = match given.transpose() {
        Ok(given) => given,
        Err(errno) => return errno.negated() as isize,
    };
    let mut before = Action::default();
    // SAFETY: the program's handler.
    let result = unsafe { set_action(signal as u32 as usize, given.as_ref(), Some(&mut before)) };
    if result < 0 || old == 0 {
        return result;
    }
    user::write(old as u64, &before).map_or_else(|errno| errno.negated() as isize, |()| 0)
}

/// Returns the signals of [`OWN`] that are noted as wanted blocked in the calling thread.
pub fn wanted() -> u64 {
    noted().unwrap_or(0)
}

/// Returns the note of the signals that are wanted blocked in the calling thread, for [`note`]; `None` if there is none.
pub fn noted() -> Option<u64> {
    crate::frontend().and_then(Frontend::wanted_blocked)
}

/// Notes that the program wants the signals of [`OWN`] in `mask` blocked in the calling thread, and the others not.
pub fn want(mask: u64) {
    note(Some(mask & OWN));
    pending::unblocked(OWN & !mask);
}

/// Sets what [`noted`] returns for the calling thread.
pub fn note(wanted: Option<u64>) {
    if let Some(frontend) = crate::frontend() {
        frontend.note_blocked(wanted);
    }
}

/// Returns the signals of [`OWN`] that count as blocked in the calling thread, whose mask is `mask`. A new thread inherits its
/// creator's, and only front ends with a C library may see its creation: without a note, the mask decides.
fn taken_for_blocked(mask: u64) -> u64 {
    crate::frontend().map_or(0, |frontend| frontend.wanted_blocked().unwrap_or_else(|| told_by(mask)))
}

/// Returns the signals of [`OWN`] that the program wants blocked in the calling thread although its mask does not show it
/// (`told_by`). A thread that the calling thread creates inherits the mask, but not the note.
pub fn untold() -> u64 {
    match wanted() {
        0 => 0,
        wanted => wanted & !told_by(sys::unblock_signals(0)),
    }
}

/// Returns the signals of [`OWN`] that a mask shows to be wanted blocked: all of them if all others are blocked, otherwise none.
fn told_by(mask: u64) -> u64 {
    if mask & EVERY_OTHER == EVERY_OTHER { OWN } else { 0 }
}

/// Has signals that were [kept](pending), and are no longer wanted blocked, come when the current handler returns. Called at the end of
/// a handler that the kernel called in a thread whose mask is `mask`.
pub fn release_kept(mask: u64) {
    // Blocked before `release` looks, so that the kernel keeps what is sent from here on until the handler has returned. A filter of
    // the program's may forbid the call.
    if pending::mask() != 0 || is_own_handled() && !log::is_filtered() {
        sys::block_signals(OWN);
        release(mask);
    }
}

/// True if the program has a handler for one of [`OWN`].
fn is_own_handled() -> bool {
    let handled = |signal: u32| ENTRIES[signal as usize].handler.load(Ordering::Relaxed) > IGNORE;
    handled(raw::SIGSEGV) || handled(raw::SIGBUS) || handled(raw::SIGSYS)
}

/// Returns the mask `before` as `set` changes it in the way `how`; `None` if `how` is unknown.
fn changed_mask(before: u64, how: u32, set: u64) -> Option<u64> {
    match how {
        raw::SIG_BLOCK => Some(before | set),
        raw::SIG_UNBLOCK => Some(before & !set),
        raw::SIG_SETMASK => Some(set),
        _ => None,
    }
}

/// Notes for [`OWN`] what the program's change of the calling thread's mask, by `set` in the way `how`, has not done in the kernel.
pub fn changed(how: u32, set: u64) {
    if let Some(after) = changed_mask(wanted(), how, set) {
        want(after);
    }
}

/// Does an `rt_sigprocmask(2)` that has trapped. The mask is in the context that the handler returns to.
pub fn trapped_mask(a: [usize; 6], interrupted: &mut Context) -> isize {
    let before = interrupted.signal_mask();
    procmask(a, before, |after| interrupted.set_signal_mask(after))
}

/// Does an `rt_sigprocmask(2)` of a thread that is inside the engine. Its mask was `before`; `change` sets the new one.
pub fn changed_inside(a: [usize; 6], before: u64, change: impl FnOnce(u64)) -> isize {
    procmask(a, before, change)
}

/// Does an `rt_sigprocmask(2)` that the program makes by its number.
pub fn called_mask(a: [usize; 6]) -> isize {
    let result = procmask(a, sys::unblock_signals(0), |after| _ = sys::set_signal_mask(after));
    release(sys::unblock_signals(0));
    result
}

/// Does an `rt_sigpending(2)` that has trapped, or that the program makes by its number. The signals of [`OWN`] that are
/// [kept](pending) until the program unblocks them are pending, too.
///
/// # Safety
/// The program made the call.
pub unsafe fn called_pending(a: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    let result = unsafe { stub::syscall(raw::__NR_rt_sigpending as usize, a) };
    let (set, bytes) = (a[0] as u64, a[1]);
    if result < 0 || bytes < size_of::<u64>() || pending::mask() == 0 {
        return result;
    }
    let with = user::read::<u64>(set).map(|pending| pending | pending::mask());
    with.and_then(|with| user::write(set, &with)).map_or_else(|errno| errno.negated() as isize, |()| result)
}

/// Does an `rt_sigtimedwait(2)` that has trapped. The program may wait for signals of [`OWN`], which [`pending`] keeps. Handlers run
/// meanwhile, and may jump out.
///
/// # Safety
/// The program made the call.
pub unsafe fn trapped_wait(a: [usize; 6], interrupted: &mut Context) -> isize {
    let [set, information, time, set_bytes, ..] = a;
    let awaited = match set_bytes {
        8 => user::read::<u64>(set as u64).unwrap_or(0) & OWN,
        _ => 0,
    };
    let mut waits = |a: [usize; 6], more: u64| {
        let before = interrupted.signal_mask();
        let inside = sys::set_signal_mask(before | more);
        // SAFETY: the program's own call, or one with arguments of ours.
        let result = unsafe { stub::syscall(raw::__NR_rt_sigtimedwait as usize, a) };
        let after = sys::set_signal_mask(inside);
        // musl's handler for cancellation blocks its signal until the call has returned.
        interrupted.set_signal_mask(after & !(more | OF_LIBRARIES) | before & (more | OF_LIBRARIES));
        result
    };
    if awaited == 0 {
        return waits(a, 0);
    }
    let given = if time == 0 { Ok(None) } else { user::read::<pending::Time>(time as u64).map(Some) };
    let given = match given {
        Ok(given) => given,
        Err(errno) => return errno.negated() as isize,
    };
    // A thread has the signals blocked for which it waits, perhaps since its creation, which was not seen.
    note(Some(wanted() | awaited));
    let mut taken = [0; 16];
    let result = pending::wait(awaited, &mut taken, given, |taken, time| {
        let time = time.map_or(0, |time| core::ptr::from_ref(time).addr());
        waits([set, core::ptr::from_mut(taken).addr(), time, set_bytes, 0, 0], awaited) as c_int
    });
    if result <= 0 || information == 0 {
        return result as isize;
    }
    user::write(information as u64, &taken)
        .map_or_else(|errno| errno.negated() as isize, |()| result as isize)
}

/// Does an `rt_sigprocmask(2)` of a thread whose mask is `before`; `change` sets the new one.
fn procmask(a: [usize; 6], before: u64, change: impl FnOnce(u64)) -> isize {
    let [how, new, old, set_bytes, ..] = a;
    if set_bytes != size_of::<u64>() {
        return -(EINVAL as isize);
    }
    let shown = before | taken_for_blocked(before);
    if new != 0 {
        let set = match user::read::<u64>(new as u64) {
            Ok(set) => set,
            Err(errno) => return errno.negated() as isize,
        };
        let Some(after) = changed_mask(shown, how as u32, set) else { return -(EINVAL as isize) };
        let is_told = after & OWN == 0 && told_by(after) == 0;
        note(if is_told { None } else { Some(after & OWN) });
        change(after & !OWN);
    }
    if old == 0 {
        return 0;
    }
    user::write(old as u64, &shown).map_or_else(|errno| errno.negated() as isize, |()| 0)
}

/// Does [`set_action`] under the lock.
///
/// # Safety
/// As for [`set_action`].
unsafe fn set_locked(signal: usize, new: Option<&Action>, old: Option<&mut Action>) -> isize {
    let entry = &ENTRIES[signal];
    let before = entry.load();
    if is_ours(signal) {
        if let Some(new) = new {
            entry.store(new);
            follow(signal, new);
        }
        if let Some(old) = old {
            *old = before;
        }
        return 0;
    }
    let shim = new.map(|new| {
        let mut shim = *new;
        // A handler may enter a ring, which needs these signals.
        shim.mask &= !OWN;
        if new.handler > IGNORE {
            // `deliver` obeys SA_RESETHAND itself, when the handler really runs.
            shim.handler = front();
            shim.flags &= !(raw::SA_RESETHAND as usize);
            shim.flags |= raw::SA_SIGINFO as usize;
        }
        shim
    });
    // The entry must be there before the first signal. A handler stays in the entry when the program sets "default": a child of
    // `vfork` may have set that in its own table only.
    if let Some(new) = new.filter(|new| new.handler > IGNORE) {
        entry.store(new);
    }
    let mut kernel = Action::default();
    // SAFETY: `deliver` may be called in place of any handler; the caller has promised that the program's is one.
    let result = unsafe { set_kernel_action(signal, shim.as_ref(), Some(&mut kernel)) };
    if result < 0 {
        entry.store(&before);
        return result;
    }
    if let Some(old) = old {
        let wrapped = kernel.handler == front();
        *old = if wrapped { before } else { kernel };
    }
    result
}

/// Changes the kernel's action for one of [`OWN`] to fit the program's new action. That of SIGSYS does not change: the trap needs more
/// stack than the program's handler may ask for.
fn follow(signal: usize, action: &Action) {
    if signal != raw::SIGSYS as usize {
        // SAFETY: the handler is fit for any thread of the process at any instruction.
        unsafe { set_kernel_action(signal, Some(&fault_action(action)), None) };
    }
}

/// Returns the function that the kernel calls in place of handlers of the program.
fn front() -> usize {
    crate::frontend().and_then(Frontend::front).unwrap_or(deliver as *const () as usize)
}

/// The kernel's handler for signals that the program handles: calls the program's handler, unless the thread is inside the engine.
///
/// # Safety
/// Called by the kernel, or in its stead by [`Frontend::front`].
pub unsafe extern "C" fn deliver(signal: c_int, info: *mut c_void, context: *mut Context) {
    // SAFETY: the caller's promise.
    unsafe { deliver_with(signal, info, context, None) };
}

/// Works as [`deliver`], for a front end that has blocked all signals before a second one could come; `mask` is the mask before that.
///
/// # Safety
/// As for [`deliver`].
pub unsafe extern "C" fn deliver_blocked(signal: c_int, info: *mut c_void, context: *mut Context, mask: u64) {
    // SAFETY: the caller's promise.
    unsafe { deliver_with(signal, info, context, Some(mask)) };
}

/// Works as [`deliver`]; the program's handler runs with the mask, if one is given.
///
/// # Safety
/// As for [`deliver`].
unsafe fn deliver_with(signal: c_int, info: *mut c_void, context: *mut Context, mask: Option<u64>) {
    // SAFETY: the kernel's.
    let interrupted = unsafe { &mut *context };
    if is_inside(signal, interrupted) {
        postpone(signal, info, interrupted);
        return;
    }
    altstack::give_back(interrupted);
    settle(interrupted);
    if let Some(mask) = mask {
        sys::set_signal_mask(mask);
    }
    let entry = &ENTRIES[signal as usize];
    let action = entry.load();
    if action.flags & raw::SA_RESETHAND as usize != 0 {
        // SAFETY: the default action is always fit.
        unsafe { set_kernel_action(signal as usize, Some(&Action::default()), None) };
    }
    // The signal may have come while a call waited with a mask of its own (`ppoll`, `sigsuspend`), which stays in force while the
    // handler runs, and may block SIGSYS: a trap would kill. On return the kernel restores the mask in the context. In a program
    // without rings the call is not made: a filter of the program's may forbid it.
    let unblocks = calls::rings_exist() || calls::TRAPS.load(Ordering::Relaxed) > 0 || pending::is_awaited();
    let unblocked = if unblocks { OWN } else { 0 };
    // SAFETY: the program installed it for this signal.
    unsafe { run(action.handler, unblocked, false, signal, info, context) };
}

/// True if a signal has interrupted the engine.
fn is_inside(signal: c_int, interrupted: &Context) -> bool {
    // The front end does not know of threads in the trap. Signals that no instruction raises come there only while a call of the stub
    // sleeps. The others may also be sent at any moment; then the trap's mask is in force.
    let in_stub = || frontend::syscall_stub().contains(&interrupted.instruction_pointer());
    let in_trap =
        || ASYNCHRONOUS & signal_bit(signal as u32) == 0 && interrupted.signal_mask() & OF_TRAP == OF_TRAP;
    let is_below = || {
        // SAFETY: the context of a handler that has not begun.
        below(interrupted).is_some_and(|outer| is_inside(signal, unsafe { &*outer }))
    };
    crate::frontend().is_some_and(|frontend| frontend.is_inside(interrupted))
        || in_stub()
        || in_trap()
        || is_below()
}

/// Prepares a thread for a handler of the program. If several signals came at once, each has interrupted the engine's handler for the
/// previous one at its first instruction, and the program's handler may jump out of all of them.
fn settle(interrupted: &mut Context) {
    let Some(frontend) = crate::frontend() else { return };
    let mut context = interrupted;
    loop {
        frontend.settle(context);
        let Some(outer) = below(context) else { return };
        // SAFETY: the context of a handler that has not begun.
        context = unsafe { &mut *outer };
    }
}

/// Returns the context of the engine's handler that `context` has interrupted at its first instruction, or in the front end's first
/// instructions, as happens if several signals come at once.
fn below(context: &Context) -> Option<*mut Context> {
    if let Some(outer) = crate::frontend().and_then(|frontend| frontend.context_in_front(context)) {
        return Some(outer);
    }
    let [trap, fault] = OTHERS.each_ref().map(|handler| handler.load(Ordering::Relaxed));
    let handlers = [deliver as *const () as usize, fault, trap];
    // A handler's third argument is its context.
    let [_, _, outer, ..] = context.arguments();
    handlers.contains(&context.instruction_pointer()).then_some(outer as *mut Context)
}

/// Queues the signal for the calling thread again, so that it comes when the thread has left the engine.
fn postpone(signal: c_int, info: *mut c_void, interrupted: &mut Context) {
    // A signal that instructions raise may have been sent, too.
    let blocked = ASYNCHRONOUS | signal_bit(signal as u32);
    // Blocked first, or the signal would come again at once under SA_NODEFER.
    sys::set_signal_mask(blocked);
    sys::queue_to_self(signal as u32, info);
    keep_out(signal, interrupted);
    // After a wait with a mask of its own, the kernel restores the mask before the wait. In any case the thread continues with
    // everything blocked until it leaves the engine.
    interrupted.set_signal_mask(interrupted.signal_mask() | blocked);
}

/// Tells the front end that a signal waits until the calling thread leaves the engine, so that the thread does not begin to sleep there.
fn keep_out(signal: c_int, interrupted: &mut Context) {
    let Some(frontend) = crate::frontend() else { return };
    let mut context = interrupted;
    while !frontend.is_inside(context)
        && let Some(outer) = below(context)
    {
        // SAFETY: the context of a handler that has not begun.
        context = unsafe { &mut *outer };
    }
    frontend.kept_out(signal_bit(signal as u32), context);
}

/// Has the signals of [`OWN`] come that were kept while the thread was inside the engine, which it has left with `mask`.
pub fn release(mask: u64) {
    if pending::mask() != 0 {
        pending::unblocked(OWN & !taken_for_blocked(mask));
    }
}

/// Takes the signals that only a wait with a mask of its own let through. Called by a thread that has everything blocked, when it leaves
/// the engine and before it continues with `mask`.
pub fn let_in(mask: u64) {
    let kept_out = crate::frontend().map_or(0, Frontend::take_kept_out);
    if kept_out & mask != 0 {
        sys::take_signals(mask & !kept_out);
    }
}

/// Calls a handler of the program, with the signals `unblocked` not blocked. Changes that the handler makes to the mask end with it. If
/// `is_silent`, no system call is made after the handler.
///
/// # Safety
/// `handler` must be one.
unsafe fn run(
    handler: usize,
    unblocked: u64,
    is_silent: bool,
    signal: c_int,
    info: *mut c_void,
    context: *mut Context,
) {
    let before = noted();
    let wait = pending::interrupt();
    if unblocked != 0 {
        sys::unblock_signals(unblocked);
    }
    // SAFETY: the caller's promise.
    let handler: Handler = unsafe { core::mem::transmute(handler) };
    // SAFETY: the kernel's.
    let stack = handlers::begins(unsafe { &mut *context });
    // SAFETY: arguments as the kernel gave them.
    unsafe { handler(signal, info, context) };
    handlers::ends(stack);
    if noted() != before {
        note(before);
    }
    if !is_silent {
        // SAFETY: the kernel's.
        release_kept(unsafe { (*context).signal_mask() });
    }
    if let Some(wait) = wait {
        sys::block_signals(OWN);
        wait.resume();
    }
}

/// The engine's handler for SIGSEGV and SIGBUS: resumes a guarded copy, otherwise does what the program's action says.
///
/// # Safety
/// Called by the kernel, or in its stead by [`Frontend::front_of_faults`].
pub unsafe extern "C" fn fault(signal: c_int, info: *mut c_void, context: *mut Context) {
    // SAFETY: the caller's promise.
    unsafe { fault_with(signal, info, context, None) };
}

/// Works as [`fault`], for a front end that has blocked all signals before a second one could come; `mask` is the mask before that.
///
/// # Safety
/// As for [`fault`].
pub unsafe extern "C" fn fault_blocked(signal: c_int, info: *mut c_void, context: *mut Context, mask: u64) {
    // SAFETY: the caller's promise.
    unsafe { fault_with(signal, info, context, Some(mask)) };
}

/// Works as [`fault`]; a handler of the program runs with the mask, if one is given.
///
/// # Safety
/// As for [`fault`].
unsafe fn fault_with(signal: c_int, info: *mut c_void, context: *mut Context, mask: Option<u64>) {
    // SAFETY: the kernel's.
    let interrupted = unsafe { &mut *context };
    // A signal that was sent is not a fault of the copy that it interrupts.
    // SAFETY: the kernel's.
    if !unsafe { is_sent(info) }
        && let Some(address) = frontend::resume_address(interrupted.instruction_pointer())
    {
        interrupted.set_instruction_pointer(address);
        // A wake for a kept signal may have been sent at the same time: the kernel keeps only one signal of each number.
        if pending::mask() != 0 && !threads::is_own(sys::thread_id()) {
            keep_out(signal, interrupted);
        }
        return;
    }
    // SAFETY: arguments as the kernel gave them.
    unsafe { obey_with(signal, info, interrupted, mask) };
}

/// True if a signal was sent, and not raised by an instruction.
///
/// # Safety
/// `info` must be a `siginfo_t`.
unsafe fn is_sent(info: *const c_void) -> bool {
    // SAFETY: `si_code` is the third word of every `siginfo_t`.
    unsafe { *info.cast::<c_int>().add(2) <= 0 }
}

/// A decision about a signal of [`OWN`] that was sent to the calling thread, and not raised by an instruction.
enum Sent {
    /// The program's action is done now.
    Comes,
    /// The signal is a wake, and the program's action is done now for the kept signal with this information.
    Brings(pending::Information),
    /// Nothing more is done: the signal is ignored, or kept for later, or passed on to another thread.
    Over,
}

/// Decides what becomes of a signal that was sent; keeps it if it comes later.
fn sent(
    signal: c_int,
    handler: usize,
    information: &pending::Information,
    interrupted: &mut Context,
) -> Sent {
    let number = signal as u32;
    let is_given_to_us = threads::is_own(sys::thread_id());
    if is_given_to_us && (handler > IGNORE || pending::is_awaited_one(number)) {
        pending::pass_on(number, information);
        return Sent::Over;
    }
    let is_wake = pending::is_wake(information);
    if is_wake && is_inside(signal, interrupted) {
        keep_out(signal, interrupted);
        return Sent::Over;
    }
    let is_blocked =
        !is_given_to_us && taken_for_blocked(interrupted.signal_mask()) & signal_bit(number) != 0;
    if is_blocked && !is_wake && is_owner() {
        pending::hold(number, information);
    }
    if is_blocked {
        return Sent::Over;
    }
    if is_wake {
        let brought = pending::take_one(number).filter(|_| handler != IGNORE);
        return brought.map_or(Sent::Over, Sent::Brings);
    }
    if handler == IGNORE {
        return Sent::Over;
    }
    // The signals are not blocked inside the engine, where the program's handler must not run, as it could jump out.
    if handler > IGNORE && is_inside(signal, interrupted) && is_owner() {
        pending::hold(number, information);
        keep_out(signal, interrupted);
        return Sent::Over;
    }
    Sent::Comes
}

/// Does what the program's action says for a signal whose kernel action is the engine's.
///
/// # Safety
/// Called from a signal handler, with its arguments.
pub unsafe fn obey(signal: c_int, info: *mut c_void, interrupted: &mut Context) {
    // SAFETY: the caller's promise.
    unsafe { obey_with(signal, info, interrupted, None) };
}

/// Works as [`obey`]; a handler of the program runs with the mask, if one is given.
///
/// # Safety
/// As for [`obey`].
unsafe fn obey_with(signal: c_int, mut info: *mut c_void, interrupted: &mut Context, mask: Option<u64>) {
    altstack::give_back(interrupted);
    let entry = &ENTRIES[signal as usize];
    let action = entry.load();
    let mut brought;
    // SAFETY: the kernel's.
    let is_sent = unsafe { is_sent(info) };
    // Without rings no thread is inside the engine, and a filter of the program's may forbid the calls that `sent` makes.
    if is_sent && (calls::rings_exist() || !log::is_filtered()) {
        // SAFETY: the kernel's, whose `siginfo_t` is no shorter.
        let information = unsafe { &*info.cast::<pending::Information>() };
        match sent(signal, action.handler, information, interrupted) {
            Sent::Comes => {}
            Sent::Brings(information) => {
                brought = information;
                info = (&raw mut brought).cast();
            }
            Sent::Over => return,
        }
    }
    if action.handler <= IGNORE {
        // The process dies as it would without the engine: by the same instruction, as the kernel kills a process that raises a blocked
        // signal; or by the signal, sent again.
        if is_sent || signal == raw::SIGSYS as c_int {
            // SAFETY: the default action is always fit.
            unsafe { set_kernel_action(signal as usize, Some(&Action::default()), None) };
            sys::unblock_signals(signal_bit(signal as u32));
            sys::raise(signal);
        } else {
            interrupted.set_signal_mask(interrupted.signal_mask() | signal_bit(signal as u32));
        }
        return;
    }
    settle(interrupted);
    if action.flags & raw::SA_RESETHAND as usize != 0 {
        entry.store(&Action::default());
    }
    // A filter that is not the engine's has trapped a call, and may trap or forbid others. So the mask is not set, and the handler runs
    // with more signals blocked than it asked for.
    let is_silent = signal == raw::SIGSYS as c_int && !is_sent;
    if signal == raw::SIGSYS as c_int && !is_silent {
        // On return the kernel restores the mask in the context.
        sys::set_signal_mask(interrupted.signal_mask() | action.mask & !signal_bit(raw::SIGSYS));
    }
    if let Some(mask) = mask {
        sys::set_signal_mask(mask);
    }
    // SAFETY: the program installed it for this signal.
    unsafe { run(action.handler, 0, is_silent, signal, info, interrupted) };
}
