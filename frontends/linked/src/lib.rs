//! Code that the front ends that are linked into programs share: when anyring's engine is wanted, the way into it, and what it is
//! told of the program.
//!
//! Such a front end interposes nothing but `io_uring`: it knows nothing of the program's signal actions. A
//! handler that ran while its thread is inside the engine could enter the ring whose lock that thread holds;
//! so signals are blocked inside, but for waits, which have the program's mask.
#![no_std]

mod cancel;
mod notice;

pub use anyring_runtime::arch::{syscall, thread_pointer};
pub use anyring_runtime::beside;
pub use anyring_runtime::calls::SMALL_FILES;
pub use anyring_runtime::config::Choice;
pub use anyring_runtime::process::{RINGS_KILL, exits, others_answer};
pub use cancel::may_end_in;
pub use notice::thread as thread_enters;

use anyring_engine::{Caller, Host, frontend};
use anyring_runtime::config::Level;
use anyring_runtime::{ask, calls, config, log, process, sys};
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

unsafe extern "C" {
    static environ: *const *const c_char;
    fn getauxval(name: usize) -> usize;
}

/// Which engine the rings of this process are to have: what `ANYRING_ENGINE` says, else the kernel's where it
/// works. A value that cannot be understood ends the process, and says so.
#[cold]
pub fn choose() -> Choice {
    const SECURE: usize = 23;
    // SAFETY: asks only.
    let privileged = unsafe { getauxval(SECURE) } != 0;
    // The variables of who starts a program are not obeyed with privileges that he has not.
    // SAFETY: the C library's list.
    let variables = if privileged { core::ptr::null() } else { unsafe { environ } };
    // Where somebody else answers the calls, `anyring run` for one, they are as good as the kernel's.
    if others_answer() {
        // SAFETY: the C library's list, or null.
        if unsafe { config::leave_the_choice(variables) } {
            beside::offer();
        }
        return Choice::Kernel;
    }
    // SAFETY: the C library's list, or null.
    let config = unsafe { config::read(variables) };
    process::refuse_settings(&config);
    // Nobody else has the engine chosen.
    process::asks_for_ring();
    // SAFETY: makes a ring.
    let kernel = |number, arguments| unsafe { syscall(number, arguments) };
    match process::choose(config.choice, process::Asks::Itself, kernel) {
        Choice::User if process::rings_kill() => {
            log::line(Level::Info, format_args!("{}: io_uring is left as it is", process::RINGS_KILL));
            Choice::Kernel
        }
        engine => engine,
    }
}

/// Whether a seccomp filter ends whoever makes a ring of our engine. It is asked under the first filter that is there; what a
/// later one does is not known.
pub fn rings_kill() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    if ANSWER.load(Ordering::Relaxed) == UNKNOWN && ask::is_filtered() {
        ANSWER.store(if process::rings_kill() { YES } else { NO }, Ordering::Relaxed);
    }
    ANSWER.load(Ordering::Relaxed) == YES
}

/// Puts anyring's engine in place, once; rings can be made from here on. What `host` provides must not touch
/// memory that a child of `fork` finds locked.
pub fn begin(host: &'static &'static dyn Host) {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    // Of threads that make their first ring at the same time each goes on with a whole engine: the host is the
    // same, and hooks that run twice do no harm.
    process::adopt(host);
    if !BEGUN.swap(true, Ordering::Relaxed) {
        notice::begin();
    }
}

/// Puts anyring's engine in place beside the kernel's, for what the kernel lacks.
pub fn begin_beside_kernel(host: &'static &'static dyn Host) {
    static LINKED: &dyn anyring_kernel_ring::Frontend = &Linked;
    begin(host);
    anyring_kernel_ring::begin(&LINKED);
}

/// The front end as the companions of the kernel's rings need it.
struct Linked;

impl anyring_kernel_ring::Frontend for Linked {
    unsafe fn call(&self, number: usize, arguments: [usize; 6]) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { call(number, arguments, false) }
    }

    fn block_signals(&self) -> u64 {
        sys::set_signal_mask(sys::ASYNCHRONOUS)
    }

    fn restore_signals(&self, mask: u64) {
        sys::set_signal_mask(mask);
    }

    fn closing(&self, fd: c_int) {
        closing(fd);
    }
}

/// One of the three calls, by anyring's engine; a negative errno on failure. `tells_closes` is what the engine is to know of a
/// ring that is made: [`closing`] is called for its descriptors.
///
/// # Safety
/// As for the call that `number` names.
pub unsafe fn call(number: usize, arguments: [usize; 6], tells_closes: bool) -> c_int {
    notice::thread();
    let mask = sys::set_signal_mask(sys::ASYNCHRONOUS);
    notice::credentials();
    // SAFETY: the caller's promise.
    let result = unsafe { calls::call(number, arguments, &Caller { signal_mask: Some(mask), tells_closes }) };
    sys::set_signal_mask(mask);
    result as c_int
}

/// `io_uring_setup` where the kernel's engine was chosen: a descriptor or a negative errno. Where the kernel knows not all of the
/// flags and ours does, the ring is ours ([`beside`]); `begin` puts our engine in place then.
///
/// # Safety
/// As for the call.
pub unsafe fn set_up(arguments: [usize; 6], begin: impl FnOnce(), tells_closes: bool) -> c_int {
    const SETUP: usize = linux_raw_sys::general::__NR_io_uring_setup as usize;
    // SAFETY: the caller's promise, or parameters of ours.
    let kernel = |number, arguments| unsafe { syscall(number, arguments) };
    if let Some(result) = beside::set_up(arguments, kernel, closing) {
        return result as c_int;
    }
    begin();
    beside::share();
    // SAFETY: the caller's promise.
    unsafe { call(SETUP, arguments, tells_closes) }
}

/// A time during which no handler of the program runs in the calling thread.
pub struct Quiet(u64);

impl Quiet {
    /// Begins the time.
    pub fn begin() -> Self {
        Self(sys::set_signal_mask(sys::ASYNCHRONOUS))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        sys::set_signal_mask(self.0);
    }
}

/// Does something in the engine without a handler of the program in between.
pub fn quietly<T>(body: impl FnOnce() -> T) -> T {
    let _quiet = Quiet::begin();
    body()
}

/// A descriptor, a ring's or one that a ring works on, is about to be closed.
pub fn closing(fd: c_int) {
    quietly(|| frontend::closed(fd));
}
