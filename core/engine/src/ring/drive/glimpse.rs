//! An event of the ring's own eventfd that is over before anybody asks epoll.
//!
//! The kernel's io_uring hears of an event by the wake-up itself; epoll says what is so when it is asked. A multishot poll
//! of the eventfd that the ring signals has to tell of an event that the program takes back at once, for the completion
//! of that makes the poll's last event. A poll by Linux AIO hears of wake-ups, too: one stands beside the registration.

use crate::abi::Errno;
use crate::os::Fd;
use crate::ring::Core;
use crate::ring::drive::GLIMPSE;
use crate::work::aio::Context;

/// A poll by Linux AIO.
pub struct Glimpse {
    context: Context,
    /// For whom, as epoll calls the registration; `None` once it has seen something.
    sought: Option<u64>,
}

impl Glimpse {
    /// In a child after `fork`.
    pub fn forked(self) {
        self.context.abandon();
    }

    /// The registration that the event was for, as epoll calls it, and what the file was ready for.
    fn take(&mut self) -> Option<(u64, u32)> {
        let (_, result) = self.context.take_completion()?;
        Some((self.sought.take()?, u32::try_from(result).ok()?))
    }
}

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
    pub(super) fn take_glimpse(&mut self) {
        let seen = self.drive.observers.glimpse_mut().and_then(Glimpse::take);
        if let Some((registration, events)) = seen
            && self.readiness.is_awaited(registration)
        {
            self.readiness_event(registration, events);
        }
    }
}
