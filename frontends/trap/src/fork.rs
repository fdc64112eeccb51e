//! Forks of the process, as the trap sees them or hears of them.

use crate::{handlers, signals, stub};
use anyring_engine::os::user;
use anyring_runtime::{calls, process, sys};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use linux_raw_sys::errno::ENOSYS;
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
    // Nearly always it is set; a look is cheaper than an exchange.
    mark.is_none_or(|mark| mark.load(Ordering::Relaxed) || mark.swap(true, Ordering::Relaxed))
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
    handlers::forked();
    process::forked();
    if let Some(frontend) = crate::frontend() {
        frontend.forked();
    }
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

/// Bytes of the first version of the structure that `clone3` is given.
const LEAST: usize = 64;
const CLEAR_SIGHAND: u64 = 0x1_0000_0000;

/// The flags of a `clone3(2)` that makes a thread, or another child in this memory. Not where the child is to have actions anew, which would be ours, too; nor
/// where it is made as a fork ([`perform_clone3`]).
pub fn flags_in_memory(a: [usize; 6]) -> Option<u64> {
    let flags = user::read::<u64>(a[0] as u64).ok().filter(|_| a[1] >= LEAST)?;
    (flags & u64::from(raw::CLONE_VM) != 0 && flags & CLEAR_SIGHAND == 0 && !is_fork(flags)).then_some(flags)
}

/// Whether a `clone3(2)` with these flags is made as a fork.
fn is_fork(flags: u64) -> bool {
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    let shared = u64::from(raw::CLONE_VM | raw::CLONE_VFORK);
    flags & u64::from(raw::CLONE_VM) == 0 || flags & shared == shared && flags & INTO_CGROUP != 0
}

/// `clone3(2)`, as the trap saw it: where it is a fork. Others are made at patched sites ([`flags_in_memory`]), or by `clone`, which every program knows that
/// is told that there is no `clone3`. Only that has a place in another control group: what would be a `vfork` with one is a fork.
///
/// # Safety
/// As for [`perform`].
pub unsafe fn perform_clone3(a: [usize; 6]) -> isize {
    const MOST: usize = 4096;
    const STACK: usize = 5;
    let number = raw::__NR_clone3 as usize;
    let missing = -(ENOSYS as isize);
    // What is wrong with it, the kernel says.
    if !(LEAST..=MOST).contains(&a[1]) {
        // SAFETY: the program's own call, which fails.
        return unsafe { stub::syscall(number, a) };
    }
    let mut arguments = match user::read_many::<u8>(a[0] as u64, a[1]) {
        Ok(arguments) => arguments,
        Err(errno) => return errno.negated() as isize,
    };
    let word = |index: usize| {
        let bytes = arguments[index * 8..].first_chunk();
        bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    };
    let (flags, stack) = (word(0), word(STACK));
    // Actions that the child is to have anew would be ours, too.
    if !is_fork(flags) || stack != 0 || flags & CLEAR_SIGHAND != 0 {
        return missing;
    }
    let flags = flags & !u64::from(raw::CLONE_VM);
    arguments[..8].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: the caller's promise; the structure is a copy of the program's.
    unsafe { perform(number, [arguments.as_ptr().addr(), a[1], a[2], a[3], a[4], a[5]]) }
}
