//! What happens before `main`, and at the end.

use crate::config::{self, Choice, Level};
use crate::{host, log, patch, signals, stub, trap};
use anyring_engine::door;
use core::ffi::c_char;
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

unsafe extern "C" {
    static environ: *const *const c_char;
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// Chooses the engine and puts the trap in place.
pub extern "C" fn start() {
    // SAFETY: the C library's, set before constructors run.
    let config = unsafe { config::read(environ) };
    if let Err(error) = stub::install() {
        log::write(format_args!("cannot place the stub page (errno {}): io_uring is left as it is", -error));
        return;
    }
    let choice = match config.choice {
        Choice::Auto if trap::kernel_allows() => Choice::Kernel,
        Choice::Auto => Choice::User,
        choice => choice,
    };
    if choice == Choice::Kernel {
        // A filter that an ancestor installed still traps; then, and only then, calls are passed on.
        if under_a_filter() {
            let _ = trap::install(Choice::Kernel);
        }
        return;
    }
    host::install();
    ACTIVE.store(true, Ordering::Relaxed);
    if let Err((what, error)) = trap::install(Choice::User) {
        log::write(format_args!(
            "cannot install the trap ({what}, errno {}): only calls through the C library are answered",
            -error
        ));
    }
    host::FAULTS_RESUME.store(signals::active(), Ordering::Relaxed);
    if config.patch {
        patch::before_main();
    }
    #[cfg(not(test))]
    {
        crate::interpose::process::register_fork();
        // SAFETY: the C library's, as at the beginning.
        unsafe { crate::interpose::exec::remember(environ) };
    }
}

/// Whether the process has a seccomp filter.
fn under_a_filter() -> bool {
    const PR_GET_SECCOMP: u32 = 21;
    // SAFETY: asks only.
    unsafe { crate::sys::prctl(PR_GET_SECCOMP, 0) != 0 }
}

/// The process has forked and this is the child.
pub extern "C" fn forked() {
    FORKED.store(true, Ordering::Relaxed);
    ENDED.store(false, Ordering::Relaxed);
    signals::forked();
    host::forked();
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
            patch::SITES.load(Ordering::Relaxed),
        ),
    );
}
