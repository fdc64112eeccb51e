//! Registered eventfds (`IORING_REGISTER_EVENTFD`).

use crate::abi::Errno;
use crate::calls::register::call::Register;
use crate::feature::eventfd::RegisteredEventfd;
use crate::os::{Fd, user};
use crate::ring::Core;
use crate::ring::drive::reactor;

/// `IORING_REGISTER_EVENTFD`.
///
/// # Errors
/// As [`register_as`].
pub fn register(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    register_as(core, call, false)
}

/// `IORING_REGISTER_EVENTFD_ASYNC`.
///
/// # Errors
/// As [`register_as`].
pub fn register_async(core: &mut Core, call: &Register) -> Result<usize, Errno> {
    register_as(core, call, true)
}

/// # Errors
/// `EBUSY` if one is registered, `EFAULT`, `EBADF`, `EINVAL` if it is no eventfd.
fn register_as(core: &mut Core, call: &Register, async_only: bool) -> Result<usize, Errno> {
    if call.count != 1 {
        return Err(Errno::EINVAL);
    }
    if core.drive().observers.eventfd().is_some() {
        return Err(Errno::EBUSY);
    }
    core.set_eventfd(user::read(call.argument)?, async_only).map(|()| 0)
}

/// `IORING_UNREGISTER_EVENTFD`.
///
/// # Errors
/// `ENXIO` if none is registered.
pub fn unregister(core: &mut Core, _call: &Register) -> Result<usize, Errno> {
    core.drive_mut().observers.take_eventfd().map(|_| 0).ok_or(Errno::ENXIO)
}

impl Core {
    /// Makes the ring signal the program's eventfd `fd` from now on.
    ///
    /// # Errors
    /// As [`RegisteredEventfd::new`].
    pub(in crate::feature::eventfd) fn set_eventfd(&mut self, fd: Fd, async_only: bool) -> Result<(), Errno> {
        let tail = self.queues().cq.tail();
        self.drive_mut().observers.set_eventfd(RegisteredEventfd::new(fd, async_only)?, tail);
        self.shared_mut().note_own_eventfd();
        reactor::attend_if_needed(self);
        Ok(())
    }
}
