//! Which processes of a family are alive: those that forked off one another since there were rings.
//!
//! Each has a number and holds a record lock on the byte of that number in a file that all inherit.
//! The kernel lets go of it when the process ends, however it ends, and when it executes another
//! program; a child does not inherit it. So a look at the lock tells the living from the dead, which
//! process numbers cannot: they are reused, and a process may linger as a zombie.

use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use crate::errno::Errno;
use crate::sys::{self, Fd, nr};

/// The file of locks.
static FILE: AtomicI32 = AtomicI32::new(-1);
/// The last number given out, in memory that all share.
static LAST: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// This process's number; 0 before it has a family.
static OWN: AtomicU32 = AtomicU32::new(0);

/// This process's number.
#[inline]
pub fn own() -> u32 {
    OWN.load(Ordering::Relaxed)
}

/// Founds the family, if there is none yet. Called with all locks of the engine held.
pub fn found() -> Result<(), Errno> {
    if own() != 0 {
        return Ok(());
    }
    let file = sys::move_high(sys::memfd_create(c"[io_uring family]", nr::MFD_CLOEXEC)?)?;
    let last = sys::map_for_children(4096).inspect_err(|_| sys::close(file))?.cast::<AtomicU32>();
    FILE.store(file, Ordering::Relaxed);
    LAST.store(last, Ordering::Relaxed);
    join();
    Ok(())
}

/// In a child after `fork`: it becomes a member of its own.
pub fn join() {
    // SAFETY: mapped for good.
    let Some(last) = (unsafe { LAST.load(Ordering::Relaxed).as_ref() }) else { return };
    let own = last.fetch_add(1, Ordering::Relaxed) + 1;
    OWN.store(own, Ordering::Relaxed);
    let mut lock = lock_of(own, 1);
    // Where it fails, the file was closed by the program, and nobody is taken for dead.
    let _ = record_lock(nr::F_SETLK, &mut lock);
}

/// Does the process of that number live, and run the program that it ran?
pub fn lives(number: u32) -> bool {
    number == own() || others_hold(number, 1)
}

/// Is this the only one of its family?
pub fn is_alone() -> bool {
    own() == 0 || !others_hold(1, 0)
}

/// Does another process hold a lock on one of `length` bytes from `start` (0: all that follow)? In
/// doubt it does.
fn others_hold(start: u32, length: i64) -> bool {
    let mut lock = lock_of(start, length);
    record_lock(nr::F_GETLK, &mut lock).is_err() || u32::from(lock.l_type as u16) != nr::F_UNLCK
}

fn lock_of(start: u32, length: i64) -> nr::flock {
    nr::flock {
        l_type: nr::F_WRLCK as i16,
        l_whence: nr::SEEK_SET as i16,
        l_start: i64::from(start),
        l_len: length,
        l_pid: 0,
    }
}

fn record_lock(command: u32, lock: &mut nr::flock) -> Result<usize, Errno> {
    let file: Fd = FILE.load(Ordering::Relaxed);
    sys::fcntl(file, command, core::ptr::from_mut(lock) as usize)
}
