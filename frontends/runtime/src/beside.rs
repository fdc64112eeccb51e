//! Rings of our engine in a process whose others are the kernel's.
//!
//! Where the user left the choice to us ([`crate::config::Choice::Auto`]) and the kernel's `io_uring` works, a program may still ask
//! for a ring that this kernel is too old for, by a flag for its layout that it does not know. Our engine makes that ring, if
//! it has the flag; those that the kernel makes stay the kernel's. A ring cannot change its engine later: what the kernel
//! refuses of a registration or a request, it refuses.

use crate::calls::RINGS;
use anyring_engine::abi::{IORING_SETUP_CQE_MIXED, IORING_SETUP_SQ_REWIND, IORING_SETUP_SQE_MIXED};
use anyring_engine::frontend;
use anyring_engine::io_uring_params;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use linux_raw_sys::errno::EINVAL;
use linux_raw_sys::general as raw;
use linux_raw_sys::io_uring as abi;

use crate::{process, sys};

/// Nobody asks the kernel first.
const NONE: u8 = 0;
/// The kernel's engine was chosen because it works, not because the user asked for it: ours may make what it refuses.
const STANDS: u8 = 1;
/// That was so, until it was seen that some of the calls cannot be.
const WITHDRAWN: u8 = 2;

static OFFER: AtomicU8 = AtomicU8::new(NONE);
/// Whether rings may be of either engine.
static SHARED: AtomicBool = AtomicBool::new(false);

/// The kernel's engine was chosen, and ours may make what it refuses.
pub fn offer() {
    OFFER.store(STANDS, Ordering::Relaxed);
}

/// Rings that the kernel refuses stay refused: their calls could not all be seen.
pub fn withdraw() {
    OFFER.store(WITHDRAWN, Ordering::Relaxed);
}

/// Whether our engine may make what the kernel refuses.
#[inline]
pub fn is_offered() -> bool {
    OFFER.load(Ordering::Relaxed) == STANDS
}

/// Whether the kernel is asked first, or alone: sites that were patched before the offer was [withdrawn](withdraw) bring their
/// calls all the same.
#[inline]
pub fn asks_kernel() -> bool {
    OFFER.load(Ordering::Relaxed) != NONE
}

/// Our engine is in place beside the kernel's.
pub fn share() {
    SHARED.store(true, Ordering::Relaxed);
}

/// Whether rings may be of either engine.
#[inline]
pub fn is_shared() -> bool {
    SHARED.load(Ordering::Relaxed)
}

/// The address of a byte that is zero until our engine has made a ring: for code that asks in assembly.
pub fn mark() -> usize {
    RINGS.as_ptr().addr()
}

/// Whether one of the three calls is about a ring of ours, in a process that is [shared](is_shared). Places in a thread's table of
/// ring descriptors are the kernel's: ours are not registered there.
#[inline]
pub fn is_ours(number: usize, arguments: [usize; 6]) -> bool {
    const USE_REGISTERED: u32 = abi::io_uring_register_op::IORING_REGISTER_USE_REGISTERED_RING as u32;
    let by_index = match number as u32 {
        raw::__NR_io_uring_enter => arguments[3] as u32 & abi::IORING_ENTER_REGISTERED_RING != 0,
        raw::__NR_io_uring_register => arguments[1] as u32 & USE_REGISTERED != 0,
        _ => return false,
    };
    !by_index && frontend::is_ring(arguments[0] as i32)
}

/// Flags that say how the ring's memory is laid out. A program that asks for one and does without says so by asking again; it
/// does so more often with those that make things faster, which move no ring.
const LAYOUT: u32 = IORING_SETUP_SQE_MIXED
    | IORING_SETUP_CQE_MIXED
    | IORING_SETUP_SQ_REWIND
    | abi::IORING_SETUP_SQE128
    | abi::IORING_SETUP_CQE32
    | abi::IORING_SETUP_NO_MMAP;

/// The newest setup flags, as one ring can have them.
const NEWEST: u32 =
    IORING_SETUP_SQE_MIXED | IORING_SETUP_CQE_MIXED | IORING_SETUP_SQ_REWIND | abi::IORING_SETUP_NO_SQARRAY;

/// The kernel's answer to `io_uring_setup` with `arguments`; none where the ring is our engine's to make. `kernel` makes a
/// system call of the kernel, and `closed` is told of a number that may have been a ring's of ours, which was closed unseen.
pub fn set_up(
    arguments: [usize; 6],
    kernel: impl Fn(usize, [usize; 6]) -> isize,
    closed: impl FnOnce(i32),
) -> Option<isize> {
    process::asks_for_ring();
    let result = kernel(raw::__NR_io_uring_setup as usize, arguments);
    if result >= 0 && is_shared() {
        closed(result as i32);
    }
    (!outdoes(result, arguments, kernel)).then_some(result)
}

/// Whether a setup with `arguments`, which the kernel answered with `result`, is our engine's to answer: the kernel knows not all
/// of the flags, and our engine has them. `kernel` makes a system call of the kernel.
pub fn outdoes(result: isize, arguments: [usize; 6], kernel: impl Fn(usize, [usize; 6]) -> isize) -> bool {
    if result != -(EINVAL as isize) || !is_offered() {
        return false;
    }
    let Some(asked) = frontend::acceptable(arguments[0] as u32, arguments[1] as u64) else { return false };
    // Who has no descriptor names the ring by its place in the thread's table.
    if asked.flags & abi::IORING_SETUP_REGISTERED_FD_ONLY != 0 {
        return false;
    }
    let needs = if asked.flags & IORING_SETUP_SQ_REWIND != 0 { abi::IORING_SETUP_NO_SQARRAY } else { 0 };
    asked.flags & LAYOUT != 0 && !knows(asked.flags & LAYOUT | needs, kernel)
}

/// Whether the kernel, whose `io_uring` works, has each setup flag that our engine has. No ring is made: some milliseconds after its
/// end, the kernel would interrupt a wait of this thread.
pub fn kernel_has_all(kernel: impl Fn(usize, [usize; 6]) -> isize) -> bool {
    knows(NEWEST | abi::IORING_SETUP_NO_MMAP, kernel)
}

/// Whether the kernel knows these flags: others it refuses before it looks at anything else.
fn knows(flags: u32, kernel: impl Fn(usize, [usize; 6]) -> isize) -> bool {
    // Where the program's memory is to be used, none is given, which is another error.
    // SAFETY: integers only.
    let mut params: io_uring_params = unsafe { core::mem::zeroed() };
    params.flags = flags;
    // Mixed sizes need two entries.
    let result = kernel(raw::__NR_io_uring_setup as usize, [2, (&raw mut params).addr(), 0, 0, 0, 0]);
    if let Ok(fd) = i32::try_from(result)
        && fd >= 0
    {
        sys::close(fd);
    }
    result != -(EINVAL as isize)
}
