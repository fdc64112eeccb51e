//! Waking a thread that waits for completions.

use crate::Fd;
use crate::low::{Sqe, op as low};
use crate::operation::{CqeResult, Files, Multishot};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// See [`wakes`].
#[derive(Debug)]
pub struct Wakes {
    eventfd: Fd,
}

/// Wakes a thread that waits for completions, from any thread; see [`wakes`].
#[derive(Clone, Debug)]
pub struct Waker {
    eventfd: Fd,
}

/// Makes an operation that completes when its waker is used, and the waker. Several wakes in a row have at least one completion.
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
/// If no descriptor is available.
pub fn wakes() -> io::Result<(Wakes, Waker)> {
    let waker = Waker::new()?;
    Ok((Wakes { eventfd: waker.eventfd.clone() }, waker))
}

// SAFETY: the operation owns the descriptor.
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
    /// Makes a waker whose eventfd is not polled yet.
    pub(crate) fn new() -> io::Result<Waker> {
        // SAFETY: touches no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, which nothing else owns.
        Ok(Waker { eventfd: Fd::from(unsafe { OwnedFd::from_raw_fd(fd) }) })
    }

    /// Lets the operation of [`wakes`] complete.
    pub fn wake(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes. If the counter is full, which would take 2^64 wakes, the write changes nothing.
        unsafe { libc::write(self.as_fd().as_raw_fd(), (&raw const one).cast(), size_of_val(&one)) };
    }

    /// The eventfd, which is readable after a wake.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.descriptor().expect("an eventfd is a descriptor")
    }

    /// Resets the eventfd, so that it is not readable any more.
    pub(crate) fn clear(&self) {
        let mut count = 0_u64;
        // SAFETY: eight bytes. The read does not block, and may find nothing.
        unsafe { libc::read(self.as_fd().as_raw_fd(), (&raw mut count).cast(), size_of_val(&count)) };
    }

    /// Waits until the eventfd is readable, or a signal comes.
    pub(crate) fn wait(&self) {
        let mut poll = libc::pollfd { fd: self.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&mut poll, 1, -1) };
    }
}
