//! Patched call sites: the way into the engine of a program whose sites the tracer has made jumps (`tools/cli/src/inject/sites`).
//!
//! ```text
//!  site:  jmp  stub             stub:  (a copy of what the jump replaces)
//!         ...                          movzwl %ax,%ecx            the number's byte in the table
//!         syscall                      lea    table(%rip),%r11
//!                                      movzbl (%r11,%rcx),%ecx
//!                                      jrcxz  back
//!                                      lea    record(%rip),%r11
//!                                      jmp    *entry(%rip)
//!                               back:  jmp    syscall
//!                              record: the address of the syscall
//! ```
//!
//! A `syscall` changes rcx and r11 anyway, and nothing else in the stub changes a register, the flags or the stack. So a call that is not
//! the engine's, or that finds no room ([`pool`]), goes on to the `syscall` that stayed where it was, and traps there if it has to.
//!
//! **The stack.** The program's may be a goroutine's, with a few bytes left, so nothing is written to it, not even a return address. The
//! entry takes a slot of the pool, by a bit in it, saves the program's registers there, and runs the engine on the slot's stack.
//!
//! **Signals** are not blocked. Handlers of the program are kept out of a thread whose stack pointer lies in the pool
//! (`Frontend::is_inside`), as in dynamic programs: the signal is queued anew with everything blocked, and noted in the slot, which ends the next
//! sleep. On its way in and out, for some instructions, a thread has a slot and the program's stack. A handler of the program that comes there may
//! jump away for ever, so `deliver` finishes what the thread was about to do first ([`settle`]): on the way in, the slot is given back, and is
//! taken anew when the handler returns; on the way out, the handler returns to the program. While the thread is still on the slot's stack, and has
//! looked for signals already, [`kept_out`] sends it back to look again.
//!
//! A thread that leaves with signals kept out unblocks them on the program's stack, where the handlers are to run.
//!
//! **Handlers on an alternate stack** must not come here: the kernel, which sees a stack pointer outside of the alternate stack, would put the frame
//! of another signal over the handler's. So while any handler of the process runs on one, calls trap ([`anyring_trap::handlers`]).

pub mod pool;

use crate::arch::site as entry;
use anyring_engine::{Caller, frontend};
use anyring_runtime::{calls, sys};
use anyring_trap::arch::Context;
pub use anyring_trap::sites::Block;
use anyring_trap::{fork, signals, sites, sleep};
use core::sync::atomic::Ordering;
use linux_raw_sys::general as raw;
use pool::Slot;

pub use entry::settle;

/// Lets the sites of the program enter the engine, which must be ours. Without memory for the pool, they trap.
///
/// # Safety
/// `block` must be the tracer's, and the program must not run yet.
pub unsafe fn begin(block: *mut Block) {
    // SAFETY: the caller's promise.
    let Some(block) = (unsafe { block.as_mut() }) else { return };
    if !pool::map() {
        return;
    }
    block.entry = entry::address();
    for (number, enters) in block.table.iter_mut().enumerate().take(1 << 9) {
        if sites::enters(number as u32) {
            *enters = 1;
        }
    }
    calls::PATCHED_SITES.store(block.sites, Ordering::Relaxed);
}

/// Makes the call that a slot holds. Its result, and where the program goes on, are in the slot then.
///
/// # Safety
/// As for the call.
pub unsafe extern "C" fn enter(slot: &Slot) {
    fork::notice();
    let number = slot.number();
    if !calls::is_ring_call(number) {
        // The table knows the low half only.
        return slot.go_on_with(number as isize, slot.site());
    }
    if number == raw::__NR_io_uring_enter as usize && frontend::wants_callers() {
        frontend::called_from(slot.pointers());
    }
    // SAFETY: the program's own call.
    let result = unsafe { calls::call(number, slot.arguments(), &Caller::default()) };
    calls::explain(number, result);
    slot.go_on_with(result, slot.site() + entry::SYSCALL_BYTES);
}

/// The calling thread leaves, with signals kept out: they come when the slot's mask is set, which is left to the entry. Whether those have
/// to be let in before that mask is in force again.
pub extern "C" fn leave_interrupted(slot: &Slot) -> bool {
    // From here on nothing is kept out any more.
    sys::set_signal_mask(sys::ASYNCHRONOUS | signals::OWN);
    slot.interrupted.set(false);
    let (mask, kept_out) = (slot.mask.get(), slot.kept_out.take());
    signals::release(mask);
    slot.let_in.set(mask & !kept_out);
    kept_out & mask != 0
}

/// The slot of a thread whose stack pointer that is.
fn slot_of(interrupted: &Context) -> Option<&'static Slot> {
    pool::slot_at(entry::stack_pointer(interrupted))
}

/// Whether a signal came inside the engine.
pub fn is_inside(interrupted: &Context) -> bool {
    slot_of(interrupted).is_some()
}

/// A signal was kept out; whether that is noted.
pub fn kept_out(signal: u64, interrupted: &mut Context) -> bool {
    let Some(slot) = slot_of(interrupted) else { return false };
    if !slot.interrupted.replace(true) {
        slot.mask.set(interrupted.signal_mask());
    }
    slot.kept_out.set(slot.kept_out.get() | signal);
    sleep::give_up(interrupted);
    entry::look_again(interrupted);
    true
}

/// The process has forked and this is the child.
pub fn forked() {
    pool::forked();
}

/// Makes a call that may sleep, where the calling thread came in by a site.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn sleep(number: usize, arguments: [usize; 6]) -> Option<isize> {
    let here = 0u8;
    let slot = pool::slot_at((&raw const here).addr())?;
    // SAFETY: the caller's promise.
    Some(unsafe { sleep::unless(&slot.interrupted, number, arguments) })
}
