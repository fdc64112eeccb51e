//! A directory of the tree, which exists while something in it is still to be done.
//!
//! A directory knows its parent, not its path, so that many waiting directories cost little. The descriptor of an open directory may be
//! closed while nothing uses it; it is opened again by the same path, and must be the same directory then.

use crate::Statx;
use crate::files::{self, Files, Identity, lock};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Counters of a directory, from the first visit in it until it has been left, for sums over the tree. All are 0 at
/// first.
pub type Counters = [AtomicU64; 4];

const CLOSED: RawFd = -1;

/// A directory; the one without a parent is the virtual parent of the roots.
pub struct Directory {
    parent: Option<Arc<Directory>>,
    name: CString,
    /// The depth of the entries in the directory.
    depth_inside: u32,
    pub root: u32,
    pub inode: u64,
    /// True if the name may be a symbolic link that is followed.
    pub follow: bool,
    /// True if a directory below may be this directory itself or one of its ancestors.
    pub may_loop: bool,
    counters: Counters,
    /// The attributes for the visit on leaving.
    pub attributes: Option<Box<Statx>>,
    pub asked: u32,
    /// The device and inode number, if known.
    identity: OnceLock<Identity>,
    state: Mutex<State>,
}

struct State {
    fd: RawFd,
    /// The number of current users of the descriptor.
    pins: u32,
    /// The number of steps that need the descriptor: the directory's own reading, and entries to be opened.
    needs: u32,
    /// The number of unfinished steps: the directory's own reading, and the directories in it.
    undone: u32,
    /// The number under which [`Files`] may close the descriptor temporarily.
    held: Option<u64>,
}

/// The result of [`Directory::release`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// The descriptor that the caller must close.
    pub close: Option<RawFd>,
    /// True if nothing is to be done below the directory any more.
    pub finished: bool,
}

/// The numbers of pins, needs and steps that [`Directory::release`] ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Give {
    pub pins: u32,
    pub needs: u32,
    pub undone: u32,
}

/// The known facts about a directory that is to be read.
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
    /// Creates the virtual parent of the roots: their paths are relative to the working directory.
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

    /// Creates a directory in this one, not yet open.
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

    /// Returns the depth of the entries in the directory.
    pub fn depth_inside(&self) -> u32 {
        self.depth_inside
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Appends the directory's path.
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

    /// Returns the path of an entry in the directory.
    pub fn path_of(&self, name: &CStr) -> Vec<u8> {
        let mut path = Vec::new();
        self.write_path(&mut path);
        if path.last().is_some_and(|&last| last != b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        path
    }

    /// Returns the directory with this identity, among this one and its ancestors.
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

    /// Returns the directory's identity, which is queried by the descriptor the first time.
    pub fn identify(&self, fd: RawFd) -> io::Result<Identity> {
        match self.identity.get() {
            Some(&identity) => Ok(identity),
            None => {
                let identity = files::identity(fd)?;
                Ok(*self.identity.get_or_init(|| identity))
            }
        }
    }

    /// Returns the device of the directory's root, if the root was opened and its identity is known.
    pub fn root_device(&self) -> Option<u64> {
        let mut at = self;
        while let Some(parent) = at.parent.as_ref().filter(|parent| parent.parent.is_some()) {
            at = parent;
        }
        at.identity.get().map(|identity| identity.0)
    }

    /// Notes that the directory was opened for the first time. Its reader has the pin and the need from its creation.
    pub fn opened(&self, fd: RawFd) {
        lock(&self.state).fd = fd;
    }

    /// Adds `count` steps: directories in this one that are to be opened and read.
    pub fn need(&self, count: u32) {
        let mut state = lock(&self.state);
        state.needs += count;
        state.undone += count;
    }

    /// Returns the descriptor, for a caller with a pin.
    pub fn fd(&self) -> RawFd {
        lock(&self.state).fd
    }

    /// Pins the directory and returns its descriptor, which stays open until the pin is released.
    pub fn pin(self: &Arc<Directory>, files: &Files) -> io::Result<RawFd> {
        match self.pin_open() {
            Some(fd) => Ok(fd),
            None => self.open_again(files),
        }
    }

    /// As [`pin`](Directory::pin), but only if the directory is open.
    pub fn pin_open(&self) -> Option<RawFd> {
        let mut state = lock(&self.state);
        if state.fd == CLOSED {
            return None;
        }
        state.pins += 1;
        Some(state.fd)
    }

    /// As [`pin`](Directory::pin), by `..` of an open directory in this one, if possible.
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

    /// Ends the given numbers of pins, needs and steps.
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

    /// Releases a pin, and closes the descriptor if it is not needed any more.
    pub fn unpin(self: &Arc<Directory>, files: &Files) {
        if let Some(fd) = self.release(Give { pins: 1, ..Give::default() }, files).close {
            files::close(fd);
        }
    }

    /// Closes the descriptor temporarily if there is no pin; returns true if it was closed.
    pub fn close_for_now(self: &Arc<Directory>, files: &Files) -> bool {
        let mut state = lock(&self.state);
        state.held = None;
        if state.pins > 0 || state.fd < 0 {
            return false;
        }
        if self.identify(state.fd).is_err() {
            // Without an identity the directory could not be recognized after it is opened again.
            state.held = Some(files.hold(self));
            return false;
        }
        files::close(std::mem::replace(&mut state.fd, CLOSED));
        files.give_back();
        true
    }

    /// Opens the directory again from its nearest open ancestor, and pins it.
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

    /// Opens the directory by a name in the directory `at`, and pins it.
    fn open_once(
        self: &Arc<Directory>,
        at: RawFd,
        name: &CStr,
        follow: bool,
        files: &Files,
    ) -> io::Result<RawFd> {
        files.reserve();
        let opened = files::open(at, name, follow).and_then(|fd| {
            // A directory on the way may have no known identity; the identity of the last one shows whether the way is right.
            let is_same = |identity| self.identity.get().is_none_or(|known| *known == identity);
            let same = files::identity(fd).map(is_same);
            match same {
                Ok(true) => Ok(fd),
                other => {
                    files::close(fd);
                    // Another directory is in its place.
                    other.and(Err(io::Error::from_raw_os_error(libc::ENOENT)))
                }
            }
        });
        let fd = opened.inspect_err(|_| files.give_back())?;
        let mut state = lock(&self.state);
        state.pins += 1;
        if state.fd != CLOSED {
            // Another thread has opened the directory meanwhile.
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
    /// Drops the ancestors in a loop: recursion along a long chain would overflow the stack.
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
