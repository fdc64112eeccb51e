//! The system calls of this family.

use linux_raw_sys::general as nr;
use linux_raw_sys::ioctl::FIONREAD;
use linux_raw_sys::net::{IPPROTO_TCP, MSG_DONTWAIT, TCP_INFO, TCP_ZEROCOPY_RECEIVE, msghdr};

use crate::abi::Errno;
use crate::feature::provided_buffers::Span;
use crate::ops::net::rights;
use crate::os::{self, Fd, call};
use crate::request::data::address::Address;

/// `recv(2)` without waiting, into memory of the program.
pub fn receive(fd: Fd, span: Span, flags: u32) -> Result<usize, Errno> {
    let flags = (flags | MSG_DONTWAIT) as usize;
    // SAFETY: the program gave the memory for this.
    unsafe { call(nr::__NR_recvfrom, [fd as usize, span.address as usize, span.length, flags, 0, 0]) }
}

/// `send(2)` without waiting, from memory of the program.
pub fn send(fd: Fd, span: Span, flags: u32, to: Option<&Address>) -> Result<usize, Errno> {
    let flags = (flags | MSG_DONTWAIT) as usize;
    let (to, to_length) = to.map_or((0, 0), |to| (to.pointer(), to.length()));
    // SAFETY: only reads memory.
    unsafe { call(nr::__NR_sendto, [fd as usize, span.address as usize, span.length, flags, to, to_length]) }
}

/// `recvmsg(2)` without waiting. The header is ours; what it names is the program's, or ours.
pub fn receive_message(fd: Fd, header: &mut msghdr, flags: u32) -> Result<usize, Errno> {
    // SAFETY: the caller of this module names only memory that is to be written.
    let received = unsafe { os::receive_message(fd, header, flags) };
    if received.is_ok() {
        rights::received(header);
    }
    received
}

/// `sendmsg(2)` without waiting.
pub fn send_message(fd: Fd, header: &msghdr, flags: u32) -> Result<usize, Errno> {
    let flags = (flags | MSG_DONTWAIT) as usize;
    // SAFETY: only reads memory.
    unsafe { call(nr::__NR_sendmsg, [fd as usize, core::ptr::from_ref(header) as usize, flags, 0, 0, 0]) }
}

/// `accept4(2)`; address and length are the program's.
pub fn accept(fd: Fd, address: u64, length: u64, flags: u32) -> Result<Fd, Errno> {
    // SAFETY: the program gave the memory for this.
    unsafe { call(nr::__NR_accept4, [fd as usize, address as usize, length as usize, flags as usize, 0, 0]) }
        .map(|fd| fd as Fd)
}

/// `connect(2)`.
pub fn connect(fd: Fd, address: &Address) -> Result<usize, Errno> {
    // SAFETY: reads an address of ours.
    unsafe { call(nr::__NR_connect, [fd as usize, address.pointer(), address.length(), 0, 0, 0]) }
}

/// `bind(2)`.
pub fn bind(fd: Fd, address: &Address) -> Result<usize, Errno> {
    // SAFETY: reads an address of ours.
    unsafe { call(nr::__NR_bind, [fd as usize, address.pointer(), address.length(), 0, 0, 0]) }
}

/// `listen(2)`.
pub fn listen(fd: Fd, backlog: u32) -> Result<usize, Errno> {
    // SAFETY: touches no memory.
    unsafe { call(nr::__NR_listen, [fd as usize, backlog as usize, 0, 0, 0, 0]) }
}

/// `shutdown(2)`.
pub fn shutdown(fd: Fd, how: u32) -> Result<usize, Errno> {
    // SAFETY: touches no memory.
    unsafe { call(nr::__NR_shutdown, [fd as usize, how as usize, 0, 0, 0, 0]) }
}

/// `socket(2)`.
pub fn socket(domain: u32, kind: u32, protocol: u32) -> Result<Fd, Errno> {
    // SAFETY: touches no memory.
    unsafe { call(nr::__NR_socket, [domain as usize, kind as usize, protocol as usize, 0, 0, 0]) }
        .map(|fd| fd as Fd)
}

/// How many bytes can be received now.
pub fn unread(fd: Fd) -> Result<usize, Errno> {
    let mut count = 0i32;
    // SAFETY: writes an integer of ours.
    unsafe { call(nr::__NR_ioctl, [fd as usize, FIONREAD as usize, &raw mut count as usize, 0, 0, 0]) }?;
    Ok(count.max(0) as usize)
}

/// As [`unread`] of a connection over TCP, by what it tells with each receive: its end counts as one byte. It is
/// asked to map nothing of what there is.
///
/// # Errors
/// `EIO` at the end of the stream; `EINVAL` where there is a page or more, and others where the kernel does not tell.
pub fn unread_hint(fd: Fd) -> Result<u32, Errno> {
    const HINT: usize = 4;
    let (mut words, mut length) = ([0u32; 6], 4 * (HINT as u32 + 1));
    let (words_at, length_at) = (words.as_mut_ptr() as usize, &raw mut length as usize);
    let (level, name) = (IPPROTO_TCP as usize, TCP_ZEROCOPY_RECEIVE as usize);
    let asked = length;
    // SAFETY: reads and writes as many bytes of ours, and a length.
    unsafe { call(nr::__NR_getsockopt, [fd as usize, level, name, words_at, length_at, 0]) }?;
    if length == asked { Ok(words[HINT]) } else { Err(Errno::EOPNOTSUPP) }
}

/// True if another protocol lies on top of TCP (`TCP_ULP`), such as the kernel's TLS. Then what the socket
/// receives is not what came over the network.
pub fn carries_another_protocol(fd: Fd) -> bool {
    const TCP_ULP: usize = 31;
    let (mut name, mut length) = ([0u8; 16], 16u32);
    let (name_at, length_at) = (name.as_mut_ptr() as usize, &raw mut length as usize);
    // SAFETY: writes sixteen bytes and a length of ours.
    let asked = unsafe {
        call(nr::__NR_getsockopt, [fd as usize, IPPROTO_TCP as usize, TCP_ULP, name_at, length_at, 0])
    };
    asked.is_ok() && length > 0
}

/// True if the peer of a TCP socket that was shut down has not said yet that it sends no more.
pub fn waits_for_fin(fd: Fd) -> bool {
    const STATE: usize = 0;
    let (mut info, mut length) = ([0u8; 8], 8u32);
    let (info_at, length_at) = (info.as_mut_ptr() as usize, &raw mut length as usize);
    let (level, name) = (IPPROTO_TCP as usize, TCP_INFO as usize);
    // SAFETY: writes eight bytes and a length of ours.
    let asked = unsafe { call(nr::__NR_getsockopt, [fd as usize, level, name, info_at, length_at, 0]) };
    asked.is_ok() && [TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2].contains(&info[STATE])
}

/// `TCP_ESTABLISHED` and those behind it that a socket is in before it has heard of its peer's end.
const TCP_ESTABLISHED: u8 = 1;
const TCP_FIN_WAIT1: u8 = 4;
const TCP_FIN_WAIT2: u8 = 5;
