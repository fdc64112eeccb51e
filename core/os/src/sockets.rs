//! Options of sockets.
//!
//! A sandbox may refuse `getsockopt`. Then other calls tell the type of a socket, whether it listens, and whether it has an error; other
//! options are unknown.

use linux_raw_sys::ioctl::{FIONREAD, TIOCOUTQ};
use linux_raw_sys::net::{
    AF_INET, AF_INET6, IPPROTO_RAW, IPPROTO_TCP, IPPROTO_UDP, IPPROTO_UDPLITE, MSG_DONTWAIT, MSG_PEEK,
    SO_ACCEPTCONN, SO_COOKIE, SO_DOMAIN, SO_ERROR, SO_LINGER, SO_PROTOCOL, SO_TYPE, SOCK_DGRAM, SOCK_STREAM,
    SOL_SOCKET,
};

use crate::{Fd, call, nr};
use anyring_abi::Errno;

/// Returns an `int` option at `SOL_SOCKET`.
pub fn socket_option(fd: Fd, name: u32) -> Result<i32, Errno> {
    match socket_option_at(fd, SOL_SOCKET, name) {
        Err(refusal @ (Errno::ENOSYS | Errno::EPERM)) => find_by_other_calls(fd, name, refusal),
        answer => answer,
    }
}

/// Returns an integer option at any level.
pub fn socket_option_at(fd: Fd, level: u32, name: u32) -> Result<i32, Errno> {
    let mut value = 0i32;
    get(fd, level, name, &mut value).map(|()| value)
}

/// Returns the socket's cookie (`SO_COOKIE`), which is unique until the system is rebooted.
pub fn socket_cookie(fd: Fd) -> Result<u64, Errno> {
    let mut value = 0u64;
    get(fd, SOL_SOCKET, SO_COOKIE, &mut value).map(|()| value)
}

/// Returns how many seconds a close of the socket waits for its data to be sent (`SO_LINGER`); `None` if it does not wait.
pub fn linger_seconds(fd: Fd) -> Result<Option<u32>, Errno> {
    let [on, seconds] = {
        let mut linger = [0u32; 2];
        get(fd, SOL_SOCKET, SO_LINGER, &mut linger).map(|()| linger)?
    };
    Ok((on != 0).then_some(seconds))
}

/// Reads an integer option by `getsockopt(2)`.
fn get<T: Copy>(fd: Fd, level: u32, name: u32, value: &mut T) -> Result<(), Errno> {
    let mut length = size_of::<T>() as u32;
    let (value_at, length_at) = ((&raw mut *value).addr(), (&raw mut length).addr());
    // SAFETY: writes an integer and a length of ours.
    unsafe { call(nr::__NR_getsockopt, [fd as usize, level as usize, name as usize, value_at, length_at, 0]) }
        .map(drop)
}

/// Sets an integer option of a socket.
pub fn set_socket_option(fd: Fd, level: u32, name: u32, value: i32) -> Result<(), Errno> {
    let (value_at, length) = (&raw const value as usize, size_of::<i32>());
    // SAFETY: reads an integer of ours.
    unsafe { call(nr::__NR_setsockopt, [fd as usize, level as usize, name as usize, value_at, length, 0]) }
        .map(drop)
}

/// Finds out an option of a socket by other calls, because `getsockopt` is refused.
#[cold]
fn find_by_other_calls(fd: Fd, name: u32, refusal: Errno) -> Result<i32, Errno> {
    let family = family(fd)?;
    match name {
        SO_DOMAIN => Ok(family.into()),
        SO_TYPE => protocol_name(fd).map(|name| kind_by(&name) as i32),
        SO_PROTOCOL if [AF_INET, AF_INET6].contains(&family.into()) => {
            protocol_name(fd).map(|name| protocol_by(&name) as i32)
        }
        SO_PROTOCOL => Ok(0),
        SO_ACCEPTCONN => Ok(listens(fd).into()),
        SO_ERROR => Ok(error(fd)),
        _ => Err(refusal),
    }
}

/// Returns the address family of the socket.
fn family(fd: Fd) -> Result<u16, Errno> {
    let (mut family, mut length) = (0u16, size_of::<u16>() as u32);
    let (to, length_at) = ((&raw mut family).addr(), (&raw mut length).addr());
    // SAFETY: writes as much of an address as there is room for, and its length.
    unsafe { call(nr::__NR_getsockname, [fd as usize, to, length_at, 0, 0, 0]) }.map(|_| family)
}

/// Returns the kernel's name of the socket's protocol.
fn protocol_name(fd: Fd) -> Result<[u8; 32], Errno> {
    let (name, mut value) = (c"system.sockprotoname", [0u8; 32]);
    let arguments = [fd as usize, name.as_ptr().addr(), value.as_mut_ptr().addr(), value.len(), 0, 0];
    // SAFETY: reads a string, and writes bytes of ours.
    unsafe { call(nr::__NR_fgetxattr, arguments) }.map(|_| value)
}

/// Returns the socket type by a protocol name. Before Linux 5.15, the name is the same for all Unix sockets.
fn kind_by(name: &[u8]) -> u32 {
    let streams = [&b"TCP"[..], b"MPTCP", b"UNIX-STREAM"];
    if streams.iter().any(|stream| name.starts_with(stream)) { SOCK_STREAM } else { SOCK_DGRAM }
}

/// Returns the Internet protocol with this name; `IPPROTO_RAW` if unknown.
fn protocol_by(name: &[u8]) -> u32 {
    let known = [
        (&b"TCP"[..], IPPROTO_TCP),
        (b"UDP-", IPPROTO_UDPLITE),
        (b"UDPL", IPPROTO_UDPLITE),
        (b"UDP", IPPROTO_UDP),
    ];
    known.iter().find(|(known, _)| name.starts_with(known)).map_or(IPPROTO_RAW, |&(_, protocol)| protocol)
        as u32
}

/// Returns the number of bytes that can be received or read now, of sockets and of files that tell it.
pub fn unread(fd: Fd) -> Result<usize, Errno> {
    queued(fd, FIONREAD)
}

/// Returns the number of sent bytes that are still in a socket: with TCP those not acknowledged, with UDP those held back or still on
/// this machine.
pub fn unsent(fd: Fd) -> Result<usize, Errno> {
    queued(fd, TIOCOUTQ)
}

fn queued(fd: Fd, request: u32) -> Result<usize, Errno> {
    let mut count = 0i32;
    // SAFETY: writes an integer of ours.
    unsafe { call(nr::__NR_ioctl, [fd as usize, request as usize, (&raw mut count).addr(), 0, 0, 0]) }?;
    Ok(count.max(0) as usize)
}

/// True if the socket listens: then a stream socket refuses to tell how much can be read.
fn listens(fd: Fd) -> bool {
    unread(fd) == Err(Errno::EINVAL)
}

/// Returns the error of a socket's connection that the next call would report; other errors are not found.
fn error(fd: Fd) -> i32 {
    let (mut byte, flags) = (0u8, MSG_PEEK | MSG_DONTWAIT);
    let arguments = [fd as usize, (&raw mut byte).addr(), 1, flags as usize, 0, 0];
    // SAFETY: writes one byte of ours.
    match unsafe { call(nr::__NR_recvfrom, arguments) } {
        Ok(_) | Err(Errno::EAGAIN) => 0,
        Err(errno) => -errno.negated(),
    }
}
