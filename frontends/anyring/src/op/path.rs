//! Operations by path.

use super::plain;
use crate::fixed::FixedSlot;
use crate::low::{Sqe, op as low};
use crate::operation::{CqeResult, Files, Operation};
use crate::{Error, Fd};
use std::ffi::{CString, OsStr};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Returns a path as entries have it. A path with a zero byte becomes empty, because the part before the byte would name another file.
fn to_c(path: &Path) -> CString {
    let bytes: &OsStr = path.as_os_str();
    CString::new(bytes.as_bytes()).unwrap_or_default()
}

/// A path, and the directory to which it is relative.
#[derive(Debug)]
struct Location {
    directory: Option<Fd>,
    path: CString,
}

impl Location {
    fn new(path: impl AsRef<Path>) -> Location {
        Location { directory: None, path: to_c(path.as_ref()) }
    }

    fn directory(&self) -> RawFd {
        self.directory.as_ref().map_or(libc::AT_FDCWD, Fd::raw)
    }
}

/// Adds the method that sets the directory of an operation's path.
macro_rules! from_directory {
    ($type:ty, $field:ident) => {
        impl $type {
            /// Resolves the path relative to this directory, instead of the working directory.
            pub fn from_directory(mut self, directory: &Fd) -> $type {
                self.$field.directory = Some(directory.clone());
                self
            }
        }
    };
}

/// See [`open`].
#[derive(Debug)]
pub struct Open {
    location: Location,
    flags: i32,
    mode: u32,
}

/// Opens a file, for reading unless another access mode is set.
///
/// ```
/// use anyring::{Ring, op};
///
/// let mut ring = Ring::new(8)?;
/// let file = ring.run(op::open("/dev/null").write())??;
/// let (count, _) = ring.run(op::write(&file, "lost"))?;
/// assert_eq!(count?, 4);
/// # Ok::<(), anyring::Error>(())
/// ```
pub fn open(path: impl AsRef<Path>) -> Open {
    Open { location: Location::new(path), flags: libc::O_RDONLY | libc::O_CLOEXEC, mode: 0o666 }
}

impl Open {
    fn access(mut self, access: i32) -> Open {
        self.flags = self.flags & !libc::O_ACCMODE | access;
        self
    }

    /// Opens the file for writing.
    pub fn write(self) -> Open {
        self.access(libc::O_WRONLY)
    }

    /// Opens the file for reading and writing.
    pub fn read_write(self) -> Open {
        self.access(libc::O_RDWR)
    }

    /// Creates the file if it does not exist.
    pub fn create(self) -> Open {
        self.flags(libc::O_CREAT)
    }

    /// Creates the file; an existing file is an error.
    pub fn create_new(self) -> Open {
        self.flags(libc::O_CREAT | libc::O_EXCL)
    }

    /// Truncates the file: its content is lost.
    pub fn truncate(self) -> Open {
        self.flags(libc::O_TRUNC)
    }

    /// Appends all writes to the file.
    pub fn append(self) -> Open {
        self.flags(libc::O_APPEND)
    }

    /// Adds `O_*` flags.
    pub fn flags(mut self, flags: i32) -> Open {
        self.flags |= flags;
        self
    }

    /// Sets the permissions of a new file, from which the process's umask is removed. The default is 0o666.
    pub fn mode(mut self, mode: u32) -> Open {
        self.mode = mode;
        self
    }

    /// Puts the file into the ring's table of files, without a descriptor.
    pub fn fixed(self, slot: FixedSlot) -> OpenFixed {
        OpenFixed { open: self, slot: Some(slot) }
    }

    fn entry(&self) -> low::OpenAt {
        low::OpenAt::new(self.location.directory(), self.location.path.as_ptr())
            .flags(self.flags)
            .mode(self.mode)
    }
}

from_directory!(Open, location);

// SAFETY: the operation owns the path and the directory.
unsafe impl Operation for Open {
    type Output = Result<Fd, Error>;

    const NAME: &'static str = "OPENAT";

    fn opens_descriptor(&self) -> bool {
        true
    }

    fn entry(&mut self, _files: Files<'_>) -> Sqe {
        Open::entry(self).build()
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        came.opened()
    }
}

/// See [`Open::fixed`].
#[derive(Debug)]
pub struct OpenFixed {
    open: Open,
    slot: Option<FixedSlot>,
}

// SAFETY: the operation owns the path, the directory and the place.
unsafe impl Operation for OpenFixed {
    type Output = Result<Fd, Error>;

    const NAME: &'static str = "OPENAT";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        let place = FixedSlot::place_of(self.slot.as_ref(), files);
        // `O_CLOEXEC` is for descriptors.
        let entry = Open::entry(&self.open).slot(low::Slot::At(place));
        entry.flags(self.open.flags & !libc::O_CLOEXEC).build()
    }

    fn settle(&mut self, result: i32) {
        super::net::settle(&mut self.slot, result);
    }

    unsafe fn output(mut self, came: CqeResult) -> Self::Output {
        super::net::fixed(self.slot.take(), came)
    }
}

/// The attributes of a file that `statx(2)` returns.
#[derive(Clone)]
pub struct Metadata(Box<libc::statx>);

impl std::fmt::Debug for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metadata")
            .field("mode", &self.mode())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Metadata {
    /// The file's type and permissions, as `st_mode`.
    pub fn mode(&self) -> u32 {
        self.0.stx_mode.into()
    }

    fn is(&self, kind: u32) -> bool {
        self.mode() & libc::S_IFMT == kind
    }

    /// True if the file is a regular file.
    pub fn is_file(&self) -> bool {
        self.is(libc::S_IFREG)
    }

    /// True if the file is a directory.
    pub fn is_dir(&self) -> bool {
        self.is(libc::S_IFDIR)
    }

    /// True if the file is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.is(libc::S_IFLNK)
    }

    /// The file's size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "as in the standard library")]
    pub fn len(&self) -> u64 {
        self.0.stx_size
    }

    /// The time of the last change of the file's content.
    pub fn modified(&self) -> SystemTime {
        let time = self.0.stx_mtime;
        let part = Duration::from_nanos(time.tv_nsec.into());
        match u64::try_from(time.tv_sec) {
            Ok(seconds) => SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + part,
            Err(_) => SystemTime::UNIX_EPOCH - Duration::from_secs(time.tv_sec.unsigned_abs()) + part,
        }
    }

    /// All attributes that were asked for.
    pub fn statx(&self) -> &libc::statx {
        &self.0
    }
}

/// See [`metadata`].
pub struct Statx {
    location: Location,
    flags: i32,
    mask: u32,
    metadata: Metadata,
}

impl std::fmt::Debug for Statx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Statx").field("location", &self.location).finish_non_exhaustive()
    }
}

/// Reads the attributes of the file at a path.
pub fn metadata(path: impl AsRef<Path>) -> Statx {
    // SAFETY: a structure of integers.
    let empty: libc::statx = unsafe { std::mem::zeroed() };
    let metadata = Metadata(Box::new(empty));
    Statx { location: Location::new(path), flags: 0, mask: libc::STATX_BASIC_STATS, metadata }
}

/// Reads the attributes of an open file, which must have a descriptor.
pub fn metadata_of(file: &Fd) -> Statx {
    metadata("").flags(libc::AT_EMPTY_PATH).from_directory(file)
}

impl Statx {
    /// Adds `AT_*` flags: `AT_SYMLINK_NOFOLLOW`, for example.
    pub fn flags(mut self, flags: i32) -> Statx {
        self.flags |= flags;
        self
    }

    /// Selects the attributes (`STATX_*`). The default is `STATX_BASIC_STATS`.
    pub fn mask(mut self, mask: u32) -> Statx {
        self.mask = mask;
        self
    }
}

from_directory!(Statx, location);

// SAFETY: the operation owns the path, the directory and the attributes.
unsafe impl Operation for Statx {
    type Output = Result<Metadata, Error>;

    const NAME: &'static str = "STATX";

    fn entry(&mut self, _files: Files<'_>) -> Sqe {
        let target = &raw mut *self.metadata.0;
        low::Statx::new(self.location.directory(), self.location.path.as_ptr(), target)
            .flags(self.flags)
            .mask(self.mask)
            .build()
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        came.result.map(|_| self.metadata)
    }
}

/// See [`unlink`] and [`remove_dir`].
#[derive(Debug)]
pub struct Unlink {
    location: Location,
    flags: i32,
}

/// Removes a file's name.
pub fn unlink(path: impl AsRef<Path>) -> Unlink {
    Unlink { location: Location::new(path), flags: 0 }
}

/// Removes an empty directory.
pub fn remove_dir(path: impl AsRef<Path>) -> Unlink {
    Unlink { location: Location::new(path), flags: libc::AT_REMOVEDIR }
}

from_directory!(Unlink, location);
plain!(unit Unlink, "UNLINKAT", |it, _files| {
    low::UnlinkAt::new(it.location.directory(), it.location.path.as_ptr()).flags(it.flags).build()
});

/// See [`create_dir`].
#[derive(Debug)]
pub struct CreateDir {
    location: Location,
    mode: u32,
}

/// Makes a directory.
pub fn create_dir(path: impl AsRef<Path>) -> CreateDir {
    CreateDir { location: Location::new(path), mode: 0o777 }
}

impl CreateDir {
    /// Sets the permissions, from which the process's umask is removed. The default is 0o777.
    pub fn mode(mut self, mode: u32) -> CreateDir {
        self.mode = mode;
        self
    }
}

from_directory!(CreateDir, location);
plain!(unit CreateDir, "MKDIRAT", |it, _files| {
    low::MkDirAt::new(it.location.directory(), it.location.path.as_ptr()).mode(it.mode).build()
});

/// See [`symlink`].
#[derive(Debug)]
pub struct Symlink {
    target: CString,
    location: Location,
}

/// Makes a symbolic link at a path, to `target`.
pub fn symlink(target: impl AsRef<Path>, path: impl AsRef<Path>) -> Symlink {
    Symlink { target: to_c(target.as_ref()), location: Location::new(path) }
}

from_directory!(Symlink, location);
plain!(unit Symlink, "SYMLINKAT", |it, _files| {
    low::SymlinkAt::new(it.target.as_ptr(), it.location.directory(), it.location.path.as_ptr()).build()
});

/// See [`rename`].
#[derive(Debug)]
pub struct Rename {
    from: Location,
    to: Location,
    flags: u32,
}

/// Renames a file.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Rename {
    Rename { from: Location::new(from), to: Location::new(to), flags: 0 }
}

impl Rename {
    /// Sets `RENAME_*` flags.
    pub fn flags(mut self, flags: u32) -> Rename {
        self.flags = flags;
        self
    }

    /// Resolves the new path relative to this directory.
    pub fn to_directory(mut self, directory: &Fd) -> Rename {
        self.to.directory = Some(directory.clone());
        self
    }
}

from_directory!(Rename, from);
plain!(unit Rename, "RENAMEAT", |it, _files| {
    let (from, to) = (&it.from, &it.to);
    low::RenameAt::new(from.directory(), from.path.as_ptr(), to.directory(), to.path.as_ptr())
        .flags(it.flags)
        .build()
});

/// See [`hard_link`].
#[derive(Debug)]
pub struct HardLink {
    from: Location,
    to: Location,
}

/// Gives a file a second name.
pub fn hard_link(original: impl AsRef<Path>, path: impl AsRef<Path>) -> HardLink {
    HardLink { from: Location::new(original), to: Location::new(path) }
}

impl HardLink {
    /// Resolves the new path relative to this directory.
    pub fn to_directory(mut self, directory: &Fd) -> HardLink {
        self.to.directory = Some(directory.clone());
        self
    }
}

from_directory!(HardLink, from);
plain!(unit HardLink, "LINKAT", |it, _files| {
    let (from, to) = (&it.from, &it.to);
    low::LinkAt::new(from.directory(), from.path.as_ptr(), to.directory(), to.path.as_ptr()).build()
});

/// See [`set_xattr`].
#[derive(Debug)]
pub struct SetXattr<B> {
    file: Fd,
    name: CString,
    value: B,
}

/// Sets an extended attribute of an open file.
pub fn set_xattr<B: crate::Buffer>(file: &Fd, name: impl AsRef<OsStr>, value: B) -> SetXattr<B> {
    SetXattr { file: file.clone(), name: to_c(Path::new(name.as_ref())), value }
}

// SAFETY: the operation owns file, name and value.
unsafe impl<B: crate::Buffer> Operation for SetXattr<B> {
    type Output = (Result<(), Error>, B);

    const NAME: &'static str = "FSETXATTR";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        let (value, length) = (self.value.pointer().cast(), super::file::length(self.value.length()));
        low::FSetXattr::new(self.file.target(files), self.name.as_ptr(), value, length).build()
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        (came.number().map(drop), self.value)
    }
}

/// See [`get_xattr`].
#[derive(Debug)]
pub struct GetXattr<B> {
    file: Fd,
    name: CString,
    value: B,
}

/// Reads an extended attribute of an open file into a buffer.
pub fn get_xattr<B: crate::BufferMut>(file: &Fd, name: impl AsRef<OsStr>, value: B) -> GetXattr<B> {
    GetXattr { file: file.clone(), name: to_c(Path::new(name.as_ref())), value }
}

// SAFETY: the operation owns file, name and value.
unsafe impl<B: crate::BufferMut> Operation for GetXattr<B> {
    type Output = (Result<usize, Error>, B);

    const NAME: &'static str = "FGETXATTR";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        let length = super::file::length(self.value.capacity());
        let value = self.value.pointer_mut().cast();
        low::FGetXattr::new(self.file.target(files), self.name.as_ptr(), value, length).build()
    }

    unsafe fn output(self, came: CqeResult) -> Self::Output {
        // With a capacity of 0, the result is the length of the attribute.
        if self.value.capacity() == 0 {
            return super::file::written(self.value, came.number());
        }
        // SAFETY: the result says how much the engine has written.
        unsafe { super::file::filled(self.value, came.number()) }
    }
}
