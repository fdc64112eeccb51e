//! The kind of a socket, as far as it decides the meaning of readiness.

use linux_raw_sys::net;

use crate::os::{self, Fd};

/// The kind of a socket, by what a receive shows beside its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketKind {
    /// A TCP stream: a receive that came back short has emptied it.
    Tcp,
    /// A Unix stream: it can be asked how much is left, but a receive also stops short at other borders.
    UnixStream,
    /// A TCP socket that listens.
    TcpListener,
    /// Any other socket that listens.
    Listener,
    /// Any other socket.
    Other,
    /// No socket at all.
    NoSocket,
}

impl SocketKind {
    /// Asks the file for its kind.
    pub fn of(fd: Fd) -> SocketKind {
        let option = |name: u32| os::socket_option(fd, name).unwrap_or(0) as u32;
        let Ok(kind) = os::socket_option(fd, net::SO_TYPE) else { return SocketKind::NoSocket };
        let is_tcp = || option(net::SO_PROTOCOL) == net::IPPROTO_TCP as u32;
        if option(net::SO_ACCEPTCONN) != 0 {
            return if is_tcp() { SocketKind::TcpListener } else { SocketKind::Listener };
        }
        if kind as u32 != net::SOCK_STREAM {
            SocketKind::Other
        } else if is_tcp() {
            SocketKind::Tcp
        } else if option(net::SO_DOMAIN) == net::AF_UNIX {
            SocketKind::UnixStream
        } else {
            SocketKind::Other
        }
    }

    /// True if the socket accepts connections, rather than data.
    pub fn listens(self) -> bool {
        matches!(self, SocketKind::TcpListener | SocketKind::Listener)
    }

    /// True if a receive with nothing to be received waits, rather than fails.
    pub fn receives(self) -> bool {
        !self.listens() && self != SocketKind::NoSocket
    }
}
