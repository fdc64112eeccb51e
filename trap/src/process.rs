//! The life of the process: which engine it has, its forks, its end.

use crate::config::{Choice, Config, Level};
use crate::filter::Reach;
use crate::{Door, config, log, signals, stub, sys, threads, trap};
use anyring_engine::{Host, door};
use core::sync::atomic::{AtomicBool, Ordering};

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
    reach: Reach,
    door: &'static &'static dyn Door,
    host: &'static &'static dyn Host,
) -> bool {
    crate::open(door);
    if let Err(error) = stub::install() {
        log::write(format_args!("cannot place the stub page (errno {}): io_uring is left as it is", -error));
        return false;
    }
    let choice = match config.choice {
        Choice::Auto if trap::kernel_allows() => Choice::Kernel,
        Choice::Auto => Choice::User,
        choice => choice,
    };
    if choice == Choice::Kernel {
        // A filter that an ancestor installed still traps; then, and only then, calls are passed on.
        if under_a_filter() {
            let _ = trap::install(Choice::Kernel, reach);
        }
        return false;
    }
    anyring_engine::install(host);
    ACTIVE.store(true, Ordering::Relaxed);
    if let Err((what, error)) = trap::install(Choice::User, reach) {
        log::write(format_args!(
            "cannot install the trap ({what}, errno {}): only calls through the C library are answered",
            -error
        ));
    }
    true
}

/// Whether the process has a seccomp filter.
fn under_a_filter() -> bool {
    const PR_GET_SECCOMP: u32 = 21;
    // SAFETY: asks only.
    unsafe { sys::prctl(PR_GET_SECCOMP, 0) != 0 }
}

/// The process has forked and this is the child.
pub extern "C" fn forked() {
    FORKED.store(true, Ordering::Relaxed);
    ENDED.store(false, Ordering::Relaxed);
    signals::forked();
    threads::forked();
    door::forked();
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
    let counters = door::counters();
    log::line(
        Level::Info,
        format_args!(
            "engine=user rings={} submitted={} completed={} traps={} patched sites={}",
            counters.rings,
            counters.submitted,
            counters.completed,
            trap::TRAPS.load(Ordering::Relaxed),
            crate::door().map_or(0, Door::patched_sites),
        ),
    );
}

/// Says what went wrong in code of ours, and ends the process.
pub fn bug(what: &dyn core::fmt::Display) -> ! {
    log::write(format_args!("bug: {what}"));
    sys::raise(linux_raw_sys::general::SIGABRT as i32);
    sys::exit_group(134)
}
