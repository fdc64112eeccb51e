//! Entries as a visitor is shown them.

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
    pub(crate) path: Path<'a>,
}

impl Entry<'_> {
    /// Its path as `find` prints it: the root's as it was given, then the names down to it.
    pub fn path(&self) -> &[u8] {
        self.path.get(self.directory, self.name)
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

    /// The kind of file that the entry is; where links are followed, that it leads to.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its inode's number, by its attributes where there are any. Otherwise by its directory, which for a mount point
    /// tells that of what is mounted over.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Its attributes, if they were asked for. They are there at the first visit already where the walk itself needed
    /// them: `STATX_BASIC_STATS` of roots, of what a file system does not tell the kind of, of links that are followed, and of
    /// directories that may be their own ancestors. What they are of is said by [`kind`](Entry::kind).
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

/// By what a call reaches an entry: whatever happens to the tree, it acts in this directory.
#[derive(Clone, Copy, Debug)]
pub struct Parent<'a> {
    /// The directory's descriptor; `AT_FDCWD` for a root. It is the walk's, and valid during the call that shows it. -1 where
    /// a directory is left and [`Options::open_until_left`](crate::Options::open_until_left) does not ask for more.
    pub fd: RawFd,
    /// The name there; the path of a root.
    pub name: &'a CStr,
}

/// Where paths are put together: the last one, whose beginning the next one mostly shares.
#[derive(Default)]
pub struct Paths {
    bytes: Vec<u8>,
    /// The directory that the beginning is the path of.
    of: Option<Arc<Directory>>,
    /// How long it is, with the slash behind it.
    length: usize,
}

impl Paths {
    /// Makes it the path of `name` in `directory`.
    fn put(&mut self, directory: &Arc<Directory>, name: &CStr) {
        if !self.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, directory)) {
            self.go_to(directory);
        }
        self.bytes.truncate(self.length);
        self.bytes.extend_from_slice(name.to_bytes());
    }

    /// Goes to another directory, from the nearest one that both are in: paths may be long.
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
            // A root may end with one.
            if !self.bytes.ends_with(b"/") {
                self.bytes.push(b'/');
            }
        }
        self.length = self.bytes.len();
        self.of = Some(directory.clone());
    }
}

/// The path of an entry, put together when somebody asks for it.
pub struct Path<'a> {
    paths: &'a UnsafeCell<Paths>,
    is_put: Cell<bool>,
}

impl<'a> Path<'a> {
    pub fn new(paths: &'a mut Paths) -> Path<'a> {
        Path { paths: UnsafeCell::from_mut(paths), is_put: Cell::new(false) }
    }

    /// That of `name` in `directory`.
    fn get(&self, directory: &Arc<Directory>, name: &CStr) -> &[u8] {
        if !self.is_put.replace(true) {
            // SAFETY: it was borrowed exclusively for this, which is for one thread, and nothing was given out yet.
            unsafe { &mut *self.paths.get() }.put(directory, name);
        }
        // SAFETY: it does not change any more.
        unsafe { &(*self.paths.get()).bytes }
    }
}

/// The step that went wrong.
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
    /// The step that went wrong.
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
