//! Questions that may end the process that asks them: a seccomp filter of somebody else's may kill whoever makes a call.

use crate::sys;

/// Whether the process has a seccomp filter, its own or one that it began with.
pub fn is_filtered() -> bool {
    const PR_GET_SECCOMP: u32 = 21;
    // SAFETY: asks only.
    unsafe { sys::prctl(PR_GET_SECCOMP, 0) != 0 }
}

/// The answer to a question that makes system calls; `None` where making them ends the process. Under a filter a child
/// asks: `question` may make system calls and use the stack, and nothing else.
pub fn safely(question: impl FnOnce() -> bool) -> Option<bool> {
    if is_filtered() { in_child(question) } else { Some(question()) }
}

/// A child that cannot be made counts as one that was killed: what it would have tried must not be tried here.
fn in_child(question: impl FnOnce() -> bool) -> Option<bool> {
    match sys::fork_without_signal() {
        0 => {
            const PR_SET_DUMPABLE: u32 = 4;
            // Nobody wants a core file of it.
            // SAFETY: a setting of this child alone.
            unsafe { sys::prctl(PR_SET_DUMPABLE, 0) };
            sys::exit_group(i32::from(question()))
        }
        child @ 1.. => match sys::wait_for(child as u32) {
            // Exit codes 0 and 1, as `wait(2)` shows them.
            0 => Some(false),
            0x100 => Some(true),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_answers_or_dies() {
        assert_eq!(in_child(|| true), Some(true));
        assert_eq!(in_child(|| false), Some(false));
        let dies = || {
            sys::raise(linux_raw_sys::general::SIGKILL as i32);
            true
        };
        assert_eq!(in_child(dies), None);
    }
}
