//! Submission queue entries: taking free ones, and setting the fields that all operations have.

use crate::types::{Ring, Sqe};
use crate::{queue, ring};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use linux_raw_sys::io_uring::{
    IORING_SETUP_SQE128, IORING_SETUP_SQPOLL, io_uring_op, io_uring_sqe_flags_bit,
};

const SETUP_SQE_MIXED: c_uint = 1 << 19;
const CQE_SKIP_SUCCESS: u8 = 1 << io_uring_sqe_flags_bit::IOSQE_CQE_SKIP_SUCCESS_BIT as u8;

/// `io_uring_sqe_set_data(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_sqe_set_data(sqe: &mut Sqe, data: *mut c_void) {
    sqe.user_data = data.addr() as u64;
}

/// `io_uring_sqe_set_data64(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_sqe_set_data64(sqe: &mut Sqe, data: u64) {
    sqe.user_data = data;
}

/// `io_uring_sqe_set_flags(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_sqe_set_flags(sqe: &mut Sqe, flags: c_uint) {
    sqe.flags = flags as u8;
}

/// `io_uring_sqe_set_buf_group(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_sqe_set_buf_group(sqe: &mut Sqe, group: c_int) {
    sqe.buf_index = group as u16;
}

/// `io_uring_sq_ready(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_sq_ready(ring: &Ring) -> c_uint {
    ring.sq.sqe_tail.wrapping_sub(ring.taken())
}

/// `io_uring_sq_space_left(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_sq_space_left(ring: &Ring) -> c_uint {
    // SAFETY: the caller's promise.
    ring.sq.ring_entries.wrapping_sub(unsafe { io_uring_sq_ready(ring) })
}

/// `io_uring_sqring_wait(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_sqring_wait(ring: &Ring) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if ring.flags & IORING_SETUP_SQPOLL == 0 || io_uring_sq_space_left(ring) > 0 {
            return 0;
        }
        queue::__io_uring_sqring_wait(ring)
    }
}

/// `io_uring_get_sqe128(3)`: takes two adjacent places.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_get_sqe128(ring: &mut Ring) -> *mut Sqe {
    if ring.flags & IORING_SETUP_SQE128 != 0 {
        return ring.next_sqe();
    }
    if ring.flags & SETUP_SQE_MIXED == 0 {
        return ptr::null_mut();
    }
    let used = ring.sq.sqe_tail.wrapping_sub(ring.taken());
    let at_end = ring.sq.sqe_tail.wrapping_add(1) & ring.sq.ring_mask == 0;
    if used + 1 + c_uint::from(at_end) >= ring.sq.ring_entries {
        return ptr::null_mut();
    }
    if at_end {
        // The last place is filled by a no-op without a completion.
        // SAFETY: there is room for it, as checked above.
        let filler = unsafe { &mut *ring.next_sqe() };
        (filler.opcode, filler.fd) = (io_uring_op::IORING_OP_NOP as u8, -1);
        (filler.addr, filler.len, filler.off) = (0, 0, 0);
        filler.flags = CQE_SKIP_SUCCESS;
    }
    let tail = ring.sq.sqe_tail;
    ring.sq.sqe_tail = tail.wrapping_add(2);
    let place = ((tail & ring.sq.ring_mask) as usize) << ring::sqe_shift(ring.flags);
    // SAFETY: the place is within the queue.
    let sqe = unsafe { ring.sq.sqes.add(place) };
    // SAFETY: nothing reads the entry until it is submitted.
    queue::clear(unsafe { &mut *sqe });
    sqe
}

/// `io_uring_opcode_supported(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_opcode_supported(probe: *const u8, operation: c_int) -> c_int {
    /// The sizes of `struct io_uring_probe` before its list and of a list entry, and the offset of an entry's flags, in bytes.
    const HEADER: usize = 16;
    const ENTRY: usize = 8;
    const FLAGS: usize = 2;
    const SUPPORTED: u16 = 1;
    // SAFETY: by the caller's promise, the first byte is the last opcode of the list.
    unsafe {
        if operation < 0 || operation > c_int::from(*probe) {
            return 0;
        }
        let flags = probe.add(HEADER + operation as usize * ENTRY + FLAGS).cast::<u16>().read_unaligned();
        c_int::from(flags & SUPPORTED != 0)
    }
}
