//! Entries, as a visitor sees them.

use crate::Statx;
use crate::directory::{Counters, Directory};
use std::cell::{Cell, UnsafeCell};
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// The kind of file that an entry is.
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
    /// Any other kind, or a kind that is not known.
    Unknown = libc::DT_UNKNOWN,
}

impl Kind {
    /// Converts a `DT_*` number.
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

    /// Returns the kind in a file's mode (`stx_mode`).
    pub fn of_mode(mode: u32) -> Kind {
        // The two numberings are the same, 12 bits apart.
        Kind::of_number(((mode & libc::S_IFMT) >> 12) as u8)
    }
}

/// An entry of a directory, or a root.
pub struct Entry<'a> {
    pub(crate) directory: &'a Arc<Directory>,
    /// The entry itself, if it is a directory that is left.
    pub(crate) itself: Option<&'a Directory>,
    pub(crate) fd: RawFd,
    pub(crate) name: &'a CStr,
    pub(crate) kind: Kind,
    pub(crate) inode: u64,
    pub(crate) root: u32,
    pub(crate) attributes: Option<&'a Statx>,
    pub(crate) asked: u32,
    pub(crate) path: Path<'a>,
}

impl Entry<'_> {
    /// Returns the path as `find` prints it: the root's path as given, then the names down to the entry.
    pub fn path(&self) -> &[u8] {
        self.path.get(self.directory, self.name)
    }

    /// Returns the name; the name of a root is its whole path.
    pub fn name(&self) -> &[u8] {
        self.name.to_bytes()
    }

    /// Returns the depth below the root, which has depth 0.
    pub fn depth(&self) -> u32 {
        self.directory.depth_inside()
    }

    /// Returns the number of the root that the entry is or lies below.
    pub fn root(&self) -> usize {
        self.root as usize
    }

    /// Returns the kind of file that the entry is; of a link that is followed, the kind of its target.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the inode number: from the attributes if there are any, else from the directory, which for a mount
    /// point has the number of the directory underneath.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns the attributes, if they were queried. The first visit has attributes where the walk itself needs them:
    /// `STATX_BASIC_STATS` of roots, of entries of unknown kind, of links that are followed, and of directories that may be
    /// their own ancestors. [`kind`](Entry::kind) tells whether the attributes are those of a link or of its target.
    pub fn attributes(&self) -> Option<&Statx> {
        self.attributes
    }

    /// Returns the attributes, if all in `mask` were queried.
    pub fn attributes_with(&self, mask: u32) -> Option<&Statx> {
        self.attributes.filter(|_| self.asked & mask == mask)
    }

    /// Returns the descriptor of the directory and the name there, by which a call reaches the entry safely.
    pub fn parent(&self) -> Parent<'_> {
        Parent { fd: self.fd, name: self.name }
    }

    /// Returns the counters of the directory that has the entry; for a root, those of the walk itself.
    pub fn directory_counters(&self) -> &Counters {
        self.directory.counters()
    }

    /// Returns the counters of the entry itself, if it is a directory that is left.
    pub fn counters(&self) -> Option<&Counters> {
        self.itself.map(Directory::counters)
    }
}

/// The means by which a call reaches an entry: whatever happens to the tree, the call acts in this directory.
#[derive(Clone, Copy, Debug)]
pub struct Parent<'a> {
    /// The directory's descriptor; `AT_FDCWD` for a root. The walk owns it; it is valid during the call of the visitor. -1
    /// when a directory is left, unless [`Options::open_until_left`](crate::Options::open_until_left) is set.
    pub fd: RawFd,
    /// The name in that directory; the path of a root.
    pub name: &'a CStr,
}

/// A buffer for paths. It keeps the last path, whose beginning the next path mostly shares.
#[derive(Default)]
pub struct Paths {
    bytes: Vec<u8>,
    /// The directory whose path the beginning is.
    of: Option<Arc<Directory>>,
    /// The length of that beginning, with its slash.
    length: usize,
}

impl Paths {
    /// Sets the path to that of `name` in `directory`.
    fn put(&mut self, directory: &Arc<Directory>, name: &CStr) {
        if !self.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, directory)) {
            self.go_to(directory);
        }
        self.bytes.truncate(self.length);
        self.bytes.extend_from_slice(name.to_bytes());
    }

    /// Changes the directory, from the nearest common ancestor: paths may be long.
    fn go_to(&mut self, directory: &Arc<Directory>) {
        let (mut from, mut to) = (self.of.as_deref(), &**directory);
        let mut down = Vec::new();
        loop {
            while let Some(here) = from.filter(|from| from.depth_inside() > to.depth_inside()) {
                let is_root = here.depth_inside() == 1;
                self.length = if is_root { 0 } else { self.length - here.name().count_bytes() - 1 };
                from = here.parent().map(|parent| &**parent);
            }
            if from.is_some_and(|from| std::ptr::eq(from, to)) {
                break;
            }
            let Some(parent) = to.parent() else {
                self.length = 0;
                break;
            };
            down.push(to.name().to_bytes());
            to = parent;
        }
        self.bytes.truncate(self.length);
        for name in down.into_iter().rev() {
            self.bytes.extend_from_slice(name);
            // A root may end with a slash.
            if !self.bytes.ends_with(b"/") {
                self.bytes.push(b'/');
            }
        }
        self.length = self.bytes.len();
        self.of = Some(directory.clone());
    }
}

/// The path of an entry, built on demand.
pub struct Path<'a> {
    paths: &'a UnsafeCell<Paths>,
    is_put: Cell<bool>,
}

impl<'a> Path<'a> {
    pub fn new(paths: &'a mut Paths) -> Path<'a> {
        Path { paths: UnsafeCell::from_mut(paths), is_put: Cell::new(false) }
    }

    /// Returns the path of `name` in `directory`.
    fn get(&self, directory: &Arc<Directory>, name: &CStr) -> &[u8] {
        if !self.is_put.replace(true) {
            // SAFETY: `paths` was borrowed exclusively, one thread uses it, and no reference was returned yet.
            unsafe { &mut *self.paths.get() }.put(directory, name);
        }
        // SAFETY: the path does not change any more.
        unsafe { &(*self.paths.get()).bytes }
    }
}

/// The step that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The query of an entry's attributes failed. If the walk needed them itself, the entry was not visited.
    Attributes,
    /// The open of a directory failed; the entry was visited.
    Open,
    /// The reading of a directory failed, at its beginning or later.
    Read,
    /// A directory is its own ancestor, whose path is given. The entry was not visited.
    Loop(Vec<u8>),
}

/// A failure of one step for an entry.
#[derive(Debug)]
pub struct Failure {
    pub(crate) what: What,
    pub(crate) error: io::Error,
    pub(crate) path: Vec<u8>,
    pub(crate) depth: u32,
    pub(crate) root: u32,
}

impl Failure {
    /// Returns the step that failed.
    pub fn what(&self) -> &What {
        &self.what
    }

    /// Returns the error.
    pub fn error(&self) -> &io::Error {
        &self.error
    }

    /// Returns the entry's path.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns the entry's depth below its root.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the number of the root that the entry is or lies below.
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
