//! Raises limits of the process for one call, as far as permitted, because they are meant for the program and not for the engine.

use crate::sync::AcrossFork;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::{futex_wait, futex_wake, limit, monotonic_ns, nr};
use anyring_abi::Errno;

/// Whether a limit is raised, and the number of threads that are creating processes, which inherit the limits.
static STATE: AtomicU32 = AtomicU32::new(0);
/// One thread has the exclusive right to raise a limit: so the old value, which it restores afterwards, is the program's.
const LIFTED: u32 = 1 << 31;
/// A thread waits for the end of [`LIFTED`].
const AWAITED: u32 = 1 << 30;
/// One step of the group number. Creators of processes are counted by group: a new group begins when a wait for one has timed out.
const GROUP: u32 = 1 << 16;
const GROUPS: u32 = AWAITED - GROUP;
const MAKERS: u32 = GROUP - 1;

/// How long to wait for threads that create processes before a limit is raised. Creation takes microseconds, but the functions
/// that do it may return only when the new process has ended.
const PATIENCE_NS: u64 = 10_000_000;
/// How long to wait for threads that execute programs. An `execve` either fails soon, or ends all other threads: then a thread that
/// has raised a limit could not restore it.
const PATIENCE_WITH_PROGRAMS_NS: u64 = 1_000_000_000;

/// How many of the threads counted in [`STATE`] execute programs.
static EXECUTING: AtomicU32 = AtomicU32::new(0);

/// The exclusive right to raise a limit. Held across a `fork`, so that no child begins with a raised limit.
struct Lifting;

impl Lifting {
    /// Takes the right when no other thread has it.
    fn begin() -> Lifting {
        // Acquire pairs with the release in `drop`.
        while STATE.fetch_or(LIFTED, Ordering::Acquire) & LIFTED != 0 {
            await_end();
        }
        Lifting
    }
}

impl Drop for Lifting {
    fn drop(&mut self) {
        // Release pairs with the acquires of later holders.
        if STATE.fetch_and(!(LIFTED | AWAITED), Ordering::Release) & AWAITED != 0 {
            futex_wake(&STATE, i32::MAX as u32);
        }
    }
}

impl AcrossFork for Lifting {
    fn hold(&self) {
        core::mem::forget(Lifting::begin());
    }

    unsafe fn release(&self) {
        drop(Lifting);
    }
}

/// Sleeps until no limit is raised; may return early.
fn await_end() {
    let state = STATE.fetch_or(AWAITED, Ordering::Relaxed);
    if state & LIFTED != 0 {
        let _ = futex_wait(&STATE, state | AWAITED, None);
    }
}

/// Waits until the threads that are creating processes have finished, or the patience is over.
fn await_makers() {
    let mut began = None;
    loop {
        // Acquire pairs with the release of the last creator.
        let state = STATE.load(Ordering::Acquire);
        if state & MAKERS == 0 {
            return;
        }
        let now = monotonic_ns();
        // A thread that executes a program is counted in `EXECUTING` before it is in `STATE`.
        let executes = EXECUTING.load(Ordering::Relaxed) > 0;
        let patience_ns = if executes { PATIENCE_WITH_PROGRAMS_NS } else { PATIENCE_NS };
        let left_ns = (*began.get_or_insert(now) + patience_ns).saturating_sub(now);
        if left_ns > 0 {
            let _ = futex_wait(&STATE, state, Some(left_ns));
            continue;
        }
        let others = state & !(GROUPS | MAKERS) | state.wrapping_add(GROUP) & GROUPS;
        let _ = STATE.compare_exchange(state, others, Ordering::Acquire, Ordering::Relaxed);
    }
}

/// Calls `act`, which creates a process or executes a program, while no limit is raised.
pub fn unlifted<T>(act: impl FnOnce() -> T) -> T {
    let mut state = STATE.load(Ordering::Relaxed);
    loop {
        if state & LIFTED != 0 {
            await_end();
        // There are never so many threads.
        } else if state & MAKERS == MAKERS {
            return act();
        // Acquire pairs with the release in `drop`, release with the acquire in `await_makers`.
        } else if STATE.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            break;
        }
        state = STATE.load(Ordering::Relaxed);
    }
    let result = act();
    uncount(state & GROUPS);
    result
}

/// Calls `act`, which executes a program, [while no limit is raised](unlifted).
pub fn executing<T>(act: impl FnOnce() -> T) -> T {
    EXECUTING.fetch_add(1, Ordering::Relaxed);
    let result = unlifted(act);
    EXECUTING.fetch_sub(1, Ordering::Relaxed);
    result
}

/// Uncounts a thread that has created its process.
fn uncount(group: u32) {
    let mut state = STATE.load(Ordering::Relaxed);
    // Not counted any more if a wait for its group has timed out, or in a child after `fork`.
    while state & GROUPS == group && state & MAKERS != 0 {
        // Release pairs with the acquire in `await_makers`.
        match STATE.compare_exchange(state, state - 1, Ordering::Release, Ordering::Relaxed) {
            Ok(_) if state & LIFTED != 0 && state & MAKERS == 1 => {
                return futex_wake(&STATE, i32::MAX as u32);
            }
            Ok(_) => return,
            Err(now) => state = now,
        }
    }
}

/// Returns the right to raise limits as a lock, to be held across a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    static LOCK: Lifting = Lifting;
    &LOCK
}

/// Resets the state in a child after `fork`, where no other thread exists.
pub fn forked() {
    STATE.store(0, Ordering::Relaxed);
    EXECUTING.store(0, Ordering::Relaxed);
}

/// Calls `act` while no other thread raises a limit, [creates a process or executes a program](unlifted).
pub fn lifting<T>(act: impl FnOnce() -> T) -> T {
    let _lifting = Lifting::begin();
    await_makers();
    act()
}

/// Calls `act` while a limit has the value that `high` returns for the old one. `None` if `high` returns nothing or the limit
/// cannot be changed. Other threads of the program see the change meanwhile.
pub fn with_limit<T>(
    resource: u32,
    high: impl FnOnce(&nr::rlimit64) -> Option<nr::rlimit64>,
    act: impl FnOnce(&nr::rlimit64) -> T,
) -> Option<T> {
    lifting(|| {
        let old = limit(resource, None).ok()?;
        let high = high(&old)?;
        let old = limit(resource, Some(&high)).ok()?;
        let result = act(&old);
        // If the program has set the limit meanwhile, its value stays.
        let lifted = |now: &nr::rlimit64| now.rlim_cur == high.rlim_cur && now.rlim_max == high.rlim_max;
        match limit(resource, Some(&old)) {
            Ok(now) if !lifted(&now) => _ = limit(resource, Some(&now)),
            _ => {}
        }
        Some(result)
    })
}

/// Returns the limit with its soft value raised to the hard one; `None` if it is as high already.
pub fn highest(old: &nr::rlimit64) -> Option<nr::rlimit64> {
    (old.rlim_cur < old.rlim_max).then_some(nr::rlimit64 { rlim_cur: old.rlim_max, rlim_max: old.rlim_max })
}

/// The size of files was limited when [`with_file_size`] last asked.
static SIZES_LIMITED: AtomicBool = AtomicBool::new(false);

/// True if the size of files was limited when the engine last made memory. To ask now would cost each write a system call.
pub fn were_sizes_limited() -> bool {
    SIZES_LIMITED.load(Ordering::Relaxed)
}

/// Calls `act` while files may have `length` bytes. A lower limit is raised, with privilege even beyond the hard limit.
///
/// # Errors
/// `EFBIG` if the limit cannot be raised.
pub fn with_file_size<T>(length: u64, mut act: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    // If a sandbox refuses the query, the limit counts as infinite.
    let most = limit(nr::RLIMIT_FSIZE, None).map_or(u64::MAX, |limit| limit.rlim_cur);
    SIZES_LIMITED.store(most != u64::MAX, Ordering::Relaxed);
    if most >= length {
        return act();
    }
    let high =
        |old: &nr::rlimit64| Some(nr::rlimit64 { rlim_cur: length, rlim_max: old.rlim_max.max(length) });
    with_limit(nr::RLIMIT_FSIZE, high, |_| act()).unwrap_or(Err(Errno::EFBIG))
}
