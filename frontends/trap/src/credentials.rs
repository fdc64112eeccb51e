//! Calls that change credentials, as the trap sees them in a static program.

use crate::{signals, stub};
use anyring_runtime::credentials::{begin, reach};

/// Makes such a call for the program; the engine learns of the change.
///
/// # Safety
/// The program made the call.
pub unsafe fn trapped(number: usize, arguments: [usize; 6]) -> isize {
    // A child of `vfork` changes its own, in memory that is its parent's.
    let reach = reach(number, arguments).filter(|_| signals::is_owner());
    let change = reach.and_then(begin);
    // SAFETY: the caller's promise.
    let result = unsafe { stub::syscall(number, arguments) };
    if let Some(change) = change {
        change.end();
    }
    result
}
