//! Files, as operations of a safe ring name them.

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
/// Clones are the same file. An operation keeps one until it has ended, so no descriptor is closed, and its number
/// used again, under an operation's feet. A place in a table is one of the ring that it comes from: operations of
/// another ring do not find it (`EBADF`, or `EINVAL` where they close it).
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

/// A descriptor whose end anyring's engine hears of.
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
    /// A file of the table.
    pub(crate) fn fixed(slot: FixedSlot) -> Fd {
        Fd(Arc::new(Kind::Fixed(slot)))
    }

    /// How entries for a ring with these files name it. A place in the table of another ring becomes one that no table
    /// has.
    #[inline]
    pub fn target(&self, files: Files<'_>) -> Target {
        match &*self.0 {
            Kind::Descriptor(fd) => Target::Fd(fd.0.as_raw_fd()),
            Kind::Fixed(slot) => Target::Fixed(slot.place(files)),
        }
    }

    /// The descriptor; none where it is a place in a table.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &*self.0 {
            Kind::Descriptor(fd) => Some(fd.0.as_fd()),
            Kind::Fixed(_) => None,
        }
    }

    /// For operations that take descriptors only: a number that is none, where it is a place in a table.
    pub(crate) fn raw(&self) -> RawFd {
        self.descriptor().map_or(-1, |fd| fd.as_raw_fd())
    }

    /// True if it is a place in a ring's table of files.
    pub fn is_fixed(&self) -> bool {
        matches!(*self.0, Kind::Fixed(_))
    }

    /// The descriptor, to be owned by the caller.
    ///
    /// # Errors
    /// The file again, where something else refers to it, an operation under way perhaps, or where it is a place in
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

    /// The file that is to be closed, which nobody else refers to.
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
