//! Setting the eventfd that a ring signals.

use crate::abi::Errno;
use crate::feature::eventfd::RegisteredEventfd;
use crate::os::Fd;
use crate::ring::Core;
use crate::ring::drive::reactor;

impl Core {
    /// Makes the ring signal the program's eventfd `fd` from now on.
    ///
    /// # Errors
    /// As [`RegisteredEventfd::new`].
    pub(in crate::feature::eventfd) fn set_eventfd(&mut self, fd: Fd, async_only: bool) -> Result<(), Errno> {
        self.drive_mut().observers.set_eventfd(RegisteredEventfd::new(fd, async_only)?);
        self.eventfd_is_own();
        if self.needs_driver() {
            reactor::attend(self);
        }
        Ok(())
    }
}
