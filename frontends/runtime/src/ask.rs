//! Questions that may end the process that asks them: a seccomp filter of somebody else's may kill whoever makes a call.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use linux_raw_sys::general as raw;

use crate::{arch, sys};

/// Whether the process has a seccomp filter, its own or one that it began with.
pub fn is_filtered() -> bool {
    const PR_GET_SECCOMP: u32 = 21;
    // SAFETY: asks only.
    unsafe { sys::prctl(PR_GET_SECCOMP, 0) != 0 }
}

/// The answer to a question.
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
    let mut theirs = [0; 64];
    match sys::read_link(CHILDREN, &mut theirs) {
        // Up to Linux 6.18 at least, the link is there, and leads nowhere until the namespace has a process.
        NOWHERE => sys::is_link(CHILDREN),
        // In Linux 7.2 it leads there at once.
        1.. => theirs != own_namespace() && !namespace_has_a_process(),
        _ => false,
    }
}

/// Whether children of this process are in another PID namespace than the process, which they cannot name.
pub fn children_are_elsewhere() -> bool {
    let (own, mut theirs) = (own_namespace(), [0; 64]);
    let length = sys::read_link(CHILDREN, &mut theirs);
    next_child_begins_a_namespace() || own != [0; 64] && length > 0 && own != theirs
}

/// The PID namespace of this process's children.
const CHILDREN: &CStr = c"/proc/thread-self/ns/pid_for_children";
/// The answer to reading a link that leads nowhere.
const NOWHERE: isize = -(linux_raw_sys::errno::ENOENT as isize);

/// The name of this process's PID namespace; zeros where it cannot be had.
fn own_namespace() -> [u8; 64] {
    let mut name = [0; 64];
    sys::read_link(c"/proc/thread-self/ns/pid", &mut name);
    name
}

/// Whether the PID namespace of this process's children has its first process. Where that is not to be learned, it has none.
fn namespace_has_a_process() -> bool {
    const NOT_KNOWN: isize = -(linux_raw_sys::errno::ENOTTY as isize);
    // SAFETY: the path is a string.
    let namespace = unsafe { sys::open(CHILDREN.as_ptr().cast(), raw::O_RDONLY, 0) };
    if namespace < 0 {
        return false;
    }
    let first = sys::process_in_namespace(namespace, 1);
    sys::close(namespace);
    // Kernels that do not know this question (before 6.11) show no namespace without a process.
    first > 0 || first == NOT_KNOWN
}

/// The answer to a question that makes system calls. Under a filter a child asks: `question` may make system calls and use
/// the stack, and nothing else.
pub fn safely(question: impl FnOnce() -> bool) -> Answer {
    if is_filtered() { in_child(question) } else { Answer::Is(question()) }
}

/// Asks by a thread, which is gone when this returns. `question` may make system calls and use some KiB of the stack, and nothing
/// else. Under a filter, which may end whoever asks, a child asks.
pub fn by_thread<F: Fn() -> bool>(question: F) -> Answer {
    const STACK_WORDS: usize = 1024;
    /// Aligned as the stack of a function is to be.
    #[repr(C, align(64))]
    struct Stack([usize; STACK_WORDS]);
    struct Asked<F> {
        question: F,
        answer: AtomicBool,
    }
    extern "C" fn begin<F: Fn() -> bool>(asked: *const Asked<F>) -> ! {
        // SAFETY: the asking thread's, which waits for this one's end.
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
    // The thread begins by taking two words, below which its stack is.
    const ABOVE: usize = 64 / size_of::<usize>();
    // SAFETY: within the stack.
    let words = unsafe { stack.as_mut_ptr().cast::<usize>().add(STACK_WORDS - ABOVE) };
    // SAFETY: as above.
    unsafe {
        words.write(begin::<F> as *const () as usize);
        words.add(1).write((&raw const asked).addr());
    }
    // A handler of the program's is none of the thread's.
    let mask = sys::set_signal_mask(sys::OF_OWN_THREADS);
    let flags = sys::THREAD & !raw::CLONE_SETTLS;
    // SAFETY: the stack is prepared as is wanted, and stays, as the word does, until the thread has ended. It has this thread's storage,
    // which this thread does not use meanwhile.
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

/// The answer that a child gives by its end.
fn answer_of(child: u32) -> Answer {
    match sys::wait_for(child) {
        // Exit codes 0 and 1, as `wait(2)` shows them.
        0 => Answer::Is(false),
        0x100 => Answer::Is(true),
        // A sandbox does not let it wait.
        -1 => Answer::Unknown,
        _ => Answer::Dies,
    }
}

/// Asks by a child, whether there is a filter or not. In a process of one thread, `question` may do what it likes.
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
