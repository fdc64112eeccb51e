//! Finds out which processes of a family live: the processes that descend from one another by `fork` since there were rings.
//!
//! Each process has a number, and holds a record lock on the byte with that number in a file that
//! all inherit. The kernel releases the lock when the process ends, however it ends, or executes
//! another program; a child does not inherit the lock. So the lock shows whether the process lives.
//! Process IDs do not: they are reused, and a process may remain as a zombie.

use crate::os::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use crate::abi::Errno;
use crate::os::{self, Fd, nr};

/// The file with the record locks.
static FILE: AtomicI32 = AtomicI32::new(-1);
/// The counts that all processes of the family share.
static REGISTER: AtomicPtr<Register> = AtomicPtr::new(core::ptr::null_mut());
/// This process's number in the family; 0 if there is no family yet.
static OWN: AtomicU32 = AtomicU32::new(0);

/// Counts in memory that all processes of the family share.
struct Register {
    /// The last number assigned to a process.
    last: AtomicU32,
    /// Announced forks, including failed ones.
    announced: AtomicU32,
    /// Children of announced forks that hold their lock. Between its birth and this count, a child holds no lock.
    born: AtomicU32,
}

fn register() -> Option<&'static Register> {
    // SAFETY: mapped for the life of the process; zeroed memory is a valid `Register`.
    unsafe { REGISTER.load(Ordering::Relaxed).as_ref() }
}

/// Returns this process's number in the family.
#[inline]
pub fn own() -> u32 {
    OWN.load(Ordering::Relaxed)
}

/// Creates the family, if there is none yet. The caller holds all locks of the engine.
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

/// Counts a `fork` that is about to happen.
pub fn announce() {
    if let Some(register) = register() {
        register.announced.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes a child, after `fork`, a member of the family with a number and lock of its own.
pub fn born(announced: bool) {
    join();
    if let Some(register) = register()
        && announced
    {
        // Release pairs with the acquire in `is_alone`: the child holds its lock.
        register.born.fetch_add(1, Ordering::Release);
    }
}

fn join() {
    let Some(register) = register() else { return };
    let own = register.last.fetch_add(1, Ordering::Relaxed) + 1;
    OWN.store(own, Ordering::Relaxed);
    let mut lock = lock_of(own, 1);
    // If this fails, the program has closed the file; then every process counts as living.
    let _ = record_lock(nr::F_SETLK, &mut lock);
}

/// True if the process with this number lives and has not executed another program.
pub fn lives(number: u32) -> bool {
    number == own() || others_hold(number, 1)
}

/// True if this is the only process of its family.
pub fn is_alone() -> bool {
    register().is_none_or(|register| {
        // Acquire pairs with the release in `born`.
        let born = register.born.load(Ordering::Acquire);
        let others = others_hold(1, 0);
        // Loaded after the query: a process that announced a child and was killed since still held its lock at that time.
        !others && register.announced.load(Ordering::Relaxed) == born
    })
}

/// True if another process holds a lock on one of `length` bytes from `start` (0: all that follow), or if
/// the query fails.
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
