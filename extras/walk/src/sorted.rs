//! A walk in a stable order, by one thread.

use crate::directory::{Directory, Give};
use crate::files::{self, Files};
use crate::judge::{Candidate, Own, Verdict, Walk};
use crate::names::{is_dots, name_at};
use crate::{Kind, Options, Root, Statx, Visitor, What};
use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const BUFFER_BYTES: usize = 64 << 10;

/// The names of a directory, sorted.
#[derive(Default)]
struct Names {
    /// Records, one after the other: kind, inode, name, NUL.
    bytes: Vec<u8>,
    /// The offsets of the records, sorted by name.
    order: Vec<u32>,
}

struct Frame {
    directory: Arc<Directory>,
    names: Names,
    next: usize,
}

struct Sorted<'a, V: Visitor> {
    walk: Walk<'a, V>,
    roots: &'a [Root],
    own: Own<V>,
    buffer: Vec<u8>,
}

/// Walks through the trees below `roots`.
pub fn walk<V: Visitor>(roots: &[Root], options: &Options, visitor: &V) {
    let files = Files::new(options.descriptors);
    let walk = Walk { options, visitor, files, slots: 1, quit: AtomicBool::new(false) };
    let own = walk.own();
    let mut sorted = Sorted { walk, roots, own, buffer: vec![0; BUFFER_BYTES] };
    sorted.run();
    sorted.walk.files.clear();
    visitor.finish(sorted.own.local);
}

impl<V: Visitor> Sorted<'_, V> {
    fn run(&mut self) {
        let place = Directory::place_of_roots();
        for (index, root) in self.roots.iter().enumerate() {
            if self.walk.has_quit() {
                return;
            }
            let candidate = Candidate {
                name: &root.path,
                kind: Kind::Unknown,
                inode: 0,
                root: index as u32,
                attributes: None,
            };
            if let Some(frame) = self.visit(&place, libc::AT_FDCWD, candidate) {
                self.descend(frame);
            }
        }
    }

    /// Visits everything below a directory.
    fn descend(&mut self, frame: Frame) {
        let mut frames = vec![frame];
        while let Some(frame) = frames.last_mut() {
            if let Some(deeper) = self.go_on(frame) {
                frames.push(deeper);
            } else if let Some(frame) = frames.pop() {
                self.end(&frame.directory);
            }
            if self.walk.has_quit() {
                return;
            }
        }
    }

    /// Visits the entries of a directory, up to a directory to be entered.
    fn go_on(&mut self, frame: &mut Frame) -> Option<Frame> {
        let directory = &frame.directory;
        if frame.next == frame.names.order.len() {
            return None;
        }
        let fd = match directory.pin(&self.walk.files) {
            Ok(fd) => fd,
            Err(error) => {
                frame.next = frame.names.order.len();
                self.fail(directory, What::Read, error);
                return None;
            }
        };
        let mut deeper = None;
        while deeper.is_none() && frame.next < frame.names.order.len() && !self.walk.has_quit() {
            let (kind, inode, name) = frame.names.get(frame.next);
            frame.next += 1;
            let candidate = Candidate { name, kind, inode, root: directory.root, attributes: None };
            deeper = self.visit(directory, fd, candidate);
        }
        directory.unpin(&self.walk.files);
        deeper
    }

    /// Shows an entry; returns the frame of a directory that is to be entered.
    fn visit(&mut self, directory: &Arc<Directory>, fd: RawFd, candidate: Candidate<'_>) -> Option<Frame> {
        let mut known: Option<(Statx, u32)> = None;
        loop {
            let attributes = known.as_ref().map(|(attributes, asked)| (attributes, *asked));
            match self.walk.judge(&mut self.own, directory, fd, Candidate { attributes, ..candidate }) {
                Verdict::Attributes(mask) => {
                    // SAFETY: integers only.
                    let mut status = unsafe { std::mem::zeroed::<Statx>() };
                    let follow = self.walk.follows(directory);
                    match files::attributes(fd, candidate.name, mask, follow, &mut status) {
                        Ok(()) => known = Some((status, mask)),
                        Err(error) => {
                            let Candidate { name, root, .. } = candidate;
                            self.walk.failed(&mut self.own, directory, name, root, What::Attributes, error);
                            return None;
                        }
                    }
                }
                Verdict::Read(child) => return Some(self.read(child, fd)),
                Verdict::Leave(child) => {
                    self.walk.leave(&mut self.own, &child, None);
                    return None;
                }
                Verdict::Done => return None,
            }
        }
    }

    /// Opens and reads a directory; one that cannot be read has no names.
    fn read(&mut self, directory: Arc<Directory>, parent_fd: RawFd) -> Frame {
        let mut names = Names::default();
        self.walk.files.reserve();
        match files::open(parent_fd, directory.name(), directory.follow) {
            Ok(fd) => {
                directory.opened(fd);
                if self.walk.belongs(&directory, fd)
                    && let Err(error) = names.read(fd, &mut self.buffer)
                {
                    self.fail(&directory, What::Read, error);
                }
                directory.unpin(&self.walk.files);
            }
            Err(error) => {
                self.walk.files.give_back();
                self.fail(&directory, What::Open, error);
            }
        }
        Frame { directory, names, next: 0 }
    }

    fn fail(&mut self, directory: &Directory, what: What, error: io::Error) {
        if let Some(parent) = directory.parent() {
            self.walk.failed(&mut self.own, parent, directory.name(), directory.root, what, error);
        }
    }

    /// Ends a directory in which nothing is to be done any more.
    fn end(&mut self, directory: &Arc<Directory>) {
        let below = directory.pin_open();
        if self.walk.options.post_order {
            self.walk.leave(&mut self.own, directory, below);
        }
        let give = Give { pins: u32::from(below.is_some()), needs: 1, undone: 1 };
        if let Some(fd) = directory.release(give, &self.walk.files).close {
            files::close(fd);
        }
    }
}

/// The bytes before the name: kind and inode.
const HEAD: usize = 9;

impl Names {
    fn read(&mut self, fd: RawFd, buffer: &mut [u8]) -> io::Result<()> {
        let result = self.read_all(fd, buffer);
        let bytes = &self.bytes;
        let name = |at: u32| name_in(bytes, at as usize + HEAD).to_bytes();
        self.order.sort_unstable_by(|&a, &b| name(a).cmp(name(b)));
        result
    }

    fn read_all(&mut self, fd: RawFd, buffer: &mut [u8]) -> io::Result<()> {
        loop {
            let count = files::read_names(fd, buffer)?;
            if count == 0 {
                return Ok(());
            }
            let mut offset = 0;
            while let Some((name, next)) = name_at(&buffer[..count], offset) {
                offset = next;
                if is_dots(name.name) {
                    continue;
                }
                let at = u32::try_from(self.bytes.len())
                    .map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
                self.order.push(at);
                self.bytes.push(name.kind as u8);
                self.bytes.extend_from_slice(&name.inode.to_ne_bytes());
                self.bytes.extend_from_slice(name.name.to_bytes_with_nul());
            }
        }
    }

    fn get(&self, index: usize) -> (Kind, u64, &CStr) {
        let at = self.order[index] as usize;
        let inode = self.bytes[at + 1..at + HEAD].try_into().map_or(0, u64::from_ne_bytes);
        (Kind::of_number(self.bytes[at]), inode, name_in(&self.bytes, at + HEAD))
    }
}

fn name_in(bytes: &[u8], at: usize) -> &CStr {
    CStr::from_bytes_until_nul(&bytes[at..]).unwrap_or_default()
}
