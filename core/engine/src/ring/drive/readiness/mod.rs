//! Readiness of descriptors: one epoll instance per ring, whose registrations are kept.
//!
//! A descriptor is registered once, edge-triggered, for all events, and stays registered (a fresh connection for incoming events only,
//! until a request waits for room). The last events that epoll reported are kept as *ready bits*: an operation whose bit is clear waits at
//! once, without an attempt; a receive that came back short clears the bit without a second attempt. So a message costs one `recv`, one
//! `send` and a share of one `epoll_wait`; if a server cannot keep up, less (`guesses`).
//!
//! The price: a plain descriptor number can be closed and reused without the engine's knowledge, and then a kept registration is silent for
//! ever. Descriptors that the engine closed or opened, or whose close a front end reported, are forgotten (`Lent::forget_fd`). For the
//! others, unless the front end is known to report all closes (`assets::unseen`), the reactor's next ticks check requests that wait because of the ready bits alone (`Core::recheck`). A program that was seen to
//! reuse a number is likely to reuse the next one: for a while its requests are checked when they begin to wait (`DISTRUST`), because a
//! tick would cost each of its connections milliseconds.

mod arm;
mod entries;
mod guesses;
mod handover;
mod recheck;
mod waiters;

use linux_raw_sys::general::{
    EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLMSG, EPOLLOUT, EPOLLPRI, EPOLLRDBAND, EPOLLRDHUP, EPOLLRDNORM,
    EPOLLWRBAND, EPOLLWRNORM,
};
use linux_raw_sys::net;

use crate::assets::table::NodeIndex;
use crate::os::{self, Fd};

pub use entries::{Known, Readiness};

/// All events for which a request can wait.
pub const ALL_EVENTS: u32 = EPOLLIN
    | EPOLLOUT
    | EPOLLPRI
    | EPOLLERR
    | EPOLLHUP
    | EPOLLRDHUP
    | EPOLLRDNORM
    | EPOLLRDBAND
    | EPOLLWRNORM
    | EPOLLWRBAND
    | EPOLLMSG;

/// Events that say that there is room to send.
const OUTGOING: u32 = EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND;

/// The engine's hold of a file whose descriptor is about to be closed, once a request needs that.
type Kept = Option<(NodeIndex, Fd)>;

/// All other events. A fresh connection has room, which epoll would report at once to a request that waits for its first message.
const INCOMING: u32 = ALL_EVENTS & !OUTGOING;

/// Conditions that do not end: a descriptor that shows one is always worth an attempt.
const STICKY: u32 = EPOLLERR | EPOLLHUP | EPOLLRDHUP;

/// The kind of a socket, by what a receive shows beside its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketKind {
    /// A TCP stream: a receive that came back short has emptied it.
    Tcp,
    /// A TCP stream with a low-water mark (`SO_RCVLOWAT`): epoll does not tell of less data, which a receive takes all the same.
    TcpLowWater,
    /// A Unix stream: it can be asked how much is left, but a receive also stops short at other borders.
    UnixStream,
    /// A TCP socket that listens, for connections without a low-water mark.
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
        let has_mark = || option(net::SO_RCVLOWAT) > 1;
        if option(net::SO_ACCEPTCONN) != 0 {
            // Connections inherit the mark.
            return if is_tcp() && !has_mark() { SocketKind::TcpListener } else { SocketKind::Listener };
        }
        if kind as u32 != net::SOCK_STREAM {
            SocketKind::Other
        } else if is_tcp() {
            if has_mark() { SocketKind::TcpLowWater } else { SocketKind::Tcp }
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

    /// True if a receive waits until epoll tells of data: it does not fail, and epoll tells of all data.
    pub fn receives(self) -> bool {
        !self.listens() && !matches!(self, SocketKind::NoSocket | SocketKind::TcpLowWater)
    }

    /// True if the socket can be asked how much data is left.
    pub fn tells_rest(self) -> bool {
        matches!(self, SocketKind::Tcp | SocketKind::TcpLowWater | SocketKind::UnixStream)
    }
}
