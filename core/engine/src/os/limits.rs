//! Limits of the process that are meant for the program, not for the engine: lifted for one call, up to what the process may set.

use crate::abi::Errno;
use crate::os::sync::AcrossFork;
use crate::os::sync::atomic::{AtomicU32, Ordering};
use crate::os::{futex_wait, futex_wake, limit, monotonic_ns, nr};

/// Whether a limit is lifted, and how many threads make processes, which begin with the limits of this one.
static STATE: AtomicU32 = AtomicU32::new(0);
/// A thread has lifted a limit, or keeps others from doing so: what it sets back is what the program had set.
const LIFTED: u32 = 1 << 31;
/// A thread waits for the end of [`LIFTED`].
const AWAITED: u32 = 1 << 30;
/// Threads that make processes are counted in one group until somebody has waited for them in vain; then the next group begins.
const GROUP: u32 = 1 << 16;
const GROUPS: u32 = AWAITED - GROUP;
const MAKERS: u32 = GROUP - 1;

/// How long a limit is not lifted for those that make processes: that takes microseconds, but the functions that do it may return
/// when the new process has ended.
const PATIENCE_NS: u64 = 10_000_000;
/// How long a limit is not lifted for threads that execute programs: a call of that kind returns soon, or never, and then it ends the
/// thread that has lifted a limit.
const PATIENCE_WITH_PROGRAMS_NS: u64 = 1_000_000_000;

/// How many of the threads that are counted in [`STATE`] execute programs.
static EXECUTING: AtomicU32 = AtomicU32::new(0);

/// The right to lift a limit, which one thread has at a time. It is held across a `fork`: no child begins with a lifted limit.
struct Lifting;

impl Lifting {
    /// Waits until nobody else has it.
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
        // Release pairs with the acquires of those that come next.
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

/// Sleeps until nobody lifts a limit, or for a shorter time.
fn await_end() {
    let state = STATE.fetch_or(AWAITED, Ordering::Relaxed);
    if state & LIFTED != 0 {
        let _ = futex_wait(&STATE, state | AWAITED, None);
    }
}

/// Waits until the threads that are about to make processes have made them, or for as long as there is patience.
fn await_makers() {
    let mut began = None;
    loop {
        // Acquire pairs with the release of the last of them.
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

/// Does what makes a process, or has this one execute a program, with the limits as the program has set them.
pub fn unlifted<T>(act: impl FnOnce() -> T) -> T {
    let mut state = STATE.load(Ordering::Relaxed);
    loop {
        if state & LIFTED != 0 {
            await_end();
        // So many threads there are not.
        } else if state & MAKERS == MAKERS {
            return act();
        // Acquire pairs with the release in `drop`, release with the acquire in `await_makers`.
        } else if STATE.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            break;
        }
        state = STATE.load(Ordering::Relaxed);
    }
    let result = act();
    made(state & GROUPS);
    result
}

/// Has this process execute a program, [with the limits as the program has set them](unlifted).
pub fn executing<T>(act: impl FnOnce() -> T) -> T {
    EXECUTING.fetch_add(1, Ordering::Relaxed);
    let result = unlifted(act);
    EXECUTING.fetch_sub(1, Ordering::Relaxed);
    result
}

/// A thread that makes processes has done so.
fn made(group: u32) {
    let mut state = STATE.load(Ordering::Relaxed);
    // Nobody counts it where it was waited for in vain, nor in a child after `fork`.
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

/// The right to lift limits, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    static LOCK: Lifting = Lifting;
    &LOCK
}

/// In a child after `fork`, where no other thread exists.
pub fn forked() {
    STATE.store(0, Ordering::Relaxed);
    EXECUTING.store(0, Ordering::Relaxed);
}

/// Does something while nobody else lifts a limit, [makes a process or executes a program](unlifted).
pub fn lifting<T>(act: impl FnOnce() -> T) -> T {
    let _lifting = Lifting::begin();
    await_makers();
    act()
}

/// Does something while a limit is another: what `high` makes of it. None where it is to stay as it is, or cannot be changed. Other
/// threads of the program see the change for that long.
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
        // A limit that the program has set meanwhile stays.
        let lifted = |now: &nr::rlimit64| now.rlim_cur == high.rlim_cur && now.rlim_max == high.rlim_max;
        match limit(resource, Some(&old)) {
            Ok(now) if !lifted(&now) => _ = limit(resource, Some(&now)),
            _ => {}
        }
        Some(result)
    })
}

/// The limit of descriptors as high as the process may set it, where that is more than it is.
pub fn highest(old: &nr::rlimit64) -> Option<nr::rlimit64> {
    (old.rlim_cur < old.rlim_max).then_some(nr::rlimit64 { rlim_cur: old.rlim_max, rlim_max: old.rlim_max })
}

/// Lets a file be `length` bytes long. Where the program's limit is less, it is lifted, beyond what the process may set, too, where it
/// has the privilege.
///
/// # Errors
/// `EFBIG` where the limit cannot be lifted.
pub fn with_file_size<T>(length: u64, mut act: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    // Where a sandbox does not say, there is none, for all that is known.
    if limit(nr::RLIMIT_FSIZE, None).map_or(u64::MAX, |limit| limit.rlim_cur) >= length {
        return act();
    }
    let high =
        |old: &nr::rlimit64| Some(nr::rlimit64 { rlim_cur: length, rlim_max: old.rlim_max.max(length) });
    with_limit(nr::RLIMIT_FSIZE, high, |_| act()).unwrap_or(Err(Errno::EFBIG))
}
