//! The layout of a buffer that a multishot `RECVMSG` fills: a header, the sender's name, control messages, the payload.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use linux_raw_sys::net::{cmsghdr, msghdr};

/// `struct io_uring_recvmsg_out`.
#[repr(C)]
pub struct Received {
    name_length: u32,
    control_length: u32,
    payload_length: u32,
    flags: u32,
}

/// Returns the length of a control message's header or data with its padding.
fn aligned(length: usize) -> usize {
    length.wrapping_add(size_of::<usize>() - 1) & !(size_of::<usize>() - 1)
}

/// `io_uring_recvmsg_validate(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_recvmsg_validate(
    buffer: *mut c_void,
    length: c_int,
    message: &msghdr,
) -> *mut Received {
    let rest = usize::try_from(length)
        .ok()
        .and_then(|length| length.checked_sub(size_of::<Received>()))
        .and_then(|rest| rest.checked_sub(message.msg_namelen as usize))
        .and_then(|rest| rest.checked_sub(message.msg_controllen));
    if rest.is_some() { buffer.cast() } else { ptr::null_mut() }
}

/// `io_uring_recvmsg_name(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_recvmsg_name(received: *mut Received) -> *mut c_void {
    // The buffer may end here: only the address is computed.
    received.wrapping_add(1).cast()
}

/// `io_uring_recvmsg_cmsg_firsthdr(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_recvmsg_cmsg_firsthdr(
    received: *mut Received,
    message: &msghdr,
) -> *mut cmsghdr {
    // SAFETY: the caller's promise.
    unsafe {
        if ((*received).control_length as usize) < size_of::<cmsghdr>() {
            return ptr::null_mut();
        }
        io_uring_recvmsg_name(received).wrapping_byte_add(message.msg_namelen as usize).cast()
    }
}

/// `io_uring_recvmsg_cmsg_nexthdr(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_recvmsg_cmsg_nexthdr(
    received: *mut Received,
    message: &msghdr,
    last: *mut cmsghdr,
) -> *mut cmsghdr {
    // SAFETY: the caller's promise.
    unsafe {
        let length = (*last).cmsg_len;
        if length < size_of::<cmsghdr>() {
            return ptr::null_mut();
        }
        let first = io_uring_recvmsg_cmsg_firsthdr(received, message);
        let end = first.wrapping_byte_add((*received).control_length as usize).addr();
        let next = last.wrapping_byte_add(aligned(length));
        let room = end.checked_sub(next.addr());
        if room.is_none_or(|room| room < size_of::<cmsghdr>()) {
            return ptr::null_mut();
        }
        if next.addr().wrapping_add(aligned((*next).cmsg_len)) > end {
            return ptr::null_mut();
        }
        next
    }
}

/// `io_uring_recvmsg_payload(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_recvmsg_payload(received: *mut Received, message: &msghdr) -> *mut c_void {
    // SAFETY: the caller's promise.
    let name = unsafe { io_uring_recvmsg_name(received) };
    name.wrapping_byte_add(message.msg_namelen as usize).wrapping_byte_add(message.msg_controllen)
}

/// `io_uring_recvmsg_payload_length(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_uring_recvmsg_payload_length(
    received: *mut Received,
    length: c_int,
    message: &msghdr,
) -> c_uint {
    let Ok(length) = usize::try_from(length) else { return 0 };
    // SAFETY: the caller's promise.
    let start = unsafe { io_uring_recvmsg_payload(received, message) }.addr();
    (received.addr() + length).saturating_sub(start) as c_uint
}
