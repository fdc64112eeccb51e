//! Finds out whether two descriptors refer to one open file description.
//!
//! The kernel tells by `F_DUPFD_QUERY` (since Linux 6.10) or `kcmp`, which sandboxes may refuse, such as the default profiles of
//! Docker and podman. Without both, an epoll instance tells: it identifies its files by file description and number.

use core::cmp::Ordering;

use crate::sync::atomic::{self, AtomicBool};
use crate::{Fd, OwnedFd, call, nr};
use anyring_abi::Errno;

/// True once the system has refused `F_DUPFD_QUERY`; then it is not tried again.
static LACKS_QUERY: AtomicBool = AtomicBool::new(false);
/// True once the system has refused `kcmp`; then it is not tried again.
static LACKS_KCMP: AtomicBool = AtomicBool::new(false);

/// Resets what is known of the system: the next schedule runs on another one.
#[cfg(anyring_simulation)]
pub fn reset() {
    LACKS_QUERY.store(false, atomic::Ordering::Relaxed);
    LACKS_KCMP.store(false, atomic::Ordering::Relaxed);
}

/// True if two descriptors refer to one open file description; false if one of them is closed. If the
/// kernel does not tell, files that cannot be polled count as one if they have the same inode and flags.
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

/// Returns the answer of one way to compare; `None` if the system refuses it, now or before.
fn asked(refused: &AtomicBool, ask: impl FnOnce() -> Result<bool, Errno>) -> Option<bool> {
    // Relaxed: no other memory depends on it.
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

/// Compares by `fcntl(F_DUPFD_QUERY)`.
fn query(a: Fd, b: Fd) -> Result<bool, Errno> {
    crate::fcntl(a, nr::F_DUPFD_QUERY, b as usize).map(|same| same == 1)
}

/// Compares by `kcmp(2)`.
fn kcmp(a: Fd, b: Fd) -> Result<bool, Errno> {
    ordering(a, b).map(Ordering::is_eq)
}

/// Returns the order of two open file descriptions by `kcmp(2)`.
fn ordering(a: Fd, b: Fd) -> Result<Ordering, Errno> {
    const KCMP_FILE: usize = 0;
    let pid = crate::getpid() as usize;
    // SAFETY: touches no memory.
    match unsafe { call(nr::__NR_kcmp, [pid, pid, KCMP_FILE, a as usize, b as usize, 0]) }? {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        // Unequal without an order: by kcmp(2) no kernel returns that.
        _ => Err(Errno::ENOSYS),
    }
}

/// Returns the order of two open file descriptions, which is constant while both are open. `None` if the system does not tell.
///
/// # Errors
/// `EBADF` if one of the descriptors is closed.
pub fn order_of_files(a: Fd, b: Fd) -> Result<Option<Ordering>, Errno> {
    // Relaxed: no other memory depends on it.
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

/// True if two descriptors refer to one open file description, by criteria that depend on the file type.
fn same_by_kind(a: Fd, b: Fd) -> bool {
    let (Ok(of_a), Ok(of_b)) = (crate::known_identity(a), crate::known_identity(b)) else { return false };
    if of_a != of_b {
        return false;
    }
    let same_flags = || crate::file_flags(a) == crate::file_flags(b);
    match of_a.mode & nr::S_IFMT {
        nr::S_IFSOCK => crate::socket_cookie(a) == crate::socket_cookie(b),
        // eventfd, timerfd and others: all share one inode.
        0 => same_by_epoll(a, b).unwrap_or(false),
        nr::S_IFIFO | nr::S_IFCHR => same_by_epoll(a, b).unwrap_or_else(|_| same_flags()),
        // Polling a file in `/proc` would consume its pending events.
        _ => same_flags(),
    }
}

/// True if two descriptors refer to one open file description: an epoll instance that has the first one under a number accepts the
/// second under the same number only if it is another description.
///
/// # Errors
/// `EPERM` if the files cannot be polled, `EMFILE`, `ENOMEM`, `ENOSPC` at the limit of watches, `ELOOP`.
fn same_by_epoll(a: Fd, b: Fd) -> Result<bool, Errno> {
    let epoll = OwnedFd::new(crate::epoll_create()?);
    let number = OwnedFd::new(crate::duplicate(a)?);
    let add = || crate::epoll_ctl(epoll.fd(), nr::EPOLL_CTL_ADD, number.fd(), 0, 0);
    add()?;
    crate::replace(b, number.fd())?;
    Ok(add() == Err(Errno::EEXIST))
}
