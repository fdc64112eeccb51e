//! Rechecking of descriptors that may have been closed and reused without the engine's knowledge.

use alloc::vec::Vec;

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLLET};

use crate::abi::Errno;
use crate::assets::unseen;
use crate::os;
use crate::request::RequestId;
use crate::ring::Core;
use crate::ring::drive::readiness::arm::{DISTRUST, Registration};
use crate::ring::drive::readiness::{ALL_EVENTS, Readiness};

/// Returns how many of so many listed entries one tick rechecks. Few enough that a connection in use has been armed again when its turn
/// comes, which costs nothing; and all of them within some 250 ticks.
fn share_of_rechecks(listed: usize) -> usize {
    listed.div_ceil(16).min(64).max(listed / 256)
}

/// The time from a wait to its late check, in microseconds; a wait that lasts as long again is checked then.
const LATE_US: u64 = 1_000_000;
/// The time between late checks while there are more entries than one looks at, in microseconds.
const LATE_STEP_US: u64 = 20_000;
/// The maximum number of entries at which one late check looks.
const LATE_MOST: usize = 1024;

impl Readiness {
    /// Returns the time until the next late check in nanoseconds, if one is planned.
    #[inline]
    pub fn late_check_left_ns(&self) -> Option<u64> {
        (self.late_check_at != 0).then(|| {
            let left = self.late_check_at.saturating_sub(os::ticks());
            // Rounded up: a driver that wakes a little early would only sleep again.
            (left / os::ticks_per_us() + u64::from(left > 0)) * 1000
        })
    }

    fn plan_late_check_in(&mut self, us: u64) {
        self.late_check_at = (os::ticks() + us * os::ticks_per_us()).max(1);
    }
}

impl Core {
    /// Rechecks, if callers have to and the time has come. Returns true if a request became ready, or something was posted.
    pub fn recheck_if_due(&mut self) -> bool {
        let Some(interval_ns) = self.next_recheck_ns() else { return false };
        let now = os::ticks();
        if now.wrapping_sub(self.readiness.rechecked_at) < interval_ns / 1000 * os::ticks_per_us() {
            return false;
        }
        self.readiness.rechecked_at = now;
        self.recheck();
        !self.order.ready.is_empty() || self.queues.cq.has_news()
    }

    /// Checks some descriptors at each tick: whether a kept registration, by which requests have been waiting since the last look, is still
    /// for its file.
    pub(in crate::ring::drive) fn recheck(&mut self) {
        self.recheck_some(share_of_rechecks(self.readiness.recheck.len()));
    }

    fn recheck_some(&mut self, count: usize) {
        for _ in 0..count {
            let Some(mut seen) = self.readiness.recheck.pop_front() else { return };
            let entry = &mut self.readiness.entries[seen.index as usize];
            if entry.generation != seen.generation {
                continue;
            }
            if !entry.registered || entry.waiters.is_empty() {
                entry.rechecked = false;
            } else if entry.armed == seen.armed {
                entry.rechecked = false;
                self.recheck_one(seen.index);
            } else {
                seen.armed = entry.armed;
                self.readiness.recheck.push_back(seen);
            }
        }
    }

    /// Plans a late check, unless one is planned.
    #[inline]
    pub(super) fn plan_late_check(&mut self) {
        if self.readiness.late_check_at == 0 {
            self.readiness.plan_late_check_in(LATE_US);
            self.disturb_driver();
        }
    }

    /// Checks, once it is due, the registrations by which requests have waited for long although the front end reports all closes: an analysis
    /// of the program's code may be wrong, another process may replace a descriptor, and a report comes a little before its close.
    #[inline]
    pub(in crate::ring::drive) fn check_late(&mut self) {
        if self.readiness.late_check_left_ns() == Some(0) {
            self.check_late_now();
        }
    }

    #[cold]
    fn check_late_now(&mut self) {
        let listed = self.readiness.recheck.len();
        self.readiness.late_check_at = 0;
        self.recheck_some(listed.min(LATE_MOST));
        if !self.readiness.recheck.is_empty() {
            self.readiness.plan_late_check_in(if listed > LATE_MOST { LATE_STEP_US } else { LATE_US });
        }
    }

    fn recheck_one(&mut self, index: u32) {
        match self.add_once_more(index) {
            Err(Errno::EEXIST) => self.readiness.entries[index as usize].proven(),
            added => self.replaced(index, added.is_ok()),
        }
    }

    /// Asks epoll whether a kept registration, by which a request is about to wait, is still for its file. If not, the requests that wait
    /// by it go on, and the new file is registered.
    pub(super) fn look_at_registration(&mut self, index: u32) -> Registration {
        match self.add_once_more(index) {
            Err(Errno::EEXIST) => {
                self.readiness.entries[index as usize].proven();
                Registration::Proven
            }
            Ok(()) => {
                self.replaced(index, true);
                Registration::New
            }
            // The number has no file that can be registered: a tick lets the request try.
            Err(_) => Registration::Believed,
        }
    }

    /// Adds the registration once more. If it exists, epoll answers `EEXIST`; for another file it has to be added anyway.
    fn add_once_more(&self, index: u32) -> Result<(), Errno> {
        let epoll = self.readiness.epoll.ok_or(Errno::EEXIST)?;
        let entry = &self.readiness.entries[index as usize];
        let name = entry.next_data(index);
        os::epoll_ctl(epoll, EPOLL_CTL_ADD, entry.fd, ALL_EVENTS | EPOLLET, name)
    }

    /// Handles that a number is another file's, which is registered now, or cannot be.
    fn replaced(&mut self, index: u32, registered: bool) {
        unseen::note_one();
        let entry = &mut self.readiness.entries[index as usize];
        entry.rename_for_another_file();
        entry.registered = registered;
        entry.narrow = false;
        entry.kind = None;
        self.readiness.distrust = DISTRUST;
        self.wake_after_replacement(index);
    }

    /// Ends the waits for the file that had a number. Requests that are known to wait for this file must not take another file's data.
    /// Requests that began to wait when the change was unknown try the file that is there now.
    fn wake_after_replacement(&mut self, index: u32) {
        let entry = &mut self.readiness.entries[index as usize];
        let verified = entry.waiters.as_slice().iter().filter(|waiter| waiter.verified);
        let gone: Vec<RequestId> = verified.map(|waiter| waiter.id).collect();
        entry.waiters.retain(|waiter| !waiter.verified);
        self.readiness.waiting -= gone.len();
        self.wake_waiters(index, ALL_EVENTS);
        for id in gone {
            self.complete(id, Errno::EBADF.negated());
        }
    }
}
