//! Completions: reading them, and giving their places back.

use crate::ring;
use crate::types::{Cqe, CqeIter, Ring};
use crate::wait;
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::errno::{EAGAIN, EOPNOTSUPP};
use linux_raw_sys::io_uring::{IORING_CQ_EVENTFD_DISABLED, IORING_SETUP_IOPOLL, IORING_SQ_CQ_OVERFLOW};

/// `io_uring_cqe_get_data(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_cqe_get_data(cqe: &Cqe) -> *mut c_void {
    ptr::with_exposed_provenance_mut(cqe.user_data as usize)
}

/// `io_uring_cqe_get_data64(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_cqe_get_data64(cqe: &Cqe) -> u64 {
    cqe.user_data
}

/// `io_uring_cqe_nr(3)`: the number of places that a CQE takes.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_cqe_nr(cqe: &Cqe) -> c_uint {
    ring::cqe_places(cqe)
}

/// `io_uring_cqe_seen(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_cqe_seen(ring: &Ring, cqe: *const Cqe) {
    // SAFETY: the caller's promise.
    if let Some(cqe) = unsafe { cqe.as_ref() } {
        ring.advance(ring::cqe_places(cqe));
    }
}

/// `io_uring_cq_advance(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_cq_advance(ring: &Ring, places: c_uint) {
    ring.advance(places);
}

/// `io_uring_cq_ready(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_cq_ready(ring: &Ring) -> c_uint {
    ring.ready()
}

/// `io_uring_cq_has_overflow(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_cq_has_overflow(ring: &Ring) -> bool {
    // SAFETY: the flags belong to a ring that is mapped.
    let flags = unsafe { AtomicU32::from_ptr(ring.sq.kflags) }.load(Ordering::Relaxed);
    flags & IORING_SQ_CQ_OVERFLOW != 0
}

/// Returns the CQ flags, which the program sets; `None` on old kernels.
fn cq_flags(ring: &Ring) -> Option<&AtomicU32> {
    // SAFETY: the flags belong to a ring that is mapped.
    (!ring.cq.kflags.is_null()).then(|| unsafe { AtomicU32::from_ptr(ring.cq.kflags) })
}

/// `io_uring_cq_eventfd_enabled(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_cq_eventfd_enabled(ring: &Ring) -> bool {
    cq_flags(ring).is_none_or(|flags| flags.load(Ordering::Relaxed) & IORING_CQ_EVENTFD_DISABLED == 0)
}

/// `io_uring_cq_eventfd_toggle(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_cq_eventfd_toggle(ring: &Ring, enabled: bool) -> c_int {
    // SAFETY: the caller's promise.
    if enabled == unsafe { io_uring_cq_eventfd_enabled(ring) } {
        return 0;
    }
    let Some(flags) = cq_flags(ring) else { return -(EOPNOTSUPP as c_int) };
    // Only the program writes the flags.
    let now = flags.load(Ordering::Relaxed);
    flags.store(now ^ IORING_CQ_EVENTFD_DISABLED, Ordering::Relaxed);
    0
}

/// `io_uring_cqe_iter_init(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_cqe_iter_init(ring: &Ring) -> CqeIter {
    // SAFETY: the ring is mapped; only the program writes the head.
    let head = unsafe { *ring.cq.khead };
    CqeIter {
        cqes: ring.cq.cqes,
        mask: ring.cq.ring_mask,
        shift: ring::cqe_shift(ring.flags),
        head,
        tail: head.wrapping_add(ring.ready()),
    }
}

/// `io_uring_cqe_iter_next(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_cqe_iter_next(iter: &mut CqeIter, out: *mut *mut Cqe) -> bool {
    if iter.head == iter.tail {
        return false;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let cqe = iter.cqes.add(((iter.head & iter.mask) as usize) << iter.shift);
        iter.head = iter.head.wrapping_add(ring::cqe_places(&*cqe));
        *out = cqe;
    }
    true
}

/// The common part of the functions that look for one completion.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __io_uring_peek_cqe(ring: &Ring, out: *mut *mut Cqe, ready: *mut c_uint) -> c_int {
    let (first, count) = ring.peek();
    // SAFETY: the caller's promise.
    unsafe {
        *out = first.unwrap_or(ptr::null_mut());
        if !ready.is_null() {
            *ready = count;
        }
    }
    first.err().unwrap_or(0)
}

/// `io_uring_peek_cqe(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_peek_cqe(ring: &Ring, out: *mut *mut Cqe) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if __io_uring_peek_cqe(ring, out, ptr::null_mut()) == 0 {
            if !(*out).is_null() {
                return 0;
            }
            if ring.flags & IORING_SETUP_IOPOLL == 0 && !ring.must_flush() {
                return -(EAGAIN as c_int);
            }
        }
        io_uring_wait_cqe_nr(ring, out, 0)
    }
}

/// `io_uring_wait_cqe(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_wait_cqe(ring: &Ring, out: *mut *mut Cqe) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if __io_uring_peek_cqe(ring, out, ptr::null_mut()) == 0 && !(*out).is_null() {
            return 0;
        }
        io_uring_wait_cqe_nr(ring, out, 1)
    }
}

/// `io_uring_wait_cqe_nr(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_wait_cqe_nr(ring: &Ring, out: *mut *mut Cqe, least: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait::__io_uring_get_cqe(ring, out, 0, least, ptr::null()) }
}
