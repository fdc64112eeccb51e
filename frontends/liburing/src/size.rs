//! The sizes of rings' memory.

use crate::setup;
use crate::types::{Cqe, Ring, Sqe};
use crate::{call, ring};
use core::ffi::{c_int, c_uint};
use core::mem::MaybeUninit;
use linux_raw_sys::errno::EINVAL;
use linux_raw_sys::io_uring::{
    IORING_FEAT_NATIVE_WORKERS, IORING_SETUP_CLAMP, IORING_SETUP_CQSIZE, IORING_SETUP_NO_SQARRAY,
    io_uring_params,
};

/// The kernel's maximum for the submission queue.
const MOST_ENTRIES: c_uint = 32768;
/// The kernel's maximum for the completion queue.
const MOST_CQ_ENTRIES: c_uint = 2 * MOST_ENTRIES;
/// The size of heads, tails and counters of a ring.
const HEADER_BYTES: usize = 64;

const _: () = assert!(size_of::<Sqe>() == 64 && size_of::<Cqe>() == 16);

/// Returns the size of SQEs in bytes.
pub fn of_sqes(flags: c_uint, entries: c_uint) -> usize {
    ((entries as usize) << ring::sqe_shift(flags)) * size_of::<Sqe>()
}

/// Returns the size of CQEs in bytes.
pub fn of_cqes(flags: c_uint, entries: c_uint) -> usize {
    ((entries as usize) << ring::cqe_shift(flags)) * size_of::<Cqe>()
}

/// Returns the size of both queues' rings in bytes, without the SQEs.
pub fn of_rings(flags: c_uint, sq_entries: c_uint, cq_entries: c_uint) -> usize {
    let array =
        if flags & IORING_SETUP_NO_SQARRAY == 0 { sq_entries as usize * size_of::<c_uint>() } else { 0 };
    HEADER_BYTES + of_cqes(flags, cq_entries) + array
}

/// Returns parameters that are zero except for the flags.
pub fn parameters(flags: c_uint) -> io_uring_params {
    // SAFETY: a structure of integers.
    let mut p: io_uring_params = unsafe { MaybeUninit::zeroed().assume_init() };
    p.flags = flags;
    p
}

/// Returns the number of entries that the kernel will make: above the limit, it is cut or refused, as the flags say.
fn within(entries: c_uint, most: c_uint, flags: c_uint) -> Result<c_uint, c_int> {
    match entries {
        0 => Err(-(EINVAL as c_int)),
        entries if entries > most && flags & IORING_SETUP_CLAMP == 0 => Err(-(EINVAL as c_int)),
        entries => Ok(entries.min(most).next_power_of_two()),
    }
}

/// Returns the numbers of entries of both queues that the kernel will make.
pub fn entries(wanted: c_uint, p: &io_uring_params) -> Result<(c_uint, c_uint), c_int> {
    let sq = within(wanted, MOST_ENTRIES, p.flags)?;
    if p.flags & IORING_SETUP_CQSIZE == 0 {
        return Ok((sq, 2 * sq));
    }
    let cq = within(p.cq_entries, MOST_CQ_ENTRIES, p.flags)?;
    if cq < sq { Err(-(EINVAL as c_int)) } else { Ok((sq, cq)) }
}

/// `io_uring_memory_size_params(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn io_uring_memory_size_params(wanted: c_uint, p: &io_uring_params) -> isize {
    let page = call::page_bytes();
    match entries(wanted, p) {
        Ok((sq, cq)) => {
            let rings = of_rings(p.flags, sq, cq).next_multiple_of(page);
            (rings + of_sqes(p.flags, sq).next_multiple_of(page)) as isize
        }
        Err(error) => error as isize,
    }
}

/// `io_uring_memory_size(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn io_uring_memory_size(wanted: c_uint, flags: c_uint) -> isize {
    io_uring_memory_size_params(wanted, &parameters(flags))
}

/// `io_uring_mlock_size_params(3)`: 0 if rings do not count as locked memory, which is so since Linux 5.12.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_mlock_size_params(wanted: c_uint, p: &io_uring_params) -> isize {
    let mut tried = parameters(0);
    let mut ring = MaybeUninit::<Ring>::zeroed();
    // SAFETY: zeros are a ring that is not set up.
    let ring = unsafe { ring.assume_init_mut() };
    // SAFETY: the ring is this function's own.
    unsafe {
        // If the limit on locked memory makes this fail, rings count as locked memory.
        if setup::io_uring_queue_init_params(wanted, ring, &mut tried) == 0 {
            setup::io_uring_queue_exit(ring);
        }
    }
    if tried.features & IORING_FEAT_NATIVE_WORKERS != 0 { 0 } else { io_uring_memory_size_params(wanted, p) }
}

/// `io_uring_mlock_size(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_mlock_size(wanted: c_uint, flags: c_uint) -> isize {
    // SAFETY: the caller's promise.
    unsafe { io_uring_mlock_size_params(wanted, &parameters(flags)) }
}
