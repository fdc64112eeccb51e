//! Waking of sleepers and of the driver.

use crate::os::Fd;
use crate::ring::Core;
use crate::ring::drive::reactor;
use crate::wait::Driver;
use crate::wait::token::Wake;

impl Core {
    /// Returns the driver's eventfd.
    pub(crate) fn kick(&self) -> Option<Fd> {
        self.drive.sleepers.kick()
    }

    /// Wakes the sleeping driver, so that it looks at the ring again.
    pub fn kick_driver(&mut self) {
        self.drive.sleepers.wake(Wake::Driver);
    }

    /// Wakes the callers for which enough completions are there.
    pub(in crate::ring) fn wake_sleepers(&mut self) {
        let ready = self.queues.cq_ready();
        self.drive.token.posted(ready, |wake| self.drive.sleepers.wake(wake));
    }

    /// Has the driver look at the ring again: a deadline came closer, or a request became ready.
    pub(in crate::ring::drive) fn disturb_driver(&mut self) {
        match self.drive.token.driver() {
            Driver::Nobody => {}
            Driver::Reactor => reactor::deadline_changed(self),
            Driver::SqThread => self.kick_driver(),
            Driver::Caller => self.drive.token.disturb(|wake| self.drive.sleepers.wake(wake)),
        }
    }

    /// Passes the driver's role, which is free, to a sleeper. Returns false if there is none.
    #[inline]
    pub fn pass_on(&mut self) -> bool {
        if !self.drive.token.is_awaited() {
            return false;
        }
        self.drive.token.pass_on(|wake| self.drive.sleepers.wake(wake))
    }

    /// Wakes the threads that wait for work to end, when its completion is not posted yet.
    pub fn wake_observers(&mut self) {
        self.drive.token.work_ended(|wake| self.drive.sleepers.wake(wake));
    }

    /// Wakes every caller that sleeps for this ring.
    pub fn wake_all(&mut self) {
        self.drive.token.wake_all(|wake| self.drive.sleepers.wake(wake));
    }
}
