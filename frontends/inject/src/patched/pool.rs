//! The pool: stacks for the engine, each with what its thread left behind, found by where the thread's own stack lies.

use crate::arch::site::{STACK_USED, Saved};
use anyring_runtime::sys;
use anyring_trap::sites::Record;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use linux_raw_sys::general as raw;

/// Bytes of a slot: [`Slot`], and a stack that grows down to it. The engine, the frame of a signal and what notes it need a third of that.
pub const BYTES: usize = 64 << 10;
/// How many threads may be inside at the same time in calls that may sleep, a power of two; more of them trap.
pub const SLEEPING: usize = 128;
/// How many slots there are for other calls, a power of two; more of them wait.
pub const BRIEF: usize = 32;
const COUNT: usize = SLEEPING + BRIEF;
/// Bytes of all slots.
pub const POOL_BYTES: usize = COUNT * BYTES;
/// The exponent of [`BYTES`].
pub const SHIFT: u32 = BYTES.trailing_zeros();

/// The first slot, at a multiple of [`BYTES`]. 0: there is none.
pub static POOL: AtomicUsize = AtomicUsize::new(0);

/// The state of the program that a thread inside left behind, and what has happened to the thread since. Only its own thread and that thread's handlers look at it, but
/// for `taken`.
#[repr(C, align(64))]
pub struct Slot {
    /// Bit 0: a thread has the slot.
    pub taken: AtomicU64,
    /// The program's stack pointer.
    pub stack_pointer: Cell<usize>,
    /// The stub's.
    record: Cell<*const Record>,
    /// The result of the call.
    pub result: Cell<isize>,
    /// Where the program goes on.
    pub next: Cell<usize>,
    /// Whether signals were kept out, or the thread's mask is to be set for another reason when it leaves.
    pub interrupted: Cell<bool>,
    /// Whether the mask is another one than the thread has.
    pub has_mask: Cell<bool>,
    /// The mask with which the thread is to leave then.
    pub mask: Cell<u64>,
    /// The signals that were kept out.
    pub kept_out: Cell<u64>,
    /// The mask with which those are taken that a wait with a mask of its own let through.
    pub let_in: Cell<u64>,
    /// A time of zero.
    pub no_time: [u64; 2],
    /// The registers that the program is to find again.
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
        // SAFETY: the stub's, which stays.
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

    /// Whether the calling thread is to be cancelled, where a C library does that.
    pub fn is_cancelled(&self) -> bool {
        let [flag, ..] = self.saved.registers();
        // SAFETY: the first argument of such a function.
        self.record().is_function != 0
            && unsafe { (*(flag as *const AtomicU32)).load(Ordering::Relaxed) != 0 }
    }

    /// Where the program goes on behind the call, its stack, its frame and what its link register holds.
    pub fn pointers(&self) -> [usize; 4] {
        let [frame, link] = self.saved.frame_and_link();
        [self.record().behind, self.stack_pointer.get() + STACK_USED, frame, link]
    }

    /// Lets the program go on behind its call.
    pub fn go_on_with(&self, result: isize) {
        self.result.set(result);
        self.next.set(self.record().next);
    }

    /// Lets the program make its call at this address, with the registers that it had.
    pub fn call_at(&self, address: usize) {
        self.result.set(self.saved.before_call());
        self.next.set(address);
    }

    /// Lets the thread leave with this mask.
    pub fn set_mask(&self, mask: u64) {
        self.mask.set(mask);
        self.has_mask.set(true);
    }

    /// Lets another thread have the slot.
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

/// Maps the pool; whether there was memory. Only slots that are used take any.
pub fn map() -> bool {
    let flags = raw::MAP_NORESERVE | raw::MAP_STACK;
    // SAFETY: new memory, wherever the kernel likes.
    let mapped = unsafe { sys::map(0, (COUNT + 1) * BYTES, raw::PROT_READ | raw::PROT_WRITE, flags) };
    let Ok(mapped) = usize::try_from(mapped) else { return false };
    POOL.store(mapped.next_multiple_of(BYTES), Ordering::Relaxed);
    true
}

/// The slot on whose stack a stack pointer lies.
pub fn slot_at(stack_pointer: usize) -> Option<&'static Slot> {
    let pool = POOL.load(Ordering::Relaxed);
    // An empty stack begins where the slot ends.
    let offset = stack_pointer.wrapping_sub(1).wrapping_sub(pool);
    // SAFETY: mapped for good, and zeros are a slot.
    (pool != 0 && offset < POOL_BYTES).then(|| unsafe { &*((pool + (offset & !(BYTES - 1))) as *const Slot) })
}

/// The process has forked and this is the child: no other thread has a slot.
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
