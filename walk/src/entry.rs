//! What a visitor is shown.

use crate::Statx;
use crate::directory::{Counters, Directory};
use std::cell::{Cell, OnceCell};
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// What kind of file an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A regular file.
    File = libc::DT_REG,
    /// A directory.
    Directory = libc::DT_DIR,
    /// A symbolic link that was not followed.
    Link = libc::DT_LNK,
    /// A block device.
    Block = libc::DT_BLK,
    /// A character device.
    Character = libc::DT_CHR,
    /// A FIFO.
    Fifo = libc::DT_FIFO,
    /// A socket.
    Socket = libc::DT_SOCK,
    /// Something else.
    Unknown = libc::DT_UNKNOWN,
}

impl Kind {
    /// By its `DT_*`.
    pub(crate) fn of_number(kind: u8) -> Kind {
        match kind {
            libc::DT_REG => Kind::File,
            libc::DT_DIR => Kind::Directory,
            libc::DT_LNK => Kind::Link,
            libc::DT_BLK => Kind::Block,
            libc::DT_CHR => Kind::Character,
            libc::DT_FIFO => Kind::Fifo,
            libc::DT_SOCK => Kind::Socket,
            _ => Kind::Unknown,
        }
    }

    /// The kind that a file's mode (`stx_mode`) says.
    pub fn of_mode(mode: u32) -> Kind {
        // The two numberings are the same, 12 bits apart.
        Kind::of_number(((mode & libc::S_IFMT) >> 12) as u8)
    }
}

/// Something in a directory, or a root.
pub struct Entry<'a> {
    pub(crate) directory: &'a Arc<Directory>,
    /// The entry itself, where it is a directory that is left.
    pub(crate) itself: Option<&'a Directory>,
    pub(crate) fd: RawFd,
    pub(crate) name: &'a CStr,
    pub(crate) kind: Kind,
    pub(crate) inode: u64,
    pub(crate) root: u32,
    pub(crate) attributes: Option<&'a Statx>,
    pub(crate) asked: u32,
    pub(crate) paths: &'a Cell<Option<Paths>>,
    pub(crate) path: OnceCell<Paths>,
}

impl Entry<'_> {
    /// Its path as `find` prints it: the root's as it was given, then the names down to it.
    pub fn path(&self) -> &[u8] {
        self.path.get_or_init(|| self.paths.take().unwrap_or_default().to(self.directory, self.name)).bytes()
    }

    /// Its name; that of a root is its whole path.
    pub fn name(&self) -> &[u8] {
        self.name.to_bytes()
    }

    /// How deep it lies below its root, which has 0.
    pub fn depth(&self) -> u32 {
        self.directory.depth_inside()
    }

    /// Which of the roots it is or lies below, by number.
    pub fn root(&self) -> usize {
        self.root as usize
    }

    /// What it is; where links are followed, what it leads to.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its inode's number, by its attributes where there are any. Otherwise by its directory, which for a mount point
    /// tells that of what is mounted over.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Its attributes, if they were asked for. They are there at the first visit already where the walk itself needed
    /// them: `STATX_BASIC_STATS` of roots, of what a file system does not tell the kind of, and of links and directories
    /// where links are followed. What they are of is said by [`kind`](Entry::kind).
    pub fn attributes(&self) -> Option<&Statx> {
        self.attributes
    }

    /// The attributes, if all in `mask` were asked for.
    pub fn attributes_with(&self, mask: u32) -> Option<&Statx> {
        self.attributes.filter(|_| self.asked & mask == mask)
    }

    /// By what a call reaches it safely: its directory's descriptor, and its name there.
    pub fn parent(&self) -> Parent<'_> {
        Parent { fd: self.fd, name: self.name }
    }

    /// The counters of the directory in which it is; those of the walk itself for a root.
    pub fn directory_counters(&self) -> &Counters {
        self.directory.counters()
    }

    /// Its own counters, for a directory that is left.
    pub fn counters(&self) -> Option<&Counters> {
        self.itself.map(Directory::counters)
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            self.paths.set(Some(path));
        }
    }
}

/// By what a call reaches an entry: whatever happens to the tree, it acts in this directory.
#[derive(Clone, Copy, Debug)]
pub struct Parent<'a> {
    /// The directory's descriptor; `AT_FDCWD` for a root. It is the walk's, and valid during the call that shows it.
    pub fd: RawFd,
    /// The name there; the path of a root.
    pub name: &'a CStr,
}

/// Where paths are put together: the last one, whose beginning the next one mostly shares.
#[derive(Default)]
pub struct Paths {
    bytes: Vec<u8>,
    /// What the beginning is the path of.
    of: Option<Arc<Directory>>,
    /// How long it is.
    length: usize,
}

impl Paths {
    fn to(mut self, directory: &Arc<Directory>, name: &CStr) -> Paths {
        if !self.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, directory)) {
            self.bytes.clear();
            directory.write_path(&mut self.bytes);
            if !self.bytes.is_empty() && self.bytes.last() != Some(&b'/') {
                self.bytes.push(b'/');
            }
            self.length = self.bytes.len();
            self.of = Some(directory.clone());
        }
        self.bytes.truncate(self.length);
        self.bytes.extend_from_slice(name.to_bytes());
        self
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// An entry's attributes could not be had. Where the walk needed them itself, the entry was not visited.
    Attributes,
    /// A directory could not be opened; the entry was visited.
    Open,
    /// A directory could not be read, or not to its end.
    Read,
    /// A directory that is its own ancestor, whose path this is. It was not visited.
    Loop(Vec<u8>),
}

/// Something went wrong with an entry.
#[derive(Debug)]
pub struct Failure {
    pub(crate) what: What,
    pub(crate) error: io::Error,
    pub(crate) path: Vec<u8>,
    pub(crate) depth: u32,
    pub(crate) root: u32,
}

impl Failure {
    /// What.
    pub fn what(&self) -> &What {
        &self.what
    }

    /// Why.
    pub fn error(&self) -> &io::Error {
        &self.error
    }

    /// The entry's path.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// How deep it lies below its root.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Which of the roots it is or lies below, by number.
    pub fn root(&self) -> usize {
        self.root as usize
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = std::ffi::OsStr::from_bytes(&self.path).display();
        match &self.what {
            What::Loop(ancestor) => {
                write!(f, "{path}: is its own ancestor {}", std::ffi::OsStr::from_bytes(ancestor).display())
            }
            _ => write!(f, "{path}: {}", self.error),
        }
    }
}
