//! Data that operations keep in a request between their steps.

pub mod address;
pub mod message;
pub mod net;
mod open;

use alloc::boxed::Box;
use core::any::Any;

use crate::assets::directories::Description;
use crate::feature::timeouts::Timeout;
use crate::os::user::{IoVector, Path};
use crate::os::{EpollEvent, OwnedFd};

pub use open::Open;

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
