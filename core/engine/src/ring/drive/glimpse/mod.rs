//! Events of the ring's registered eventfd that are over before epoll is asked.
//!
//! The kernel's io_uring learns of an event by the wake-up itself; epoll reports the state at the time when it is asked. A multishot poll
//! of the eventfd that the ring signals has to report an event that the program takes back at once, because the completion of that read
//! makes the poll's last event. A poll by Linux AIO sees wake-ups, too: it is armed beside the registration.

mod start;

use crate::work::aio::Context;

/// A poll by Linux AIO.
pub struct Glimpse {
    context: Context,
    /// The name, in epoll's events, of the registration that the poll serves; `None` once the poll has seen an event.
    sought: Option<u64>,
}

impl Glimpse {
    /// Abandons the poll, in a child after `fork`.
    pub fn forked(self) {
        self.context.abandon();
    }

    /// Takes the event that the poll has seen: the name of its registration in epoll's events, and what the file was ready for.
    pub(in crate::ring::drive) fn take(&mut self) -> Option<(u64, u32)> {
        let (_, result) = self.context.take_completion()?;
        Some((self.sought.take()?, u32::try_from(result).ok()?))
    }
}
