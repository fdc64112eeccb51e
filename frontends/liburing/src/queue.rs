//! Submission, and completions that are already there.

use crate::types::{Cqe, Ring, Sqe};
use crate::{call, extended, ring};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use linux_raw_sys::io_uring::{IORING_ENTER_GETEVENTS, IORING_ENTER_SQ_WAIT};

/// Length of the kernel's signal set in bytes.
pub const SIGNAL_SET_BYTES: usize = 8;

impl Ring {
    /// Takes the next free SQE, and clears the fields that programs expect to be clear; null if none is free.
    #[inline(always)]
    pub fn next_sqe(&mut self) -> *mut Sqe {
        let tail = self.sq.sqe_tail;
        if tail.wrapping_sub(self.taken()) >= self.sq.ring_entries {
            return ptr::null_mut();
        }
        self.sq.sqe_tail = tail.wrapping_add(1);
        let place = ((tail & self.sq.ring_mask) as usize) << ring::sqe_shift(self.flags);
        // SAFETY: the place is within the queue.
        let sqe = unsafe { self.sq.sqes.add(place) };
        // SAFETY: nothing reads the entry until it is submitted.
        clear(unsafe { &mut *sqe });
        sqe
    }
}

/// Clears the fields that preparations do not set; every preparation overwrites the others.
#[inline(always)]
pub fn clear(sqe: &mut Sqe) {
    sqe.flags = 0;
    sqe.ioprio = 0;
    sqe.op_flags = 0;
    sqe.buf_index = 0;
    sqe.personality = 0;
    sqe.file_index = 0;
    sqe.addr3 = 0;
    sqe.pad = 0;
}

/// `io_uring_get_sqe(3)`, for programs built before it was an inline function.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_get_sqe(ring: &mut Ring) -> *mut Sqe {
    ring.next_sqe()
}

/// `io_uring_get_events(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_get_events(ring: &Ring) -> c_int {
    let flags = IORING_ENTER_GETEVENTS | ring.enter_flags();
    // SAFETY: the caller's promise.
    unsafe { call::enter(ring.enter_ring_fd, 0, 0, flags, ptr::null(), SIGNAL_SET_BYTES) }
}

/// Fills `list` with up to `count` CQEs that are in the queue. Returns the number of CQEs.
///
/// # Safety
/// `list` must have room for `count` pointers.
#[inline(always)]
unsafe fn take_ready(ring: &Ring, list: *mut *mut Cqe, count: c_uint) -> c_uint {
    let ready = ring.ready();
    // SAFETY: the ring is mapped; only the program writes the head.
    let head = unsafe { *ring.cq.khead };
    if ring.flags & anyring_engine::abi::IORING_SETUP_CQE_MIXED == 0 {
        let count = ready.min(count);
        for index in 0..count {
            // SAFETY: the caller's promise.
            unsafe { *list.add(index as usize) = ring.cqe(head.wrapping_add(index)) };
        }
        return count;
    }
    // SAFETY: the caller's promise.
    unsafe { take_mixed(ring, list, count, ready) }
}

/// Works as [`take_ready`], for a queue with CQEs of both sizes.
///
/// # Safety
/// As for [`take_ready`].
#[cold]
#[inline(never)]
unsafe extern "C" fn take_mixed(ring: &Ring, list: *mut *mut Cqe, count: c_uint, ready: c_uint) -> c_uint {
    // SAFETY: the ring is mapped; only the program writes the head.
    let head = unsafe { *ring.cq.khead };
    let (mut at, mut taken) = (0, 0);
    while at < ready && taken < count {
        let cqe = ring.cqe(head.wrapping_add(at));
        // SAFETY: the CQE was posted.
        let posted = unsafe { &*cqe };
        if posted.flags & anyring_engine::abi::IORING_CQE_F_SKIP != 0 {
            // Such a CQE can only be skipped at the head, because the program advances by the CQEs that it was given.
            if taken > 0 {
                break;
            }
            ring.advance(1);
            return match count {
                0 => 0,
                // SAFETY: the caller's promise.
                count => unsafe { take_ready(ring, list, count) },
            };
        }
        at += ring::cqe_places(posted);
        // SAFETY: the caller's promise.
        unsafe { *list.add(taken as usize) = cqe };
        taken += 1;
    }
    taken
}

/// `io_uring_peek_batch_cqe(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_peek_batch_cqe(ring: &Ring, list: *mut *mut Cqe, count: c_uint) -> c_uint {
    // SAFETY: the caller's promise.
    let taken = unsafe { take_ready(ring, list, count) };
    if taken > 0 || !ring.must_flush() {
        return taken;
    }
    // SAFETY: the caller's promise.
    unsafe { flush_and_take(ring, list, count) }
}

/// Enters the ring to flush completions that wait for a call, and takes the CQEs that are in the queue then.
///
/// # Safety
/// As for [`take_ready`].
#[cold]
#[inline(never)]
unsafe extern "C" fn flush_and_take(ring: &Ring, list: *mut *mut Cqe, count: c_uint) -> c_uint {
    // SAFETY: the caller's promise.
    unsafe {
        io_uring_get_events(ring);
        let taken = take_ready(ring, list, count);
        if taken == 0 {
            ring.found_nothing();
        }
        taken
    }
}

/// Submits the filled entries, and flushes or waits for completions. Returns how many entries were taken.
///
/// # Safety
/// The ring must be set up.
#[inline(always)]
unsafe fn submit(ring: &mut Ring, least: c_uint, fetch: bool) -> c_int {
    if !call::is_plain() {
        // SAFETY: the caller's promise.
        return unsafe { submit_elsewhere(ring, least, fetch) };
    }
    // SAFETY: the descriptor is the ring's own.
    submit_by(ring, least, fetch, |a, b, c, d, e, f| unsafe { call::kernel_enter(a, b, c, d, e, f) })
}

/// Submits on a ring that may not be the kernel's alone. A separate function, so that the path to the kernel saves few registers.
///
/// # Safety
/// As for [`submit`].
#[cold]
#[inline(never)]
unsafe extern "C" fn submit_elsewhere(ring: &mut Ring, least: c_uint, fetch: bool) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        extended::with(ring, |ring| {
            submit_by(ring, least, fetch, |a, b, c, d, e, f| call::enter(a, b, c, d, e, f))
        })
    }
}

/// Submits the filled entries without waiting. Returns how many entries were taken.
pub fn submit_only(ring: &mut Ring) -> c_int {
    // SAFETY: the descriptor is the ring's own.
    submit_by(ring, 0, false, |a, b, c, d, e, f| unsafe { call::enter(a, b, c, d, e, f) })
}

#[inline(always)]
fn submit_by(
    ring: &mut Ring,
    least: c_uint,
    fetch: bool,
    enter: impl Fn(c_int, c_uint, c_uint, c_uint, *const c_void, usize) -> c_int,
) -> c_int {
    let filled = ring.flush();
    let fetch = fetch || least > 0 || ring.completes_by_entering();
    let mut flags = ring.enter_flags();
    if !ring.submits_by_entering(filled, &mut flags) && !fetch {
        return filled as c_int;
    }
    if fetch {
        flags |= IORING_ENTER_GETEVENTS;
    }
    enter(ring.enter_ring_fd, filled, least, flags, ptr::null(), SIGNAL_SET_BYTES)
}

/// `io_uring_submit(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_submit(ring: &mut Ring) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { submit(ring, 0, false) }
}

/// `io_uring_submit_and_wait(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_submit_and_wait(ring: &mut Ring, least: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { submit(ring, least, false) }
}

/// `io_uring_submit_and_get_events(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_submit_and_get_events(ring: &mut Ring) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { submit(ring, 0, true) }
}

/// The part of the inline `io_uring_sqring_wait(3)` that enters the kernel.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __io_uring_sqring_wait(ring: &Ring) -> c_int {
    let flags = IORING_ENTER_SQ_WAIT | ring.enter_flags();
    // SAFETY: the caller's promise.
    unsafe { call::enter(ring.enter_ring_fd, 0, 0, flags, ptr::null(), SIGNAL_SET_BYTES) }
}
