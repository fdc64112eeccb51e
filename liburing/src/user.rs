//! Anyring's engine in this process: when it is wanted, what it is lent, the way into it.
//!
//! The library stands in front of nothing but `io_uring`: of the program's signal actions it knows nothing. A
//! handler that ran while its thread is inside the engine could enter the ring whose lock that thread holds;
//! so signals are blocked inside, but for waits, which have the program's mask.

use crate::notice;
use anyring_engine::{Caller, Host, door};
use anyring_trap::config::{self, Choice};
use anyring_trap::{calls, process, signals, stub, sys, threads};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicBool, Ordering};

/// What the engine is lent.
struct Library;

static HOST: &dyn Host = &Library;

impl Host for Library {
    fn spawn(
        &self,
        name: &'static CStr,
        entry: extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), i32> {
        threads::spawn(name, entry, argument, 0..0)
    }

    fn thread_identity(&self) -> NonZeroUsize {
        anyring_trap::arch::thread_pointer()
    }

    fn faults_resume(&self) -> bool {
        // Signal actions are the program's.
        false
    }
}

unsafe extern "C" {
    static environ: *const *const c_char;
    fn getauxval(name: usize) -> usize;
}

/// Whether this process's rings are to be anyring's; if so, they can be made from here on.
#[cold]
pub fn is_wanted() -> bool {
    const SECURE: usize = 23;
    // Where somebody else answers the calls, `anyring run` for one, they are as good as the kernel's.
    if stub::is_in_place() {
        return false;
    }
    // SAFETY: asks only.
    let privileged = unsafe { getauxval(SECURE) } != 0;
    // The variables of who starts a program are not obeyed with privileges that he has not.
    // SAFETY: the C library's list.
    let variables = if privileged { core::ptr::null() } else { unsafe { environ } };
    // SAFETY: the C library's list, or null; its strings stay, or the program has a bug of its own.
    let config = unsafe { config::read(variables) };
    // SAFETY: creates nothing, reads nothing.
    let kernel = |number, arguments| unsafe { anyring_trap::arch::syscall(number, arguments) };
    if process::choose(config.choice, kernel) != Choice::User {
        return false;
    }
    begin();
    true
}

/// Puts the engine in place, once.
fn begin() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    // Of threads that make their first ring at the same time each goes on with a whole engine: the host is the
    // same, and hooks that run twice do no harm.
    process::adopt(&HOST);
    if !BEGUN.swap(true, Ordering::Relaxed) {
        notice::begin();
    }
}

/// One of the three calls; a negative errno on failure.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn call(number: usize, arguments: [usize; 6]) -> c_int {
    notice::thread();
    let mask = sys::set_signal_mask(signals::ASYNCHRONOUS);
    notice::credentials();
    // SAFETY: the caller's promise.
    let result = unsafe { calls::call(number, arguments, &Caller { signal_mask: Some(mask) }) };
    sys::set_signal_mask(mask);
    result as c_int
}

/// A ring's descriptor is about to be closed.
pub fn closing(fd: c_int) {
    quietly(|| door::closed(fd));
}

/// Lets a ring's descriptor be one that can be polled, as the kernel's can: what the library keeps of it to map
/// its memory by, or a negative errno where it stays as it is.
pub fn show_readiness(fd: c_int) -> c_int {
    let memory = crate::call::duplicate(fd);
    if memory >= 0 && !show_again(fd) {
        crate::call::close_own(memory);
        return -1;
    }
    memory
}

/// The same after its memory was mapped by the descriptor once more; whether that could be done.
pub fn show_again(fd: c_int) -> bool {
    quietly(|| door::show_readiness(fd)).is_ok()
}

/// The program has looked for completions, and found none: who polls the ring's descriptor may sleep.
pub fn found_nothing(fd: c_int) {
    quietly(|| door::sync_readiness(fd));
}

/// Does something in the engine without a handler of the program in between.
pub fn quietly<T>(body: impl FnOnce() -> T) -> T {
    let mask = sys::set_signal_mask(signals::ASYNCHRONOUS);
    let result = body();
    sys::set_signal_mask(mask);
    result
}

/// Says what was done, if asked, and lets go of rings that other processes have.
extern "C" fn end() {
    if crate::call::is_decided() {
        process::exits();
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
