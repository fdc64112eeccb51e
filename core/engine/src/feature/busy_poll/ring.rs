//! Starting and stopping the busy polling of a ring's epoll instance.

use crate::abi::Errno;
use crate::feature::busy_poll::BusyPoll;
use crate::ring::Core;

impl Core {
    /// Makes the ring's epoll instance poll network devices from now on.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the kernel's epoll cannot busy-poll; others if no epoll instance can be made.
    pub(in crate::feature::busy_poll) fn start_busy_poll(&mut self, new: BusyPoll) -> Result<(), Errno> {
        new.apply(self.epoll()?)?;
        self.readiness_mut().set_busy_poll(new);
        Ok(())
    }

    /// Ends the busy polling of the ring's epoll instance.
    pub(in crate::feature::busy_poll) fn stop_busy_poll(&mut self) {
        self.readiness_mut().set_busy_poll(BusyPoll::default());
        if let Some(epoll) = self.readiness().epoll() {
            // If epoll refuses this, it never polled.
            let _ = BusyPoll::default().apply(epoll);
        }
    }
}
