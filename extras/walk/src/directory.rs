//! A directory of the tree, as long as something in it is still to be done.
//!
//! They know their parents, not their paths, so that many that wait cost little. The descriptor of one that is open may
//! be closed while nobody works with it; it is opened again by the way that led there, and must be the same then.

use crate::Statx;
use crate::files::{self, Files, Identity, lock};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Counters that a directory has from the first visit in it until it has been left, for what is summed up on the way; all
/// are 0 at first.
pub type Counters = [AtomicU64; 4];

const CLOSED: RawFd = -1;

/// A directory; the one without a parent is the place of the roots.
pub struct Directory {
    parent: Option<Arc<Directory>>,
    name: CString,
    /// That of what is in it.
    depth_inside: u32,
    pub root: u32,
    pub inode: u64,
    /// Its name may be a link that is followed.
    pub follow: bool,
    /// A directory below this one may be this one itself or one of its ancestors.
    pub may_loop: bool,
    counters: Counters,
    /// For whoever leaves it.
    pub attributes: Option<Box<Statx>>,
    pub asked: u32,
    /// Which it is, where that is known.
    identity: OnceLock<Identity>,
    state: Mutex<State>,
}

struct State {
    fd: RawFd,
    /// The users of the descriptor right now.
    pins: u32,
    /// For how many things it is yet needed: its own reading, what is in it and is to be opened.
    needs: u32,
    /// How much is yet to be done: its own reading, directories in it.
    undone: u32,
    /// By what number it may be closed for a while.
    held: Option<u64>,
}

/// The result of giving something up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// This descriptor is to be closed.
    pub close: Option<RawFd>,
    /// Nothing is to be done below it any more.
    pub finished: bool,
}

/// The holds on a directory that are given up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Give {
    pub pins: u32,
    pub needs: u32,
    pub undone: u32,
}

/// The facts about a directory that is to be read.
pub struct Found<'a> {
    pub name: &'a CStr,
    pub root: u32,
    pub inode: u64,
    pub follow: bool,
    pub may_loop: bool,
    pub attributes: Option<&'a Statx>,
    pub asked: u32,
}

impl Directory {
    /// The place of the roots: paths are relative to the working directory.
    pub fn place_of_roots() -> Arc<Directory> {
        Arc::new(Directory {
            parent: None,
            name: CString::default(),
            depth_inside: 0,
            root: 0,
            inode: 0,
            follow: false,
            may_loop: false,
            counters: Counters::default(),
            attributes: None,
            asked: 0,
            identity: OnceLock::new(),
            state: Mutex::new(State { fd: libc::AT_FDCWD, pins: 1, needs: 1, undone: 1, held: None }),
        })
    }

    /// A directory in this one, not yet open.
    pub fn child(self: &Arc<Directory>, found: &Found<'_>) -> Arc<Directory> {
        Arc::new(Directory {
            parent: Some(self.clone()),
            name: found.name.to_owned(),
            depth_inside: self.depth_inside.saturating_add(1),
            root: found.root,
            inode: found.inode,
            follow: found.follow,
            may_loop: found.may_loop,
            counters: Counters::default(),
            attributes: found.attributes.map(|attributes| Box::new(*attributes)),
            asked: found.asked,
            identity: OnceLock::new(),
            state: Mutex::new(State { fd: CLOSED, pins: 1, needs: 1, undone: 1, held: None }),
        })
    }

    pub fn parent(&self) -> Option<&Arc<Directory>> {
        self.parent.as_ref()
    }

    pub fn name(&self) -> &CStr {
        &self.name
    }

    /// The depth of what is in it.
    pub fn depth_inside(&self) -> u32 {
        self.depth_inside
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Appends its path.
    pub fn write_path(&self, path: &mut Vec<u8>) {
        let mut names = Vec::new();
        let mut at = self;
        while let Some(parent) = &at.parent {
            names.push(at.name.to_bytes());
            at = parent;
        }
        for name in names.into_iter().rev() {
            if path.last().is_some_and(|&last| last != b'/') {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
    }

    /// The path of an entry in it.
    pub fn path_of(&self, name: &CStr) -> Vec<u8> {
        let mut path = Vec::new();
        self.write_path(&mut path);
        if path.last().is_some_and(|&last| last != b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        path
    }

    /// The one of its ancestors, or itself, that is this directory.
    pub fn ancestor(&self, identity: Identity) -> Option<&Directory> {
        let mut at = self;
        while let Some(parent) = &at.parent {
            if at.identity.get() == Some(&identity) {
                return Some(at);
            }
            at = parent;
        }
        None
    }

    /// Which directory it is; asked of its descriptor the first time.
    pub fn identify(&self, fd: RawFd) -> io::Result<Identity> {
        match self.identity.get() {
            Some(&identity) => Ok(identity),
            None => {
                let identity = files::identity(fd)?;
                Ok(*self.identity.get_or_init(|| identity))
            }
        }
    }

    /// The device of its root, if that was opened and is known.
    pub fn root_device(&self) -> Option<u64> {
        let mut at = self;
        while let Some(parent) = at.parent.as_ref().filter(|parent| parent.parent.is_some()) {
            at = parent;
        }
        at.identity.get().map(|identity| identity.0)
    }

    /// Notes that the directory was opened for the first time. Its reader has the pin and the need that it was made with.
    pub fn opened(&self, fd: RawFd) {
        lock(&self.state).fd = fd;
    }

    /// So many more directories in it are to be read.
    pub fn need(&self, count: u32) {
        let mut state = lock(&self.state);
        state.needs += count;
        state.undone += count;
    }

    /// Its descriptor, for who has a pin.
    pub fn fd(&self) -> RawFd {
        lock(&self.state).fd
    }

    /// Its descriptor, which stays open until the pin is given up.
    pub fn pin(self: &Arc<Directory>, files: &Files) -> io::Result<RawFd> {
        match self.pin_open() {
            Some(fd) => Ok(fd),
            None => self.open_again(files),
        }
    }

    /// As [`pin`](Directory::pin), if it is open.
    pub fn pin_open(&self) -> Option<RawFd> {
        let mut state = lock(&self.state);
        if state.fd == CLOSED {
            return None;
        }
        state.pins += 1;
        Some(state.fd)
    }

    /// As [`pin`](Directory::pin), from an open directory in it, by which it may be near.
    pub fn pin_from(self: &Arc<Directory>, below: Option<RawFd>, files: &Files) -> io::Result<RawFd> {
        if let Some(fd) = self.pin_open() {
            return Ok(fd);
        }
        if let Some(below) = below
            && let Ok(fd) = self.open_once(below, c"..", true, files)
        {
            return Ok(fd);
        }
        self.open_again(files)
    }

    /// Gives up what is not needed any more.
    pub fn release(self: &Arc<Directory>, give: Give, files: &Files) -> Released {
        let mut state = lock(&self.state);
        state.pins -= give.pins;
        state.needs -= give.needs;
        state.undone -= give.undone;
        let finished = give.undone > 0 && state.undone == 0;
        if state.pins > 0 || state.fd < 0 {
            return Released { close: None, finished };
        }
        if state.needs > 0 {
            if state.held.is_none() {
                state.held = Some(files.hold(self));
            }
            return Released { close: None, finished };
        }
        let fd = std::mem::replace(&mut state.fd, CLOSED);
        let held = state.held.take();
        drop(state);
        if let Some(number) = held {
            files.let_go(number);
        }
        files.give_back();
        Released { close: Some(fd), finished }
    }

    /// Gives up a pin, and closes what is to be closed.
    pub fn unpin(self: &Arc<Directory>, files: &Files) {
        if let Some(fd) = self.release(Give { pins: 1, ..Give::default() }, files).close {
            files::close(fd);
        }
    }

    /// Closes its descriptor if nobody uses it right now.
    pub fn close_for_now(self: &Arc<Directory>, files: &Files) -> bool {
        let mut state = lock(&self.state);
        state.held = None;
        if state.pins > 0 || state.fd < 0 {
            return false;
        }
        if self.identify(state.fd).is_err() {
            // It could not be known again.
            state.held = Some(files.hold(self));
            return false;
        }
        files::close(std::mem::replace(&mut state.fd, CLOSED));
        files.give_back();
        true
    }

    /// Opens it again from the nearest ancestor that is open, and pins it.
    fn open_again(self: &Arc<Directory>, files: &Files) -> io::Result<RawFd> {
        let mut closed = vec![self.clone()];
        let gone = || io::Error::from_raw_os_error(libc::ENOENT);
        let (mut above, mut fd) = loop {
            let parent = closed.last().and_then(|directory| directory.parent.clone()).ok_or_else(gone)?;
            match parent.pin_open() {
                Some(fd) => break (parent, fd),
                None => closed.push(parent),
            }
        };
        while let Some(next) = closed.pop() {
            let opened = match next.pin_open() {
                Some(fd) => Ok(fd),
                None => next.open_once(fd, &next.name, next.follow, files),
            };
            above.unpin(files);
            fd = opened?;
            above = next;
        }
        Ok(fd)
    }

    /// Opens it by a name in the directory `at`, and pins it.
    fn open_once(
        self: &Arc<Directory>,
        at: RawFd,
        name: &CStr,
        follow: bool,
        files: &Files,
    ) -> io::Result<RawFd> {
        files.reserve();
        let opened = files::open(at, name, follow).and_then(|fd| {
            // One that is only on the way to another may not be known: by that one it shows where it leads.
            let is_same = |identity| self.identity.get().is_none_or(|known| *known == identity);
            let same = files::identity(fd).map(is_same);
            match same {
                Ok(true) => Ok(fd),
                other => {
                    files::close(fd);
                    // Another directory has taken its place.
                    other.and(Err(io::Error::from_raw_os_error(libc::ENOENT)))
                }
            }
        });
        let fd = opened.inspect_err(|_| files.give_back())?;
        let mut state = lock(&self.state);
        state.pins += 1;
        if state.fd != CLOSED {
            // Somebody else was faster.
            let theirs = state.fd;
            drop(state);
            files::close(fd);
            files.give_back();
            return Ok(theirs);
        }
        state.fd = fd;
        Ok(fd)
    }
}

impl Drop for Directory {
    /// One ancestor after the other: a chain of them may be longer than the stack is deep.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.fd >= 0 {
            // The walk was ended early.
            files::close(state.fd);
        }
        let mut next = self.parent.take();
        while let Some(directory) = next {
            next = Arc::into_inner(directory).and_then(|mut directory| directory.parent.take());
        }
    }
}
