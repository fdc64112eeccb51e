//! Calls of the program that change credentials.

use crate::feature::futex::waits;
use crate::os;
use crate::process::{credentials, threads};
use crate::ring::drive::{reactor, sq_thread};
use crate::work::{pool, reporter};

pub use crate::process::credentials::Reach;

/// A change of credentials under way, between [`Change::begin`] before the call and [`Change::end`].
pub struct Change(credentials::Change);

impl Change {
    /// Begins a change before the program makes a call that may change credentials. `None` if the change does
    /// not concern the engine.
    pub fn begin(reach: Reach) -> Option<Change> {
        credentials::Change::begin(reach).map(Change)
    }

    /// Ends the change after the call has returned. When this returns, no idle thread of the engine holds
    /// credentials that the process gave up.
    pub fn end(self) {
        if self.0.end() {
            renew();
        }
    }
}

/// Replaces the engine's threads after the process's credentials have changed. Threads with the old credentials end, and the calling thread
/// clones those that are needed. Returns when all threads are gone that were not busy; the others end as soon as they have done what was
/// submitted with the old credentials.
fn renew() {
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
