//! System calls for sockets.

use linux_raw_sys::general as nr;
use linux_raw_sys::net::{IPPROTO_TCP, MSG_DONTWAIT, TCP_INFO, TCP_ZEROCOPY_RECEIVE, msghdr};

use crate::abi::Errno;
use crate::feature::provided_buffers::Span;
use crate::ops::net::rights;
use crate::os::{self, Fd, call};
use crate::request::data::net::Address;

/// Calls `recv(2)` without waiting, into memory of the program.
pub fn receive(fd: Fd, span: Span, flags: u32) -> Result<usize, Errno> {
    let flags = (flags | MSG_DONTWAIT) as usize;
    // SAFETY: the program passed the memory for this.
    unsafe { call(nr::__NR_recvfrom, [fd as usize, span.address as usize, span.length, flags, 0, 0]) }
}

/// Calls `send(2)` without waiting, from memory of the program.
pub fn send(fd: Fd, span: Span, flags: u32, to: Option<&Address>) -> Result<usize, Errno> {
    let flags = (flags | MSG_DONTWAIT) as usize;
    let (to, to_length) = to.map_or((0, 0), |to| (to.pointer(), to.length()));
    // SAFETY: only reads memory.
    unsafe { call(nr::__NR_sendto, [fd as usize, span.address as usize, span.length, flags, to, to_length]) }
}

/// Calls `recvmsg(2)` without waiting. The header is the engine's; the memory that it names is the program's or the engine's.
pub fn receive_message(fd: Fd, header: &mut msghdr, flags: u32) -> Result<usize, Errno> {
    // SAFETY: callers name only memory that is to be written.
    let received = unsafe { os::receive_message(fd, header, flags) };
    if received.is_ok() {
        rights::received(header);
    }
    received
}

/// Calls `sendmsg(2)` without waiting.
pub fn send_message(fd: Fd, header: &msghdr, flags: u32) -> Result<usize, Errno> {
    let flags = (flags | MSG_DONTWAIT) as usize;
    // SAFETY: only reads memory.
    unsafe { call(nr::__NR_sendmsg, [fd as usize, core::ptr::from_ref(header) as usize, flags, 0, 0, 0]) }
}

/// Calls `accept4(2)`; address and length are in the program's memory.
pub fn accept(fd: Fd, address: u64, length: u64, flags: u32) -> Result<Fd, Errno> {
    // SAFETY: the program passed the memory for this.
    unsafe { call(nr::__NR_accept4, [fd as usize, address as usize, length as usize, flags as usize, 0, 0]) }
        .map(|fd| fd as Fd)
}

/// Calls `connect(2)`.
pub fn connect(fd: Fd, address: &Address) -> Result<usize, Errno> {
    // SAFETY: reads an address of the engine's.
    unsafe { call(nr::__NR_connect, [fd as usize, address.pointer(), address.length(), 0, 0, 0]) }
}

/// Calls `bind(2)`.
pub fn bind(fd: Fd, address: &Address) -> Result<usize, Errno> {
    // SAFETY: reads an address of the engine's.
    unsafe { call(nr::__NR_bind, [fd as usize, address.pointer(), address.length(), 0, 0, 0]) }
}

/// Calls `listen(2)`.
pub fn listen(fd: Fd, backlog: u32) -> Result<usize, Errno> {
    // SAFETY: touches no memory.
    unsafe { call(nr::__NR_listen, [fd as usize, backlog as usize, 0, 0, 0, 0]) }
}

/// Calls `shutdown(2)`.
pub fn shutdown(fd: Fd, how: u32) -> Result<usize, Errno> {
    // SAFETY: touches no memory.
    unsafe { call(nr::__NR_shutdown, [fd as usize, how as usize, 0, 0, 0, 0]) }
}

/// Calls `socket(2)`.
pub fn socket(domain: u32, kind: u32, protocol: u32) -> Result<Fd, Errno> {
    // SAFETY: touches no memory.
    unsafe { call(nr::__NR_socket, [domain as usize, kind as usize, protocol as usize, 0, 0, 0]) }
        .map(|fd| fd as Fd)
}

/// Returns the unread bytes of a TCP connection, from the hint of `TCP_ZEROCOPY_RECEIVE`, where the end of the
/// stream counts as one byte. Nothing is mapped.
///
/// # Errors
/// `EIO` at the end of the stream; `EINVAL` if there is a page or more, and others if the kernel gives no hint.
pub fn unread_hint(fd: Fd) -> Result<u32, Errno> {
    const HINT: usize = 4;
    let (mut words, mut length) = ([0u32; 6], 4 * (HINT as u32 + 1));
    let (words_at, length_at) = (words.as_mut_ptr() as usize, &raw mut length as usize);
    let (level, name) = (IPPROTO_TCP as usize, TCP_ZEROCOPY_RECEIVE as usize);
    let asked = length;
    // SAFETY: reads and writes this many bytes of the engine's, and a length.
    unsafe { call(nr::__NR_getsockopt, [fd as usize, level, name, words_at, length_at, 0]) }?;
    if length == asked { Ok(words[HINT]) } else { Err(Errno::EOPNOTSUPP) }
}

/// True if another protocol is on top of TCP (`TCP_ULP`), such as the kernel's TLS. Then the received data
/// differs from that on the network.
pub fn carries_another_protocol(fd: Fd) -> bool {
    const TCP_ULP: usize = 31;
    let (mut name, mut length) = ([0u8; 16], 16u32);
    let (name_at, length_at) = (name.as_mut_ptr() as usize, &raw mut length as usize);
    // SAFETY: writes sixteen bytes and a length of the engine's.
    let asked = unsafe {
        call(nr::__NR_getsockopt, [fd as usize, IPPROTO_TCP as usize, TCP_ULP, name_at, length_at, 0])
    };
    asked.is_ok() && length > 0
}

/// Returns how many connections wait for a listening TCP socket to accept them; `None` if the kernel does not tell.
pub fn waiting_connections(fd: Fd) -> Option<u32> {
    // Of a listener, `tcpi_unacked` has the length of its queue, and `tcpi_sacked` the longest that is allowed (`tcp_get_info` of
    // net/ipv4/tcp.c). Other kernels that know the option, like gVisor, leave both zero.
    const STATE: usize = 0;
    const UNACKED: usize = 6;
    const SACKED: usize = 7;
    let (mut words, mut length) = ([0u32; SACKED + 1], 4 * (SACKED as u32 + 1));
    let (words_at, length_at) = (words.as_mut_ptr() as usize, &raw mut length as usize);
    let (level, name) = (IPPROTO_TCP as usize, TCP_INFO as usize);
    let asked = length;
    // SAFETY: writes this many bytes and a length of the engine's.
    unsafe { call(nr::__NR_getsockopt, [fd as usize, level, name, words_at, length_at, 0]) }.ok()?;
    let listens = words[STATE].to_ne_bytes()[0] == TCP_LISTEN && words[SACKED] > 0;
    (length == asked && listens).then_some(words[UNACKED])
}

/// True if the peer of a TCP socket that was shut down has not sent its FIN yet.
pub fn waits_for_fin(fd: Fd) -> bool {
    const STATE: usize = 0;
    let (mut info, mut length) = ([0u8; 8], 8u32);
    let (info_at, length_at) = (info.as_mut_ptr() as usize, &raw mut length as usize);
    let (level, name) = (IPPROTO_TCP as usize, TCP_INFO as usize);
    // SAFETY: writes eight bytes and a length of the engine's.
    let asked = unsafe { call(nr::__NR_getsockopt, [fd as usize, level, name, info_at, length_at, 0]) };
    asked.is_ok() && [TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2].contains(&info[STATE])
}

/// The states of a TCP socket that has not received its peer's FIN: `TCP_ESTABLISHED` and the next two.
const TCP_ESTABLISHED: u8 = 1;
const TCP_FIN_WAIT1: u8 = 4;
const TCP_FIN_WAIT2: u8 = 5;
/// The state of a TCP socket that listens.
const TCP_LISTEN: u8 = 10;
