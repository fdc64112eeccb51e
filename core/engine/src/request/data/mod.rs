//! The data that operations keep in a request between their steps.

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

/// A vectored transfer's segments.
pub type Vectors = Box<[IoVector]>;

/// The data that an operation keeps between its steps. It moves with the request: into a worker's hands while
/// one works on it, and back.
#[derive(Default)]
pub enum OpData {
    /// Nothing.
    #[default]
    None,
    /// EPOLL_CTL: the event.
    EpollEvent(EpollEvent),
    /// TIMEOUT, LINK_TIMEOUT, TIMEOUT_REMOVE.
    Timeout(Timeout),
    /// Of the operations on sockets.
    Net(net::Data),
    /// A vectored transfer's segments, those done already empty.
    Vectors(Vectors),
    /// An open under way.
    Open(Open),
    /// A path.
    Path(Path),
    /// Two of them.
    TwoPaths(Path, Path),
    /// GETDENTS: the description through which it reads.
    Directory(Description),
    /// The file that a splice takes from.
    Input(OwnedFd),
    /// The data of an operation that nothing else knows.
    Own(Box<dyn Any + Send>),
}

impl OpData {
    /// Keeps what one operation alone knows.
    pub fn own<T: Any + Send>(data: T) -> OpData {
        OpData::Own(Box::new(data))
    }

    /// The data of [`OpData::Own`], if they are of this type.
    pub fn as_own<T: Any>(&self) -> Option<&T> {
        match self {
            OpData::Own(data) => data.downcast_ref(),
            _ => None,
        }
    }

    /// The data of [`OpData::Own`], to be changed.
    pub fn as_own_mut<T: Any>(&mut self) -> Option<&mut T> {
        match self {
            OpData::Own(data) => data.downcast_mut(),
            _ => None,
        }
    }
}
