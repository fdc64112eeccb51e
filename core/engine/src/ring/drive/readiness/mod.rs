//! Readiness of descriptors: one epoll instance per ring, registrations that are kept.
//!
//! A descriptor is registered once, edge-triggered, for everything, and stays so (a fresh connection only for
//! what comes in, until somebody waits for room). What epoll reported last is kept as *ready bits*: an operation
//! that finds its bit clear need not try, it can wait at once; a receive that came back short clears the bit
//! without a second try. This is what brings the cost of a message down to one `recv`, one `send` and a share
//! of one `epoll_wait`; where a server cannot keep up, to less (`guesses`).
//!
//! The price: a plain descriptor number can be closed and reused behind our back, and then a kept
//! registration is silent for ever. Descriptors that the engine closed or opened, or whose close a
//! front end reported, are forgotten (`Core::forget_fd`); for the rest, requests that waited on the word of the
//! ready bits alone are looked at once more by the reactor's next ticks (`Core::recheck`). A program that was
//! seen to reuse a number is likely to reuse the next one: for a while its requests are looked at when they begin
//! to wait (`DISTRUST`), for a tick would be milliseconds for each of its connections.

mod arm;
mod entries;
mod guesses;
mod handover;
mod recheck;
mod socket_kind;
mod waiters;

use linux_raw_sys::general::{
    EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLMSG, EPOLLOUT, EPOLLPRI, EPOLLRDBAND, EPOLLRDHUP, EPOLLRDNORM,
    EPOLLWRBAND, EPOLLWRNORM,
};

use crate::assets::table::NodeIndex;
use crate::os::Fd;

pub use entries::{Known, Readiness};
pub use socket_kind::SocketKind;

/// Everything that can be waited for.
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

/// The hold of a file whose descriptor is about to be closed, once a request needs that.
type Kept = Option<(NodeIndex, Fd)>;

/// All other events. A fresh connection has room, and epoll would report that at once to whoever waits for its first message.
const INCOMING: u32 = ALL_EVENTS & !OUTGOING;

/// Conditions that do not pass: a descriptor that shows one is always worth a try.
const STICKY: u32 = EPOLLERR | EPOLLHUP | EPOLLRDHUP;
