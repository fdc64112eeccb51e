//! Rings of the user engine in a process whose other rings are the kernel's.
//!
//! This applies if the choice of the engine was left to anyring ([`crate::config::Choice::Auto`]) and the kernel's `io_uring` works. A
//! program may then ask for a ring with a layout flag that the kernel is too old to know. The user engine makes that ring, if it has the
//! flag; rings that the kernel can make stay the kernel's. A ring cannot change its engine later: registrations and requests that the
//! kernel refuses on its ring stay refused.

use crate::calls::RINGS;
use anyring_engine::abi::{IORING_SETUP_CQE_MIXED, IORING_SETUP_SQ_REWIND, IORING_SETUP_SQE_MIXED};
use anyring_engine::frontend;
use anyring_engine::io_uring_params;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use linux_raw_sys::errno::EINVAL;
use linux_raw_sys::general as raw;
use linux_raw_sys::io_uring as abi;

use crate::{process, sys};

/// No offer: the user chose the engine, or the kernel's `io_uring` does not work.
const NONE: u8 = 0;
/// The kernel engine was chosen because it works, not because the user asked for it: the user engine may make rings that the kernel
/// refuses.
const STANDS: u8 = 1;
/// The user engine makes no rings that the kernel refuses, because some of the calls on them cannot be seen.
const WITHDRAWN: u8 = 2;

static OFFER: AtomicU8 = AtomicU8::new(NONE);
/// True if rings may be of either engine.
static SHARED: AtomicBool = AtomicBool::new(false);

/// Notes that the kernel engine was chosen, and that the user engine may make rings that it refuses.
pub fn offer() {
    OFFER.store(STANDS, Ordering::Relaxed);
}

/// Notes that rings that the kernel refuses stay refused, because not all calls on them could be seen.
pub fn withdraw() {
    OFFER.store(WITHDRAWN, Ordering::Relaxed);
}

/// True if the user engine may make rings that the kernel refuses.
#[inline]
pub fn is_offered() -> bool {
    OFFER.load(Ordering::Relaxed) == STANDS
}

/// True if the kernel is asked first, or alone: sites that were patched before the offer was [withdrawn](withdraw) still pass
/// their calls to this crate.
#[inline]
pub fn asks_kernel() -> bool {
    OFFER.load(Ordering::Relaxed) != NONE
}

/// Notes that the user engine is in place beside the kernel engine.
pub fn share() {
    SHARED.store(true, Ordering::Relaxed);
}

/// True if rings may be of either engine.
#[inline]
pub fn is_shared() -> bool {
    SHARED.load(Ordering::Relaxed)
}

/// Returns the address of a byte that is zero until the user engine has made a ring, for code that tests it in assembly.
pub fn mark() -> usize {
    RINGS.as_ptr().addr()
}

/// True if one of the three calls is about a ring of the user engine, in a process that is [shared](is_shared). Indexes in a thread's
/// table of ring descriptors are always the kernel's: rings of the user engine are not registered there.
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

/// Setup flags that determine the layout of the ring's memory. If the kernel lacks only flags of other kinds, such as those for speed,
/// the user engine makes no ring: programs usually ask again without them.
const LAYOUT: u32 = IORING_SETUP_SQE_MIXED
    | IORING_SETUP_CQE_MIXED
    | IORING_SETUP_SQ_REWIND
    | abi::IORING_SETUP_SQE128
    | abi::IORING_SETUP_CQE32
    | abi::IORING_SETUP_NO_MMAP;

/// The newest setup flags that one ring can have together.
const NEWEST: u32 =
    IORING_SETUP_SQE_MIXED | IORING_SETUP_CQE_MIXED | IORING_SETUP_SQ_REWIND | abi::IORING_SETUP_NO_SQARRAY;

/// Makes `io_uring_setup` with `arguments` on the kernel, and returns its result; `None` if the user engine is to make the ring. `kernel`
/// makes a system call of the kernel. `closed` gets the new descriptor, whose number a ring of the user engine may have had until an
/// unnoticed close.
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

/// True if the user engine is to answer a setup with `arguments`, which the kernel answered with `result`: the kernel does not know all
/// of the flags, and the user engine does. `kernel` makes a system call of the kernel.
pub fn outdoes(result: isize, arguments: [usize; 6], kernel: impl Fn(usize, [usize; 6]) -> isize) -> bool {
    if result != -(EINVAL as isize) || !is_offered() {
        return false;
    }
    let Some(asked) = frontend::acceptable(arguments[0] as u32, arguments[1] as u64) else { return false };
    // A program without a descriptor names the ring by its index in the thread's table.
    if asked.flags & abi::IORING_SETUP_REGISTERED_FD_ONLY != 0 {
        return false;
    }
    let needs = if asked.flags & IORING_SETUP_SQ_REWIND != 0 { abi::IORING_SETUP_NO_SQARRAY } else { 0 };
    asked.flags & LAYOUT != 0 && !knows(asked.flags & LAYOUT | needs, kernel)
}

/// True if the kernel, whose `io_uring` works, has each setup flag of the user engine. No ring is made: some milliseconds after the
/// ring's end, the kernel would interrupt a wait of this thread.
pub fn kernel_has_all(kernel: impl Fn(usize, [usize; 6]) -> isize) -> bool {
    knows(NEWEST | abi::IORING_SETUP_NO_MMAP, kernel)
}

/// True if the kernel knows these flags: it refuses unknown ones before it checks anything else.
fn knows(flags: u32, kernel: impl Fn(usize, [usize; 6]) -> isize) -> bool {
    // With `NO_MMAP`, no memory is passed, which gives another error than `EINVAL`.
    // SAFETY: a structure of integers.
    let mut params: io_uring_params = unsafe { core::mem::zeroed() };
    params.flags = flags;
    // A ring with mixed entry sizes needs two entries.
    let result = kernel(raw::__NR_io_uring_setup as usize, [2, (&raw mut params).addr(), 0, 0, 0, 0]);
    if let Ok(fd) = i32::try_from(result)
        && fd >= 0
    {
        sys::close(fd);
    }
    result != -(EINVAL as isize)
}
