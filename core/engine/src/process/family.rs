//! Which processes of a family are alive: those that forked off one another since there were rings.
//!
//! Each has a number and holds a record lock on the byte of that number in a file that all inherit.
//! The kernel lets go of it when the process ends, however it ends, and when it executes another
//! program; a child does not inherit it. So a look at the lock tells the living from the dead, which
//! process numbers cannot: they are reused, and a process may linger as a zombie.

use crate::os::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use crate::abi::Errno;
use crate::os::{self, Fd, nr};

/// The file of locks.
static FILE: AtomicI32 = AtomicI32::new(-1);
/// The counts that all processes of the family share.
static REGISTER: AtomicPtr<Register> = AtomicPtr::new(core::ptr::null_mut());
/// This process's number; 0 before it has a family.
static OWN: AtomicU32 = AtomicU32::new(0);

/// Counts, in memory that all share.
struct Register {
    /// The last number given out.
    last: AtomicU32,
    /// Forks that were announced, those that failed too.
    announced: AtomicU32,
    /// Children that have come of them: between its birth and this, a child holds no lock yet.
    born: AtomicU32,
}

fn register() -> Option<&'static Register> {
    // SAFETY: mapped for good; its zeros are counts.
    unsafe { REGISTER.load(Ordering::Relaxed).as_ref() }
}

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
    let file = os::move_high(os::memfd_create(c"[io_uring family]", nr::MFD_CLOEXEC)?)?;
    let register = os::map_for_children(4096).inspect_err(|_| os::close(file))?;
    FILE.store(file, Ordering::Relaxed);
    REGISTER.store(register.cast(), Ordering::Relaxed);
    join();
    Ok(())
}

/// Before a `fork`.
pub fn announce() {
    if let Some(register) = register() {
        register.announced.fetch_add(1, Ordering::Relaxed);
    }
}

/// In a child after `fork`: it becomes a member of its own.
pub fn born(announced: bool) {
    join();
    if let Some(register) = register()
        && announced
    {
        // Release pairs with the acquire in `is_alone`: the lock is held.
        register.born.fetch_add(1, Ordering::Release);
    }
}

fn join() {
    let Some(register) = register() else { return };
    let own = register.last.fetch_add(1, Ordering::Relaxed) + 1;
    OWN.store(own, Ordering::Relaxed);
    let mut lock = lock_of(own, 1);
    // Where it fails, the file was closed by the program, and nobody is taken for dead.
    let _ = record_lock(nr::F_SETLK, &mut lock);
}

/// True if the process of that number lives, and runs the program that it ran.
pub fn lives(number: u32) -> bool {
    number == own() || others_hold(number, 1)
}

/// True if this is the only process of its family.
pub fn is_alone() -> bool {
    register().is_none_or(|register| {
        // Acquire pairs with the release in `born`.
        let born = register.born.load(Ordering::Acquire);
        let others = others_hold(1, 0);
        // Behind the look: a process that announced a child, and was killed since, held a lock until then.
        !others && register.announced.load(Ordering::Relaxed) == born
    })
}

/// True if another process holds a lock on one of `length` bytes from `start` (0: all that follow). In doubt
/// it does.
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
    os::fcntl(file, command, core::ptr::from_mut(lock) as usize)
}
