//! Finds the rings of processes by their descriptors.
//!
//! A ring of the kernel is `anon_inode:[io_uring]` in `/proc/PID/fd`; a ring of the user engine is a memory file whose name is
//! `[io_uring]`. Rings without a descriptor, which a program knows only by a registered number, are not found.

use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;

use crate::process;

/// The implementation of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Engine {
    /// The kernel's io_uring.
    Kernel,
    /// The user engine of anyring, in the process itself.
    User,
}

impl Engine {
    /// Returns the engine's word in options of `anyring`.
    pub fn word(self) -> &'static str {
        match self {
            Engine::Kernel => "kernel",
            Engine::User => "user",
        }
    }

    /// Returns the engine of the ring behind a descriptor's link with this target.
    pub(crate) fn of(target: &str) -> Option<Engine> {
        match target {
            "anon_inode:[io_uring]" => Some(Engine::Kernel),
            "/memfd:[io_uring] (deleted)" => Some(Engine::User),
            _ => None,
        }
    }
}

/// The identity of a ring, which no other ring has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    engine: Engine,
    inode: u64,
    /// The process and the descriptor, if the kernel gives all rings one inode (before Linux 5.16).
    place: Option<(u32, RawFd)>,
}

/// A descriptor of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The process that has the descriptor.
    pub process: u32,
    /// The descriptor's number in the process.
    pub fd: RawFd,
    /// The engine of the ring.
    pub engine: Engine,
    /// The inode of the ring's file.
    pub inode: u64,
    /// The device of that inode.
    pub device: u64,
}

impl Found {
    /// Returns the identity of the ring. `shared` is the inode that anonymous files share.
    pub fn identity(&self, shared: u64) -> Identity {
        let is_shared = self.engine == Engine::Kernel && self.inode == shared;
        let place = is_shared.then_some((self.process, self.fd));
        Identity { engine: self.engine, inode: self.inode, place }
    }
}

/// Returns the descriptors of rings in a process.
///
/// # Errors
/// The errors of listing `/proc/PID/fd`: the process is another user's, or there is no such process.
pub fn in_process(process: u32) -> io::Result<Vec<Found>> {
    let descriptors = process::descriptors(process)?.into_iter();
    Ok(descriptors.filter_map(|fd| at(process, fd)).collect())
}

/// Returns the ring behind a descriptor of a process; `None` if the descriptor is not a ring's.
pub fn at(process: u32, fd: RawFd) -> Option<Found> {
    let engine = Engine::of(&process::target(process, fd)?)?;
    let file = fs::metadata(format!("/proc/{process}/fd/{fd}")).ok()?;
    Some(Found { process, fd, engine, inode: file.ino(), device: file.dev() })
}

/// Returns all descriptors of rings, and the number of processes that the caller may not look at.
pub fn everywhere() -> (Vec<Found>, usize) {
    let (mut found, mut denied) = (Vec::new(), 0);
    for process in process::all() {
        match in_process(process) {
            Ok(rings) => found.extend(rings),
            Err(error) => {
                let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
                denied += usize::from(is_denied && process::may_have_descriptors(process));
            }
        }
    }
    (found, denied)
}

/// Returns the inode that anonymous files share; before Linux 5.16, the kernel's rings have it, too.
pub fn shared_inode() -> u64 {
    // SAFETY: an eventfd, which is closed again.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC);
        let mut status: libc::stat = std::mem::zeroed();
        let asked = fd >= 0 && libc::fstat(fd, &raw mut status) == 0;
        libc::close(fd);
        if asked { status.st_ino } else { 0 }
    }
}
