//! Waking a thread that waits for completions.

use crate::Fd;
use crate::low::{Sqe, op as low};
use crate::operation::{CqeResult, Files, Multishot};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// See [`wakes`].
#[derive(Debug)]
pub struct Wakes {
    eventfd: Fd,
}

/// Lets a thread that waits for completions go on, from any thread; see [`wakes`].
#[derive(Clone, Debug)]
pub struct Waker {
    eventfd: Fd,
}

/// An operation that has a completion when its waker was used, several uses in a row having at least one.
///
/// ```
/// use anyring::{Ring, op};
///
/// let mut ring = Ring::new(8)?;
/// let (wakes, waker) = op::wakes().unwrap();
/// let mut wakes = ring.push_multi(wakes)?;
/// let thread = std::thread::spawn(move || waker.wake());
/// ring.next(&mut wakes)?.expect("it does not end")?;
/// # thread.join().unwrap();
/// # Ok::<(), anyring::Error>(())
/// ```
///
/// # Errors
/// Where no descriptor is to be had.
pub fn wakes() -> io::Result<(Wakes, Waker)> {
    // SAFETY: touches no memory.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new, and nobody else's.
    let eventfd = Fd::from(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok((Wakes { eventfd: eventfd.clone() }, Waker { eventfd }))
}

// SAFETY: the descriptor is its own.
unsafe impl Multishot for Wakes {
    type Item = Result<(), crate::Error>;

    const NAME: &'static str = "POLL_ADD";

    fn entry(&mut self, files: Files<'_>) -> Sqe {
        low::PollAddMulti::new(self.eventfd.target(files), libc::POLLIN as u32).build()
    }

    fn item(came: CqeResult) -> Self::Item {
        came.number().map(drop)
    }
}

impl Waker {
    /// The ring's thread has a completion of [`wakes`].
    pub fn wake(&self) {
        let one = 1_u64;
        let Some(fd) = self.eventfd.descriptor() else { return };
        // SAFETY: eight bytes. A full counter, after more wakes than a life has, changes nothing.
        unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), size_of_val(&one)) };
    }
}
