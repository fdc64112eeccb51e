//! Questions that may end the process that asks them: a seccomp filter of somebody else's may kill whoever makes a call.

use crate::sys;

/// Whether the process has a seccomp filter, its own or one that it began with.
pub fn is_filtered() -> bool {
    const PR_GET_SECCOMP: u32 = 21;
    // SAFETY: asks only.
    unsafe { sys::prctl(PR_GET_SECCOMP, 0) != 0 }
}

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The answer.
    Is(bool),
    /// Whoever asks is ended.
    Dies,
    /// There is no process to be had that could ask, or it would be the first of a PID namespace.
    Unknown,
}

/// Whether the next child of this process begins a PID namespace (`unshare --pid`): it is to be the program's own, for the
/// namespace takes no more processes once its first has ended.
pub fn next_child_begins_a_namespace() -> bool {
    let link = c"/proc/thread-self/ns/pid_for_children";
    // The link is there, and leads nowhere until the namespace has a process.
    sys::read_link(link, &mut [0; 64]) == -(linux_raw_sys::errno::ENOENT as isize) && sys::is_link(link)
}

/// Whether children of this process are in another PID namespace than the process, which they cannot name.
pub fn children_are_elsewhere() -> bool {
    let (mut own, mut theirs) = ([0; 64], [0; 64]);
    let own_length = sys::read_link(c"/proc/thread-self/ns/pid", &mut own);
    let length = sys::read_link(c"/proc/thread-self/ns/pid_for_children", &mut theirs);
    next_child_begins_a_namespace() || own_length > 0 && length > 0 && own != theirs
}

/// The answer to a question that makes system calls. Under a filter a child asks: `question` may make system calls and use
/// the stack, and nothing else.
pub fn safely(question: impl FnOnce() -> bool) -> Answer {
    if is_filtered() { in_child(question) } else { Answer::Is(question()) }
}

/// The same by a child, whether there is a filter or not. In a process of one thread, `question` may do what it likes.
pub fn in_child(question: impl FnOnce() -> bool) -> Answer {
    if next_child_begins_a_namespace() {
        return Answer::Unknown;
    }
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
            0 => Answer::Is(false),
            0x100 => Answer::Is(true),
            _ => Answer::Dies,
        },
        _ => Answer::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_answers_or_dies() {
        assert_eq!(in_child(|| true), Answer::Is(true));
        assert_eq!(in_child(|| false), Answer::Is(false));
        let dies = || {
            sys::raise(linux_raw_sys::general::SIGKILL as i32);
            true
        };
        assert_eq!(in_child(dies), Answer::Dies);
    }
}
