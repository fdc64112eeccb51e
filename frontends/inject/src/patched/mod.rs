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
//! The table has the three calls and those that change signal handlers and masks; from the first ring on also those that close, duplicate and wait
//! for descriptors ([`anyring_trap::sites`]), so that other programs pay for none of that.
//!
//! A `syscall` changes rcx and r11 anyway, and nothing else in the stub changes a register, the flags or the stack. So a call that is not
//! the engine's, or that finds no room ([`pool`]), goes on to the `syscall` that stayed where it was, and traps there if it has to.
//!
//! AArch64 has the same stubs, but for this: an `svc` changes no register but x0, so a stub saves two registers on the program's stack, below sixteen bytes
//! that it leaves as they are, and restores them on the way back, which leads through the stub.
//!
//! **The stack.** The program's may be a goroutine's, with a few bytes left, so nothing else is written to it, not even a return address. The
//! entry takes a slot of the pool, by a bit in it, saves the program's registers there, and runs the engine on the slot's stack. Calls that do not sleep have slots
//! of their own, for which they wait: a close that is not told may be missed.
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
//! of another signal over the handler's. So calls that they make go on to the kernel, or trap ([`anyring_trap::handlers`]).

mod answer;
pub mod pool;

use crate::arch::{front, site as entry};
use anyring_runtime::{calls, log, sys};
use anyring_trap::arch::Context;
pub use anyring_trap::sites::Block;
use anyring_trap::sites::When;
use anyring_trap::{signals, sites, sleep, stub};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use pool::Slot;

pub use answer::enter;
pub use entry::settle;

/// The tracer's block, once sites may enter the engine.
pub static BLOCK: AtomicPtr<Block> = AtomicPtr::new(ptr::null_mut());

/// Lets the sites of the program enter the engine, which must be ours. Without memory for the pool, they trap.
///
/// # Safety
/// `block` must be the tracer's, and the program must not run yet.
pub unsafe fn begin(block: *mut Block) {
    // SAFETY: the caller's promise.
    let Some(place) = (unsafe { block.as_mut() }) else { return };
    if !pool::map() {
        return;
    }
    // SAFETY: the caller's promise; the tracer has found these addresses behind the sites.
    if place.behind != [0; stub::CALLS] && !unsafe { stub::put_calls(&place.behind) } {
        return;
    }
    place.entry = entry::address();
    BLOCK.store(block, Ordering::Release);
    enable(When::Always);
    calls::PATCHED_SITES.store(place.sites, Ordering::Relaxed);
    let others = if place.has_all == 0 { ", others trap or go on to the kernel" } else { "" };
    log::debug!("{} call sites enter the engine{others}", place.sites);
}

/// True if the closes of the program are seen, as far as its code was there when it began: every call that may be a close enters the engine.
pub fn sees_closes() -> bool {
    // SAFETY: null, or the tracer's, which stays.
    unsafe { BLOCK.load(Ordering::Acquire).as_ref() }.is_some_and(|block| block.has_all != 0)
}

/// Lets calls enter from now on.
fn enable(when: When) {
    /// More than there are calls.
    const END: usize = 1 << 9;
    // SAFETY: null, or the tracer's, which stays; all that changes in it are the table's atomic bytes.
    let Some(block) = (unsafe { BLOCK.load(Ordering::Acquire).as_ref() }) else { return };
    for (number, way) in block.table.iter().enumerate().take(END) {
        if let Some((enters, _)) = sites::entering(number as u32).filter(|(_, then)| *then == when) {
            way.store(enters, Ordering::Relaxed);
        }
    }
}

/// A call for a ring was made: from the first ring on, other calls enter, too.
pub fn ring_called() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if calls::rings_exist() && !BEGUN.load(Ordering::Relaxed) {
        BEGUN.store(true, Ordering::Relaxed);
        enable(When::AmongRings);
    }
}

/// The calling thread leaves, with signals kept out: they come when the slot's mask is set, which is left to the entry. Whether those have
/// to be let in before that mask is in force again.
pub extern "C" fn leave_interrupted(slot: &Slot) -> bool {
    // From here on nothing is kept out any more.
    let mask = sys::set_signal_mask(u64::MAX);
    slot.interrupted.set(false);
    if !slot.has_mask.take() {
        slot.mask.set(mask);
    }
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

/// The function that the kernel is to call for handlers of the program.
pub fn front() -> Option<usize> {
    Some(front::address())
}

/// The function that the kernel is to call where the program has a handler for SIGSEGV or SIGBUS.
pub fn front_of_faults() -> Option<usize> {
    Some(front::address_for_faults())
}

/// The context of a handler that is in the first instructions of one of these two.
pub fn context_in_front(interrupted: &Context) -> Option<*mut Context> {
    front::context_of(interrupted)
}

/// A signal was kept out; whether that is noted.
pub fn kept_out(signal: u64, interrupted: &mut Context) -> bool {
    let Some(slot) = slot_of(interrupted) else { return false };
    slot.interrupted.set(true);
    slot.kept_out.set(slot.kept_out.get() | signal);
    // The engine blocks signals for some steps. What comes then is never blocked by it, and comes again when the program's mask is back.
    let mask = interrupted.signal_mask();
    let is_blocked = signal & signals::OWN == 0;
    if is_blocked && (!slot.has_mask.get() || mask & signals::OF_TRAP != signals::OF_TRAP) {
        slot.set_mask(mask);
    }
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
