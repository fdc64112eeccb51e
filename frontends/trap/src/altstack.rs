//! Room for the trap: in children of `vfork`, and beside small alternate stacks.
//!
//! A child of `vfork` may run on a stack of a few KiB (musl gives `posix_spawn`'s less than 6), which a
//! signal frame with large vector registers fills alone. An alternate stack of its parent's thread is
//! the child's too. So a thread that has none gets one, for good, when it makes such a child.
//!
//! A thread whose alternate stack is small (Rust's standard library gives 8 KiB), or mostly used by a handler of the program,
//! traps there, but the engine runs on a stack of ours. Meanwhile the thread has another alternate stack, of ours too, for the
//! frame of another signal would overwrite that of the trap. The return from the trap gives it back its own; where a handler
//! that came in the trap jumps out instead, the next trap or handler does.

use crate::arch::{self, AlternateStack, Context};
use crate::signals;
use anyring_runtime::{arch::syscall, sys};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use linux_raw_sys::general as raw;

const BYTES: usize = 64 << 10;

/// The room that another signal frame and the engine may need. Go's stacks for handlers have more.
const ENOUGH: usize = 24 << 10;

/// A stack for the engine, and behind it the alternate one that the thread has meanwhile.
const PAIR_BYTES: usize = 2 * BYTES;
/// The length of that one: of no program's, so that most traps need not look whose it is.
const MEANWHILE_BYTES: usize = BYTES - 64;

/// A stack, and the thread that has it.
struct Provided {
    thread_id: AtomicU32,
    address: AtomicUsize,
    /// The thread's own alternate stack, while the engine runs here, or until it has that back.
    replaced: [AtomicUsize; 3],
    /// The stack is in use, or somebody has jumped out of it.
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

/// Alternate stacks.
static ALTERNATE: Stacks = [const { Provided::none() }; 256];
/// Stacks for the engine.
static APART: Stacks = [const { Provided::none() }; 256];

/// True if the handler runs on an alternate stack of which too little is left for the engine.
pub fn is_small(interrupted: &mut Context) -> bool {
    let here = 0u8;
    let stack = interrupted.alternate_stack();
    let left = (core::ptr::from_ref(&here) as usize).wrapping_sub(stack.address);
    left < stack.bytes && left < ENOUGH
}

/// Does `work`, in a handler that runs on the alternate stack `own`, on a stack of ours; whether one could be had. A handler of
/// the program may jump out of it.
pub fn apart<W: FnMut()>(own: AlternateStack, mut work: W) -> bool {
    let provided = take(&APART, sys::thread_id(), PAIR_BYTES);
    // Where a handler that came in `work` has set an alternate stack and traps on it, the frames below it are still needed.
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
    // SAFETY: a stack that no other thread has, and that nobody is on: `used` says so.
    unsafe { arch::anyring_trap_on_stack(address + BYTES, enter::<W>, argument) };
    match provided {
        Some(provided) => provided.used.store(false, Ordering::Relaxed),
        None => {
            // SAFETY: nobody is on it any more; the thread is not on the alternate one behind it, which the return from the
            // trap replaces.
            unsafe { sys::unmap(address, PAIR_BYTES) };
        }
    }
    true
}

/// The work that is done on the other stack.
struct Begun<'a, W> {
    work: &'a mut W,
    /// The lowest address of the alternate stack that the thread has meanwhile.
    meanwhile: usize,
}

/// Begins on the other stack.
extern "C" fn enter<W: FnMut()>(begun: *mut c_void) {
    // SAFETY: of this type, and who had it waits.
    let begun = unsafe { &mut *begun.cast::<Begun<W>>() };
    let mut meanwhile = AlternateStack { address: begun.meanwhile, flags: 0, bytes: MEANWHILE_BYTES };
    // The thread is on no alternate stack any more, and nobody is on this one.
    set((&raw mut meanwhile).cast());
    (begun.work)();
}

/// Gives the thread an alternate stack.
extern "C" fn set(stack: *mut c_void) {
    // SAFETY: reads the structure.
    unsafe { syscall(raw::__NR_sigaltstack as usize, [stack.addr(), 0, 0, 0, 0, 0]) };
}

/// The thread traps, or begins a handler. Where it has jumped out of a trap before, it gets its own alternate stack back.
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
    // In a handler that came in the trap, on one stack or the other.
    let [_, stack, ..] = interrupted.pointers();
    if (meanwhile - BYTES..meanwhile + BYTES).contains(&stack) {
        return;
    }
    let [address, flags, bytes] = provided.replaced.each_ref().map(|word| word.load(Ordering::Relaxed));
    let mut own = AlternateStack { address, flags: flags as u32, bytes };
    // The return from the trap sets it, too, but some kernels refuse that to a handler that is on the one before.
    // SAFETY: nobody is on the stack that ends where the thread's alternate one begins.
    unsafe { arch::anyring_trap_on_stack(meanwhile, set, (&raw mut own).cast()) };
    *interrupted.alternate_stack() = own;
    provided.used.store(false, Ordering::Relaxed);
}

/// Gives the thread an alternate stack if it has none. It is set when the handler returns.
pub fn provide(interrupted: &mut Context) {
    let stack = interrupted.alternate_stack();
    // Where there never was one, the kernel does not say that it is disabled.
    if stack.flags & raw::SS_DISABLE == 0 && stack.bytes != 0 {
        return;
    }
    let Some(provided) = take(&ALTERNATE, sys::thread_id(), BYTES) else { return };
    *stack = AlternateStack { address: provided.address.load(Ordering::Relaxed), flags: 0, bytes: BYTES };
}

/// A stack for a thread, of so many bytes: its own from before, that of one that has ended, or a new one.
fn take(stacks: &'static Stacks, thread_id: u32, bytes: usize) -> Option<&'static Provided> {
    // A child that shares this memory cannot tell whose threads live.
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
        // It may have ended behind a jump.
        stack.used.store(false, Ordering::Relaxed);
        Some(stack)
    })?;
    if stack.address.load(Ordering::Relaxed) == 0 {
        stack.address.store(map(bytes)?, Ordering::Relaxed);
    }
    Some(stack)
}

/// Maps a stack.
fn map(bytes: usize) -> Option<usize> {
    let flags = raw::MAP_NORESERVE | raw::MAP_STACK;
    // SAFETY: new memory, wherever the kernel likes.
    let mapped = unsafe { sys::map(0, bytes, raw::PROT_READ | raw::PROT_WRITE, flags) };
    usize::try_from(mapped).ok()
}
