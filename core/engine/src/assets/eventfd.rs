//! Registered eventfds (`IORING_REGISTER_EVENTFD`): a ring signals its own for what it posts.

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd, OwnedFd};

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

/// In a child after `fork`.
///
/// # Safety
/// No other thread of this process may use the list.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { REGISTERED.reset() };
}

/// A ring's registered eventfd. In the list for as long as it lives.
#[derive(Debug)]
pub struct RegisteredEventfd {
    /// The engine's duplicate.
    own: OwnedFd,
    async_only: bool,
}

impl RegisteredEventfd {
    /// For the eventfd `fd` of the program.
    ///
    /// # Errors
    /// `EBADF`, `EINVAL` where it is no eventfd, `ENOMEM`.
    pub fn new(fd: Fd, async_only: bool) -> Result<RegisteredEventfd, Errno> {
        let own = OwnedFd::new(os::duplicate(fd)?);
        if !os::is_eventfd(own.fd()) {
            return Err(Errno::EINVAL);
        }
        let mut registered = REGISTERED.lock();
        registered.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        registered.push(own.fd());
        Ok(RegisteredEventfd { own, async_only })
    }

    /// What to signal.
    #[inline]
    pub fn fd(&self) -> Fd {
        self.own.fd()
    }

    /// Is it signalled only for completions that did not happen during submission?
    #[inline]
    pub fn is_async_only(&self) -> bool {
        self.async_only
    }
}

impl Drop for RegisteredEventfd {
    fn drop(&mut self) {
        // Before the number can become another's.
        REGISTERED.lock().retain(|&fd| fd != self.own.fd());
    }
}
