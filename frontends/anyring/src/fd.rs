//! Files that operations of a safe ring name.

use crate::engine;
use crate::fixed::FixedSlot;
use crate::low::op::Target;
use crate::operation::Files;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::Arc;

/// A file: a descriptor that is open as long as something refers to it, or a place in a ring's table of files.
///
/// Clones refer to the same file. An operation keeps a clone until the operation has ended, so a descriptor is not closed,
/// and its number not used again, during an operation. A place in a table belongs to one ring: operations of
/// another ring do not find the file (`EBADF`, or `EINVAL` for operations that close it).
///
/// ```
/// use anyring::{Fd, Ring, op};
///
/// let file = Fd::from(std::fs::File::open("/dev/zero").map_err(|_| "no such device").unwrap());
/// let mut ring = Ring::new(8)?;
/// let (count, bytes) = ring.run(op::read(&file, Vec::with_capacity(16)))?;
/// assert_eq!((count?, bytes), (16, vec![0; 16]));
/// # Ok::<(), anyring::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Fd(Arc<Kind>);

#[derive(Debug)]
enum Kind {
    Descriptor(Descriptor),
    Fixed(FixedSlot),
}

/// A descriptor whose close is reported to anyring's engine.
#[derive(Debug)]
struct Descriptor(ManuallyDrop<OwnedFd>);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let fd = unsafe { ManuallyDrop::take(&mut self.0) };
        engine::closing(fd.as_raw_fd());
    }
}

impl Fd {
    /// Returns the file in a place of the table.
    pub(crate) fn fixed(slot: FixedSlot) -> Fd {
        Fd(Arc::new(Kind::Fixed(slot)))
    }

    /// Returns how an entry for the ring with these files names this file. A place in another ring's table becomes a place that
    /// no table has.
    #[inline]
    pub fn target(&self, files: Files<'_>) -> Target {
        match &*self.0 {
            Kind::Descriptor(fd) => Target::Fd(fd.0.as_raw_fd()),
            Kind::Fixed(slot) => Target::Fixed(slot.place(files)),
        }
    }

    /// The descriptor, or `None` for a place in a table.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &*self.0 {
            Kind::Descriptor(fd) => Some(fd.0.as_fd()),
            Kind::Fixed(_) => None,
        }
    }

    /// Returns the descriptor for operations that accept descriptors only, or -1 for a place in a table.
    pub(crate) fn raw(&self) -> RawFd {
        self.descriptor().map_or(-1, |fd| fd.as_raw_fd())
    }

    /// True if the file is a place in a ring's table of files.
    pub fn is_fixed(&self) -> bool {
        matches!(*self.0, Kind::Fixed(_))
    }

    /// Turns the file into its descriptor, which the caller owns.
    ///
    /// # Errors
    /// The file again, if something else refers to it (an operation in flight, for example), or if it is a place in
    /// a table.
    pub fn into_owned(self) -> Result<OwnedFd, Fd> {
        if self.is_fixed() {
            return Err(self);
        }
        match Arc::try_unwrap(self.0).map_err(Fd)? {
            Kind::Descriptor(fd) => {
                let fd = ManuallyDrop::new(fd);
                // SAFETY: `fd` is not dropped.
                Ok(unsafe { OwnedFd::from_raw_fd(fd.0.as_raw_fd()) })
            }
            Kind::Fixed(slot) => Err(Fd::fixed(slot)),
        }
    }

    /// Turns the file into one that is to be closed, if nothing else refers to it.
    pub(crate) fn into_closing(self) -> Result<Closing, Fd> {
        if !self.is_fixed() {
            return self.into_owned().map(Closing::Descriptor);
        }
        match Arc::try_unwrap(self.0).map_err(Fd)? {
            Kind::Fixed(slot) => Ok(Closing::Slot(slot)),
            kind => Err(Fd(Arc::new(kind))),
        }
    }
}

/// A file to be closed.
#[derive(Debug)]
pub(crate) enum Closing {
    Descriptor(OwnedFd),
    Slot(FixedSlot),
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Fd {
        Fd(Arc::new(Kind::Descriptor(Descriptor(ManuallyDrop::new(fd)))))
    }
}

macro_rules! from {
    ($($type:ty)*) => { $(impl From<$type> for Fd {
        fn from(file: $type) -> Fd {
            OwnedFd::from(file).into()
        }
    })* };
}
from! { File TcpStream TcpListener UdpSocket UnixStream UnixListener UnixDatagram }
