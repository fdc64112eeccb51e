//! Looking again at descriptors that may have been closed and reused behind our back.

use alloc::vec::Vec;

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLLET};

use crate::abi::Errno;
use crate::os;
use crate::request::RequestId;
use crate::ring::Core;
use crate::ring::drive::readiness::ALL_EVENTS;
use crate::ring::drive::readiness::arm::{DISTRUST, Registration};
use crate::wait::listing::TICK_NS;

/// How many of so many listed entries one tick looks at again: few enough that a connection in use is seen to have
/// moved, which costs nothing, when its turn comes, and all of them within some 250 ticks.
fn share_of_rechecks(listed: usize) -> usize {
    listed.div_ceil(16).min(64).max(listed / 256)
}

impl Core {
    /// True if the ring's callers look again, rather than the reactor. Every system call of a program with
    /// one thread is cheaper than those of one with two.
    pub(in crate::ring::drive) fn rechecks_itself(&self) -> bool {
        let ticks = self.drive.attendance.is_listed()
            || self.zero_copy.needs_ticks()
            || !self.resources.directories.is_empty()
            || self.aio.needs_ticks();
        self.is_left_to_callers() && !ticks
    }

    /// How long a caller may sleep before it has to look again.
    pub(in crate::ring::drive) fn next_recheck_ns(&self) -> Option<u64> {
        (self.readiness.needs_recheck() && self.rechecks_itself()).then_some(TICK_NS)
    }

    /// A caller looks again, if it is the one to do so and the time has come. True where anything came of it.
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

    /// Checks, for some descriptors at each tick, that an old registration is still for its file: one on whose word requests
    /// have been waiting since the last look.
    pub(in crate::ring::drive) fn recheck(&mut self) {
        for _ in 0..share_of_rechecks(self.readiness.recheck.len()) {
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

    fn recheck_one(&mut self, index: u32) {
        match self.add_once_more(index) {
            Err(Errno::EEXIST) => self.readiness.entries[index as usize].proven(),
            added => self.replaced(index, added.is_ok()),
        }
    }

    /// Asks epoll whether an old registration is still for its file, for which a request is about to wait.
    /// Otherwise those that wait by it go on, and there is a new one.
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
            // The number is no file's that can be registered: a tick lets the request try.
            Err(_) => Registration::Believed,
        }
    }

    /// Asked for what is there already, epoll looks no further (`EEXIST`); for another file it is what has to be done.
    fn add_once_more(&self, index: u32) -> Result<(), Errno> {
        let epoll = self.readiness.epoll.ok_or(Errno::EEXIST)?;
        let entry = &self.readiness.entries[index as usize];
        let name = entry.next_data(index);
        os::epoll_ctl(epoll, EPOLL_CTL_ADD, entry.fd, ALL_EVENTS | EPOLLET, name)
    }

    /// A number is another file's, which is registered now, or cannot be.
    fn replaced(&mut self, index: u32, registered: bool) {
        let entry = &mut self.readiness.entries[index as usize];
        entry.rename_for_another_file();
        entry.registered = registered;
        entry.narrow = false;
        entry.kind = None;
        self.readiness.distrust = DISTRUST;
        self.wake_after_replacement(index);
    }

    /// The file behind a number is gone. What waited for it must not take another file's data; what
    /// began to wait when nobody knew tries the file that is there now.
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
