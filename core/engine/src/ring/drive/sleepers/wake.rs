//! Waking of sleepers and of the driver.

use crate::ring::Core;
use crate::ring::drive::reactor;
use crate::ring::parts::Drive;
use crate::wait::Driver;
use crate::wait::token::Wake;

impl Drive {
    /// Wakes the sleeping driver, so that it looks at the ring again.
    pub fn kick_driver(&self) {
        self.sleepers.wake(Wake::Driver);
    }

    /// Wakes the callers for which enough completions were posted; `tail` is that of the CQ.
    pub(in crate::ring) fn wake_sleepers(&mut self, tail: u32) {
        self.token.posted(tail, |wake| self.sleepers.wake(wake));
    }

    /// Passes the driver's role, which is free, to a sleeper. Returns false if there is none.
    #[inline]
    pub fn pass_on(&mut self) -> bool {
        if !self.token.is_awaited() {
            return false;
        }
        self.token.pass_on(|wake| self.sleepers.wake(wake))
    }

    /// Wakes the threads that wait for work to end, when its completion is not posted yet.
    pub fn wake_observers(&mut self) {
        self.token.work_ended(|wake| self.sleepers.wake(wake));
    }

    /// Wakes every caller that sleeps for this ring.
    pub fn wake_all(&mut self) {
        self.token.wake_all(|wake| self.sleepers.wake(wake));
    }
}

impl Core {
    /// Has the driver look at the ring again: a deadline came closer, or a request became ready.
    pub(in crate::ring::drive) fn disturb_driver(&mut self) {
        match self.drive.token.driver() {
            Driver::Nobody => {}
            Driver::Reactor => reactor::deadline_changed(self),
            Driver::SqThread => self.drive.kick_driver(),
            Driver::Caller => self.drive.token.disturb(|wake| self.drive.sleepers.wake(wake)),
        }
    }
}
