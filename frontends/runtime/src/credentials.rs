//! Calls that change credentials: the engine's threads must not keep rights that the program gives up.

use crate::{active, calls};
use anyring_engine::credentials::{Change, Reach};
use linux_raw_sys::general as raw;

/// Calls that change the credentials of the thread that makes them.
pub const CALLS: [u32; 11] = [
    raw::__NR_setuid,
    raw::__NR_setgid,
    raw::__NR_setreuid,
    raw::__NR_setregid,
    raw::__NR_setresuid,
    raw::__NR_setresgid,
    raw::__NR_setgroups,
    raw::__NR_setfsuid,
    raw::__NR_setfsgid,
    raw::__NR_capset,
    raw::__NR_landlock_restrict_self,
];

// From <linux/prctl.h>.
const PR_CAPBSET_DROP: usize = 24;
const PR_SET_SECUREBITS: usize = 28;
const PR_SET_NO_NEW_PRIVS: usize = 38;
const PR_CAP_AMBIENT: usize = 47;
/// A number greater than every option of `prctl` that takes rights away.
pub const PRCTL_END: u32 = 48;

/// Announces a call that changes credentials.
pub fn begin(reach: Reach) -> Option<Change> {
    if !active() || !calls::rings_exist() && reach != Reach::Thread {
        return None;
    }
    Change::begin(reach)
}

/// Returns the reach of a call that the program makes by its number, without the C library's broadcast to all threads.
#[inline]
pub fn reach(number: usize, arguments: [usize; 6]) -> Option<Reach> {
    match number as u32 {
        raw::__NR_prctl => is_change(arguments[0]).then_some(Reach::Unseen),
        raw::__NR_landlock_restrict_self => Some(Reach::Unseen),
        number => CALLS.contains(&number).then_some(Reach::Thread),
    }
}

/// True if this `prctl` takes rights away. Such a change is treated as one of all threads, because it cannot be queried cheaply later.
pub fn is_change(option: usize) -> bool {
    matches!(option, PR_CAPBSET_DROP | PR_SET_SECUREBITS | PR_SET_NO_NEW_PRIVS | PR_CAP_AMBIENT)
}
