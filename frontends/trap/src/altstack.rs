//! Room for the trap: in children of `vfork`, and beside small alternate stacks.
//!
//! A child of `vfork` may run on a stack of a few KiB (musl gives `posix_spawn`'s less than 6), which a
//! signal frame with large vector registers fills alone. An alternate stack of its parent's thread is
//! the child's too. So a thread that has none gets one, for good, when it makes such a child.
//!
//! A thread whose alternate stack is small (Rust's standard library gives 8 KiB), or mostly used by a handler of the program,
//! traps there, but the engine runs on a stack of ours. The alternate stack is disabled meanwhile, for the frame of another
//! signal would overwrite that of the trap; the return from the trap enables it again.

use crate::arch::{self, AlternateStack, Context};
use crate::signals;
use anyring_runtime::{arch::syscall, sys};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use linux_raw_sys::general as raw;

const BYTES: usize = 64 << 10;

/// Another signal frame and the engine may need this much. Go's stacks for handlers have more.
const ENOUGH: usize = 24 << 10;

/// A stack, and the thread that has it.
struct Provided {
    thread_id: AtomicU32,
    address: AtomicUsize,
}

type Stacks = [Provided; 256];

/// Alternate stacks.
static ALTERNATE: Stacks =
    [const { Provided { thread_id: AtomicU32::new(0), address: AtomicUsize::new(0) } }; 256];
/// Stacks for the engine.
static APART: Stacks =
    [const { Provided { thread_id: AtomicU32::new(0), address: AtomicUsize::new(0) } }; 256];

/// Does the handler run on an alternate stack of which too little is left for the engine?
pub fn is_small(interrupted: &mut Context) -> bool {
    let here = 0u8;
    let stack = interrupted.alternate_stack();
    let left = (core::ptr::from_ref(&here) as usize).wrapping_sub(stack.address);
    left < stack.bytes && left < ENOUGH
}

/// Does `work`, in a handler that runs on an alternate stack, on a stack of ours; whether one could be had. A handler of the
/// program may jump out of it.
pub fn apart<W: FnMut()>(mut work: W) -> bool {
    let own = take(&APART, sys::thread_id());
    let Some(address) = own.or_else(map) else { return false };
    let argument = (&raw mut work).cast();
    // SAFETY: a stack that no other thread has, and that this one is not on: there, no alternate stack is small.
    unsafe { arch::anyring_trap_on_stack(address + BYTES, enter::<W>, argument) };
    if own.is_none() {
        // SAFETY: nobody is on it any more.
        unsafe { sys::unmap(address, BYTES) };
    }
    true
}

/// Begins on the other stack.
extern "C" fn enter<W: FnMut()>(work: *mut c_void) {
    let none = AlternateStack { address: 0, flags: raw::SS_DISABLE, bytes: 0 };
    // SAFETY: reads the structure; the thread is on no alternate stack any more.
    unsafe { syscall(raw::__NR_sigaltstack as usize, [(&raw const none).addr(), 0, 0, 0, 0, 0]) };
    // SAFETY: of this type, and who had it waits.
    unsafe { (*work.cast::<W>())() }
}

/// Gives the thread an alternate stack if it has none. It is set when the handler returns.
pub fn provide(interrupted: &mut Context) {
    let stack = interrupted.alternate_stack();
    // Where there never was one, the kernel does not say that it is disabled.
    if stack.flags & raw::SS_DISABLE == 0 && stack.bytes != 0 {
        return;
    }
    let Some(address) = take(&ALTERNATE, sys::thread_id()) else { return };
    *stack = AlternateStack { address, flags: 0, bytes: BYTES };
}

/// A stack for a thread: its own from before, that of one that has ended, or a new one.
fn take(stacks: &Stacks, thread_id: u32) -> Option<usize> {
    // A child that shares this memory cannot tell whose threads live.
    if !signals::is_owner() {
        return None;
    }
    let own = stacks.iter().find(|stack| stack.thread_id.load(Ordering::Relaxed) == thread_id);
    let stack = own.or_else(|| {
        let process = sys::process_id();
        stacks.iter().find(|stack| {
            let owner = stack.thread_id.load(Ordering::Relaxed);
            (owner == 0 || !sys::is_thread(process, owner))
                && stack
                    .thread_id
                    .compare_exchange(owner, thread_id, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
        })
    })?;
    let address = stack.address.load(Ordering::Relaxed);
    if address != 0 {
        return Some(address);
    }
    let mapped = map()?;
    stack.address.store(mapped, Ordering::Relaxed);
    Some(mapped)
}

/// Maps a stack.
fn map() -> Option<usize> {
    let flags = raw::MAP_NORESERVE | raw::MAP_STACK;
    // SAFETY: new memory, wherever the kernel likes.
    let mapped = unsafe { sys::map(0, BYTES, raw::PROT_READ | raw::PROT_WRITE, flags) };
    usize::try_from(mapped).ok()
}
