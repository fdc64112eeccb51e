//! Names of descriptors: sent to the reader when a request uses a descriptor whose name the reader does not know.
//!
//! A number may refer to another file when it is used again. So its file is compared, by device and inode, with the file whose
//! name was sent. A socket's name also changes when it is connected or bound, and is sent each time until it has a peer.

use core::fmt::Write;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use linux_raw_sys::general::{S_IFMT, S_IFSOCK};
use linux_raw_sys::net::{
    AF_INET, AF_INET6, AF_UNIX, SO_ACCEPTCONN, SO_TYPE, SOCK_DGRAM, SOCK_SEQPACKET, SOCK_STREAM,
};

use crate::os::sync::atomic::{AtomicU64, Ordering};
use crate::os::{self, Fd, nr};

/// Names of descriptors up to this number are remembered; those of others are sent each time.
const REMEMBERED: usize = 4096;
/// The maximal length of a name in bytes.
pub const LONGEST: usize = 512;

/// The file of each descriptor when its name was sent; 0 for none.
pub struct Names([AtomicU64; REMEMBERED]);

impl Default for Names {
    fn default() -> Names {
        Names([const { AtomicU64::new(0) }; REMEMBERED])
    }
}

/// A descriptor's name.
pub struct Name {
    text: [u8; LONGEST],
    length: usize,
}

impl Names {
    /// Returns the name of `fd`, if the reader does not know it.
    pub fn to_tell(&self, fd: Fd) -> Option<Name> {
        let identity = os::identity(fd).ok()?;
        // Never 0: the lowest bit is always set.
        let file = (identity.inode ^ identity.device.rotate_left(40)) << 1 | 1;
        let place = self.0.get(fd as usize);
        if place.is_some_and(|told| told.load(Ordering::Relaxed) == file) {
            return None;
        }
        let (name, stays) = named(fd, identity.mode);
        if let Some(place) = place.filter(|_| stays) {
            place.store(file, Ordering::Relaxed);
        }
        Some(name)
    }
}

/// Returns the name of a descriptor by its file's mode, and whether the name is final.
fn named(fd: Fd, mode: u32) -> (Name, bool) {
    let is_socket = mode & S_IFMT == S_IFSOCK;
    if is_socket { of_socket(fd) } else { (of_file(fd), true) }
}

impl Name {
    /// Returns the current name of `fd`.
    pub fn of(fd: Fd) -> Option<Name> {
        Some(named(fd, os::identity(fd).ok()?.mode).0)
    }

    const EMPTY: Name = Name { text: [0; LONGEST], length: 0 };

    /// Returns the name's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.text[..self.length]
    }
}

impl core::fmt::Write for Name {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let room = &mut self.text[self.length..];
        let taken = text.len().min(room.len());
        room[..taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}

fn of_file(fd: Fd) -> Name {
    let mut name = Name::EMPTY;
    name.length = os::target_of(fd, &mut name.text).unwrap_or(0);
    name
}

/// Returns a socket's name, and whether it is final.
fn of_socket(fd: Fd) -> (Name, bool) {
    let (own, peer) = (End::of(fd, nr::__NR_getsockname), End::of(fd, nr::__NR_getpeername));
    let kind = os::socket_option(fd, SO_TYPE).unwrap_or(0) as u32;
    let listens = os::socket_option(fd, SO_ACCEPTCONN).is_ok_and(|listens| listens != 0);
    let mut name = Name::EMPTY;
    // A name that is too long is truncated.
    let _ = match (own, peer) {
        (End::Internet(own), End::Internet(peer)) => write!(name, "{} {own}->{peer}", transport(kind)),
        (End::Internet(own), _) => write!(name, "{} {own}", transport(kind)),
        (End::Unix(own), End::Unix(peer)) => {
            let named = if own.length > 0 { own } else { peer };
            name.write_str("UNIX").and_then(|()| named.write(&mut name))
        }
        (End::Unix(own), _) => name.write_str("UNIX").and_then(|()| own.write(&mut name)),
        _ => {
            name = of_file(fd);
            Ok(())
        }
    };
    (name, listens || !matches!(peer, End::None))
}

fn transport(kind: u32) -> &'static str {
    match kind {
        SOCK_STREAM => "TCP",
        SOCK_DGRAM => "UDP",
        SOCK_SEQPACKET => "SEQPACKET",
        _ => "IP",
    }
}

/// One end of a socket.
#[derive(Clone, Copy)]
enum End {
    None,
    Internet(SocketAddr),
    Unix(UnixName),
    Other,
}

/// The name of a Unix socket; that of an abstract socket begins with a zero.
#[derive(Clone, Copy)]
struct UnixName {
    bytes: [u8; 108],
    length: usize,
}

impl UnixName {
    fn write(&self, name: &mut Name) -> core::fmt::Result {
        let Some(first) = self.bytes[..self.length].first() else { return Ok(()) };
        name.write_char(' ')?;
        let is_abstract = *first == 0;
        let bytes = &self.bytes[usize::from(is_abstract)..self.length];
        if is_abstract {
            name.write_char('@')?;
        }
        let end = if is_abstract { None } else { bytes.iter().position(|&byte| byte == 0) };
        for &byte in &bytes[..end.unwrap_or(bytes.len())] {
            name.write_char(if byte.is_ascii_graphic() { byte.into() } else { '?' })?;
        }
        Ok(())
    }
}

impl End {
    fn of(fd: Fd, call: u32) -> End {
        const FAMILY: usize = size_of::<u16>();
        let (mut bytes, mut length) = ([0_u8; 128], 128_u32);
        let arguments = [fd as usize, bytes.as_mut_ptr() as usize, &raw mut length as usize, 0, 0, 0];
        // SAFETY: writes an address and a length of the engine's.
        if unsafe { os::call(call, arguments) }.is_err() || (length as usize) < FAMILY {
            return End::None;
        }
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        match u32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            AF_INET => {
                let address: [u8; 4] = core::array::from_fn(|at| bytes[4 + at]);
                End::Internet(SocketAddr::new(Ipv4Addr::from(address).into(), port))
            }
            AF_INET6 => {
                let address: [u8; 16] = core::array::from_fn(|at| bytes[8 + at]);
                End::Internet(SocketAddr::new(Ipv6Addr::from(address).into(), port))
            }
            AF_UNIX => {
                let path: [u8; 108] = core::array::from_fn(|at| bytes[FAMILY + at]);
                End::Unix(UnixName { bytes: path, length: (length as usize - FAMILY).min(path.len()) })
            }
            _ => End::Other,
        }
    }
}
