//! Closes of the engine's own descriptors. The close of a socket that lingers (`SO_LINGER`) waits until its data are sent: a thread of its
//! own does that, so that no ring's lock is held meanwhile.

use alloc::vec::Vec;
use core::ffi::c_void;

use crate::assets::{kinds, notes};
use crate::os::sync::atomic::{AtomicU32, Ordering};
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd};
use crate::process::{credentials, threads};

/// The maximal number of threads that close. Further closes wait where they are made.
const MOST: u32 = 64;

/// The number of these threads.
static CLOSING: AtomicU32 = AtomicU32::new(0);
/// The descriptors whose threads have not begun the close. A child of `fork` has them, too, and has to close them.
static LEFT: Mutex<Vec<Fd>> = Mutex::new(Vec::new());

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
    // Relaxed: a count, which orders nothing.
    let is_one_more = CLOSING.fetch_add(1, Ordering::Relaxed) < MOST;
    // The lock is held until the thread is there, so that the thread finds the descriptor in the list.
    let mut waiting = LEFT.lock();
    let has_room = is_one_more && waiting.try_reserve(1).is_ok();
    let left = has_room && threads::spawn(c"anyring-close", run, fd as usize as *mut c_void).is_ok();
    if left {
        waiting.push(fd);
    } else {
        CLOSING.fetch_sub(1, Ordering::Relaxed);
    }
    left
}

extern "C" fn run(fd: *mut c_void) {
    threads::begin(credentials::acting());
    let fd = fd.addr() as Fd;
    LEFT.lock().retain(|&other| other != fd);
    os::close(fd);
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
    LEFT.lock().drain(..).for_each(os::close);
}
