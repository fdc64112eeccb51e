//! The descriptors of a walk: how many are open, which may be closed temporarily, and the calls on them.

use crate::directory::Directory;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The minimum, whatever the limit: with fewer descriptors a walk cannot go down and up again.
const FEWEST: usize = 8;
/// The maximum; more descriptors are of no use.
const MOST: usize = 4096;
/// Descriptors that the process needs for rings, for its output, and for its children.
const OTHERS: usize = 64;

/// The numbers of a device and an inode.
pub type Identity = (u64, u64);

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves no half-done change behind.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The descriptors of directories that a walk has open.
pub struct Files {
    open: AtomicUsize,
    most: usize,
    held: Mutex<Held>,
}

/// Open directories that nothing uses right now, in the order in which they became unused.
#[derive(Default)]
struct Held {
    directories: BTreeMap<u64, Arc<Directory>>,
    next: u64,
}

impl Files {
    /// Creates the set, for at most `most` descriptors (0: a reasonable number). The limit is exceeded if none can be closed.
    pub fn new(most: usize) -> Files {
        let most = match most {
            0 => {
                let limit = limit().saturating_sub(OTHERS) / 4 * 3;
                limit.clamp(FEWEST, MOST)
            }
            some => some.max(FEWEST),
        };
        Files { open: AtomicUsize::new(0), most, held: Mutex::default() }
    }

    /// Returns how many may be open.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Counts a descriptor that is about to be opened. At the limit, an unused one is closed.
    pub fn reserve(&self) {
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.most {
            self.close_one();
        }
    }

    /// Subtracts a descriptor that was closed, or was not opened.
    pub fn give_back(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Closes an unused descriptor; returns false if there is none.
    pub fn close_one(&self) -> bool {
        let tries = lock(&self.held).directories.len();
        for _ in 0..tries {
            let Some((_, directory)) = lock(&self.held).directories.pop_first() else { return false };
            if directory.close_for_now(self) {
                return true;
            }
        }
        false
    }

    /// Notes that the directory can be closed temporarily; returns the number of this note.
    pub fn hold(&self, directory: &Arc<Directory>) -> u64 {
        let mut held = lock(&self.held);
        held.next += 1;
        let number = held.next;
        held.directories.insert(number, directory.clone());
        number
    }

    /// Removes the note that the directory can be closed.
    pub fn let_go(&self, number: u64) {
        let gone = lock(&self.held).directories.remove(&number);
        drop(gone);
    }

    /// Removes all notes and closes their directories, at the end of a walk.
    pub fn clear(&self) {
        let held = std::mem::take(&mut lock(&self.held).directories);
        held.values().for_each(|directory| {
            directory.close_for_now(self);
        });
    }
}

/// Returns how many descriptors this process may have.
fn limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the structure.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    if result == 0 { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) } else { 256 }
}

/// Returns the flags to open a directory with.
pub fn open_flags(follow: bool) -> i32 {
    let link = if follow { 0 } else { libc::O_NOFOLLOW };
    libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK | link
}

/// Opens the directory `name` in the directory `at`.
pub fn open(at: RawFd, name: &CStr, follow: bool) -> io::Result<RawFd> {
    // SAFETY: a string that ends.
    let fd = unsafe { libc::openat(at, name.as_ptr(), open_flags(follow)) };
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(fd) }
}

pub fn close(fd: RawFd) {
    // SAFETY: the descriptor is the walk's own, and unused.
    unsafe { libc::close(fd) };
}

/// Returns the identity of an open directory.
pub fn identity(fd: RawFd) -> io::Result<Identity> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: writes the structure.
    if unsafe { libc::fstat(fd, status.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: written.
    let status = unsafe { status.assume_init() };
    Ok((status.st_dev, status.st_ino))
}

/// Returns the identity of the file with `attributes`.
pub fn identity_of(attributes: &libc::statx) -> Identity {
    (libc::makedev(attributes.stx_dev_major, attributes.stx_dev_minor), attributes.stx_ino)
}

/// Returns the flags to query attributes with.
pub fn attribute_flags(follow: bool) -> i32 {
    if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW }
}

/// True if the error can come from a dangling link, whose own attributes are queried then.
pub fn is_dangling(errno: i32) -> bool {
    matches!(errno, libc::ENOENT | libc::ENOTDIR)
}

/// Queries the attributes of `name` in the directory `at`.
pub fn attributes(
    at: RawFd,
    name: &CStr,
    mask: u32,
    follow: bool,
    status: &mut libc::statx,
) -> io::Result<()> {
    let mut ask = |flags| {
        // SAFETY: a string that ends, and a structure to be written.
        match unsafe { libc::statx(at, name.as_ptr(), flags, mask, status) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    match ask(attribute_flags(follow)) {
        Err(error) if follow && error.raw_os_error().is_some_and(is_dangling) => ask(attribute_flags(false)),
        other => other,
    }
}

/// Reads names of a directory from its current offset.
pub fn read_names(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    let (address, length) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: writes into the buffer.
    let count = unsafe { libc::syscall(libc::SYS_getdents64, fd, address, length) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
