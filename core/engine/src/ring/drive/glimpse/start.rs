//! Arms polls that see events which are over before epoll is asked.

use crate::abi::Errno;
use crate::os::Fd;
use crate::ring::drive::glimpse::Glimpse;
use crate::ring::drive::names::GLIMPSE;
use crate::ring::{Core, Lent};
use crate::work::aio::Context;

impl Core {
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
}

impl Lent {
    /// Arms an AIO poll for `events` of `fd`, the program's eventfd, which shows none of them. Without AIO, events that are over before
    /// epoll is asked are missed.
    pub fn glimpse(&mut self, fd: Fd, events: u32) {
        let core = self.core_mut();
        let Some(registration) = core.readiness.name_of(fd) else { return };
        if let Some(glimpse) = core.drive.observers.glimpse_mut()
            && glimpse.sought.is_some()
        {
            // An AIO poll of the same eventfd is armed already, for an earlier request.
            glimpse.sought = Some(registration);
            return;
        }
        let _ = core.start_glimpse(fd, events, registration);
    }
}
