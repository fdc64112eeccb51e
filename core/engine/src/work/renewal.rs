//! Replacing the engine's threads that hold credentials which the process gave up.

use crate::feature::futex::waits;
use crate::os;
use crate::process::threads;
use crate::ring::drive::{reactor, sq_thread};
use crate::work::{pool, reporter};

/// Replaces the engine's threads after the process's credentials have changed. Threads with the old credentials end, and the calling thread
/// clones those that are needed. Returns when all threads are gone that were not busy; the others end as soon as they have done what was
/// submitted with the old credentials.
pub fn renew() {
    if threads::are_none() {
        return;
    }
    let until_ns = os::monotonic_ns() + threads::PATIENCE_NS;
    threads::wait_for_beginners();
    pool::dismiss();
    waits::dismiss();
    sq_thread::renew(until_ns);
    reactor::renew(until_ns);
    reporter::renew(until_ns);
    threads::wait(until_ns, || pool::are_dismissed() && waits::are_dismissed());
    threads::wait_for_leavers(until_ns);
}
