//! Buffer rings.

use crate::buffers;
use crate::types::Ring;
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU16, Ordering};
use linux_raw_sys::io_uring::io_uring_buf;

/// `struct io_uring_buf_ring`: an array of buffers, whose first entry contains the tail.
#[repr(transparent)]
pub struct BufRing(io_uring_buf);

/// The offset of the tail in bytes.
const TAIL: usize = 14;

impl BufRing {
    fn tail(&self) -> &AtomicU16 {
        // SAFETY: the tail is within the first entry, which lives as long as the buffer ring; the other side only reads it.
        unsafe { AtomicU16::from_ptr((&raw const self.0).byte_add(TAIL).cast_mut().cast()) }
    }
}

/// `io_uring_buf_ring_mask(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn io_uring_buf_ring_mask(entries: u32) -> c_int {
    entries.wrapping_sub(1) as c_int
}

/// `io_uring_buf_ring_init(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_buf_ring_init(buffers: &BufRing) {
    buffers.tail().store(0, Ordering::Relaxed);
}

/// `io_uring_buf_ring_add(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_buf_ring_add(
    buffers: *mut BufRing,
    memory: *mut c_void,
    length: c_uint,
    id: u16,
    mask: c_int,
    offset: c_int,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let tail = (*buffers).tail().load(Ordering::Relaxed);
        let place = (c_int::from(tail).wrapping_add(offset) & mask) as usize;
        let buffer = buffers.cast::<io_uring_buf>().add(place);
        (&raw mut (*buffer).addr).write(memory.addr() as u64);
        (&raw mut (*buffer).len).write(length);
        (&raw mut (*buffer).bid).write(id);
    }
}

/// `io_uring_buf_ring_advance(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_buf_ring_advance(buffers: &BufRing, count: c_int) {
    let tail = buffers.tail();
    // Release pairs with the acquire of the side that takes buffers: the entries are filled in. Only the program writes the tail.
    tail.store(tail.load(Ordering::Relaxed).wrapping_add(count as u16), Ordering::Release);
}

/// The implementation of `io_uring_buf_ring_cq_advance(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __io_uring_buf_ring_cq_advance(
    ring: &Ring,
    buffers: &BufRing,
    completions: c_int,
    count: c_int,
) {
    // SAFETY: the caller's promise.
    unsafe { io_uring_buf_ring_advance(buffers, count) };
    ring.advance(completions as c_uint);
}

/// `io_uring_buf_ring_cq_advance(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_buf_ring_cq_advance(ring: &Ring, buffers: &BufRing, count: c_int) {
    // SAFETY: the caller's promise.
    unsafe { __io_uring_buf_ring_cq_advance(ring, buffers, count, count) };
}

/// `io_uring_buf_ring_available(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_buf_ring_available(ring: &Ring, buffers: &BufRing, group: u16) -> c_int {
    let mut head = 0;
    // SAFETY: the caller's promise.
    match unsafe { buffers::io_uring_buf_ring_head(ring, group.into(), &mut head) } {
        0 => buffers.tail().load(Ordering::Relaxed).wrapping_sub(head).into(),
        error => error,
    }
}
