//! Registered eventfds (`IORING_REGISTER_EVENTFD`): a ring signals its own for what it posts.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd, user};
use crate::ring::Core;
use crate::ring::drive::observers::RegisteredEventfd;
use crate::ring::drive::reactor;

/// The engine's descriptors of all eventfds that rings of this process signal.
static REGISTERED: Mutex<Vec<Fd>> = Mutex::new(Vec::new());

/// The lock of the list, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &REGISTERED
}

/// Does a ring signal this eventfd? Then a multishot poll of it would feed itself.
pub fn is_registered(fd: Fd) -> bool {
    let registered = REGISTERED.lock();
    registered.iter().any(|&own| os::same_file(own, fd))
}

/// Forgets an eventfd and closes the engine's descriptor of it.
pub fn release(eventfd: RegisteredEventfd) {
    REGISTERED.lock().retain(|&fd| fd != eventfd.fd);
    os::close(eventfd.fd);
}

/// In a child after `fork`.
///
/// # Safety
/// No other thread of this process may use the list.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { REGISTERED.reset() };
}

impl Core {
    /// Registers the eventfd whose number is at `address`.
    ///
    /// # Errors
    /// `EBUSY` where there is one, `EFAULT`, `EBADF`, `EINVAL` where it is no eventfd.
    pub fn register_eventfd(&mut self, address: u64, async_only: bool) -> Result<usize, Errno> {
        if self.observers.eventfd().is_some() {
            return Err(Errno::EBUSY);
        }
        let named: i32 = user::read(address)?;
        let fd = os::duplicate(named)?;
        if !os::is_eventfd(fd) {
            os::close(fd);
            return Err(Errno::EINVAL);
        }
        let mut registered = REGISTERED.lock();
        if registered.try_reserve(1).is_err() {
            os::close(fd);
            return Err(Errno::ENOMEM);
        }
        registered.push(fd);
        drop(registered);
        self.observers.set_eventfd(RegisteredEventfd { fd, async_only });
        self.eventfd_is_own();
        if self.needs_driver() {
            reactor::attend(self);
        }
        Ok(0)
    }

    /// Ends the registration.
    ///
    /// # Errors
    /// `ENXIO` where there is none.
    pub fn unregister_eventfd(&mut self) -> Result<usize, Errno> {
        let eventfd = self.observers.take_eventfd().ok_or(Errno::ENXIO)?;
        release(eventfd);
        Ok(0)
    }
}
