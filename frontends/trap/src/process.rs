//! The life of the process: which engine it has, its forks, its end.

use crate::config::{Choice, Config, Level};
use crate::filter::Reach;
use crate::{Frontend, calls, config, log, signals, stub, sys, threads, trap};
use anyring_engine::{Host, frontend};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use linux_raw_sys::general as raw;

/// Whether the engine of this process is ours.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// Whether this process forked off the one that started here.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Whether the last line was written.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Whether the engine of this process is ours.
#[inline]
pub fn active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// Chooses the engine and puts the trap in place, before the program's first instruction. Whether
/// the engine is ours.
pub fn begin(
    config: &Config,
    reach: &Reach,
    frontend: &'static &'static dyn Frontend,
    host: &'static &'static dyn Host,
) -> bool {
    crate::set_frontend(frontend);
    if let Err(error) = stub::install() {
        log::write(format_args!("cannot place the stub page (errno {}): io_uring is left as it is", -error));
        return false;
    }
    // SAFETY: creates nothing, reads nothing; the stub is in place.
    let kernel = |number, arguments| unsafe { stub::syscall(number, arguments) };
    if choose(config.choice, kernel) == Choice::Kernel {
        // A filter that an ancestor installed still traps; then, and only then, calls are passed on.
        if under_a_filter() {
            let _ = trap::install(Choice::Kernel, reach);
        }
        return false;
    }
    adopt(host);
    if let Err((what, error)) = trap::install(Choice::User, reach) {
        log::write(format_args!(
            "cannot install the trap ({what}, errno {}): only calls through the C library are answered",
            -error
        ));
    }
    true
}

/// Which engine it is to be: ours or the kernel's, which `kernel` makes a system call of.
pub fn choose(asked: Choice, kernel: impl Fn(usize, [usize; 6]) -> isize) -> Choice {
    match asked {
        Choice::Auto if trap::kernel_allows(kernel) => Choice::Kernel,
        Choice::Auto => Choice::User,
        choice => choice,
    }
}

/// From here on the engine of this process is ours; `host` provides what it needs.
pub fn adopt(host: &'static &'static dyn Host) {
    anyring_engine::install(host);
    ACTIVE.store(true, Ordering::Relaxed);
}

/// Whether the process has a seccomp filter.
fn under_a_filter() -> bool {
    const PR_GET_SECCOMP: u32 = 21;
    // SAFETY: asks only.
    unsafe { sys::prctl(PR_GET_SECCOMP, 0) != 0 }
}

/// A word that is zero in a child of `fork`, where nobody tells of forks.
static FORK_MARK: AtomicPtr<AtomicBool> = AtomicPtr::new(core::ptr::null_mut());

/// Lets [`notice_fork`] notice.
pub fn watch_forks() {
    const PAGE: usize = 4096;
    // SAFETY: new memory, wherever the kernel likes.
    let page = unsafe { sys::map(0, PAGE, raw::PROT_READ | raw::PROT_WRITE, 0) };
    if let Ok(page) = usize::try_from(page)
        && sys::wipe_on_fork(page, PAGE)
    {
        FORK_MARK.store(page as *mut AtomicBool, Ordering::Relaxed);
        renew_fork_mark();
    }
}

fn renew_fork_mark() -> bool {
    // SAFETY: null, or a page that stays mapped.
    let mark = unsafe { FORK_MARK.load(Ordering::Relaxed).as_ref() };
    mark.is_none_or(|mark| mark.swap(true, Ordering::Relaxed))
}

/// Called when a call traps: the first in a child of `fork` says so.
pub fn notice_fork() {
    if !renew_fork_mark() {
        forked();
    }
}

/// The process has forked and this is the child.
pub extern "C" fn forked() {
    FORKED.store(true, Ordering::Relaxed);
    ENDED.store(false, Ordering::Relaxed);
    signals::forked();
    threads::forked();
    frontend::forked();
}

/// `fork`, or `clone` with memory of its own, as the trap saw it.
///
/// # Safety
/// Called in the trap's handler, from which both processes return to the program.
pub unsafe fn fork(number: usize, a: [usize; 6]) -> isize {
    let shared = active() && calls::rings_exist();
    if shared {
        frontend::before_fork();
    }
    // SAFETY: the program's own call.
    let result = unsafe { stub::syscall(number, a) };
    if result == 0 {
        renew_fork_mark();
        forked();
    } else if shared {
        frontend::after_fork();
    }
    result
}

/// The process is about to execute another program: rings that others have are left.
pub fn executes() {
    if active() && calls::rings_exist() {
        frontend::executes();
    }
}

/// The process ends, and says what was done, if asked.
pub fn exits() {
    if active() && calls::rings_exist() {
        frontend::exits();
    }
    end();
}

/// The process ends: says what was done, if asked.
pub extern "C" fn end() {
    if config::level() == Level::Off || ENDED.swap(true, Ordering::Relaxed) {
        return;
    }
    if !active() {
        log::line(Level::Info, format_args!("engine=kernel"));
        return;
    }
    if FORKED.load(Ordering::Relaxed) && !trap::used() {
        return;
    }
    let counters = frontend::counters();
    log::line(
        Level::Info,
        format_args!(
            "engine=user rings={} submitted={} completed={} traps={} patched sites={}",
            counters.rings,
            counters.submitted,
            counters.completed,
            trap::TRAPS.load(Ordering::Relaxed),
            crate::frontend().map_or(0, Frontend::patched_sites),
        ),
    );
}

/// Says what went wrong in code of ours, and ends the process.
pub fn bug(what: &dyn core::fmt::Display) -> ! {
    log::write(format_args!("bug: {what}"));
    sys::raise(linux_raw_sys::general::SIGABRT as i32);
    sys::exit_group(134)
}
