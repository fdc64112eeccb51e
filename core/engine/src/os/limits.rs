//! Limits of the process that are meant for the program, not for the engine: lifted for one call, up to what the process may set.

use crate::abi::Errno;
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{limit, nr};

/// Held by the thread that has lifted a limit: what it sets back is what the program had set.
static LIFTING: Mutex<()> = Mutex::new(());

/// The lock, for a `fork`: no child begins with a lifted limit.
pub fn lock() -> &'static dyn AcrossFork {
    &LIFTING
}

/// In a child after `fork`.
///
/// # Safety
/// No other thread of this process may use the engine.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { LIFTING.reset() };
}

/// Does something while a limit is another: what `high` makes of it. None where it is to stay as it is, or cannot be changed. Other
/// threads of the program see the change for that long.
pub fn with_limit<T>(
    resource: u32,
    high: impl FnOnce(&nr::rlimit64) -> Option<nr::rlimit64>,
    act: impl FnOnce(&nr::rlimit64) -> T,
) -> Option<T> {
    let _lifting = LIFTING.lock();
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
