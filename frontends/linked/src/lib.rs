//! Code that the front ends for linking into programs share: the choice of the engine, the entry to the user engine, and reports
//! about the program to the engine.
//!
//! Such a front end interposes only `io_uring`: it does not know the program's signal actions. A signal handler that
//! runs while its thread is inside the engine could enter a ring whose lock the thread holds. So signals are blocked
//! inside the engine, except during waits, which use the program's mask.
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

use anyring_engine::os::vdso;
use anyring_engine::{Caller, Host, frontend};
use anyring_runtime::config::Level;
use anyring_runtime::{ask, calls, config, log, process, sys};
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

unsafe extern "C" {
    static environ: *const *const c_char;
    fn getauxval(name: usize) -> usize;
}

/// Chooses the engine for the rings of this process: the one that `ANYRING_ENGINE` names, else the kernel's if it
/// works. An invalid value ends the process with a message.
#[cold]
pub fn choose() -> Choice {
    const SECURE: usize = 23;
    // SAFETY: only reads a value.
    let privileged = unsafe { getauxval(SECURE) } != 0;
    // In a privileged program, variables of its unprivileged caller are ignored.
    // SAFETY: the list is the C library's.
    let variables = if privileged { core::ptr::null() } else { unsafe { environ } };
    // If another front end answers the calls (that of `anyring run`, for example), its io_uring is as good as the kernel's.
    if others_answer() {
        // SAFETY: the list is the C library's, or null.
        if unsafe { config::leave_the_choice(variables) } {
            beside::offer();
        }
        return Choice::Kernel;
    }
    // SAFETY: the list is the C library's, or null.
    let config = unsafe { config::read(variables) };
    process::refuse_settings(&config);
    // The engine is chosen only when the program asks for a ring.
    process::asks_for_ring();
    // SAFETY: the call makes a ring with parameters of the caller.
    let kernel = |number, arguments| unsafe { syscall(number, arguments) };
    match process::choose(config.choice, process::Asks::Itself, kernel) {
        Choice::User if process::rings_kill() => {
            log::line(Level::Info, format_args!("{}: io_uring is left as it is", process::RINGS_KILL));
            Choice::Kernel
        }
        engine => engine,
    }
}

/// True if a seccomp filter kills threads that make a ring of the user engine. The filter is tested when one is first
/// found; the effect of later filters is unknown.
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

/// Starts the user engine, once; rings can be made from here on. The functions of `host` must not touch
/// memory that a child of `fork` finds locked.
pub fn begin(host: &'static &'static dyn Host) {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    // Threads that make their first ring at the same time all continue with a complete engine: the host is the
    // same, and hooks that run twice do no harm.
    // SAFETY: only reads a value.
    vdso::note_image(unsafe { getauxval(vdso::AUXILIARY) });
    process::adopt(host);
    if !BEGUN.swap(true, Ordering::Relaxed) {
        notice::begin();
    }
}

/// Starts the user engine beside the kernel engine, for operations that the kernel lacks.
pub fn begin_beside_kernel(host: &'static &'static dyn Host) {
    static LINKED: &dyn anyring_kernel_ring::Frontend = &Linked;
    begin(host);
    anyring_kernel_ring::begin(&LINKED);
}

/// The front end for the companions of the kernel's rings.
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

/// Makes one of the three calls on the user engine; returns a negative errno on failure. `tells_closes` says, for a new
/// ring, whether [`closing`] is called for its descriptors.
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

/// Makes `io_uring_setup` in a process for which the kernel engine was chosen; returns a descriptor or a negative errno. If the kernel does
/// not know all of the flags and the user engine does, the user engine makes the ring ([`beside`]); `begin` starts it then.
///
/// # Safety
/// As for the call.
pub unsafe fn set_up(arguments: [usize; 6], begin: impl FnOnce(), tells_closes: bool) -> c_int {
    const SETUP: usize = linux_raw_sys::general::__NR_io_uring_setup as usize;
    // SAFETY: the caller's promise, or parameters of this crate.
    let kernel = |number, arguments| unsafe { syscall(number, arguments) };
    if let Some(result) = beside::set_up(arguments, kernel, closing) {
        return result as c_int;
    }
    begin();
    beside::share();
    // SAFETY: the caller's promise.
    unsafe { call(SETUP, arguments, tells_closes) }
}

/// A period during which no signal handler of the program runs in the calling thread.
pub struct Quiet(u64);

impl Quiet {
    /// Begins the period.
    pub fn begin() -> Self {
        Self(sys::set_signal_mask(sys::ASYNCHRONOUS))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        sys::set_signal_mask(self.0);
    }
}

/// Calls `body`, during which no signal handler of the program runs in the calling thread.
pub fn quietly<T>(body: impl FnOnce() -> T) -> T {
    let _quiet = Quiet::begin();
    body()
}

/// Tells the engine that a descriptor, of a ring or of a file that a ring works on, is about to be closed.
pub fn closing(fd: c_int) {
    quietly(|| frontend::closed(fd));
}
