//! Addresses of sockets.

use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A socket address in the system's format.
#[derive(Clone, Copy)]
pub struct Address {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl Address {
    /// Returns an address with room for an address of any family.
    pub(crate) fn empty() -> Address {
        // SAFETY: a structure of integers.
        let storage = unsafe { MaybeUninit::zeroed().assume_init() };
        Address { storage, length: size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    fn of<T: Copy>(address: T) -> Address {
        let mut new = Address::empty();
        new.length = size_of::<T>() as libc::socklen_t;
        // SAFETY: the storage has room for every kind of address.
        unsafe { (&raw mut new.storage).cast::<T>().write(address) };
        new
    }

    /// Returns the address of a Unix socket at a path.
    ///
    /// # Errors
    /// `InvalidInput` if the path is too long for a socket address, or contains a zero byte.
    pub fn unix(path: impl AsRef<Path>) -> io::Result<Address> {
        let bytes = path.as_ref().as_os_str().as_bytes();
        // SAFETY: a structure of integers.
        let mut address: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
        if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in address.sun_path.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        let mut new = Address::of(address);
        new.length = (offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1) as libc::socklen_t;
        Ok(new)
    }

    /// Converts an IPv4 or IPv6 address; other families give `None`.
    pub fn to_socket_addr(&self) -> Option<SocketAddr> {
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says that the storage holds an IPv4 address.
                let address = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that the storage holds an IPv6 address.
                let address = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in6>() };
                let (ip, port) = (Ipv6Addr::from(address.sin6_addr.s6_addr), u16::from_be(address.sin6_port));
                Some(SocketAddrV6::new(ip, port, address.sin6_flowinfo, address.sin6_scope_id).into())
            }
            _ => None,
        }
    }

    /// The address family (`AF_*`).
    pub fn family(&self) -> i32 {
        self.storage.ss_family.into()
    }

    pub(crate) fn length(&self) -> libc::socklen_t {
        self.length
    }

    pub(crate) fn set_length(&mut self, length: libc::socklen_t) {
        self.length = length.min(size_of::<libc::sockaddr_storage>() as libc::socklen_t);
    }

    pub(crate) fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub(crate) fn pointer_mut(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }

    pub(crate) fn length_mut(&mut self) -> *mut libc::socklen_t {
        &raw mut self.length
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        match address {
            SocketAddr::V4(address) => Address::of(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(address) => Address::of(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            }),
        }
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.to_socket_addr() {
            Some(address) => write!(f, "Address({address})"),
            None => write!(f, "Address(family {})", self.family()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        for text in ["127.0.0.1:80", "[::1]:443", "[fe80::1]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Address::from(address).to_socket_addr(), Some(address));
        }
        assert_eq!(Address::unix("/run/x").unwrap().length(), 9);
        assert!(Address::unix("x".repeat(200)).is_err());
    }
}
