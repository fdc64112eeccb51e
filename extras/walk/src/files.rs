//! The descriptors of a walk: how many are open, which may be closed meanwhile, the calls on them.

use crate::directory::Directory;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// At least so many, whatever the limit: with fewer there is no way down and up again.
const FEWEST: usize = 8;
/// More than that are of no use.
const MOST: usize = 4096;
/// Descriptors that the process needs for the rings, for its output, for what it starts.
const OTHERS: usize = 64;

/// A device's and an inode's number.
pub type Identity = (u64, u64);

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that panics leaves anything half done behind.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The descriptors of directories that a walk has open.
pub struct Files {
    open: AtomicUsize,
    most: usize,
    held: Mutex<Held>,
}

/// Open directories that nobody works with right now, by when they began to be.
#[derive(Default)]
struct Held {
    directories: BTreeMap<u64, Arc<Directory>>,
    next: u64,
}

impl Files {
    /// At most `most` (0: as many as are reasonable), if it can be helped.
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

    /// How many may be open.
    pub fn most(&self) -> usize {
        self.most
    }

    /// One more is about to be opened: where there are enough, one that is not needed right now is closed.
    pub fn reserve(&self) {
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.most {
            self.close_one();
        }
    }

    /// One is no longer open, or was not opened.
    pub fn give_back(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Closes one that is not needed right now, if there is one.
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

    /// A directory can be closed for a while. Returns by what it is known here.
    pub fn hold(&self, directory: &Arc<Directory>) -> u64 {
        let mut held = lock(&self.held);
        held.next += 1;
        let number = held.next;
        held.directories.insert(number, directory.clone());
        number
    }

    /// Notes that the directory cannot be closed any more.
    pub fn let_go(&self, number: u64) {
        let gone = lock(&self.held).directories.remove(&number);
        drop(gone);
    }

    /// Forgets them all, at the end of a walk.
    pub fn clear(&self) {
        let held = std::mem::take(&mut lock(&self.held).directories);
        held.values().for_each(|directory| {
            directory.close_for_now(self);
        });
    }
}

/// How many descriptors this process may have.
fn limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the structure.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    if result == 0 { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) } else { 256 }
}

/// The flags to open a directory with.
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
    // SAFETY: the walk's own, and nobody uses it any more.
    unsafe { libc::close(fd) };
}

/// Which directory an open one is.
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

/// Which file `attributes` are of.
pub fn identity_of(attributes: &libc::statx) -> Identity {
    (libc::makedev(attributes.stx_dev_major, attributes.stx_dev_minor), attributes.stx_ino)
}

/// The flags to ask for attributes with.
pub fn attribute_flags(follow: bool) -> i32 {
    if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW }
}

/// True if a link that leads nowhere can be the reason. Then it is what is asked about.
pub fn is_dangling(errno: i32) -> bool {
    matches!(errno, libc::ENOENT | libc::ENOTDIR)
}

/// Attributes of `name` in the directory `at`.
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

/// Reads names of a directory from where it stands.
pub fn read_names(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    let (address, length) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: writes into the buffer.
    let count = unsafe { libc::syscall(libc::SYS_getdents64, fd, address, length) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
