//! Stacks for the trap: alternate stacks for children of `vfork`, and stacks for the engine beside small alternate stacks.
//!
//! A child of `vfork` may run on a stack of a few KiB (musl gives the child of `posix_spawn` less than 6), which a signal frame
//! with large vector registers fills by itself. The child has the alternate stack of its parent's thread. So a thread without an
//! alternate stack gets one, permanently, when it makes such a child.
//!
//! If a thread's alternate stack is small (Rust's standard library gives 8 KiB), or mostly used by a handler of the program, the
//! trap's frame is on it, but the engine runs on a stack of anyring's. Meanwhile the thread has a temporary alternate stack, also
//! anyring's: otherwise the frame of another signal would overwrite the trap's frame. The return from the trap restores the
//! thread's own alternate stack. If a handler that interrupted the trap jumps out of it, the next trap or handler restores it.

use crate::arch::{self, AlternateStack, Context};
use crate::signals;
use anyring_runtime::{arch::syscall, sys};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use linux_raw_sys::general as raw;

const BYTES: usize = 64 << 10;

/// Bytes that another signal frame and the engine may need. Go's signal stacks are larger.
const ENOUGH: usize = 24 << 10;

/// Bytes of a stack for the engine, and of the temporary alternate stack behind it.
const PAIR_BYTES: usize = 2 * BYTES;
/// Length of a temporary alternate stack. No program's stack has this length, so most traps need not search for the owner.
const MEANWHILE_BYTES: usize = BYTES - 64;

/// A stack of anyring's, and the thread that uses it.
struct Provided {
    thread_id: AtomicU32,
    address: AtomicUsize,
    /// The thread's own alternate stack (address, flags, length), until the thread gets it back.
    replaced: [AtomicUsize; 3],
    /// True while the engine runs on the stack, and after a handler has jumped out of it.
    used: AtomicBool,
}

impl Provided {
    const fn none() -> Self {
        Self {
            thread_id: AtomicU32::new(0),
            address: AtomicUsize::new(0),
            replaced: [const { AtomicUsize::new(0) }; 3],
            used: AtomicBool::new(false),
        }
    }
}

type Stacks = [Provided; 256];

/// Permanent alternate stacks.
static ALTERNATE: Stacks = [const { Provided::none() }; 256];
/// Stacks for the engine, each with a temporary alternate stack.
static APART: Stacks = [const { Provided::none() }; 256];

/// True if the handler runs on an alternate stack with too little room left for the engine.
pub fn is_small(interrupted: &mut Context) -> bool {
    let here = 0u8;
    let stack = interrupted.alternate_stack();
    let left = (core::ptr::from_ref(&here) as usize).wrapping_sub(stack.address);
    left < stack.bytes && left < ENOUGH
}

/// Runs `work` on a stack of anyring's, in a handler that runs on the alternate stack `own`; returns false if there is no memory.
/// A handler of the program may jump out of `work`.
pub fn apart<W: FnMut()>(own: AlternateStack, mut work: W) -> bool {
    let provided = take(&APART, sys::thread_id(), PAIR_BYTES);
    // A handler that interrupts `work` may set an alternate stack and trap on it: then the frames on this stack are still needed.
    let provided = provided.filter(|provided| !provided.used.swap(true, Ordering::Relaxed));
    let Some(address) = provided.map_or_else(
        || map(PAIR_BYTES),
        |provided| {
            let words = [own.address, own.flags as usize, own.bytes];
            provided.replaced.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
            Some(provided.address.load(Ordering::Relaxed))
        },
    ) else {
        return false;
    };
    let mut begun = Begun { work: &mut work, meanwhile: address + BYTES };
    let argument = (&raw mut begun).cast();
    // SAFETY: no other thread has this stack, and it holds no frames: `used` was false, or it is new.
    unsafe { arch::anyring_trap_on_stack(address + BYTES, enter::<W>, argument) };
    match provided {
        Some(provided) => provided.used.store(false, Ordering::Relaxed),
        None => {
            // SAFETY: the stack holds no frames any more; the thread does not run on the alternate stack behind it, which the
            // return from the trap replaces.
            unsafe { sys::unmap(address, PAIR_BYTES) };
        }
    }
    true
}

/// The argument of [`enter`]: the work to do on the other stack.
struct Begun<'a, W> {
    work: &'a mut W,
    /// The lowest address of the temporary alternate stack.
    meanwhile: usize,
}

/// Sets the temporary alternate stack and does the work; runs on the other stack.
extern "C" fn enter<W: FnMut()>(begun: *mut c_void) {
    // SAFETY: a pointer to this type, from `apart`, which does not use it meanwhile.
    let begun = unsafe { &mut *begun.cast::<Begun<W>>() };
    let mut meanwhile = AlternateStack { address: begun.meanwhile, flags: 0, bytes: MEANWHILE_BYTES };
    // The kernel allows the change: the thread has left its alternate stack. The temporary one holds no frames.
    set((&raw mut meanwhile).cast());
    (begun.work)();
}

/// Sets the thread's alternate stack.
extern "C" fn set(stack: *mut c_void) {
    // SAFETY: reads the structure.
    unsafe { syscall(raw::__NR_sigaltstack as usize, [stack.addr(), 0, 0, 0, 0, 0]) };
}

/// Restores the thread's own alternate stack if the thread has jumped out of a trap. Called when a thread traps or begins a handler.
pub fn give_back(interrupted: &mut Context) {
    if interrupted.alternate_stack().bytes == MEANWHILE_BYTES {
        give_back_meanwhile(interrupted);
    }
}

#[cold]
fn give_back_meanwhile(interrupted: &mut Context) {
    let meanwhile = interrupted.alternate_stack().address;
    let own = sys::thread_id();
    let is_own = |provided: &&Provided| {
        provided.thread_id.load(Ordering::Relaxed) == own
            && provided.address.load(Ordering::Relaxed) + BYTES == meanwhile
    };
    let Some(provided) = APART.iter().find(is_own).filter(|_| signals::is_owner()) else { return };
    // The interrupted code is the trap, or a handler that interrupted it: the stacks are in use.
    let [_, stack, ..] = interrupted.pointers();
    if (meanwhile - BYTES..meanwhile + BYTES).contains(&stack) {
        return;
    }
    let [address, flags, bytes] = provided.replaced.each_ref().map(|word| word.load(Ordering::Relaxed));
    let mut own = AlternateStack { address, flags: flags as u32, bytes };
    // The return from the trap sets the alternate stack, too, but some kernels refuse that while the handler is on the previous one.
    // SAFETY: the engine's stack, which ends at this address, holds no frames.
    unsafe { arch::anyring_trap_on_stack(meanwhile, set, (&raw mut own).cast()) };
    *interrupted.alternate_stack() = own;
    provided.used.store(false, Ordering::Relaxed);
}

/// Gives the thread an alternate stack if it has none. The return from the handler sets it.
pub fn provide(interrupted: &mut Context) {
    let stack = interrupted.alternate_stack();
    // If the thread never had an alternate stack, the kernel does not show `SS_DISABLE`.
    if stack.flags & raw::SS_DISABLE == 0 && stack.bytes != 0 {
        return;
    }
    let Some(provided) = take(&ALTERNATE, sys::thread_id(), BYTES) else { return };
    *stack = AlternateStack { address: provided.address.load(Ordering::Relaxed), flags: 0, bytes: BYTES };
}

/// Returns a stack of `bytes` for a thread: the one that it had before, that of a thread that has ended, or a new one.
fn take(stacks: &'static Stacks, thread_id: u32, bytes: usize) -> Option<&'static Provided> {
    // A child of `vfork`, which shares this memory, cannot check which of its parent's threads live.
    if !signals::is_owner() {
        return None;
    }
    let own = stacks.iter().find(|stack| stack.thread_id.load(Ordering::Relaxed) == thread_id);
    let stack = own.or_else(|| {
        let process = sys::process_id();
        let stack = stacks.iter().find(|stack| {
            let owner = stack.thread_id.load(Ordering::Relaxed);
            (owner == 0 || !sys::is_thread(process, owner))
                && stack
                    .thread_id
                    .compare_exchange(owner, thread_id, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
        })?;
        // The thread that ended may have jumped out of it.
        stack.used.store(false, Ordering::Relaxed);
        Some(stack)
    })?;
    if stack.address.load(Ordering::Relaxed) == 0 {
        stack.address.store(map(bytes)?, Ordering::Relaxed);
    }
    Some(stack)
}

/// Maps a stack; returns its lowest address.
fn map(bytes: usize) -> Option<usize> {
    let flags = raw::MAP_NORESERVE | raw::MAP_STACK;
    // SAFETY: new memory, wherever the kernel likes.
    let mapped = unsafe { sys::map(0, bytes, raw::PROT_READ | raw::PROT_WRITE, flags) };
    usize::try_from(mapped).ok()
}
