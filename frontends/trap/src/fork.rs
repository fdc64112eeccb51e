//! Forks of the process, as the trap sees them or hears of them.

use crate::{signals, stub};
use anyring_runtime::{calls, process, sys};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use linux_raw_sys::general as raw;

/// A word that is zero in a child of a fork that nobody told of: a static program has no C library to tell, and a program may
/// make the call by its number.
static MARK: AtomicPtr<AtomicBool> = AtomicPtr::new(core::ptr::null_mut());

/// Lets [`notice`] notice.
pub fn watch() {
    const PAGE: usize = 4096;
    // SAFETY: new memory, wherever the kernel likes.
    let page = unsafe { sys::map(0, PAGE, raw::PROT_READ | raw::PROT_WRITE, 0) };
    if let Ok(page) = usize::try_from(page)
        && sys::wipe_on_fork(page, PAGE)
    {
        MARK.store(page as *mut AtomicBool, Ordering::Relaxed);
        renew_mark();
    }
}

fn renew_mark() -> bool {
    // SAFETY: null, or a page that stays mapped.
    let mark = unsafe { MARK.load(Ordering::Relaxed).as_ref() };
    mark.is_none_or(|mark| mark.swap(true, Ordering::Relaxed))
}

/// Called when a call traps, and where the process is not the one that it was: the first in a child of `fork` says so. A child
/// of `vfork` has its parent's memory, and is none.
pub fn notice() {
    if !renew_mark() {
        forked();
    }
}

/// The process has forked and this is the child.
pub fn forked() {
    renew_mark();
    signals::forked();
    process::forked();
}

/// `fork`, or `clone` with memory of its own, as the trap saw it.
///
/// # Safety
/// Called in the trap's handler, from which both processes return to the program.
pub unsafe fn perform(number: usize, a: [usize; 6]) -> isize {
    let shared = process::sees_calls() && calls::rings_exist();
    if shared {
        process::before_fork();
    }
    let noted = signals::noted();
    // SAFETY: the program's own call.
    let result = unsafe { stub::syscall(number, a) };
    if result == 0 {
        forked();
        // The child's thread has the mask, and another number.
        signals::note(noted);
    } else if shared {
        process::after_fork();
    }
    result
}
