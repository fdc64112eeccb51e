//! Patched call sites: the way into the engine of a static program. The tracer (`tools/cli/src/inject/sites`) has replaced instructions before the
//! program's system calls by jumps to stubs.
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
//! The table names the calls that enter the engine: the three calls and those that change signal handlers and masks; from the first ring on also
//! calls that close, duplicate and wait for descriptors ([`anyring_trap::sites`]). A program without rings pays for none of these.
//!
//! A `syscall` changes rcx and r11 anyway, and the stub changes no other register, nor the flags or the stack. So a call that does not enter the
//! engine, or that finds no free slot ([`pool`]), continues at the `syscall`, which stayed at its place, and traps there if the filter says so.
//!
//! The stubs of AArch64 differ in one point. An `svc` changes no register but x0, so a stub saves registers on the program's stack, below
//! sixteen bytes that it does not touch, and restores them on the way back, which leads through the stub.
//!
//! **The stack.** The program's stack may be a goroutine's with a few bytes left, so nothing else is written to it, not even a return address.
//! The entry takes a slot of the pool by setting a bit in it, saves the program's registers there, and runs the engine on the slot's stack. Calls
//! that do not sleep have slots of their own, and wait for one if all are taken: a close that did not enter the engine would be missed.
//!
//! **Signals** are not blocked. A thread is inside the engine while its stack pointer lies in the pool (`Frontend::is_inside`), and handlers of the
//! program do not run there: as in dynamic programs, the signal is queued again with everything blocked, and noted in the slot, so that the thread
//! does not begin to sleep. On its way in and out a thread holds a slot for some instructions while it is on the program's stack. A handler of the
//! program that runs there may jump out and never return, so `deliver` first calls [`settle`]: on the way in, the thread gives the slot back, and
//! takes one again when the handler returns; on the way out, the handler returns to the program. If a signal arrives when the thread, still on the
//! slot's stack, has already looked for signals, [`kept_out`] has it look again.
//!
//! A thread that leaves while signals wait for it unblocks them on the program's stack, on which the handlers are to run.
//!
//! **Handlers on an alternate stack** must not enter here: the kernel would see a stack pointer outside the alternate stack, and put the next
//! signal's frame over the handler's. Calls that such handlers make continue to the kernel, or trap ([`anyring_trap::handlers`]).

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

/// Lets the sites of the program enter the engine. Called if the user engine answers, and not the kernel. Without memory for the pool, the
/// calls trap.
///
/// # Safety
/// `block` must be the tracer's, and the program must not run yet.
pub unsafe fn begin(block: *mut Block) {
    // SAFETY: the caller's promise.
    let Some(place) = (unsafe { block.as_mut() }) else { return };
    if !pool::map() {
        return;
    }
    // SAFETY: the caller's promise; the tracer has determined these addresses, which lie after the sites' calls.
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

/// True if every call that may be a close enters the engine, as far as the program's code was there when the program began.
pub fn sees_closes() -> bool {
    // SAFETY: null, or the tracer's block, which stays mapped.
    unsafe { BLOCK.load(Ordering::Acquire).as_ref() }.is_some_and(|block| block.has_all != 0)
}

/// Lets the calls of a row of the table enter the engine from now on.
fn enable(when: When) {
    /// A number above those of all calls.
    const END: usize = 1 << 9;
    // SAFETY: null, or the tracer's block, which stays mapped; only the table's atomic bytes change.
    let Some(block) = (unsafe { BLOCK.load(Ordering::Acquire).as_ref() }) else { return };
    for (number, way) in block.table.iter().enumerate().take(END) {
        if let Some((enters, _)) = sites::entering(number as u32).filter(|(_, then)| *then == when) {
            way.store(enters, Ordering::Relaxed);
        }
    }
}

/// Lets other calls enter the engine, too, if there is a ring now. Called after each of the three calls.
pub fn ring_called() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if calls::rings_exist() && !BEGUN.load(Ordering::Relaxed) {
        BEGUN.store(true, Ordering::Relaxed);
        enable(When::AmongRings);
    }
}

/// Prepares the calling thread, for which signals wait, to leave the engine. The signals come when the entry sets the slot's mask. Returns true if
/// signals that only a wait's own mask let through have to come before that.
pub extern "C" fn leave_interrupted(slot: &Slot) -> bool {
    // With everything blocked, no more signals are kept out.
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

/// Returns the slot on whose stack a thread was interrupted.
fn slot_of(interrupted: &Context) -> Option<&'static Slot> {
    pool::slot_at(entry::stack_pointer(interrupted))
}

/// True if a signal has interrupted the engine.
pub fn is_inside(interrupted: &Context) -> bool {
    slot_of(interrupted).is_some()
}

/// Returns the function that the kernel is to call in place of handlers of the program.
pub fn front() -> Option<usize> {
    Some(front::address())
}

/// Returns the function that the kernel is to call if the program has a handler for SIGSEGV or SIGBUS.
pub fn front_of_faults() -> Option<usize> {
    Some(front::address_for_faults())
}

/// Returns the context that the kernel passed to one of these two functions, if `interrupted` was in its first instructions.
pub fn context_in_front(interrupted: &Context) -> Option<*mut Context> {
    front::context_of(interrupted)
}

/// Notes a signal that has interrupted the engine, in the slot of the thread. Returns false if the thread has no slot.
pub fn kept_out(signal: u64, interrupted: &mut Context) -> bool {
    let Some(slot) = slot_of(interrupted) else { return false };
    slot.interrupted.set(true);
    slot.kept_out.set(slot.kept_out.get() | signal);
    // The engine blocks signals for some steps. A signal that interrupts such a step is not among the blocked ones, and comes again when the
    // program's mask is back.
    let mask = interrupted.signal_mask();
    let is_blocked = signal & signals::OWN == 0;
    if is_blocked && (!slot.has_mask.get() || mask & signals::OF_TRAP != signals::OF_TRAP) {
        slot.set_mask(mask);
    }
    sleep::give_up(interrupted);
    entry::look_again(interrupted);
    true
}

/// Adjusts the state in a child of `fork`.
pub fn forked() {
    pool::forked();
}

/// Makes a call that may sleep, if the calling thread has entered by a site.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn sleep(number: usize, arguments: [usize; 6]) -> Option<isize> {
    let here = 0u8;
    let slot = pool::slot_at((&raw const here).addr())?;
    // SAFETY: the caller's promise.
    Some(unsafe { sleep::unless(&slot.interrupted, number, arguments) })
}
