//! Reading directories.

use super::file::{filled, length};
use crate::low::{Sqe, op as low};
use crate::operation::{CqeResult, Files, Operation};
use crate::{BufferMut, Error, Fd};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// See [`read_names`].
#[derive(Debug)]
pub struct ReadNames<B> {
    directory: Fd,
    buffer: B,
    offset: u64,
}

/// Reads names of a directory into a buffer, as many as fit; nothing at the end. [`names`] finds them there.
///
/// No kernel has this operation: over the kernel's `io_uring` (of Linux 6.3 or newer) anyring does it beside it, and its
/// completion comes like all others.
///
/// ```
/// use anyring::{Ring, op};
///
/// let mut ring = Ring::new(8)?;
/// let directory = ring.run(op::open("/proc/self").flags(libc::O_DIRECTORY))??;
/// let (count, bytes) = ring.run(op::read_names(&directory, Vec::with_capacity(32 << 10)))?;
/// count?;
/// assert!(op::names(&bytes).any(|name| name.name == "status"));
/// # Ok::<(), anyring::Error>(())
/// ```
pub fn read_names<B: BufferMut>(directory: &Fd, buffer: B) -> ReadNames<B> {
    ReadNames { directory: directory.clone(), buffer, offset: u64::MAX }
}

impl<B> ReadNames<B> {
    /// From this place on, 0 or the [`next`](Name::next) of a name, rather than from where the directory stands.
    pub fn at(mut self, offset: u64) -> ReadNames<B> {
        self.offset = offset;
        self
    }
}

// SAFETY: the directory and the buffer are its own.
unsafe impl<B: BufferMut> Operation for ReadNames<B> {
    type Output = (Result<usize, Error>, B);

    const NAME: &'static str = "GETDENTS";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        let (pointer, length) = (self.buffer.pointer_mut(), length(self.buffer.capacity()));
        low::Getdents::new(self.directory.target(files), pointer, length).offset(self.offset).build()
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        // SAFETY: the result says how much the engine has written.
        unsafe { filled(self.buffer, came.number()) }
    }
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a> {
    /// The name.
    pub name: &'a OsStr,
    /// `DT_*`; `DT_UNKNOWN` where the file system does not tell.
    pub kind: u8,
    /// The number of its file.
    pub inode: u64,
    /// The place behind it in the directory.
    pub next: u64,
}

/// The names that [`read_names`] has put into a buffer, `.` and `..` among them.
pub fn names(mut bytes: &[u8]) -> impl Iterator<Item = Name<'_>> {
    /// Inode, place, length, kind.
    const HEAD: usize = 8 + 8 + 2 + 1;
    std::iter::from_fn(move || {
        let word = |from: usize| Some(u64::from_ne_bytes(bytes.get(from..from + 8)?.try_into().ok()?));
        let (inode, next) = (word(0)?, word(8)?);
        let length = usize::from(u16::from_ne_bytes(bytes.get(16..18)?.try_into().ok()?));
        let text = bytes.get(HEAD..length)?;
        let name = OsStr::from_bytes(text.split(|&byte| byte == 0).next().unwrap_or_default());
        let kind = *bytes.get(18)?;
        bytes = &bytes[length..];
        Some(Name { name, kind, inode, next })
    })
}
