//! The pool: stacks for the engine, each with the state of the program that its thread has left. A thread looks for its slot by a hash of its
//! own stack pointer, because there may be no thread-local storage.

use crate::arch::site::{STACK_USED, Saved};
use anyring_runtime::sys;
use anyring_trap::sites::Record;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use linux_raw_sys::general as raw;

/// Bytes of a slot: [`Slot`], and a stack that grows down to it. The engine, a signal's frame and its handler need a third of these.
pub const BYTES: usize = 64 << 10;
/// Number of slots for calls that may sleep, a power of two. A call that finds none free traps.
pub const SLEEPING: usize = 128;
/// Number of slots for other calls, a power of two. A call that finds none free waits.
pub const BRIEF: usize = 32;
const COUNT: usize = SLEEPING + BRIEF;
/// Bytes of all slots.
pub const POOL_BYTES: usize = COUNT * BYTES;
/// The exponent of [`BYTES`].
pub const SHIFT: u32 = BYTES.trailing_zeros();

/// The address of the first slot, a multiple of [`BYTES`]; 0: there are no slots.
pub static POOL: AtomicUsize = AtomicUsize::new(0);

/// The state of the program that a thread left when it entered the engine, and the signals that have arrived since. Except for `taken`, only this thread
/// and its handlers access the slot.
#[repr(C, align(64))]
pub struct Slot {
    /// Bit 0: a thread holds the slot.
    pub taken: AtomicU64,
    /// The program's stack pointer.
    pub stack_pointer: Cell<usize>,
    /// The record of the stub that the thread came from.
    record: Cell<*const Record>,
    /// The result of the call.
    pub result: Cell<isize>,
    /// The address at which the program continues.
    pub next: Cell<usize>,
    /// True if signals wait until the thread leaves, or if its mask has to be set then for another reason.
    pub interrupted: Cell<bool>,
    /// True if `mask` is in force from when the thread leaves; otherwise the thread keeps the mask that it has.
    pub has_mask: Cell<bool>,
    /// The mask with which the thread leaves, if `has_mask` is true.
    pub mask: Cell<u64>,
    /// The signals that wait until the thread leaves.
    pub kept_out: Cell<u64>,
    /// The mask with which signals are taken that only a wait's own mask let through.
    pub let_in: Cell<u64>,
    /// A time of zero.
    pub no_time: [u64; 2],
    /// The registers that are restored when the thread leaves.
    pub saved: Saved,
}

const _: () = assert!(size_of::<Slot>() <= 1024);

impl Slot {
    /// The number of the call.
    pub fn number(&self) -> usize {
        self.saved.number()
    }

    /// The site's record.
    pub fn record(&self) -> &'static Record {
        // SAFETY: the record of a stub, which stays mapped.
        unsafe { &*self.record.get() }
    }

    /// The arguments of the call.
    pub fn arguments(&self) -> [usize; 6] {
        if self.record().is_function == 0 {
            self.saved.registers()
        } else {
            self.saved.arguments_of_function(self.stack_pointer.get())
        }
    }

    /// True if the calling thread has been cancelled, and the call is one in which its C library ends the thread then.
    pub fn is_cancelled(&self) -> bool {
        let [flag, ..] = self.saved.registers();
        // SAFETY: the first argument of such a function.
        self.record().is_function != 0
            && unsafe { (*(flag as *const AtomicU32)).load(Ordering::Relaxed) != 0 }
    }

    /// Returns the address after the program's call, and the program's stack pointer, frame pointer and link register.
    pub fn pointers(&self) -> [usize; 4] {
        let [frame, link] = self.saved.frame_and_link();
        [self.record().behind, self.stack_pointer.get() + STACK_USED, frame, link]
    }

    /// Has the program continue after its call, with this result.
    pub fn go_on_with(&self, result: isize) {
        self.result.set(result);
        self.next.set(self.record().next);
    }

    /// Has the program make its call itself, at this address and with the registers that it had.
    pub fn call_at(&self, address: usize) {
        self.result.set(self.saved.before_call());
        self.next.set(address);
    }

    /// Sets the mask with which the thread leaves.
    pub fn set_mask(&self, mask: u64) {
        self.mask.set(mask);
        self.has_mask.set(true);
    }

    /// Frees the slot for other threads.
    pub fn give_back(&self) {
        // Release pairs with the entry's locked instruction.
        self.taken.store(0, Ordering::Release);
    }
}

/// Offsets for the entry.
pub mod offset {
    use super::Slot;
    use core::mem::offset_of;
    pub const STACK_POINTER: usize = offset_of!(Slot, stack_pointer);
    pub const RECORD: usize = offset_of!(Slot, record);
    pub const RESULT: usize = offset_of!(Slot, result);
    pub const NEXT: usize = offset_of!(Slot, next);
    pub const INTERRUPTED: usize = offset_of!(Slot, interrupted);
    pub const MASK: usize = offset_of!(Slot, mask);
    pub const LET_IN: usize = offset_of!(Slot, let_in);
    pub const NO_TIME: usize = offset_of!(Slot, no_time);
    pub const SAVED: usize = offset_of!(Slot, saved);
}

/// Maps the pool; returns false if there is no memory. Only slots that are used take memory.
pub fn map() -> bool {
    let flags = raw::MAP_NORESERVE | raw::MAP_STACK;
    // SAFETY: new memory, wherever the kernel likes.
    let mapped = unsafe { sys::map(0, (COUNT + 1) * BYTES, raw::PROT_READ | raw::PROT_WRITE, flags) };
    let Ok(mapped) = usize::try_from(mapped) else { return false };
    POOL.store(mapped.next_multiple_of(BYTES), Ordering::Relaxed);
    true
}

/// Returns the slot on whose stack a stack pointer lies.
pub fn slot_at(stack_pointer: usize) -> Option<&'static Slot> {
    let pool = POOL.load(Ordering::Relaxed);
    // An empty stack begins where the slot ends.
    let offset = stack_pointer.wrapping_sub(1).wrapping_sub(pool);
    // SAFETY: the pool stays mapped, and a slot of zeros is valid.
    (pool != 0 && offset < POOL_BYTES).then(|| unsafe { &*((pool + (offset & !(BYTES - 1))) as *const Slot) })
}

/// Frees the slots of other threads in a child of `fork`, which does not have these threads.
pub fn forked() {
    let here = 0u8;
    let own = slot_at((&raw const here).addr());
    let pool = POOL.load(Ordering::Relaxed);
    if pool == 0 {
        return;
    }
    for index in 0..COUNT {
        // SAFETY: as above.
        let slot = unsafe { &*((pool + index * BYTES) as *const Slot) };
        // A slot that was never used has no memory, and needs none.
        if slot.taken.load(Ordering::Relaxed) != 0 && !own.is_some_and(|own| core::ptr::eq(own, slot)) {
            slot.interrupted.set(false);
            slot.has_mask.set(false);
            slot.kept_out.set(0);
            slot.give_back();
        }
    }
}
