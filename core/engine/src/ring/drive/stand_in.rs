//! What is polled in place of a ring's descriptor, which is a memfd and always ready: an eventfd that is readable while the CQ
//! holds completions, as of the last look or completion.

use crate::os::sync::atomic::Ordering;

use crate::abi::Errno;
use crate::os::{self, Fd};
use crate::ring::drive::reactor;
use crate::ring::{Core, registry};
use crate::wait::Driver;

/// The stand-in of the ring `fd`. It stays the engine's to close.
///
/// # Errors
/// `EBADF`, `EOPNOTSUPP` where `fd` is no ring; or why a descriptor cannot be had.
pub fn of(fd: Fd) -> Result<Fd, Errno> {
    let ring = registry::get(fd).ok_or_else(|| registry::no_ring(fd))?;
    let mut guard = ring.lock();
    guard.as_mut().ok_or(Errno::EBADF)?.stand_in()
}

/// Brings the stand-in of the ring `fd` in line with the CQ: readable if that holds completions, not readable if the
/// program has taken them all. Returns whether it is readable.
pub fn synchronize(fd: Fd) -> bool {
    let Some(ring) = registry::get(fd) else { return false };
    let mut guard = ring.lock();
    guard.as_mut().is_some_and(Core::synchronize_stand_in)
}

/// Puts the stand-in of the ring `fd` in the place of that descriptor.
///
/// # Errors
/// As for [`of`].
pub fn show(fd: Fd) -> Result<(), Errno> {
    let ring = registry::get(fd).ok_or_else(|| registry::no_ring(fd))?;
    let mut guard = ring.lock();
    let core = guard.as_mut().ok_or(Errno::EBADF)?;
    let stand_in = core.stand_in()?;
    let identity = os::identity(stand_in)?;
    os::replace(stand_in, fd)?;
    for (word, value) in ring.shown.iter().zip([identity.device, identity.inode]) {
        word.store(value, Ordering::Relaxed);
    }
    core.observers.stand_in_is_shown();
    Ok(())
}

impl Core {
    fn stand_in(&mut self) -> Result<Fd, Errno> {
        if let Some(fd) = self.observers.stand_in() {
            return Ok(fd);
        }
        let fd = os::eventfd()?;
        self.observers.set_stand_in(fd);
        self.stand_in_is_own();
        if self.cq_ready() > 0 {
            os::eventfd_signal(fd);
        }
        if self.needs_driver() {
            reactor::attend(self);
        }
        Ok(fd)
    }

    fn synchronize_stand_in(&mut self) -> bool {
        if self.observers.stand_in().is_none() {
            return false;
        }
        self.flush_overflow();
        let ready = self.cq_ready() > 0 || self.defers() && !self.ready.is_empty();
        self.drain_stand_in();
        if ready {
            self.signal_readiness();
            return true;
        }
        self.unmark_shown();
        if self.needs_driver() && self.token.driver() == Driver::Nobody {
            reactor::attend(self);
        }
        false
    }
}
