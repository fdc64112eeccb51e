//! Trapped calls of a static program that change credentials, or may install a seccomp filter.

use crate::{signals, stub};
use anyring_runtime::credentials::{begin, reach};
use anyring_runtime::log;

/// Makes a call that changes credentials for the program, and tells the engine of the change.
///
/// # Safety
/// The program made the call.
pub unsafe fn trapped(number: usize, arguments: [usize; 6]) -> isize {
    let filtering = log::sees_call(number, arguments);
    // A child of `vfork` changes only its own credentials, not those of the process whose memory this is.
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
