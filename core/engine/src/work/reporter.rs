//! A thread that calls the front end at an interval, so that it can report on a process that runs for long.
//!
//! The thread has the credentials of the thread that starts it, and is [replaced](renew) when the process gives some up. A child of
//! `fork` has no such thread until it begins one.

use alloc::boxed::Box;
use core::ffi::c_void;

use crate::os;
use crate::os::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use crate::process::credentials::{self, Credentials};
use crate::process::threads;

/// The calls that the thread makes.
struct Task {
    report: fn(),
    interval_ns: u64,
}

static TASK: AtomicPtr<Task> = AtomicPtr::new(core::ptr::null_mut());
/// The process is to have the thread.
static IS_ON: AtomicBool = AtomicBool::new(false);
/// The number of threads that have not ended: 1, or 0.
static ALIVE: AtomicU32 = AtomicU32::new(0);
/// Changes to make the thread end; a futex.
static TERM: AtomicU32 = AtomicU32::new(0);

fn task() -> Option<&'static Task> {
    // Acquire pairs with the release in `begin`.
    let task = TASK.load(Ordering::Acquire);
    // SAFETY: null, or never freed.
    unsafe { task.as_ref() }
}

/// Has a thread of the engine call `report` now, and at this interval from then on. Does nothing if the process has the thread.
pub fn begin(interval_ns: u64, report: fn()) {
    if IS_ON.swap(true, Ordering::Relaxed) {
        return;
    }
    if task().is_none() {
        // Release pairs with the acquire in `task`.
        TASK.store(Box::into_raw(Box::new(Task { report, interval_ns })), Ordering::Release);
    }
    launch();
}

/// Starts the thread. If no thread can be had now, the next [`begin`] tries again.
fn launch() {
    ALIVE.fetch_add(1, Ordering::Relaxed);
    let own = core::ptr::without_provenance_mut(credentials::acting().number());
    if threads::spawn(c"anyring-stats", run, own).is_err() {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
        IS_ON.store(false, Ordering::Relaxed);
    }
}

unsafe extern "C" fn run(own: *mut c_void) {
    // Read before the thread has begun: a renewal waits until it has.
    let term = TERM.load(Ordering::Acquire);
    threads::begin(Credentials::from_number(own.addr()));
    if let Some(task) = task() {
        while TERM.load(Ordering::Acquire) == term {
            (task.report)();
            let _ = os::futex_wait(&TERM, term, Some(task.interval_ns));
        }
    }
    ALIVE.fetch_sub(1, Ordering::Relaxed);
    threads::end();
}

/// Replaces the thread after the process's credentials have changed. All threads have begun.
pub fn renew(until_ns: u64) {
    if !IS_ON.load(Ordering::Relaxed) {
        return;
    }
    TERM.fetch_add(1, Ordering::Release);
    os::futex_wake(&TERM, u32::MAX >> 1);
    threads::wait(until_ns, || ALIVE.load(Ordering::Relaxed) == 0);
    launch();
}

/// Notes in a child after `fork` that it has no such thread.
pub fn forked() {
    IS_ON.store(false, Ordering::Relaxed);
    ALIVE.store(0, Ordering::Relaxed);
}
