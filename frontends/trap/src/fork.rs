//! Forks of the process: those that trap, and those that are noticed afterwards.

use crate::{handlers, signals, stub};
use anyring_engine::os::user;
use anyring_runtime::{calls, process, sys};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use linux_raw_sys::errno::ENOSYS;
use linux_raw_sys::general as raw;

/// A word that the kernel zeroes in a child of `fork`. By it a fork is noticed that no C library announced: a static program has none,
/// and a program may make the call by its number.
static MARK: AtomicPtr<AtomicBool> = AtomicPtr::new(core::ptr::null_mut());

/// Maps the word by which [`notice`] recognizes a child.
pub fn watch() {
    const PAGE: usize = 4096;
    // SAFETY: new memory, wherever the kernel likes.
    let page = unsafe { sys::map(0, PAGE, raw::PROT_READ | raw::PROT_WRITE, 0) };
    if let Ok(page) = usize::try_from(page)
        && sys::wipe_on_fork(page, PAGE)
    {
        let mark = page as *mut AtomicBool;
        // SAFETY: in the new page. A load of it first would cost a page fault more.
        unsafe { mark.write(AtomicBool::new(true)) };
        MARK.store(mark, Ordering::Relaxed);
    }
}

fn renew_mark() -> bool {
    // SAFETY: null, or a page that stays mapped.
    let mark = unsafe { MARK.load(Ordering::Relaxed).as_ref() };
    // The word is nearly always set, and a load is cheaper than an exchange.
    mark.is_none_or(|mark| mark.load(Ordering::Relaxed) || mark.swap(true, Ordering::Relaxed))
}

/// Adjusts the state if this is the first call in a child of a fork that was not announced. Called when a call traps, and where the
/// process's number has changed. A child of `vfork` shares its parent's memory, and nothing is adjusted.
pub fn notice() {
    if !renew_mark() {
        forked();
    }
}

/// Adjusts the state in a child of `fork`.
pub fn forked() {
    // Not by [`renew_mark`], whose load costs a page fault more.
    // SAFETY: null, or a page that stays mapped.
    if let Some(mark) = unsafe { MARK.load(Ordering::Relaxed).as_ref() } {
        mark.store(true, Ordering::Relaxed);
    }
    signals::forked();
    handlers::forked();
    process::forked();
    if let Some(frontend) = crate::frontend() {
        frontend.forked();
    }
}

/// Does a trapped `fork`, or a `clone` whose child has memory of its own.
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
        // The child's thread inherits the mask, but the note is found by the thread's number.
        signals::note(noted);
    } else if shared {
        process::after_fork();
    }
    result
}

/// Bytes of the first version of `struct clone_args`.
const LEAST: usize = 64;
const CLEAR_SIGHAND: u64 = 0x1_0000_0000;

/// Returns the flags of a `clone3(2)` that makes a thread or another child in this memory. `None` if [`perform_clone3`] makes it as a
/// fork, or if it would reset the child's signal actions, among them the engine's.
pub fn flags_in_memory(a: [usize; 6]) -> Option<u64> {
    let flags = user::read::<u64>(a[0] as u64).ok().filter(|_| a[1] >= LEAST)?;
    (flags & u64::from(raw::CLONE_VM) != 0 && flags & CLEAR_SIGHAND == 0 && !is_fork(flags)).then_some(flags)
}

/// True if a `clone3(2)` with these flags is made as a fork.
fn is_fork(flags: u64) -> bool {
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    let shared = u64::from(raw::CLONE_VM | raw::CLONE_VFORK);
    flags & u64::from(raw::CLONE_VM) == 0 || flags & shared == shared && flags & INTO_CGROUP != 0
}

/// Does a trapped `clone3(2)` if it can be made as a fork. Others are made at patched sites ([`flags_in_memory`]) or return `ENOSYS`,
/// after which programs use `clone`. But `clone` cannot put a child into another control group, so a `vfork` that does is made as a
/// fork.
///
/// # Safety
/// As for [`perform`].
pub unsafe fn perform_clone3(a: [usize; 6]) -> isize {
    const MOST: usize = 4096;
    const STACK: usize = 5;
    let number = raw::__NR_clone3 as usize;
    let missing = -(ENOSYS as isize);
    // The kernel returns the right errno.
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
    // The call would also reset the engine's signal actions in the child.
    if !is_fork(flags) || stack != 0 || flags & CLEAR_SIGHAND != 0 {
        return missing;
    }
    let flags = flags & !u64::from(raw::CLONE_VM);
    arguments[..8].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: the caller's promise; the structure is a copy of the program's.
    unsafe { perform(number, [arguments.as_ptr().addr(), a[1], a[2], a[3], a[4], a[5]]) }
}
