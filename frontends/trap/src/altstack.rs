//! Room for the trap: in children of `vfork`, and on small alternate stacks.
//!
//! A child of `vfork` may run on a stack of a few KiB (musl gives `posix_spawn`'s less than 6), which a
//! signal frame with large vector registers fills alone. An alternate stack of its parent's thread is
//! the child's too. So a thread that has none gets one, for good, when it makes such a child.

use crate::arch::Context;
use anyring_runtime::sys;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use linux_raw_sys::general as raw;

const BYTES: usize = 64 << 10;

/// Two signal frames and the engine may need this much. Go's stacks for handlers have more, those of Rust's standard
/// library 8 KiB.
const ENOUGH: usize = 24 << 10;

/// A stack, and the thread that has it.
struct Provided {
    thread_id: AtomicU32,
    address: AtomicUsize,
}

static PROVIDED: [Provided; 256] =
    [const { Provided { thread_id: AtomicU32::new(0), address: AtomicUsize::new(0) } }; 256];

/// Does the handler run on an alternate stack on which there is no room for a second signal frame, that of a fault?
pub fn is_small(interrupted: &mut Context) -> bool {
    let here = 0u8;
    let stack = interrupted.alternate_stack();
    stack.bytes < ENOUGH && (core::ptr::from_ref(&here) as usize).wrapping_sub(stack.address) < stack.bytes
}

/// Gives the thread an alternate stack if it has none. It is set when the handler returns.
pub fn provide(interrupted: &mut Context) {
    let stack = interrupted.alternate_stack();
    // Where there never was one, the kernel does not say that it is disabled.
    if stack.flags & raw::SS_DISABLE == 0 && stack.bytes != 0 {
        return;
    }
    let Some(address) = take(sys::thread_id()) else { return };
    *stack = crate::arch::AlternateStack { address, flags: 0, bytes: BYTES };
}

/// A stack for a thread: its own from before, that of one that has ended, or a new one.
fn take(thread_id: u32) -> Option<usize> {
    let process = sys::process_id();
    let own = PROVIDED.iter().find(|stack| stack.thread_id.load(Ordering::Relaxed) == thread_id);
    let stack = own.or_else(|| {
        PROVIDED.iter().find(|stack| {
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
    let flags = raw::MAP_NORESERVE | raw::MAP_STACK;
    // SAFETY: new memory, wherever the kernel likes.
    let mapped = unsafe { sys::map(0, BYTES, raw::PROT_READ | raw::PROT_WRITE, flags) };
    let mapped = usize::try_from(mapped).ok()?;
    stack.address.store(mapped, Ordering::Relaxed);
    Some(mapped)
}
