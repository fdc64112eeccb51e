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

/// Reads as many names of a directory as fit into a buffer, or nothing at the directory's end. [`names`] lists the names in the buffer.
///
/// No kernel has this operation: with the kernel's `io_uring` (Linux 6.3 or newer), anyring performs it in user space, and
/// its completion arrives in the same queue.
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
    /// Starts at this place, 0 or the [`next`](Name::next) of a name, instead of the directory's file position.
    pub fn at(mut self, offset: u64) -> ReadNames<B> {
        self.offset = offset;
        self
    }
}

// SAFETY: the operation owns the directory and the buffer.
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
    /// The kind of the file (`DT_*`); `DT_UNKNOWN` if the file system does not say.
    pub kind: u8,
    /// The inode number of the file.
    pub inode: u64,
    /// The place of the following name in the directory.
    pub next: u64,
}

/// Returns the names that [`read_names`] has put into a buffer, including `.` and `..`.
pub fn names(mut bytes: &[u8]) -> impl Iterator<Item = Name<'_>> {
    /// The bytes before a name: inode, place, length, kind.
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
