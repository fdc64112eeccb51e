//! Deadlines of requests.

use crate::os;
use crate::request::RequestId;
use crate::ring::row::Expiry;
use crate::ring::{Attempt, Core};
use crate::wait::listing::TICK_NS;
use crate::wait::timers::{Clock, Mark};

impl Mark for RequestId {
    #[inline]
    fn place(self) -> usize {
        self.index as usize
    }
}

/// Returns the time of a clock in nanoseconds.
pub fn now_ns(clock: Clock) -> u64 {
    match clock {
        Clock::Monotonic => os::monotonic_ns(),
        clock => os::clock_ns(clock.number()),
    }
}

impl Core {
    /// Returns the time until the earliest deadline of a request, or until the late check of registrations, in nanoseconds.
    pub fn next_timer_ns(&self) -> Option<u64> {
        let late = self.readiness.late_check_left_ns();
        [self.time.timers.next_ns(now_ns), late].into_iter().flatten().min()
    }

    /// Returns how long a caller may sleep before it has to recheck.
    pub(in crate::ring::drive) fn next_recheck_ns(&self) -> Option<u64> {
        (self.readiness.needs_recheck() && self.rechecks_itself()).then_some(TICK_NS)
    }

    /// Fires all timers that are due. Requests that became ready before are completed first, and not cancelled.
    pub(in crate::ring::drive) fn fire_timers(&mut self) {
        self.check_late();
        if self.time.timers.is_empty() {
            return;
        }
        // What a device or a worker has done is before a timer that is due.
        self.reap_direct();
        self.run_finished();
        self.flush_timeouts();
        let mut looked = false;
        while let Some(id) = self.time.timers.pop_due(now_ns) {
            if !core::mem::replace(&mut looked, true) {
                self.harvest_now();
            }
            match self.row(id).expire {
                Expiry::Attempt(expire) => {
                    let outcome = expire(&mut self.attempt(id));
                    self.settle(id, outcome);
                }
                Expiry::Control(expire) => expire(self, id),
                Expiry::Issue => self.issue(id),
            }
        }
    }
}

impl Attempt<'_> {
    /// Arms the request's timer, and wakes the driver if it has to wake earlier now.
    pub fn arm_timer(&mut self, clock: Clock, deadline_ns: u64) {
        let (core, id) = self.core_mut();
        core.time.timers.arm(id, clock, deadline_ns);
        if core.time.timers.is_first(id) {
            core.disturb_driver();
        }
    }
}
