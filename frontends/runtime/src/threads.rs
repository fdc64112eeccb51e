//! The threads that front ends provide to the engine, which are independent of the program's C library.
//!
//! A thread is a raw `clone` on a mapped stack with a guard page. It runs only engine code, which uses neither libc nor
//! thread-local storage. It still has a thread block, at the top of its stack, so that its thread pointer is unique.
//! When the thread has left its stack for good, the kernel clears its id in `SLOTS`; then the stack is free for the
//! next thread.

use crate::{arch, sys};
use anyring_engine::os::page_bytes;
use core::ffi::{CStr, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use linux_raw_sys::errno::EAGAIN;
use linux_raw_sys::general as raw;

const STACK_BYTES: usize = 256 << 10;
/// A slot's thread id while its thread is being started.
const CLAIMED: u32 = u32::MAX;

/// A thread that is alive, or a stack for a future thread.
struct Slot {
    thread_id: AtomicU32,
    stack: AtomicUsize,
}

/// A block of slots, and the next block. The number of slots is the largest number of threads that have existed at the same time,
/// which the kernel limits.
struct Slots {
    slots: [Slot; 255],
    more: AtomicPtr<Slots>,
}

impl Slots {
    const fn new() -> Slots {
        Slots {
            slots: [const { Slot { thread_id: AtomicU32::new(0), stack: AtomicUsize::new(0) } }; 255],
            more: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Returns the next block of slots, if there is one.
    fn more(&self) -> Option<&'static Slots> {
        // Acquire pairs with the release in `extend`. SAFETY: blocks are never unmapped.
        unsafe { self.more.load(Ordering::Acquire).as_ref() }
    }

    /// Adds a block of slots after this one, which is the last.
    fn extend(&self) -> Option<&'static Slots> {
        let bytes = size_of::<Slots>();
        // SAFETY: a new mapping, at an address that the kernel chooses. Zeros are free slots.
        let mapped = unsafe { sys::map(0, bytes, raw::PROT_READ | raw::PROT_WRITE, 0) };
        let new = usize::try_from(mapped).ok()? as *mut Slots;
        let last = core::ptr::null_mut();
        // Release pairs with the acquire in `more`.
        if self.more.compare_exchange(last, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: the block was not published.
            unsafe { sys::unmap(new as usize, bytes) };
        }
        self.more()
    }
}

static SLOTS: Slots = Slots::new();

/// Returns all slots.
fn slots() -> impl Iterator<Item = &'static Slot> {
    core::iter::successors(Some(&SLOTS), |slots| slots.more()).flat_map(|slots| &slots.slots)
}

/// The thread block, at the top of the stack. It is zero except for its own address: on Arm, thread-local storage begins
/// two words above the block's beginning.
#[repr(C, align(64))]
struct Block {
    /// The x86-64 ABI wants the block's own address here.
    itself: *mut Block,
    /// Zeros, where a C library would keep its own data (stack protector and the like).
    rest: [usize; 63],
}

/// The beginning of a new thread's stack: `anyring_runtime_clone` pops the first two words, and calls the first with the second.
#[repr(C, align(64))]
struct Start {
    run: extern "C" fn(*const Start) -> !,
    itself: *const Start,
    entry: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
    name: &'static CStr,
}

/// Marks all slots as free: the child of a fork has none of the parent's threads.
pub fn forked() {
    for slot in slots() {
        slot.thread_id.store(0, Ordering::Relaxed);
    }
}

/// True if the thread with this id is one of the engine's.
pub fn is_own(thread: u32) -> bool {
    slots().any(|slot| slot.thread_id.load(Ordering::Acquire) == thread)
}

/// Starts a thread that runs `entry(argument)`, with [`sys::OF_OWN_THREADS`] blocked. Of the thread-local storage
/// around its thread pointer, the bytes at the offsets of `storage` exist, and are zero.
///
/// # Errors
/// The errno.
pub fn spawn(
    name: &'static CStr,
    entry: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
    storage: Range<isize>,
) -> Result<(), i32> {
    let slot = claim().ok_or(EAGAIN as i32)?;
    let result = start(slot, name, entry, argument, storage);
    if result.is_err() {
        slot.thread_id.store(0, Ordering::Release);
    }
    result
}

/// Claims a free slot.
fn claim() -> Option<&'static Slot> {
    let mut slots = &SLOTS;
    loop {
        let free = slots.slots.iter().find(|slot| {
            slot.thread_id.load(Ordering::Relaxed) == 0
                && slot.thread_id.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        });
        if free.is_some() {
            return free;
        }
        slots = slots.more().or_else(|| slots.extend())?;
    }
}

/// Returns the slot's stack: that of an earlier thread, or a new one.
fn stack(slot: &Slot) -> Result<usize, i32> {
    let stack = slot.stack.load(Ordering::Relaxed);
    if stack != 0 {
        return Ok(stack);
    }
    let flags = raw::MAP_NORESERVE | raw::MAP_STACK;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let mapped = unsafe { sys::map(0, page_bytes() + STACK_BYTES, raw::PROT_READ | raw::PROT_WRITE, flags) };
    let mapped = usize::try_from(mapped).map_err(|_| EAGAIN as i32)?;
    // SAFETY: the lowest page of the new mapping.
    unsafe { sys::protect(mapped, page_bytes(), raw::PROT_NONE) };
    slot.stack.store(mapped, Ordering::Relaxed);
    Ok(mapped)
}

fn start(
    slot: &Slot,
    name: &'static CStr,
    entry: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
    storage: Range<isize>,
) -> Result<(), i32> {
    // The block lies so that the storage around it is at the top of the stack, too, where memory starts zeroed
    // and is not written.
    let above = usize::try_from(storage.end).unwrap_or(0);
    let below = usize::try_from(-storage.start).unwrap_or(0);
    let room = size_of::<Block>().max(above) + below + size_of::<Start>();
    let top = stack(slot)? + page_bytes() + STACK_BYTES;
    let block = (top - size_of::<Block>().max(above)) as *mut Block;
    let block = (block.addr() & !(align_of::<Block>() - 1)) as *mut Block;
    if room > STACK_BYTES / 4 {
        return Err(EAGAIN as i32);
    }
    // SAFETY: the top of a stack that the slot owns and that no thread uses.
    unsafe { block.write(Block { itself: block, rest: [0; 63] }) };
    // Below the storage.
    let place = block as usize - below - size_of::<Start>();
    let place = (place & !(align_of::<Start>() - 1)) as *mut Start;
    // SAFETY: as above.
    unsafe { place.write(Start { run, itself: place, entry, argument, name }) };
    // The new thread inherits the mask, so it gets no signal of the program.
    let mask = sys::set_signal_mask(sys::OF_OWN_THREADS);
    // SAFETY: the stack is prepared as `anyring_runtime_clone` requires, and the word to clear is static.
    let result = unsafe {
        arch::anyring_runtime_clone(sys::THREAD as usize, place.cast(), slot.thread_id.as_ptr(), block.cast())
    };
    sys::set_signal_mask(mask);
    if result < 0 { Err(-result as i32) } else { Ok(()) }
}

/// The first frame of a thread.
extern "C" fn run(start: *const Start) -> ! {
    // SAFETY: `start` wrote the structure for this thread, whose stack lies below it.
    let Start { entry, argument, name, .. } = unsafe { start.read() };
    // SAFETY: the name ends with zero.
    unsafe { sys::prctl(PR_SET_NAME, name.as_ptr() as usize) };
    // SAFETY: called once, in a new thread, as the caller of `spawn` requires.
    unsafe { entry(argument) };
    sys::exit_thread()
}

/// From `<linux/prctl.h>`.
const PR_SET_NAME: u32 = 15;

#[cfg(test)]
mod tests {
    use super::*;

    static RUNS: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn count(argument: *mut c_void) {
        let own = arch::thread_pointer().get();
        // The thread's own thread block lies on its own stack.
        let here = (&raw const own).addr();
        assert!(own > here && own - here < STACK_BYTES);
        // The storage on both sides of the thread pointer is zero, except for the word with the block's address.
        // SAFETY: the storage that was asked for.
        let storage = |offset| unsafe { ((own as *const usize).byte_offset(offset)).read() };
        assert!((-64..64).step_by(8).all(|offset| offset == 0 || storage(offset) == 0));
        RUNS.fetch_add(argument.addr(), Ordering::Relaxed);
    }

    #[test]
    fn threads_run_and_their_stacks_are_reused() {
        for _ in 0..300 {
            spawn(c"iou-wrk-test", count, core::ptr::without_provenance_mut(2), -64..64).unwrap();
            while slots().any(|slot| slot.thread_id.load(Ordering::Acquire) != 0) {
                std::thread::yield_now();
            }
        }
        assert_eq!(RUNS.load(Ordering::Relaxed), 600);
        let stacks = slots().filter(|slot| slot.stack.load(Ordering::Relaxed) != 0).count();
        assert_eq!(stacks, 1);
    }
}
