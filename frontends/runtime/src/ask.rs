//! Questions that may kill the process that asks them: a seccomp filter of another program may kill a process for making a
//! call.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use linux_raw_sys::general as raw;

use crate::{arch, sys};

/// True if the process has a seccomp filter, its own or an inherited one.
pub fn is_filtered() -> bool {
    const PR_GET_SECCOMP: u32 = 21;
    // SAFETY: only reads a setting.
    unsafe { sys::prctl(PR_GET_SECCOMP, 0) != 0 }
}

/// The answer to a question that is asked by system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The answer, true or false.
    Is(bool),
    /// The filter kills a process that asks.
    Dies,
    /// No child can be made or waited for, or the child would be the first process of a PID namespace.
    Unknown,
}

/// True if the next child of this process begins a PID namespace (`unshare --pid`). That child must be the program's own,
/// because the namespace accepts no more processes after its first has ended.
pub fn next_child_begins_a_namespace() -> bool {
    let mut theirs = [0; 64];
    match sys::read_link(CHILDREN, &mut theirs) {
        // Up to Linux 6.18 at least, the link exists, but has no target until the namespace has a process.
        NOWHERE => sys::is_link(CHILDREN),
        // In Linux 7.2 the link has a target immediately.
        1.. => theirs != own_namespace() && !namespace_has_a_process(),
        _ => false,
    }
}

/// True if children of this process are in another PID namespace than the process itself; then they cannot name the process.
pub fn children_are_elsewhere() -> bool {
    let (own, mut theirs) = (own_namespace(), [0; 64]);
    let length = sys::read_link(CHILDREN, &mut theirs);
    next_child_begins_a_namespace() || own != [0; 64] && length > 0 && own != theirs
}

/// The link to the PID namespace of this process's children.
const CHILDREN: &CStr = c"/proc/thread-self/ns/pid_for_children";
/// The result of reading a link without a target.
const NOWHERE: isize = -(linux_raw_sys::errno::ENOENT as isize);

/// Returns the name of this process's PID namespace, or zeros if it is unknown.
fn own_namespace() -> [u8; 64] {
    let mut name = [0; 64];
    sys::read_link(c"/proc/thread-self/ns/pid", &mut name);
    name
}

/// True if the PID namespace of this process's children is known to have its first process.
fn namespace_has_a_process() -> bool {
    const NOT_KNOWN: isize = -(linux_raw_sys::errno::ENOTTY as isize);
    // SAFETY: the path is a string.
    let namespace = unsafe { sys::open(CHILDREN.as_ptr().cast(), raw::O_RDONLY, 0) };
    if namespace < 0 {
        return false;
    }
    let first = sys::process_in_namespace(namespace, 1);
    sys::close(namespace);
    // Kernels without this request (before 6.11) do not show a namespace that has no process.
    first > 0 || first == NOT_KNOWN
}

/// Answers a question by system calls. Under a filter, the question is asked in a child, so `question` may only make system
/// calls and use the stack.
pub fn safely(question: impl FnOnce() -> bool) -> Answer {
    if is_filtered() { in_child(question) } else { Answer::Is(question()) }
}

/// Answers a question in a thread, which has ended when this returns. `question` may only make system calls and use some KiB of the
/// stack. Under a filter, which may kill the process, the question is asked in a child instead.
pub fn by_thread<F: Fn() -> bool>(question: F) -> Answer {
    const STACK_WORDS: usize = 1024;
    /// A stack, aligned as functions require.
    #[repr(C, align(64))]
    struct Stack([usize; STACK_WORDS]);
    struct Asked<F> {
        question: F,
        answer: AtomicBool,
    }
    extern "C" fn begin<F: Fn() -> bool>(asked: *const Asked<F>) -> ! {
        // SAFETY: the asking thread owns it, and waits for the end of this thread.
        let asked = unsafe { &*asked };
        asked.answer.store((asked.question)(), Ordering::Relaxed);
        sys::exit_thread()
    }
    if is_filtered() {
        return in_child(question);
    }
    let asked = Asked { question, answer: AtomicBool::new(false) };
    let thread = AtomicU32::new(0);
    let mut stack = core::mem::MaybeUninit::<Stack>::uninit();
    // The thread begins by popping two words; its stack is below them.
    const ABOVE: usize = 64 / size_of::<usize>();
    // SAFETY: the words are within the stack.
    let words = unsafe { stack.as_mut_ptr().cast::<usize>().add(STACK_WORDS - ABOVE) };
    // SAFETY: as above.
    unsafe {
        words.write(begin::<F> as *const () as usize);
        words.add(1).write((&raw const asked).addr());
    }
    // No signal handler of the program may run in the thread.
    let mask = sys::set_signal_mask(sys::OF_OWN_THREADS);
    let flags = sys::THREAD & !raw::CLONE_SETTLS;
    // SAFETY: the stack is prepared as the call requires. Stack and word stay until the thread has ended. The new thread shares this
    // thread's thread-local storage, which this thread does not use meanwhile.
    let number =
        unsafe { arch::anyring_runtime_clone(flags as usize, words, thread.as_ptr(), core::ptr::null_mut()) };
    if number > 0 {
        sys::wait_for_thread(number as u32, &thread);
    }
    sys::set_signal_mask(mask);
    match number {
        1.. => Answer::Is(asked.answer.into_inner()),
        _ => in_child(asked.question),
    }
}

/// Returns the answer that a child gives by its exit status.
fn answer_of(child: u32) -> Answer {
    match sys::wait_for(child) {
        // Exit codes 0 and 1, as `wait(2)` shows them.
        0 => Answer::Is(false),
        0x100 => Answer::Is(true),
        // A sandbox does not allow the wait.
        -1 => Answer::Unknown,
        _ => Answer::Dies,
    }
}

/// Answers a question in a child, whether there is a filter or not. In a process with one thread, `question` may do anything.
pub fn in_child(question: impl FnOnce() -> bool) -> Answer {
    if next_child_begins_a_namespace() {
        return Answer::Unknown;
    }
    match sys::fork_without_signal() {
        0 => {
            const PR_SET_DUMPABLE: u32 = 4;
            // A core file of the child is of no use.
            // SAFETY: the setting affects this child only.
            unsafe { sys::prctl(PR_SET_DUMPABLE, 0) };
            sys::exit_group(i32::from(question()))
        }
        child @ 1.. => answer_of(child as u32),
        _ => Answer::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

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

    #[test]
    fn a_thread_answers_and_is_gone() {
        assert_eq!(by_thread(|| false), Answer::Is(false));
        for _ in 0..100 {
            let asks = Cell::new(0);
            assert_eq!(by_thread(|| asks.replace(sys::thread_id()) == 0), Answer::Is(true));
            assert!(!sys::is_thread(sys::process_id(), asks.get()));
        }
    }
}
