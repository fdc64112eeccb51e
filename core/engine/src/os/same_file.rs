//! Whether two descriptors stand for one open file.
//!
//! The kernel says so by `F_DUPFD_QUERY` (since Linux 6.10) or by `kcmp`, which sandboxes refuse: the default profiles of Docker and
//! podman do. Without both, an epoll instance tells files apart: it knows what it has by file and number.

use core::cmp::Ordering;

use crate::abi::Errno;
use crate::os::sync::atomic::{self, AtomicBool};
use crate::os::{self, Fd, OwnedFd, call, nr};

/// The system has refused `F_DUPFD_QUERY`: it is not asked again.
static LACKS_QUERY: AtomicBool = AtomicBool::new(false);
/// The system has refused `kcmp`: it is not asked again.
static LACKS_KCMP: AtomicBool = AtomicBool::new(false);

/// The next schedule runs on another system.
#[cfg(anyring_simulation)]
pub fn reset() {
    LACKS_QUERY.store(false, atomic::Ordering::Relaxed);
    LACKS_KCMP.store(false, atomic::Ordering::Relaxed);
}

/// True if two descriptors stand for one open file. Not where one of them is closed. Where the kernel does
/// not say, files that cannot be waited for count as one if they are on one inode and have the same flags.
pub fn same_file(a: Fd, b: Fd) -> bool {
    if a == b {
        return true;
    }
    if a < 0 || b < 0 {
        return false;
    }
    let known = asked(&LACKS_QUERY, || query(a, b)).or_else(|| asked(&LACKS_KCMP, || kcmp(a, b)));
    known.unwrap_or_else(|| same_by_kind(a, b))
}

/// The answer of one way to compare; `None` where the system refuses it, now or before.
fn asked(refused: &AtomicBool, ask: impl FnOnce() -> Result<bool, Errno>) -> Option<bool> {
    // Relaxed: nothing else follows from it.
    if refused.load(atomic::Ordering::Relaxed) {
        return None;
    }
    match ask() {
        Ok(same) => Some(same),
        Err(Errno::EBADF) => Some(false),
        Err(_) => {
            refused.store(true, atomic::Ordering::Relaxed);
            None
        }
    }
}

/// `fcntl(F_DUPFD_QUERY)`.
fn query(a: Fd, b: Fd) -> Result<bool, Errno> {
    os::fcntl(a, nr::F_DUPFD_QUERY, b as usize).map(|same| same == 1)
}

/// `kcmp(2)`.
fn kcmp(a: Fd, b: Fd) -> Result<bool, Errno> {
    ordering(a, b).map(Ordering::is_eq)
}

/// The order that `kcmp(2)` has for open files.
fn ordering(a: Fd, b: Fd) -> Result<Ordering, Errno> {
    const KCMP_FILE: usize = 0;
    let pid = os::getpid() as usize;
    // SAFETY: touches no memory.
    match unsafe { call(nr::__NR_kcmp, [pid, pid, KCMP_FILE, a as usize, b as usize, 0]) }? {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        // Neither file is before the other: by kcmp(2) no kernel answers that.
        _ => Err(Errno::ENOSYS),
    }
}

/// The order of two open files, which stays as long as both are open. None where the system does not tell.
///
/// # Errors
/// `EBADF` where one of them is closed.
pub fn order_of_files(a: Fd, b: Fd) -> Result<Option<Ordering>, Errno> {
    // Relaxed: nothing else follows from it.
    if LACKS_KCMP.load(atomic::Ordering::Relaxed) {
        return Ok(None);
    }
    match ordering(a, b) {
        Ok(order) => Ok(Some(order)),
        Err(Errno::EBADF) => Err(Errno::EBADF),
        Err(_) => {
            LACKS_KCMP.store(true, atomic::Ordering::Relaxed);
            Ok(None)
        }
    }
}

/// Whether two descriptors stand for one open file, by what tells files of their kind apart.
fn same_by_kind(a: Fd, b: Fd) -> bool {
    let (Ok(of_a), Ok(of_b)) = (os::known_identity(a), os::known_identity(b)) else { return false };
    if of_a != of_b {
        return false;
    }
    let same_flags = || os::file_flags(a) == os::file_flags(b);
    match of_a.mode & nr::S_IFMT {
        nr::S_IFSOCK => os::socket_cookie(a) == os::socket_cookie(b),
        // eventfd, timerfd and others: all have one inode.
        0 => same_by_epoll(a, b).unwrap_or(false),
        nr::S_IFIFO | nr::S_IFCHR => same_by_epoll(a, b).unwrap_or_else(|_| same_flags()),
        // A poll of a file in `/proc` takes what it has to tell.
        _ => same_flags(),
    }
}

/// Whether two descriptors stand for one open file: an epoll instance that has the first under a number takes the second under the
/// same number if that is another file.
///
/// # Errors
/// `EPERM` where they cannot be waited for, `EMFILE`, `ENOMEM`, `ENOSPC` at the limit of watches, `ELOOP`.
fn same_by_epoll(a: Fd, b: Fd) -> Result<bool, Errno> {
    let epoll = OwnedFd::new(os::epoll_create()?);
    let number = OwnedFd::new(os::duplicate(a)?);
    let add = || os::epoll_ctl(epoll.fd(), nr::EPOLL_CTL_ADD, number.fd(), 0, 0);
    add()?;
    os::replace(b, number.fd())?;
    Ok(add() == Err(Errno::EEXIST))
}
