//! Data that operations keep in a request between their steps.

pub mod net;

use alloc::boxed::Box;
use core::any::Any;

use linux_raw_sys::general::open_how;

use crate::assets::directories::Description;
use crate::feature::timeouts::Timeout;
use crate::os::user::{IoVector, Path};
use crate::os::{EpollEvent, OwnedFd};

/// The segments of a vectored transfer.
pub type Vectors = Box<[IoVector]>;

/// Data that an operation keeps between its steps. It is moved to the worker that works on the request, and
/// back.
#[derive(Default)]
pub enum OpData {
    /// Nothing.
    #[default]
    None,
    /// The event of EPOLL_CTL.
    EpollEvent(EpollEvent),
    /// The time of TIMEOUT, LINK_TIMEOUT or TIMEOUT_REMOVE.
    Timeout(Timeout),
    /// Data of an operation on a socket.
    Net(net::Data),
    /// The segments of a vectored transfer; transferred ones are empty.
    Vectors(Vectors),
    /// Data of OPENAT or OPENAT2.
    Open(Open),
    /// A path.
    Path(Path),
    /// Two paths.
    TwoPaths(Path, Path),
    /// The open file description through which GETDENTS reads.
    Directory(Description),
    /// The file that a splice reads from.
    Input(OwnedFd),
    /// The serial number of the ring that POLL_ADD polls and, until the poll begins, a duplicate of that ring's stand-in.
    Polled {
        /// The serial number.
        ring: u64,
        /// The duplicate. The stand-in of the request's own ring needs none.
        stand_in: Option<OwnedFd>,
    },
    /// Data of a type that only its operation knows.
    Own(Box<dyn Any + Send>),
}

impl OpData {
    /// Wraps data of a type that only its operation knows.
    pub fn own<T: Any + Send>(data: T) -> OpData {
        OpData::Own(Box::new(data))
    }

    /// Returns the data of [`OpData::Own`], if it has this type.
    pub fn as_own<T: Any>(&self) -> Option<&T> {
        match self {
            OpData::Own(data) => data.downcast_ref(),
            _ => None,
        }
    }

    /// Returns the data of [`OpData::Own`] for changes, if it has this type.
    pub fn as_own_mut<T: Any>(&mut self) -> Option<&mut T> {
        match self {
            OpData::Own(data) => data.downcast_mut(),
            _ => None,
        }
    }
}

/// The arguments of an open in progress.
pub struct Open {
    /// The path to open.
    pub path: Path,
    /// Flags, mode and resolution.
    pub how: open_how,
    /// Unknown flags are refused, as by `openat2(2)`; `openat(2)` ignores them.
    pub strict: bool,
    /// The open waits for the other end of a FIFO, instead of failing or succeeding immediately.
    pub patient: bool,
    /// The file goes into a slot, so it is opened close-on-exec: no program executed meanwhile may inherit it.
    pub in_slot: bool,
}
