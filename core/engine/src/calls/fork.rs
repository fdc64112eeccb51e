//! The engine around a `fork`: the child must find no operation of the parent's other threads half done, and every ring that it could use
//! must be ready for use by parent and child.

use alloc::vec::Vec;

use crate::assets::{directories, lingering, mounts, notes, unseen};
use crate::feature::futex::waits;
use crate::feature::zero_copy_receive::exported;
use crate::feature::{eventfd, ring_fds};
use crate::observe::{chaos, trace};
use crate::os::limits;
use crate::os::sync::{AcrossFork, Mutex};
use crate::process::{credentials, family, identity, nonblocking, threads};
use crate::ring::drive::observers::stand_in;
use crate::ring::drive::reactor;
use crate::ring::{Ring, lifetime, registry, watches};
use crate::work::{interrupt, pool, reporter};

/// The locks below a ring's, in the order in which they are taken.
const LOCKS: [fn() -> &'static dyn AcrossFork; 16] = [
    pool::lock,
    reactor::lock,
    watches::lock,
    ring_fds::lock,
    eventfd::lock,
    directories::lock,
    lingering::lock,
    mounts::lock,
    exported::lock,
    waits::lock,
    credentials::lock,
    threads::lock,
    interrupt::lock,
    stand_in::lock,
    trace::demand::lock,
    limits::lock,
];

/// The rings whose locks `before` holds.
static HELD: Mutex<Vec<&'static Ring>> = Mutex::new(Vec::new());

/// Takes every lock before a `fork`, the rings' locks first. The lock order forbids two rings at once; here this is safe, because a thread
/// that waits for a ring's lock holds none of the locks that are taken here.
pub fn before() {
    notes::hands_over();
    nonblocking::share();
    chaos::forks();
    loop {
        let rings = registry::live();
        if rings.is_empty() {
            // The first ring may be in the making.
            limits::lock().hold();
            return;
        }
        // Lent work may be a message to another of these rings, so no lock is held while waiting for its return.
        rings.iter().for_each(|ring| ring.await_return());
        let held = rings.iter().take_while(|ring| ring.hold_for_fork()).count();
        if held < rings.len() {
            // A ring lent work meanwhile. Each ring does so once at most: after a thread had to wait, the ring lends nothing.
            // SAFETY: just held.
            rings[..held].iter().for_each(|ring| unsafe { ring.release_after_fork() });
            continue;
        }
        LOCKS.iter().for_each(|lock| lock().hold());
        if registry::hold_if_live_are(&rings) {
            *HELD.lock() = rings;
            family::announce();
            return;
        }
        // A ring was created or ended meanwhile.
        // SAFETY: just held.
        unsafe { release(&rings) };
    }
}

/// Releases the locks after a `fork`, in the parent, whether or not there is a child.
pub fn after() {
    // Descriptors that were made between `before` and the fork are the child's, too.
    notes::hands_over();
    let rings = core::mem::take(&mut *HELD.lock());
    if rings.is_empty() {
        // SAFETY: `before` left it held.
        return unsafe { limits::lock().release() };
    }
    // SAFETY: `before` left them held.
    unsafe {
        registry::release();
        release(&rings);
    }
    rings.iter().for_each(|ring| ring.forked_off());
}

/// # Safety
/// The locks of `LOCKS` and of `rings` must be held.
unsafe fn release(rings: &[&'static Ring]) {
    // SAFETY: passed on to the caller.
    unsafe {
        LOCKS.iter().rev().for_each(|lock| lock().release());
        rings.iter().for_each(|ring| ring.release_after_fork());
    }
}

/// Initializes the engine anew in a child whose `fork` was not announced. Every call begins with this check.
#[inline]
pub fn notice() {
    if identity::is_unannounced() {
        forked();
    }
}

/// Resets the engine in a child, where no other thread exists. Each ring of the parent becomes one without threads and without the parent's
/// requests.
pub fn forked() {
    identity::announce();
    notes::hands_over();
    limits::forked();
    // SAFETY: the caller says that this thread is the only one of the process.
    unsafe {
        HELD.reset();
        nonblocking::forked();
        threads::forked();
        registry::forked();
        let rings = core::mem::take(&mut *HELD.lock());
        // Most programs never make a call, and each page that a child touches costs it as much as some system calls.
        if identity::is_entered() {
            // First: what follows ends requests, which may be recorded.
            trace::demand::forked();
            waits::forked();
            unseen::forked();
            family::born(!rings.is_empty());
            credentials::forked();
            pool::forked();
            reporter::forked();
            reactor::forked();
            lifetime::forked();
        }
        if trace::is_on() {
            trace::forked();
        }
        chaos::forked();
        ring_fds::register::forked();
    }
}
