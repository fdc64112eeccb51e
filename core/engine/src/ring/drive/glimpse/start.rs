//! Polls look for events that are over before epoll is asked.

use crate::abi::Errno;
use crate::os::Fd;
use crate::ring::Core;
use crate::ring::drive::glimpse::Glimpse;
use crate::ring::drive::names::GLIMPSE;
use crate::work::aio::Context;

impl Core {
    /// A poll waits for `events` of `fd`, the program's eventfd, which shows none of them. Where there is no AIO, what is
    /// over before epoll is asked is not seen.
    pub fn glimpse(&mut self, fd: Fd, events: u32) {
        let Some(registration) = self.readiness.name_of(fd) else { return };
        if let Some(glimpse) = self.drive.observers.glimpse_mut()
            && glimpse.sought.is_some()
        {
            // An earlier poll left it, of the same eventfd.
            glimpse.sought = Some(registration);
            return;
        }
        let _ = self.start_glimpse(fd, events, registration);
    }

    fn start_glimpse(&mut self, fd: Fd, events: u32, registration: u64) -> Result<(), Errno> {
        if self.drive.observers.glimpse_mut().is_none() {
            let context = Context::create(self.epoll()?, 1, GLIMPSE)?;
            self.drive.observers.set_glimpse(Glimpse { context, sought: None });
        }
        let Some(glimpse) = self.drive.observers.glimpse_mut() else { return Ok(()) };
        glimpse.context.poll(fd, events)?;
        glimpse.sought = Some(registration);
        Ok(())
    }

    /// AIO has heard of an event. Where epoll has told of it, nobody waits for it any more.
    pub(in crate::ring::drive) fn take_glimpse(&mut self) {
        let seen = self.drive.observers.glimpse_mut().and_then(Glimpse::take);
        if let Some((registration, events)) = seen
            && self.readiness.is_awaited(registration)
        {
            self.readiness_event(registration, events);
        }
    }
}
