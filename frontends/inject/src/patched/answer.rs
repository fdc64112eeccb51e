//! The answers to calls from patched sites.

use super::pool::Slot;
use crate::arch;
use anyring_engine::{Caller, frontend};
use anyring_interpose::{Row, descriptors, wait};
use anyring_runtime::arch::FORKS;
use anyring_runtime::{calls, descriptors as own, log, process, sys};
use anyring_trap::{exec, fork, signals, sleep};
use linux_raw_sys::general as raw;

/// Answers the call that a slot holds. Stores the result in the slot, and the address at which the program continues: after its call, or at its call
/// if the kernel is to answer it.
///
/// # Safety
/// As for the call.
pub unsafe extern "C" fn enter(slot: &Slot) {
    fork::notice();
    let number = slot.number();
    let own = slot.record().own;
    // A child with a stack of its own begins after the call, so the program makes the call itself, at a place where the filter does not trap it. A child
    // that its parent waits for needs the steps of the trap.
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

/// Returns the result of the call, or `None` if the kernel is to answer it.
///
/// # Safety
/// As for the call.
unsafe fn answer(slot: &Slot, number: usize, a: [usize; 6]) -> Option<isize> {
    match number as u32 {
        // SAFETY: the caller's promise.
        _ if calls::is_ring_call(number) => Some(unsafe { ring_call(slot, number, a) }),
        // A filter of the program's may forbid other calls: the trap makes the fewest.
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
        // A child of `vfork` that executes a program would never give its slot back, and the parent, whose memory it shares, would lack the slot.
        _ if process::is_child_of_vfork() => None,
        // SAFETY: the caller's promise.
        raw::__NR_execve | raw::__NR_execveat => unsafe { execute(slot, number, a) },
        // A child on another stack could not return from here.
        raw::__NR_clone if a[0] as u32 & raw::CLONE_VM != 0 || a[1] != 0 => None,
        // SAFETY: the caller's promise: both processes return from here, each with a stack of its own.
        call if call == raw::__NR_clone || FORKS.contains(&call) => Some(unsafe { fork::perform(number, a) }),
        // SAFETY: the caller's promise.
        _ => unsafe { among_rings(slot, number, a) },
    }
}

/// Makes one of the three calls.
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

/// Executes another program. The new program inherits the signal mask of the calling thread, so no signal may wait for the thread. If one does, the
/// result is `None`: the program makes the call itself, after the signal.
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

/// Answers a call that closes, duplicates or waits for descriptors.
///
/// # Safety
/// As for the call.
unsafe fn among_rings(slot: &Slot, number: usize, a: [usize; 6]) -> Option<isize> {
    let fd = a[0] as i32;
    match number as u32 {
        raw::__NR_close | raw::__NR_fcntl if own::is_engines(fd) => return Some(own::NONE),
        // A close may sleep: the program makes the call itself, with its own mask.
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
    // The C library ends the thread in the call.
    if slot.is_cancelled() {
        return None;
    }
    // SAFETY: the caller's promise.
    let sleep = |a| unsafe { sleep::unless(&slot.interrupted, number, a) };
    // SAFETY: the caller's promise.
    unsafe { wait::answer::<Patched>(number, a, sleep) }
}

/// Answers an `rt_sigprocmask(2)`: the mask is in force when the thread has left the engine.
fn change_mask(slot: &Slot, a: [usize; 6]) -> isize {
    // Nothing is unblocked: the mask of a thread that has just begun is the only record of what the program wants blocked there.
    let mask = sys::block_signals(sys::ASYNCHRONOUS);
    slot.interrupted.set(true);
    // Otherwise the slot has the program's mask already, because a signal waits and everything is blocked.
    if !slot.has_mask.get() || mask & signals::OF_TRAP != signals::OF_TRAP {
        slot.set_mask(mask);
    }
    signals::changed_inside(a, slot.mask.get(), |after| slot.set_mask(after))
}

/// The front end that the interposed functions' code asks: a call from a patched site has entered the engine already.
struct Patched;

impl anyring_interpose::Frontend for Patched {
    type Stay = ();

    fn enter() {}

    unsafe fn call(_number: usize, _arguments: [usize; 6]) -> Option<isize> {
        None
    }
}
