//! Registration of buffers and of buffer rings.

use crate::register::{Any, register, resources, update, with};
use crate::ring::REGISTERS_BY_INDEX;
use crate::types::Ring;
use core::ffi::{c_int, c_uint};
use core::ptr;
use linux_raw_sys::io_uring::io_uring_register_op as Code;
use linux_raw_sys::io_uring::{
    IORING_REGISTER_SRC_REGISTERED, IORING_RSRC_REGISTER_SPARSE, io_uring_buf_reg, io_uring_buf_status,
    io_uring_clone_buffers,
};

/// `IOU_PBUF_RING_MMAP`.
const PBUF_RING_MMAP: u16 = 1;

/// `io_uring_register_buffers_tags(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_buffers_tags(
    ring: &Ring,
    list: Any,
    tags: Any,
    count: c_uint,
) -> c_int {
    let argument = resources(0, count, list, tags);
    // SAFETY: the caller's promise.
    unsafe { with(ring, Code::IORING_REGISTER_BUFFERS2, &argument, size_of_val(&argument)) }
}

/// `io_uring_register_buffers_sparse(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_buffers_sparse(ring: &Ring, count: c_uint) -> c_int {
    let argument = resources(IORING_RSRC_REGISTER_SPARSE, count, ptr::null(), ptr::null());
    // SAFETY: the caller's promise.
    unsafe { with(ring, Code::IORING_REGISTER_BUFFERS2, &argument, size_of_val(&argument)) }
}

/// `io_uring_register_buffers_update_tag(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_buffers_update_tag(
    ring: &Ring,
    offset: c_uint,
    list: Any,
    tags: Any,
    count: c_uint,
) -> c_int {
    let argument = update(offset, count, list, tags);
    // SAFETY: the caller's promise.
    unsafe { with(ring, Code::IORING_REGISTER_BUFFERS_UPDATE, &argument, size_of_val(&argument)) }
}

/// `io_uring_register_buf_ring(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_register_buf_ring(
    ring: &Ring,
    argument: &mut io_uring_buf_reg,
    flags: c_uint,
) -> c_int {
    argument.flags |= flags as u16;
    if argument.flags & PBUF_RING_MMAP != 0 {
        ring.let_map();
    }
    let pointer = ptr::from_mut(argument).cast_const().cast();
    // SAFETY: the caller's promise.
    unsafe { register(ring, Code::IORING_REGISTER_PBUF_RING as c_uint, pointer, 1) }
}

/// `io_uring_unregister_buf_ring(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_unregister_buf_ring(ring: &Ring, group: c_int) -> c_int {
    let argument =
        io_uring_buf_reg { ring_addr: 0, ring_entries: 0, bgid: group as u16, flags: 0, resv: [0; 3] };
    // SAFETY: the caller's promise.
    unsafe { with(ring, Code::IORING_UNREGISTER_PBUF_RING, &argument, 1) }
}

/// `io_uring_buf_ring_head(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_buf_ring_head(ring: &Ring, group: c_int, head: &mut u16) -> c_int {
    let mut status = io_uring_buf_status { buf_group: group as u32, head: 0, resv: [0; 8] };
    let pointer = (&raw mut status).cast_const().cast();
    // SAFETY: the caller's promise; the head is written to the status.
    let result = unsafe { register(ring, Code::IORING_REGISTER_PBUF_STATUS as c_uint, pointer, 1) };
    if result == 0 {
        *head = status.head as u16;
    }
    result
}

/// `__io_uring_clone_buffers_offset(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __io_uring_clone_buffers_offset(
    to: &Ring,
    from: &Ring,
    to_offset: c_uint,
    from_offset: c_uint,
    count: c_uint,
    flags: c_uint,
) -> c_int {
    const BY_INDEX: c_uint = IORING_REGISTER_SRC_REGISTERED as c_uint;
    let by_index = flags & BY_INDEX != 0 && from.has(REGISTERS_BY_INDEX);
    let argument = io_uring_clone_buffers {
        src_fd: if by_index { from.enter_ring_fd } else { from.ring_fd } as u32,
        flags: if by_index { flags } else { flags & !BY_INDEX },
        src_off: from_offset,
        dst_off: to_offset,
        nr: count,
        pad: [0; 3],
    };
    // SAFETY: the caller's promise.
    unsafe { with(to, Code::IORING_REGISTER_CLONE_BUFFERS, &argument, 1) }
}

/// `io_uring_clone_buffers_offset(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_clone_buffers_offset(
    to: &Ring,
    from: &Ring,
    to_offset: c_uint,
    from_offset: c_uint,
    count: c_uint,
    flags: c_uint,
) -> c_int {
    let flags = flags | IORING_REGISTER_SRC_REGISTERED as c_uint;
    // SAFETY: the caller's promise.
    unsafe { __io_uring_clone_buffers_offset(to, from, to_offset, from_offset, count, flags) }
}

/// `io_uring_clone_buffers(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_clone_buffers(to: &Ring, from: &Ring) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { io_uring_clone_buffers_offset(to, from, 0, 0, 0, 0) }
}

/// `__io_uring_clone_buffers(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __io_uring_clone_buffers(to: &Ring, from: &Ring, flags: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { __io_uring_clone_buffers_offset(to, from, 0, 0, 0, flags) }
}
