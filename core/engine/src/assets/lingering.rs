//! Closes of the engine's own descriptors. The close of a socket that lingers (`SO_LINGER`) waits until its data are sent: a thread of its
//! own does that, so that no ring's lock is held meanwhile.

use core::ffi::c_void;

use crate::assets::{kinds, notes};
use crate::os::sync::atomic::{AtomicU32, Ordering};
use crate::os::{self, Fd};
use crate::process::{credentials, threads};

/// The maximal number of threads that close. Further closes wait where they are made.
const MOST: u32 = 64;

/// The number of these threads.
static CLOSING: AtomicU32 = AtomicU32::new(0);

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
    let left = is_one_more && threads::spawn(c"anyring-close", run, fd as usize as *mut c_void).is_ok();
    if !left {
        CLOSING.fetch_sub(1, Ordering::Relaxed);
    }
    left
}

extern "C" fn run(fd: *mut c_void) {
    threads::begin(credentials::acting());
    os::close(fd.addr() as Fd);
    CLOSING.fetch_sub(1, Ordering::Relaxed);
    threads::end();
}

/// Forgets the parent's threads in a child after `fork`.
pub fn forked() {
    CLOSING.store(0, Ordering::Relaxed);
}
