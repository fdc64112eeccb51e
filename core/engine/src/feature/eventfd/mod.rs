//! Registered eventfds (`IORING_REGISTER_EVENTFD`): a ring signals its eventfd when it posts CQEs.

pub(crate) mod register;

use alloc::vec::Vec;

use crate::abi::Errno;
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{self, Fd, FileIdentity, OwnedFd, nr};

/// All eventfds that are registered with rings of this process.
static REGISTERED: Mutex<Registered> = Mutex::new(Registered(Vec::new()));
/// Up to this many eventfds are compared one by one: asking for an eventfd's number takes longer.
const FEW: usize = 4;

/// Returns the lock of the list, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &REGISTERED
}

/// True if a ring signals this eventfd. A multishot poll of it would trigger itself.
pub fn is_registered(fd: Fd) -> bool {
    let is_it = |&(_, own): &(Number, Fd)| os::same_file(own, fd);
    {
        let registered = REGISTERED.lock();
        if registered.0.len() <= FEW {
            return registered.0.iter().any(is_it);
        }
    }
    if os::known_identity(fd).is_ok_and(|identity| !identity.is_anonymous()) {
        return false;
    }
    let number = os::eventfd_number(fd);
    let registered = REGISTERED.lock();
    match number {
        Ok(number) => registered.of(number).iter().chain(registered.of(None)).any(is_it),
        Err(_) => registered.0.iter().any(is_it),
    }
}

/// An eventfd's number, if the kernel reports it.
type Number = Option<u32>;

/// Sorted pairs of an eventfd's number and the engine's descriptor of it. Several rings may share an eventfd.
struct Registered(Vec<(Number, Fd)>);

impl Registered {
    /// Returns the registered eventfds with this number.
    fn of(&self, number: Number) -> &[(Number, Fd)] {
        let first = self.0.partition_point(|&(of, _)| of < number);
        let rest = &self.0[first..];
        &rest[..rest.partition_point(|&(of, _)| of == number)]
    }

    fn add(&mut self, number: Number, own: Fd) -> Result<(), Errno> {
        self.0.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let place = self.0.partition_point(|&known| known < (number, own));
        self.0.insert(place, (number, own));
        Ok(())
    }

    fn remove(&mut self, number: Number, own: Fd) {
        if let Ok(place) = self.0.binary_search(&(number, own)) {
            self.0.remove(place);
        }
    }
}

/// Empties the list in a child after `fork`.
///
/// # Safety
/// No other thread of this process may use the list.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { REGISTERED.reset() };
}

/// A ring's registered eventfd. It is in the list for as long as it lives.
#[derive(Debug)]
pub struct RegisteredEventfd {
    /// The engine's duplicate of the program's descriptor.
    own: OwnedFd,
    /// Device and inode of `own`: equal for all files without an inode of their own, so they distinguish an eventfd from other files only.
    identity: FileIdentity,
    number: Number,
    async_only: bool,
    /// A write waits while the count is at its limit.
    may_wait: bool,
}

impl RegisteredEventfd {
    /// Registers the eventfd `fd` of the program.
    ///
    /// # Errors
    /// `EBADF`, `EINVAL` if `fd` is no eventfd, `ENOMEM`.
    pub fn new(fd: Fd, async_only: bool) -> Result<RegisteredEventfd, Errno> {
        let own = OwnedFd::new(os::duplicate(fd)?);
        if !os::is_eventfd(own.fd()) {
            return Err(Errno::EINVAL);
        }
        let identity = os::identity(own.fd())?;
        let number = os::eventfd_number(own.fd()).ok().flatten();
        let may_wait = os::fcntl(own.fd(), nr::F_GETFL, 0)? as u32 & nr::O_NONBLOCK == 0;
        REGISTERED.lock().add(number, own.fd())?;
        Ok(RegisteredEventfd { own, identity, number, async_only, may_wait })
    }

    /// Signals the eventfd. Unseen by the front end, the program may have closed the engine's duplicate and opened another file with
    /// its number: nothing is written to another file. A count at its limit stays as it is: a write would wait until somebody reads.
    pub fn signal(&self) {
        let fd = self.own.fd();
        let is_full = || self.may_wait && os::poll_now(fd, nr::EPOLLOUT) == Ok(0);
        if os::identity(fd) == Ok(self.identity) && !is_full() {
            os::eventfd_add(fd);
        }
    }

    /// Returns the descriptor that is signalled.
    #[inline]
    pub fn fd(&self) -> Fd {
        self.own.fd()
    }

    /// True if the eventfd is signalled only for completions that did not happen during submission.
    #[inline]
    pub fn is_async_only(&self) -> bool {
        self.async_only
    }
}

impl Drop for RegisteredEventfd {
    fn drop(&mut self) {
        // The number must leave the list before `own` is closed, after which the number may be reused.
        REGISTERED.lock().remove(self.number, self.own.fd());
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::{REGISTERED, RegisteredEventfd, is_registered};
    use crate::os::{self, OwnedFd};

    #[test]
    fn a_registered_eventfd_is_found_among_many() {
        let eventfds: Vec<_> = (0..100).map(|_| OwnedFd::new(os::eventfd().unwrap())).collect();
        let others: Vec<_> = (0..100).map(|_| OwnedFd::new(os::eventfd().unwrap())).collect();
        let [first, ..] = &eventfds[..] else { unreachable!() };
        let again = RegisteredEventfd::new(first.fd(), false).unwrap();
        let mut registered: Vec<_> =
            eventfds.iter().map(|fd| RegisteredEventfd::new(fd.fd(), false).unwrap()).collect();
        {
            let all = REGISTERED.lock();
            let numbers = eventfds.iter().map(|fd| os::eventfd_number(fd.fd()).unwrap());
            let alike: Vec<usize> = numbers.map(|number| all.of(number).len()).collect();
            assert_eq!(
                alike.iter().sum::<usize>(),
                101,
                "each is compared with itself, one with its second registration"
            );
            assert!(all.of(None).is_empty());
        }
        assert!(eventfds.iter().all(|fd| is_registered(fd.fd())));
        assert!(!others.iter().any(|fd| is_registered(fd.fd())));
        assert!(!is_registered(OwnedFd::new(os::epoll_create().unwrap()).fd()));
        registered.truncate(1);
        assert!(is_registered(first.fd()) && !is_registered(eventfds[1].fd()));
        registered.clear();
        assert!(is_registered(first.fd()));
        drop(again);
        assert!(!is_registered(first.fd()));
    }
}
