//! Closes of the engine's own descriptors. The close of a socket that lingers (`SO_LINGER`) waits until its data are sent: a thread of its
//! own does that, so that no ring's lock is held meanwhile.

use alloc::vec::Vec;
use core::ffi::c_void;

use crate::assets::{kinds, notes};
use crate::os::sync::atomic::{AtomicU32, Ordering};
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd, FileIdentity};
use crate::process::{credentials, threads};

/// The maximal number of threads that close. Further closes wait where they are made.
const MOST: u32 = 64;

/// The number of these threads.
static CLOSING: AtomicU32 = AtomicU32::new(0);
/// The descriptors that threads close, with their files. A child of `fork` has those whose close has not begun, too, and has to close them.
/// The number of one whose close has begun may be another file's.
static LEFT: Mutex<Vec<(Fd, FileIdentity)>> = Mutex::new(Vec::new());

/// Returns the lock of the descriptors that are left to threads, to be held across a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &LEFT
}

/// Closes a descriptor of the engine's own. A close that may wait is left to a thread.
pub fn close(fd: Fd) {
    let waits = kinds::may_linger(fd);
    notes::closes(fd);
    if !(waits && leave_to_thread(fd)) {
        os::close(fd);
    }
}

#[cold]
fn leave_to_thread(fd: Fd) -> bool {
    let Ok(file) = os::identity(fd) else { return false };
    // Relaxed: a count, which orders nothing.
    let is_one_more = CLOSING.fetch_add(1, Ordering::Relaxed) < MOST;
    // The lock is held until the thread is there, so that the thread finds the descriptor in the list.
    let mut waiting = LEFT.lock();
    let has_room = is_one_more && waiting.try_reserve(1).is_ok();
    let left = has_room && threads::spawn(c"anyring-close", run, fd as usize as *mut c_void).is_ok();
    if left {
        waiting.push((fd, file));
    } else {
        CLOSING.fetch_sub(1, Ordering::Relaxed);
    }
    left
}

extern "C" fn run(fd: *mut c_void) {
    threads::begin(credentials::acting());
    let fd = fd.addr() as Fd;
    // The last one: this number was another's to close only before it became this file's.
    let own = LEFT.lock().iter().rfind(|&&(other, _)| other == fd).copied();
    os::close(fd);
    // After the close: until the number is free, a child of `fork` gets it.
    LEFT.lock().retain(|&left| Some(left) != own);
    CLOSING.fetch_sub(1, Ordering::Relaxed);
    threads::end();
}

/// Forgets the parent's threads in a child after `fork`, and closes what they were to close. That does not wait, because the parent has the
/// files, too.
///
/// # Safety
/// No other thread of this process may use the engine.
pub unsafe fn forked() {
    CLOSING.store(0, Ordering::Relaxed);
    // SAFETY: passed on to the caller.
    unsafe { LEFT.reset() };
    for (fd, file) in LEFT.lock().drain(..) {
        if os::identity(fd) == Ok(file) {
            os::close(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LEFT, forked};
    use crate::os;

    /// A child has the file of the first descriptor only: the other's close had begun, and its number is another file's.
    #[test]
    fn a_child_closes_what_it_has() {
        let [had, begun, other] = [(); 3].map(|()| os::memfd_create(c"file", 0).unwrap());
        let closed = os::identity(begun).unwrap();
        LEFT.lock().extend([(had, os::identity(had).unwrap()), (begun, closed)]);
        os::replace(other, begun).unwrap();
        // SAFETY: this process has one thread that uses the list.
        unsafe { forked() };
        assert!(!os::is_open(had) && os::is_open(begun) && LEFT.lock().is_empty());
    }
}
