//! Verdicts on entries: the visitor's decision, and what the walk itself needs to know before.

use crate::directory::{Directory, Found};
use crate::entry::{Path, Paths};
use crate::{Entry, Failure, Follow, Kind, Options, Statx, Step, Visitor, What, files};
use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The attributes that the walk itself queries.
const OWN: u32 = libc::STATX_BASIC_STATS | libc::STATX_MNT_ID;

/// The state that all threads of a walk share.
pub struct Walk<'a, V: Visitor> {
    pub options: &'a Options,
    pub visitor: &'a V,
    pub files: files::Files,
    /// Directories that a thread processes concurrently.
    pub slots: usize,
    pub quit: AtomicBool,
}

/// The state that a thread of a walk has for itself.
pub struct Own<V: Visitor> {
    pub local: V::Local,
    pub paths: Paths,
}

/// The known facts about an entry.
#[derive(Clone, Copy)]
pub struct Candidate<'a> {
    pub name: &'a CStr,
    pub kind: Kind,
    pub inode: u64,
    pub root: u32,
    /// The attributes, and the mask with which they were queried.
    pub attributes: Option<(&'a Statx, u32)>,
}

/// The next step for an entry.
pub enum Verdict {
    /// Query these attributes.
    Attributes(u32),
    /// Read this directory.
    Read(Arc<Directory>),
    /// Do not read this directory, which lies too deep; only leave it.
    Leave(Arc<Directory>),
    Done,
}

impl<V: Visitor> Walk<'_, V> {
    pub fn has_quit(&self) -> bool {
        self.quit.load(Ordering::Relaxed)
    }

    pub fn own(&self) -> Own<V> {
        Own { local: self.visitor.local(), paths: Paths::default() }
    }

    /// True if links are followed in `directory`.
    pub fn follows(&self, directory: &Directory) -> bool {
        match self.options.follow {
            Follow::Never => false,
            Follow::Roots => directory.parent().is_none(),
            Follow::Always => true,
        }
    }

    /// True if the walk itself needs attributes of an entry before the visitor sees it.
    fn needs(&self, directory: &Directory, kind: Kind) -> bool {
        kind == Kind::Unknown
            || kind == Kind::Link && self.follows(directory)
            || kind == Kind::Directory && directory.may_loop
    }

    /// True if a directory below an entry of `directory` can be its own ancestor.
    fn may_loop(&self, directory: &Directory, attributes: Option<&Statx>) -> bool {
        if directory.parent().is_some() {
            return directory.may_loop;
        }
        let known = attributes.filter(|attributes| attributes.stx_mask & libc::STATX_MNT_ID != 0);
        self.options.follow == Follow::Always
            || self.options.mounts.may_loop(known.map(|attributes| attributes.stx_mnt_id))
    }

    /// True if directories must have descriptors until they have been left.
    pub fn keeps_open(&self) -> bool {
        self.options.post_order && self.options.open_until_left
    }

    /// Shows an entry of `directory`, whose descriptor is `fd`.
    pub fn judge(
        &self,
        own: &mut Own<V>,
        directory: &Arc<Directory>,
        fd: RawFd,
        candidate: Candidate<'_>,
    ) -> Verdict {
        let Candidate { name, mut kind, mut inode, root, attributes } = candidate;
        let asked = attributes.map_or(0, |(_, asked)| asked);
        match attributes {
            None if self.needs(directory, kind) => return Verdict::Attributes(OWN),
            None => (),
            Some((attributes, _)) => {
                kind = Kind::of_mode(attributes.stx_mode.into());
                inode = attributes.stx_ino;
                if directory.may_loop
                    && kind == Kind::Directory
                    && let Some(ancestor) = directory.ancestor(files::identity_of(attributes))
                {
                    let mut path = Vec::new();
                    ancestor.write_path(&mut path);
                    let error = io::Error::from_raw_os_error(libc::ELOOP);
                    self.failed(own, directory, name, root, What::Loop(path), error);
                    return Verdict::Done;
                }
            }
        }
        let attributes = attributes.map(|(attributes, _)| attributes);
        let entry = Entry {
            directory,
            itself: None,
            fd,
            name,
            kind,
            inode,
            root,
            attributes,
            asked,
            path: Path::new(&mut own.paths),
        };
        match self.visitor.visit(&mut own.local, &entry) {
            Step::Attributes(mask) if attributes.is_none() || mask & !asked != 0 => {
                Verdict::Attributes(mask | asked)
            }
            Step::Attributes(_) | Step::Skip => Verdict::Done,
            Step::Quit => {
                self.quit.store(true, Ordering::Relaxed);
                Verdict::Done
            }
            Step::Descend if kind == Kind::Directory => {
                let too_deep = self.options.max_depth.is_some_and(|most| directory.depth_inside() >= most);
                if too_deep && !self.options.post_order {
                    return Verdict::Done;
                }
                let kept = attributes.filter(|_| self.options.post_order);
                let follow = self.follows(directory);
                let may_loop = self.may_loop(directory, attributes);
                let found = Found { name, root, inode, follow, may_loop, attributes: kept, asked };
                let child = directory.child(&found);
                if too_deep { Verdict::Leave(child) } else { Verdict::Read(child) }
            }
            Step::Descend => Verdict::Done,
        }
    }

    /// True if an opened directory is to be read: with `same_device`, if it is on its root's device.
    pub fn belongs(&self, directory: &Directory, fd: RawFd) -> bool {
        if !self.options.same_device && !directory.may_loop {
            return true;
        }
        match directory.identify(fd) {
            Ok((device, _)) => {
                !self.options.same_device || directory.root_device().is_none_or(|root| root == device)
            }
            Err(_) => true,
        }
    }

    /// Shows a directory on leaving, when nothing is to be done below it any more. `below`: its own descriptor, if it
    /// is open.
    pub fn leave(&self, own: &mut Own<V>, directory: &Arc<Directory>, below: Option<RawFd>) {
        let Some(parent) = directory.parent() else { return };
        if self.has_quit() {
            return;
        }
        let fd = match self.keeps_open().then(|| parent.pin_from(below, &self.files)) {
            None => -1,
            Some(Ok(fd)) => fd,
            Some(Err(error)) => {
                // A directory that cannot be found any more has no descriptor, but it can still be left.
                self.failed(own, parent, directory.name(), directory.root, What::Open, error);
                -1
            }
        };
        let entry = Entry {
            directory: parent,
            itself: Some(directory),
            fd,
            name: directory.name(),
            kind: Kind::Directory,
            inode: directory.inode,
            root: directory.root,
            attributes: directory.attributes.as_deref(),
            asked: directory.asked,
            path: Path::new(&mut own.paths),
        };
        if self.visitor.leave(&mut own.local, &entry) == Step::Quit {
            self.quit.store(true, Ordering::Relaxed);
        }
        if fd != -1 {
            parent.unpin(&self.files);
        }
    }

    pub fn failed(
        &self,
        own: &mut Own<V>,
        directory: &Directory,
        name: &CStr,
        root: u32,
        what: What,
        error: io::Error,
    ) {
        let (path, depth) = (directory.path_of(name), directory.depth_inside());
        self.visitor.failed(&mut own.local, &Failure { what, error, path, depth, root });
    }
}
