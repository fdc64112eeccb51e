//! System calls of the engine that sleep in a thread whose signals are not blocked: one that was kept out since the thread entered, or
//! comes at the brink of the sleep, ends it.

use crate::arch::{
    Context, anyring_trap_sleep, anyring_trap_sleep_end, anyring_trap_sleep_interrupted,
    anyring_trap_sleep_start,
};
use core::cell::Cell;

/// Makes a system call that may sleep, or answers `-EINTR` at once where `interrupted` is set, which handlers of the thread's signals
/// do: between the look at it and the instruction that makes the call, [`give_up`] sets the thread back.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn unless(interrupted: &Cell<bool>, number: usize, arguments: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    unsafe { anyring_trap_sleep(number, arguments.as_ptr(), interrupted.as_ptr()) }
}

/// A signal was kept out of a thread whose word is set. At the brink of a sleep, the thread does not sleep.
pub fn give_up(interrupted: &mut Context) {
    let start = anyring_trap_sleep_start as *const () as usize;
    let end = anyring_trap_sleep_end as *const () as usize;
    if (start..end).contains(&interrupted.instruction_pointer()) {
        interrupted.set_instruction_pointer(anyring_trap_sleep_interrupted as *const () as usize);
    }
}
