//! Calls that change credentials, or give the program a filter, as the trap sees them in a static program.

use crate::{signals, stub};
use anyring_runtime::credentials::{begin, reach};
use anyring_runtime::log;

/// Makes such a call for the program; the engine learns of the change.
///
/// # Safety
/// The program made the call.
pub unsafe fn trapped(number: usize, arguments: [usize; 6]) -> isize {
    let filtering = log::sees_call(number, arguments);
    // A child of `vfork` changes its own, in memory that is its parent's.
    let reach = reach(number, arguments).filter(|_| signals::is_owner());
    let change = reach.and_then(begin);
    // SAFETY: the caller's promise.
    let result = unsafe { stub::syscall(number, arguments) };
    filtering.made(result);
    if let Some(change) = change {
        change.end();
    }
    result
}
