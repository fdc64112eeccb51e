//! An event of the ring's own eventfd that is over before anybody asks epoll.
//!
//! The kernel's io_uring hears of an event by the wake-up itself; epoll says what is so when it is asked. A multishot poll
//! of the eventfd that the ring signals has to tell of an event that the program takes back at once, for the completion
//! of that makes the poll's last event. A poll by Linux AIO hears of wake-ups, too: one stands beside the registration.

mod start;

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
