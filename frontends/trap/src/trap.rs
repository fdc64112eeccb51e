//! The SIGSYS trap: `io_uring` calls by instructions, which no interposed function sees.
//!
//! The handler runs the engine at the trapped instruction, on the program's stack or its alternate one, if that is large enough, with
//! all signals blocked but those of [`signals::OWN`]. It stores the result in the saved register and returns. Nothing here uses
//! `errno`, the C library or thread-local storage.

use crate::arch::{AUDIT_ARCH, Context, FORKS};
use crate::filter::{self, Question, Reach};
use crate::{Frontend, altstack, credentials, descriptors, exec, fork, handlers, signals, stub};
use anyring_engine::{Caller, frontend};
use anyring_runtime::arch::REPLACING;
use anyring_runtime::ask::{self, Answer};
use anyring_runtime::calls::{OTHER_TRAPS, TRAPS};
use anyring_runtime::credentials::CALLS as CREDENTIAL_CALLS;
use anyring_runtime::{active, arch, calls, log, process, sys};
use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::errno::{ENOMEM, ENOSYS};
use linux_raw_sys::general as raw;

/// True if the handler is in place.
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// True if trapped calls are passed on to the kernel.
static PASS_ON: AtomicBool = AtomicBool::new(false);

/// The calls that trap beside those of `io_uring`. `mmap` traps for completion rings. The others trap in the text of a static
/// program: calls that set SIGSYS's action or block it, start a process or program, give up privileges, or may close or replace a
/// descriptor of the engine; and the end of the process, which is logged.
const OTHER_CALLS: &[u32] = &[
    raw::__NR_clone,
    raw::__NR_clone3,
    raw::__NR_prctl,
    raw::__NR_mmap,
    raw::__NR_rt_sigaction,
    raw::__NR_rt_sigprocmask,
    raw::__NR_rt_sigpending,
    raw::__NR_rt_sigtimedwait,
    raw::__NR_execve,
    raw::__NR_execveat,
    raw::__NR_exit_group,
    raw::__NR_seccomp,
    raw::__NR_close,
    raw::__NR_close_range,
];

/// `si_code` of a trap.
const SYS_SECCOMP: c_int = 1;

/// The part of `siginfo_t` that a trap fills in.
#[repr(C)]
struct TrapInfo {
    signal: c_int,
    error: c_int,
    code: c_int,
    /// The union is aligned to 8 bytes.
    padding: c_int,
    address: usize,
    number: c_int,
    architecture: u32,
}

/// True if calls trap in this process, or may trap because an ancestor's did.
pub fn installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

/// The reason why calls do not trap.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// A filter that the process was started with kills it at one of the calls; the engine's filter cannot override that.
    Kills,
    /// The step that failed, and the negative errno.
    Refused(&'static str, isize),
}

impl core::fmt::Display for Failure {
    fn fmt(&self, text: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Kills => text.write_str("a seccomp filter ends processes that make the calls"),
            Self::Refused(what, error) => write!(text, "{what}, errno {}", -error),
        }
    }
}

/// Sets the actions of the three signals. Returns true if calls of this reach trap already, because an ancestor installed the filter
/// before `exec`. The engine answers them then, and the kernel's `io_uring` need not be tried.
///
/// # Errors
/// The reason why the actions cannot be set.
pub fn inherit(reach: &Reach) -> Result<bool, Failure> {
    take_signals()?;
    Ok(filter::is_in_force(reach))
}

/// Sets the actions of the three signals, once.
fn take_signals() -> Result<(), Failure> {
    if !INSTALLED.load(Ordering::Relaxed) {
        signals::install(handler).map_err(|error| Failure::Refused("sigaction", error))?;
        INSTALLED.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// Has trapped calls passed on to the kernel.
pub fn pass_on() {
    PASS_ON.store(true, Ordering::Relaxed);
}

/// Sets the actions of the three signals and makes the three calls trap, if no ancestor [did](inherit). If another filter kills
/// processes that make one of the calls, the engine's filter is installed only if functions are `interposed`, for mappings of
/// completion rings.
///
/// # Errors
/// The reason why the calls do not trap.
pub fn install(reach: &Reach, interposed: bool) -> Result<(), Failure> {
    take_signals()?;
    let answer = ask::safely(survives);
    if answer == Answer::Dies && !interposed {
        return Err(Failure::Kills);
    }
    filter::install(reach).map_err(|error| Failure::Refused("seccomp", error))?;
    match answer {
        Answer::Is(_) => verify(filter::is_in_force(&Reach { low: reach.low, text: None })),
        Answer::Dies => Err(Failure::Kills),
        Answer::Unknown => Ok(()),
    }
}

/// Makes the three calls trap if they are made in `text`, in a program that `frontend` is linked into. Nothing else changes in the
/// process, nor in programs that it starts. The caller has decided that the engine answers, and not the kernel.
///
/// # Errors
/// The reason why the calls do not trap.
pub fn install_within(text: &Range<usize>, frontend: &'static &'static dyn Frontend) -> Result<(), Failure> {
    crate::set_frontend(frontend);
    signals::install_alone(handler).map_err(|error| Failure::Refused("sigaction", error))?;
    let answer = ask::safely(survives);
    if answer == Answer::Dies {
        return Err(Failure::Kills);
    }
    filter::install_within(text).map_err(|error| Failure::Refused("seccomp", error))?;
    if answer == Answer::Unknown { Ok(()) } else { verify(Question::Within.is_answered()) }
}

/// Makes one of the calls, to find out whether the process survives that.
fn survives() -> bool {
    // SAFETY: with these arguments the call creates and reads nothing, whether the kernel or the engine answers it.
    unsafe { arch::syscall(raw::__NR_io_uring_setup as usize, [0; 6]) };
    true
}

/// Checks that a filter that was installed is in force.
fn verify(acts: bool) -> Result<(), Failure> {
    if acts { Ok(()) } else { Err(Failure::Refused("seccomp: the filter does not act", 0)) }
}

/// The handler of SIGSYS.
///
/// # Safety
/// Called by the kernel.
unsafe extern "C" fn handler(signal: c_int, info: *mut c_void, context: *mut Context) {
    // SAFETY: the kernel's.
    let (trap, interrupted) = unsafe { (&*info.cast::<TrapInfo>(), &mut *context) };
    let number = trap.number as usize;
    let is_ring_call = calls::is_ring_call(number);
    let listed = |list: &[u32]| list.contains(&(number as u32));
    if trap.code != SYS_SECCOMP {
        let at = interrupted.instruction_pointer();
        // SAFETY: the kernel's.
        if let Some(address) = unsafe { anyring_engine::frontend::interrupted(info, at) } {
            interrupted.set_instruction_pointer(address);
            return;
        }
    }
    // Calls of the stub pass the engine's filters. One that traps does so by a filter of the program's, whose handler is to answer.
    let by_others = stub::RANGE.contains(&interrupted.instruction_pointer());
    let ours = !by_others
        && (is_ring_call
            || listed(OTHER_CALLS)
            || listed(FORKS)
            || listed(REPLACING)
            || listed(&CREDENTIAL_CALLS));
    if trap.code != SYS_SECCOMP || trap.architecture != AUDIT_ARCH || !ours {
        // SAFETY: arguments as the kernel gave them.
        unsafe { signals::obey(signal, info, interrupted) };
        return;
    }
    fork::notice();
    altstack::give_back(interrupted);
    handlers::notice(interrupted);
    let arguments = interrupted.arguments();
    if !is_ring_call && number != raw::__NR_mmap as usize {
        OTHER_TRAPS.fetch_add(1, Ordering::Relaxed);
    }
    if number == raw::__NR_clone3 as usize
        && let Some(place) = stub::call_behind(interrupted.instruction_pointer())
        && let Some(flags) = fork::flags_in_memory(arguments)
    {
        if flags & u64::from(raw::CLONE_VFORK) != 0 {
            process::vforks();
        }
        altstack::provide(interrupted);
        interrupted.set_instruction_pointer(place);
        interrupted.set_result(number as isize);
        return;
    }
    let moves = arguments[0] as u32 & raw::CLONE_VM != 0 || arguments[1] != 0;
    if number == raw::__NR_clone as usize && moves {
        if arguments[0] as u32 & raw::CLONE_VFORK != 0 {
            process::vforks();
        }
        altstack::provide(interrupted);
        // A child on another stack could not return from this handler, so the program makes the call itself.
        let mark = (filter::CLONE_MARK as usize) << 32;
        interrupted.repeat_call(number, arguments[0] & 0xffff_ffff | mark);
        return;
    }
    if !is_ring_call {
        // SAFETY: the program made the call.
        let result = unsafe { perform(number, arguments, interrupted) };
        interrupted.set_result(result);
        signals::release_kept(interrupted.signal_mask());
        return;
    }
    if !altstack::is_small(interrupted) {
        answer(number, arguments, interrupted);
    } else {
        let stack = *interrupted.alternate_stack();
        if !altstack::apart(stack, || answer(number, arguments, interrupted)) {
            interrupted.set_result(-(ENOMEM as isize));
        }
    }
}

/// Answers one of the three calls, which the program made.
fn answer(number: usize, arguments: [usize; 6], interrupted: &mut Context) {
    if let Some(frontend) = crate::frontend() {
        frontend.enters();
    }
    // SAFETY: the program made the call.
    let result = unsafe { perform(number, arguments, interrupted) };
    interrupted.set_result(result);
    signals::let_in(interrupted.signal_mask());
    signals::release_kept(interrupted.signal_mask());
    if let Some(frontend) = crate::frontend() {
        frontend.trapped_at(interrupted.instruction_pointer());
    }
}

/// Does a trapped call; returns its result.
///
/// # Safety
/// As for the call.
unsafe fn perform(number: usize, mut arguments: [usize; 6], interrupted: &mut Context) -> isize {
    let mask = interrupted.signal_mask();
    match number as u32 {
        raw::__NR_mmap => {
            TRAPS.fetch_add(1, Ordering::Relaxed);
            // The user engine's ring memory has both rings at offset 0.
            if calls::is_ring(arguments[4] as i32) {
                arguments[5] = 0;
            }
            // SAFETY: the program's own call.
            return unsafe { stub::syscall(number, arguments) };
        }
        // SAFETY: the program's own call.
        raw::__NR_rt_sigaction => return unsafe { signals::called_action(arguments) },
        raw::__NR_rt_sigprocmask => return signals::trapped_mask(arguments, interrupted),
        // SAFETY: the program's own call.
        raw::__NR_rt_sigpending => return unsafe { signals::called_pending(arguments) },
        // SAFETY: the program's own call.
        raw::__NR_rt_sigtimedwait => return unsafe { signals::trapped_wait(arguments, interrupted) },
        // SAFETY: the program's own call.
        raw::__NR_execve | raw::__NR_execveat => return unsafe { exec::trapped(number, arguments, mask) },
        // SAFETY: the program's own call.
        raw::__NR_clone => return unsafe { fork::perform(number, arguments) },
        // SAFETY: the program's own call.
        raw::__NR_clone3 => return unsafe { fork::perform_clone3(arguments) },
        // SAFETY: the program's own call.
        fork if FORKS.contains(&fork) => return unsafe { fork::perform(number, arguments) },
        // SAFETY: the program's own call.
        raw::__NR_close | raw::__NR_close_range => return unsafe { descriptors::trapped(number, arguments) },
        // SAFETY: the program's own call.
        call if REPLACING.contains(&call) => return unsafe { descriptors::trapped(number, arguments) },
        raw::__NR_exit_group => {
            log::signals_are_blocked();
            process::exits();
            sys::exit_group(arguments[0] as i32)
        }
        _ if calls::is_ring_call(number) => {
            if number == raw::__NR_io_uring_enter as usize && frontend::wants_callers() {
                frontend::called_from(interrupted.pointers());
            }
            TRAPS.fetch_add(1, Ordering::Relaxed)
        }
        // SAFETY: the program's own call.
        _ => return unsafe { credentials::trapped(number, arguments) },
    };
    if PASS_ON.load(Ordering::Relaxed) {
        // SAFETY: the program's own call.
        return unsafe { by_kernel(number, arguments, interrupted) };
    }
    if process::watches_kernel() {
        // SAFETY: the program's own call.
        return calls::watched(number, arguments, || unsafe { by_kernel(number, arguments, interrupted) });
    }
    if !active() {
        return -(ENOSYS as isize);
    }
    // SAFETY: the program's own call.
    let result =
        unsafe { calls::call(number, arguments, &Caller { signal_mask: Some(mask), ..Caller::default() }) };
    calls::explain(number, result);
    result
}

/// Lets the kernel answer a trapped call, with the program's signal mask: the call may sleep, and signals that the program has not
/// blocked end it. The handler that runs then may change the mask, which the program keeps.
///
/// # Safety
/// As for the call. The calling thread may leave by a jump out of a handler: it must hold no lock.
unsafe fn by_kernel(number: usize, arguments: [usize; 6], interrupted: &mut Context) -> isize {
    let inside = sys::set_signal_mask(interrupted.signal_mask());
    // Signals that were kept come before the call, which may sleep.
    signals::release(interrupted.signal_mask());
    // SAFETY: the caller's promise.
    let result = unsafe { stub::syscall(number, arguments) };
    interrupted.set_signal_mask(sys::set_signal_mask(inside));
    result
}
