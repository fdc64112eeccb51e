//! Around a `fork`: a child must find whatever the parent's other threads were doing done, and every
//! ring that it could use ready to be used by both.

use alloc::vec::Vec;

use crate::assets::{directories, mounts, notes};
use crate::feature::futex::waits;
use crate::feature::zero_copy_receive::exported;
use crate::feature::{eventfd, ring_fds};
use crate::observe::{chaos, trace};
use crate::os::limits;
use crate::os::sync::{AcrossFork, Mutex};
use crate::process::{credentials, family, identity, nonblocking, threads};
use crate::ring::Ring;
use crate::ring::drive::{reactor, stand_in};
use crate::ring::watches;
use crate::ring::{lifetime, registry};
use crate::work::{interrupt, pool};

/// The locks below a ring's, in the order in which they are taken.
const LOCKS: [fn() -> &'static dyn AcrossFork; 14] = [
    pool::lock,
    reactor::lock,
    watches::lock,
    ring_fds::lock,
    eventfd::lock,
    directories::lock,
    mounts::lock,
    exported::lock,
    waits::lock,
    credentials::lock,
    threads::lock,
    interrupt::lock,
    stand_in::lock,
    limits::lock,
];

/// The rings that are held.
static HELD: Mutex<Vec<&'static Ring>> = Mutex::new(Vec::new());

/// Before: takes every lock, the rings' first. Never two rings at once, says the order of locks; but
/// whoever waits for a ring holds nothing that is taken here.
pub fn before() {
    notes::hands_over();
    nonblocking::share();
    chaos::forks();
    loop {
        let rings = registry::live();
        if rings.is_empty() {
            // The first is perhaps being made.
            limits::lock().hold();
            return;
        }
        // Lent work may be a message to another of these rings: nobody waits for it with a lock in hand.
        rings.iter().for_each(|ring| ring.await_return());
        let held = rings.iter().take_while(|ring| ring.hold_for_fork()).count();
        if held < rings.len() {
            // More was lent meanwhile. No ring comes to that twice: it lends nothing once somebody had to wait.
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
        // A ring was made or went meanwhile.
        // SAFETY: just held.
        unsafe { release(&rings) };
    }
}

/// After, in the parent, whether or not there is a child.
pub fn after() {
    // Descriptors that came between `before` and the fork are the child's, too.
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
/// They must be held.
unsafe fn release(rings: &[&'static Ring]) {
    // SAFETY: passed on to the caller.
    unsafe {
        LOCKS.iter().rev().for_each(|lock| lock().release());
        rings.iter().for_each(|ring| ring.release_after_fork());
    }
}

/// Notices that this process is a child that nobody announced. Called first thing in every call.
#[inline]
pub fn notice() {
    if identity::is_unannounced() {
        forked();
    }
}

/// In a child, where no other thread exists: every ring of the parent becomes one without threads and without the parent's
/// requests.
pub fn forked() {
    identity::announce();
    notes::hands_over();
    limits::forked();
    // SAFETY: the caller says that this thread is the only one of the process.
    unsafe {
        HELD.reset();
        waits::forked();
        nonblocking::forked();
        let rings = core::mem::take(&mut *HELD.lock());
        family::born(!rings.is_empty());
        credentials::forked();
        threads::forked();
        pool::forked();
        reactor::forked();
        registry::forked();
        lifetime::forked();
        trace::forked();
        chaos::forked();
        ring_fds::register::forked();
    }
}
