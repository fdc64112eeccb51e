//! The answers to calls from patched sites.

use super::pool::Slot;
use crate::arch;
use anyring_engine::{Caller, frontend};
use anyring_interpose::{Row, descriptors, wait};
use anyring_runtime::arch::FORKS;
use anyring_runtime::{calls, descriptors as own, log, process, sys};
use anyring_trap::{exec, fork, signals, sleep};
use linux_raw_sys::general as raw;

/// Answers the call that a slot holds. The result, and where the program goes on, are in the slot then: behind the call, or where that is the kernel's
/// to answer, at it.
///
/// # Safety
/// As for the call.
pub unsafe extern "C" fn enter(slot: &Slot) {
    fork::notice();
    let number = slot.number();
    let own = slot.record().own;
    // A child with a stack of its own begins behind the call, so the program makes it; the filter would trap it at its place. One that its parent waits for
    // needs what the trap does.
    let is_beside = |flags| flags & u64::from(raw::CLONE_VFORK) == 0;
    if number == raw::__NR_clone3 as usize
        && own != 0
        && fork::flags_in_memory(slot.arguments()).is_some_and(is_beside)
    {
        return slot.call_at(own);
    }
    // SAFETY: the program's own call.
    match unsafe { answer(slot, number, slot.arguments()) } {
        Some(result) => slot.go_on_with(result),
        None => slot.call_at(slot.record().back),
    }
}

/// The answer to the call, if it is not the kernel's.
///
/// # Safety
/// As for the call.
unsafe fn answer(slot: &Slot, number: usize, a: [usize; 6]) -> Option<isize> {
    match number as u32 {
        // SAFETY: the caller's promise.
        _ if calls::is_ring_call(number) => Some(unsafe { ring_call(slot, number, a) }),
        // What a filter of the program's own allows is not known: the trap makes the fewest calls.
        raw::__NR_rt_sigaction | raw::__NR_rt_sigprocmask if log::is_filtered() && !calls::rings_exist() => {
            None
        }
        // SAFETY: the caller's promise.
        raw::__NR_rt_sigaction => Some(unsafe { signals::called_action(a) }),
        raw::__NR_rt_sigprocmask => Some(change_mask(slot, a)),
        // The child runs on its parent's stack. The filter lets the call pass.
        number if arch::VFORK == Some(number) => {
            process::vforks();
            None
        }
        // A slot that it does not give back, because it executes a program, would be missing in its parent, whose memory it has.
        _ if process::is_child_of_vfork() => None,
        // SAFETY: the caller's promise.
        raw::__NR_execve | raw::__NR_execveat => unsafe { execute(slot, number, a) },
        // What begins on another stack cannot return from here.
        raw::__NR_clone if a[0] as u32 & raw::CLONE_VM != 0 || a[1] != 0 => None,
        // SAFETY: the caller's promise: both processes return from here, each with a stack of its own.
        call if call == raw::__NR_clone || FORKS.contains(&call) => Some(unsafe { fork::perform(number, a) }),
        // SAFETY: the caller's promise.
        _ => unsafe { among_rings(slot, number, a) },
    }
}

/// One of the three calls.
///
/// # Safety
/// As for the call.
unsafe fn ring_call(slot: &Slot, number: usize, a: [usize; 6]) -> isize {
    if number == raw::__NR_io_uring_enter as usize && frontend::wants_callers() {
        frontend::called_from(slot.pointers());
    }
    // SAFETY: the caller's promise.
    let result = unsafe { calls::call(number, a, &Caller::default()) };
    calls::explain(number, result);
    super::ring_called();
    result
}

/// Executes another program. The new program gets the signal mask of the calling thread, so no signal may have been kept out meanwhile. If
/// one was, the answer is `None`: the program makes the call itself, once it has had the signal.
///
/// # Safety
/// As for the call.
unsafe fn execute(slot: &Slot, number: usize, a: [usize; 6]) -> Option<isize> {
    // SAFETY: the caller's promise.
    let make = |number, a| unsafe { sleep::unless(&slot.interrupted, number, a) };
    // SAFETY: the caller's promise.
    let result = unsafe { exec::perform(number, a, make) };
    (!slot.interrupted.get()).then_some(result)
}

/// A call that closes, duplicates or waits for descriptors.
///
/// # Safety
/// As for the call.
unsafe fn among_rings(slot: &Slot, number: usize, a: [usize; 6]) -> Option<isize> {
    let fd = a[0] as i32;
    match number as u32 {
        raw::__NR_close | raw::__NR_fcntl if own::is_engines(fd) => return Some(own::NONE),
        // They may sleep: the program makes the call, with its signals.
        raw::__NR_close => {
            descriptors::closing::<Patched>(fd);
            return None;
        }
        raw::__NR_fcntl if !matches!(a[1] as u32, raw::F_DUPFD | raw::F_DUPFD_CLOEXEC) => return None,
        _ => {}
    }
    let mut rows = descriptors::Calls::<Patched>::ROWS.iter();
    if let Some(row) = rows.find(|row: &&Row| row.numbers.contains(&(number as u32))) {
        // SAFETY: the caller's promise.
        return Some(unsafe { (row.call)(number, a) });
    }
    // It is cancelled where the C library does that.
    if slot.is_cancelled() {
        return None;
    }
    // SAFETY: the caller's promise.
    let sleep = |a| unsafe { sleep::unless(&slot.interrupted, number, a) };
    // SAFETY: the caller's promise.
    unsafe { wait::answer::<Patched>(number, a, sleep) }
}

/// `rt_sigprocmask(2)`: the mask is in force when the thread has left.
fn change_mask(slot: &Slot, a: [usize; 6]) -> isize {
    // Nothing is unblocked: of a thread that has just begun there is no note yet of what it wants blocked, and its mask alone keeps a signal
    // that comes now.
    let mask = sys::block_signals(sys::ASYNCHRONOUS);
    slot.interrupted.set(true);
    // Otherwise a signal was kept out, and is blocked.
    if !slot.has_mask.get() || mask & signals::OF_TRAP != signals::OF_TRAP {
        slot.set_mask(mask);
    }
    signals::changed_inside(a, slot.mask.get(), |after| slot.set_mask(after))
}

/// The program's patched sites, whose threads are inside.
struct Patched;

impl anyring_interpose::Frontend for Patched {
    type Stay = ();

    fn enter() {}

    unsafe fn call(_number: usize, _arguments: [usize; 6]) -> Option<isize> {
        None
    }
}
