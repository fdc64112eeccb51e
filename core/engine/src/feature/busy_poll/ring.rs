//! The epoll instance of a ring polls network devices.

use crate::abi::Errno;
use crate::feature::busy_poll::BusyPoll;
use crate::ring::Core;

impl Core {
    /// The ring's epoll instance polls network devices from now on.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the kernel's epoll does not; others where there is no instance to be had.
    pub(in crate::feature::busy_poll) fn start_busy_poll(&mut self, new: BusyPoll) -> Result<(), Errno> {
        new.apply(self.epoll()?)?;
        self.readiness_mut().set_busy_poll(new);
        Ok(())
    }

    /// Ends the busy polling of the ring's epoll instance.
    pub(in crate::feature::busy_poll) fn stop_busy_poll(&mut self) {
        self.readiness_mut().set_busy_poll(BusyPoll::default());
        if let Some(epoll) = self.readiness().epoll() {
            // Where it cannot be told, it never polled.
            let _ = BusyPoll::default().apply(epoll);
        }
    }
}
