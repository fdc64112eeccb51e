//! System calls of the engine that sleep in a thread whose signals are not blocked. A signal that was kept out of the engine since the
//! thread entered, or that arrives just before the call, keeps the thread from sleeping.

use crate::arch::{
    Context, anyring_trap_sleep, anyring_trap_sleep_end, anyring_trap_sleep_interrupted,
    anyring_trap_sleep_start,
};
use core::cell::Cell;

/// Makes a system call that may sleep, or returns `-EINTR` without a call if `interrupted` is set. Handlers of the thread's signals
/// set it; if one runs between the check of `interrupted` and the system call instruction, [`give_up`] prevents the call.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn unless(interrupted: &Cell<bool>, number: usize, arguments: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    unsafe { anyring_trap_sleep(number, arguments.as_ptr(), interrupted.as_ptr()) }
}

/// Makes [`unless`] return `-EINTR` if a signal, which was kept out, came between its check of `interrupted` and its system call.
pub fn give_up(interrupted: &mut Context) {
    let start = anyring_trap_sleep_start as *const () as usize;
    let end = anyring_trap_sleep_end as *const () as usize;
    if (start..end).contains(&interrupted.instruction_pointer()) {
        interrupted.set_instruction_pointer(anyring_trap_sleep_interrupted as *const () as usize);
    }
}
