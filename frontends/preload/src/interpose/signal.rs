//! Signal actions and masks: see [`anyring_trap::signals`].

use crate::arch::CONTEXT_WORDS;
use anyring_interpose::next;
use anyring_runtime::sys::signal_bit;
use anyring_trap::pending::{self, Information, Time};
use anyring_trap::signals::{self, Action, with_restorer};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::errno::{EINTR, EINVAL};
use linux_raw_sys::general as raw;

/// `struct sigaction` of C libraries, equal in glibc and musl.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LibcAction {
    handler: usize,
    mask: [u64; 16],
    flags: c_int,
    restorer: usize,
}

/// Signals that C libraries use themselves.
const INTERNAL: [c_int; 2] = [32, 33];

/// True if the C library accepts the signal from a program.
fn is_named(signal: c_int) -> bool {
    (1..=64).contains(&signal) && !INTERNAL.contains(&signal)
}

/// `SIG_ERR`.
const ERROR: usize = usize::MAX;

/// `sigaction(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const LibcAction, old: *mut LibcAction) -> c_int {
    if !signals::active() {
        return next!(c"sigaction", fn(c_int, *const LibcAction, *mut LibcAction) -> c_int, signal, new, old,);
    }
    if !is_named(signal) {
        return next::fail(-(EINVAL as isize)) as c_int;
    }
    // SAFETY: null or as in C.
    let new = unsafe { new.as_ref() }.map(|new| with_restorer(new.handler, new.flags as u32, new.mask[0]));
    let mut before = Action::default();
    // SAFETY: the program's handler.
    let result = unsafe { signals::set_action(signal as usize, new.as_ref(), Some(&mut before)) };
    // SAFETY: null or as in C.
    if let (0, Some(old)) = (result, unsafe { old.as_mut() }) {
        old.handler = before.handler;
        old.mask = [0; 16];
        old.mask[0] = before.mask;
        // The program may restore the action by a system call, which needs the function that returns from the handler.
        old.flags = before.flags as c_int;
        old.restorer = before.restorer;
    }
    next::fail(result) as c_int
}

/// Sets a handler as `signal` does, and returns the previous one.
unsafe fn set_handler(signal: c_int, handler: usize, flags: u32, mask: u64) -> usize {
    let mut before = Action::default();
    if !is_named(signal) || handler == ERROR {
        next::fail(-(EINVAL as isize));
        return ERROR;
    }
    let new = with_restorer(handler, flags, mask);
    // SAFETY: the program's handler.
    let result = unsafe { signals::set_action(signal as usize, Some(&new), Some(&mut before)) };
    if next::fail(result) < 0 { ERROR } else { before.handler }
}

/// `signal(2)`, with BSD's semantics, which all but the oldest programs expect.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(number: c_int, handler: usize) -> usize {
    if !signals::active() {
        return next!(c"signal", fn(c_int, usize) -> usize, number, handler);
    }
    let mask = if (1..=64).contains(&number) { signal_bit(number as u32) } else { 0 };
    let flags = if INTERRUPTING.load(Ordering::Relaxed) & mask != 0 { 0 } else { raw::SA_RESTART };
    // SAFETY: the program's handler.
    unsafe { set_handler(number, handler, flags, mask) }
}

/// The signals that interrupt system calls because the program has said so by `siginterrupt`: glibc applies this to later calls
/// of `signal`.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// `siginterrupt(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    if !signals::active() {
        return next!(c"siginterrupt", fn(c_int, c_int) -> c_int, signal, interrupts);
    }
    if !is_named(signal) {
        return next::fail(-(EINVAL as isize)) as c_int;
    }
    let mut action = Action::default();
    // SAFETY: only reads the action.
    unsafe { signals::set_action(signal as usize, None, Some(&mut action)) };
    let flags = action.flags as u32;
    let (bit, restart) = (signal_bit(signal as u32), raw::SA_RESTART);
    let flags = if interrupts != 0 { flags & !restart } else { flags | restart };
    let new = with_restorer(action.handler, flags, action.mask);
    // SAFETY: the program's handler.
    let result = unsafe { signals::set_action(signal as usize, Some(&new), None) };
    // musl does not apply it to later calls.
    let keeps = !next::find(next::Place::Anywhere, c"gnu_get_libc_version").is_null();
    match (result, interrupts) {
        (0, 0) => _ = INTERRUPTING.fetch_and(!bit, Ordering::Relaxed),
        (0, _) if keeps => _ = INTERRUPTING.fetch_or(bit, Ordering::Relaxed),
        _ => {}
    }
    next::fail(result) as c_int
}

/// `signal` under its BSD name.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsd_signal(number: c_int, handler: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { signal(number, handler) }
}

/// `signal` under its System V name.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ssignal(number: c_int, handler: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { signal(number, handler) }
}

/// `signal` with System V's semantics.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(number: c_int, handler: usize) -> usize {
    if !signals::active() {
        return next!(c"sysv_signal", fn(c_int, usize) -> usize, number, handler);
    }
    // SAFETY: the program's handler.
    unsafe { set_handler(number, handler, raw::SA_RESETHAND | raw::SA_NODEFER, 0) }
}

/// `signal` with System V's semantics, under the name that glibc's headers use with `_XOPEN_SOURCE`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(number: c_int, handler: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { sysv_signal(number, handler) }
}

/// Makes `sigprocmask(2)` or a similar call by the C library's `change`: [`signals::OWN`] are noted and not blocked.
///
/// # Safety
/// `set` must be null or a signal set, and `old` null or room for one.
unsafe fn change_mask(
    how: c_int,
    set: *const [u64; 16],
    old: *mut [u64; 16],
    change: impl FnOnce(*const [u64; 16]) -> c_int,
) -> c_int {
    if !signals::active() {
        return change(set);
    }
    // The kernel knows only the first word. `old` may be the same set as `set`.
    // SAFETY: the caller's promise.
    let asked = unsafe { set.cast::<u64>().as_ref() }.copied();
    let shown = signals::wanted();
    let mut copy = [0; 16];
    // A handler for one of these signals may have the signal really blocked, and may unblock it.
    let kept = if how as u32 == raw::SIG_UNBLOCK { 0 } else { signals::OWN };
    copy[0] = asked.unwrap_or(0) & !kept;
    let result = change(if asked.is_some() { &raw const copy } else { set });
    if result != 0 {
        return result;
    }
    if let Some(asked) = asked {
        // The C library has handled the other signals of the mask.
        signals::changed(how as u32, asked);
    }
    // SAFETY: the caller's promise.
    if let Some(first) = unsafe { old.cast::<u64>().as_mut() } {
        *first |= shown;
    }
    result
}

/// `sigprocmask(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(how: c_int, set: *const [u64; 16], old: *mut [u64; 16]) -> c_int {
    let change =
        |set| next!(c"sigprocmask", fn(c_int, *const [u64; 16], *mut [u64; 16]) -> c_int, how, set, old,);
    // SAFETY: the caller's promise.
    unsafe { change_mask(how, set, old, change) }
}

/// `pthread_sigmask(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const [u64; 16], old: *mut [u64; 16]) -> c_int {
    let change =
        |set| next!(c"pthread_sigmask", fn(c_int, *const [u64; 16], *mut [u64; 16]) -> c_int, how, set, old,);
    // SAFETY: the caller's promise.
    unsafe { change_mask(how, set, old, change) }
}

/// Answers `rt_sigaction(2)`, `rt_sigprocmask(2)` and `rt_sigpending(2)` made by `syscall(3)`. Sandboxes of programs (Chromium's) make
/// them by number, in order to bypass interposed functions.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn by_number(number: usize, arguments: [usize; 6]) -> Option<isize> {
    match number as u32 {
        // SAFETY: the caller's promise.
        raw::__NR_rt_sigaction => signals::active().then(|| unsafe { signals::called_action(arguments) }),
        raw::__NR_rt_sigprocmask => signals::active().then(|| signals::called_mask(arguments)),
        // SAFETY: the caller's promise.
        raw::__NR_rt_sigpending => signals::active().then(|| unsafe { signals::called_pending(arguments) }),
        _ => None,
    }
}

/// `sigblock(3)`. glibc's functions from here on call no function that could be interposed, so they are replaced, too.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigblock(mask: c_int) -> c_int {
    change_word(raw::SIG_BLOCK, mask)
}

/// `sigsetmask(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigsetmask(mask: c_int) -> c_int {
    change_word(raw::SIG_SETMASK, mask)
}

/// Changes the mask of the first 32 signals; returns their previous mask, or -1.
fn change_word(how: u32, mask: c_int) -> c_int {
    change_by(how, u64::from(mask as u32)).map_or(-1, |before| before as c_int)
}

/// `sighold(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sighold(signal: c_int) -> c_int {
    change_one(raw::SIG_BLOCK, signal).map_or(-1, |_| 0)
}

/// `sigrelse(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigrelse(signal: c_int) -> c_int {
    change_one(raw::SIG_UNBLOCK, signal).map_or(-1, |_| 0)
}

/// Blocks or unblocks one signal. Returns whether it was blocked, or `None`, with `errno` set, if the signal is invalid.
fn change_one(how: u32, signal: c_int) -> Option<bool> {
    if !is_named(signal) {
        next::fail(-(EINVAL as isize));
        return None;
    }
    let bit = signal_bit(signal as u32);
    change_by(how, bit).map(|before| before & bit != 0)
}

/// Makes `sigprocmask` with a set of one word. Returns the previous mask, or `None`, with `errno` set, if it fails.
fn change_by(how: u32, set: u64) -> Option<u64> {
    let (mut new, mut old) = ([0; 16], [0; 16]);
    new[0] = set;
    // SAFETY: the pointers are to two sets.
    let result = unsafe { sigprocmask(how as c_int, &raw const new, &raw mut old) };
    (result == 0).then_some(old[0])
}

/// `SIG_HOLD`.
const HOLD: usize = 2;

/// `sigset(3)`: sets a handler and unblocks the signal, or blocks the signal.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigset(signal: c_int, handler: usize) -> usize {
    if !signals::active() {
        return next!(c"sigset", fn(c_int, usize) -> usize, signal, handler);
    }
    let (before, how) = if handler == HOLD {
        let mut action = Action::default();
        // SAFETY: only reads the action.
        let result = unsafe { signals::set_action(signal as usize, None, Some(&mut action)) };
        (if next::fail(result) < 0 { ERROR } else { action.handler }, raw::SIG_BLOCK)
    } else {
        // SAFETY: the program's handler.
        (unsafe { set_handler(signal, handler, 0, 0) }, raw::SIG_UNBLOCK)
    };
    if before == ERROR {
        return ERROR;
    }
    match change_one(how, signal) {
        None => ERROR,
        Some(true) => HOLD,
        Some(false) => before,
    }
}

/// `sigignore(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigignore(signal: c_int) -> c_int {
    if !signals::active() {
        return next!(c"sigignore", fn(c_int) -> c_int, signal);
    }
    // SAFETY: ignoring a signal needs no handler.
    if unsafe { set_handler(signal, IGNORE, 0, 0) } == ERROR { -1 } else { 0 }
}

/// `SIG_IGN`.
const IGNORE: usize = 1;

/// `pthread_attr_setsigmask_np(3)`: a thread must not begin with one of [`signals::OWN`] blocked.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_attr_setsigmask_np(attributes: *mut c_void, set: *const [u64; 16]) -> c_int {
    let mut copy = [0; 16];
    // SAFETY: the caller's promise; the kernel knows only the first word.
    let set = match unsafe { set.cast::<u64>().as_ref() } {
        Some(first) if signals::active() => {
            copy[0] = first & !signals::OWN;
            &raw const copy
        }
        _ => set,
    };
    next!(c"pthread_attr_setsigmask_np", fn(*mut c_void, *const [u64; 16]) -> c_int, attributes, set,)
}

/// Returns the signals of [`signals::OWN`] in the `set` that the calling thread waits for, because [`pending`] may have them. A thread
/// that waits must have blocked them. They are noted as blocked here, because the thread may have inherited a mask that was not seen.
///
/// # Safety
/// `set` must be null or a signal set.
unsafe fn own_awaited(set: *const [u64; 16]) -> u64 {
    if !signals::active() {
        return 0;
    }
    // SAFETY: the caller's promise; the kernel knows only the first word.
    let first = unsafe { set.cast::<u64>().as_ref() }.copied().unwrap_or(0);
    let awaited = first & signals::OWN;
    if awaited != 0 {
        signals::want(signals::wanted() | awaited);
    }
    awaited
}

/// `sigwait(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigwait(set: *const [u64; 16], signal: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    let own = unsafe { own_awaited(set) };
    if own == 0 {
        return next!(c"sigwait", fn(*const [u64; 16], *mut c_int) -> c_int, set, signal);
    }
    loop {
        let mut information = [0; 16];
        let taken = timed_wait(own, set, &mut information, None);
        if taken > 0 {
            // SAFETY: as in C.
            unsafe { *signal = taken };
            return 0;
        }
        let errno = next::errno();
        if errno != EINTR as c_int {
            return errno;
        }
    }
}

/// `sigtimedwait(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigtimedwait(
    set: *const [u64; 16],
    information: *mut c_void,
    time: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let own = unsafe { own_awaited(set) };
    if own == 0 {
        return next_timed_wait(set, information, time);
    }
    let mut its_information = [0; 16];
    // SAFETY: null or as in C.
    let time = unsafe { time.cast::<Time>().as_ref() }.copied();
    let taken = timed_wait(own, set, &mut its_information, time);
    // SAFETY: null or as in C.
    if let (1.., Some(information)) = (taken, unsafe { information.cast::<Information>().as_mut() }) {
        *information = its_information;
    }
    taken
}

/// Calls the C library's `sigtimedwait(2)`.
fn next_timed_wait(set: *const [u64; 16], information: *mut c_void, time: *const c_void) -> c_int {
    next!(c"sigtimedwait", fn(*const [u64; 16], *mut c_void, *const c_void) -> c_int, set, information, time,)
}

/// Waits as `sigtimedwait(2)` does, for a set with the signals `own` of [`signals::OWN`], which [`pending`] may have.
fn timed_wait(own: u64, set: *const [u64; 16], information: &mut Information, time: Option<Time>) -> c_int {
    let null = core::ptr::null;
    pending::wait(own, information, time, |information, time| {
        let time = time.map_or_else(null, |time| core::ptr::from_ref(time).cast());
        next_timed_wait(set, (&raw mut *information).cast(), time)
    })
}

/// `sigwaitinfo(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigwaitinfo(set: *const [u64; 16], information: *mut c_void) -> c_int {
    // SAFETY: the caller's promise; without a time the wait has no limit.
    unsafe { sigtimedwait(set, information, core::ptr::null()) }
}

/// `sigpending(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigpending(set: *mut [u64; 16]) -> c_int {
    let result = next!(c"sigpending", fn(*mut [u64; 16]) -> c_int, set);
    // SAFETY: as in C.
    if let (0, Some(first)) = (result, unsafe { set.cast::<u64>().as_mut() }) {
        *first |= pending::mask();
    }
    result
}

/// The beginning of glibc's `ucontext_t`, up to the mask.
#[repr(C)]
pub struct LibcContext {
    before: [u64; CONTEXT_WORDS],
    mask: [u64; 16],
}

/// Marks a context, in a word of the mask that is otherwise unused, and that `getcontext` does not change. The next word contains the
/// signals of [`signals::OWN`] that the context has blocked.
const MARK: u64 = u64::from_ne_bytes(*b"anyring\x1f");

impl LibcContext {
    /// Returns the signals of [`signals::OWN`] that the context has blocked.
    fn wanted(&self) -> u64 {
        self.mask[0] & signals::OWN | if self.mask[1] == MARK { self.mask[2] & signals::OWN } else { 0 }
    }

    /// Stores these signals in the context, next to the mask that will be in force.
    fn keep_wanted(&mut self, wanted: u64) {
        self.mask[0] &= !signals::OWN;
        (self.mask[1], self.mask[2]) = (MARK, wanted);
    }
}

/// Removes [`signals::OWN`] from the mask of a context that is about to be in force, because C libraries set the mask by a system call
/// of their own.
///
/// # Safety
/// `context` must be null or a context.
unsafe fn prepare_context(context: *mut LibcContext) {
    // SAFETY: the caller's promise.
    let Some(context) = (unsafe { context.as_mut() }).filter(|_| signals::active()) else { return };
    let wanted = context.wanted();
    if wanted != 0 {
        context.keep_wanted(wanted);
    }
    signals::want(wanted);
}

/// `setcontext(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setcontext(context: *mut LibcContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { prepare_context(context) };
    next!(c"setcontext", fn(*mut LibcContext) -> c_int, context)
}

/// `swapcontext(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swapcontext(saved: *mut LibcContext, context: *mut LibcContext) -> c_int {
    // SAFETY: the caller's promise.
    if let Some(saved) = unsafe { saved.as_mut() }.filter(|_| signals::active()) {
        // The C library writes the first word only.
        saved.keep_wanted(signals::wanted());
    }
    // SAFETY: the caller's promise.
    unsafe { prepare_context(context) };
    next!(c"swapcontext", fn(*mut LibcContext, *mut LibcContext) -> c_int, saved, context)
}
