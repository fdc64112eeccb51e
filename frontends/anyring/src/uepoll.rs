//! epoll whose events are read from shared memory, without a system call.
//!
//! A [`Set`] accepts files as epoll does, edge-triggered, and events that threads raise themselves. [`Set::take`] takes
//! the events that are there, and sleeps only if there are none. The set's [`Feeder`] finds out what the files are ready for.
//!
//! ```
//! use anyring::uepoll::{Interest, Set};
//! use std::io::Write;
//! use std::os::unix::net::UnixStream;
//!
//! let set = Set::new(64)?;
//! let (ours, mut theirs) = UnixStream::pair()?;
//! set.add(&ours, Interest::READABLE, 7)?;
//! let done = set.event(8)?;
//!
//! theirs.write_all(b"hello")?;
//! std::thread::spawn(move || done.raise(1));
//!
//! let mut events = [Default::default(); 16];
//! let mut seen = Vec::new();
//! while seen.len() < 2 {
//!     let count = set.take(&mut events, None)?;
//!     seen.extend(events[..count].iter().map(|event| event.data));
//! }
//! seen.sort();
//! assert_eq!(seen, [7, 8]);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! A program that maps the ring itself, by the set's descriptor ([`AsFd`]), uses [`Set::wait`]. The memory's layout is
//! documented in [`layout`].

use std::io;
use std::ops::BitOr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use anyring_engine::abi::Errno;
use anyring_uepoll::{ADD, DELETE, MODIFY, Options, Raiser};
pub use anyring_uepoll::{Event, Feeder, layout};

/// The `EPOLL*` bits that a file is watched for. Errors and hang-ups are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Interest(u32);

impl Interest {
    /// The file is readable.
    pub const READABLE: Interest = Interest(libc::EPOLLIN as u32);
    /// The file is writable.
    pub const WRITABLE: Interest = Interest(libc::EPOLLOUT as u32);
    /// The peer has shut down its sending side.
    pub const READ_CLOSED: Interest = Interest(libc::EPOLLRDHUP as u32);
    /// Out-of-band data is there.
    pub const PRIORITY: Interest = Interest(libc::EPOLLPRI as u32);
    /// Reports one event, then none until the file is modified.
    pub const ONCE: Interest = Interest(libc::EPOLLONESHOT as u32);
    /// Reports the event again as long as the file is ready (level-triggered); for sets with [`Builder::extended`], but not with
    /// [`Feeder::Reactor`].
    pub const LEVEL: Interest = Interest(LEVEL);
    /// If several sets watch a file, an event need not be reported to all of them; for sets with [`Builder::extended`].
    pub const EXCLUSIVE: Interest = Interest(libc::EPOLLEXCLUSIVE as u32);

    fn bits(self) -> u32 {
        if self.0 & LEVEL != 0 { self.0 & !LEVEL } else { self.0 | libc::EPOLLET as u32 }
    }
}

/// A bit that epoll does not use.
const LEVEL: u32 = 1 << 26;

impl BitOr for Interest {
    type Output = Interest;

    fn bitor(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }
}

/// Options of a [`Set`] that is to be made.
#[derive(Clone, Debug)]
pub struct Builder(Options);

impl Builder {
    /// Selects the feeder of the set.
    pub fn feeder(mut self, feeder: Feeder) -> Builder {
        self.0.feeder = feeder;
        self
    }

    /// Allows [`Interest::LEVEL`] and [`Interest::EXCLUSIVE`].
    pub fn extended(mut self) -> Builder {
        self.0.extended = true;
        self
    }

    /// Polls for events for `time` before it sleeps: the processor is busy during this time, but an event that comes is
    /// found without the time that a wake-up takes.
    pub fn spin(mut self, time: Duration) -> Builder {
        self.0.spin_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// Makes the set.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::InvalidInput`] for an invalid number of items.
    pub fn build(self) -> io::Result<Set> {
        anyring_uepoll::Set::create(self.0).map(Set).map_err(error)
    }
}

/// A set of files and events.
pub struct Set(anyring_uepoll::Set);

impl Set {
    /// Makes a set for at most `max_items` files and events, with the default feeder, [`Feeder::Epoll`].
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(max_items: u32) -> io::Result<Set> {
        Set::builder(max_items).build()
    }

    /// Returns a builder of a set for at most `max_items` files and events.
    pub fn builder(max_items: u32) -> Builder {
        Builder(Options { spawn: Some(crate::engine::spawn), ..Options::new(max_items) })
    }

    /// The set's feeder; never [`Feeder::Auto`].
    pub fn feeder(&self) -> Feeder {
        self.0.feeder()
    }

    /// Watches a file; its events come with `data`. Remove the file before it is closed: only epoll, with [`Feeder::Epoll`] and
    /// [`Feeder::Reactor`], forgets a file when it is closed.
    ///
    /// # Errors
    /// As `epoll_ctl(2)`; `ENOSPC` if the set has its maximum number of items.
    pub fn add(&self, file: impl AsFd, interest: Interest, data: u64) -> io::Result<()> {
        self.control(ADD, file, Event { events: interest.bits(), data })
    }

    /// Changes the interest and the data of a watched file. Events on their way are not lost.
    ///
    /// # Errors
    /// As `epoll_ctl(2)`.
    pub fn modify(&self, file: impl AsFd, interest: Interest, data: u64) -> io::Result<()> {
        self.control(MODIFY, file, Event { events: interest.bits(), data })
    }

    /// Stops watching a file. Its events in the ring are removed.
    ///
    /// # Errors
    /// As `epoll_ctl(2)`.
    pub fn remove(&self, file: impl AsFd) -> io::Result<()> {
        self.control(DELETE, file, Event::default())
    }

    fn control(&self, operation: u32, file: impl AsFd, event: Event) -> io::Result<()> {
        self.0.control(operation, file.as_fd().as_raw_fd(), event).map_err(error)
    }

    /// Makes an event that threads raise; it comes with `data`, and with the bits that it was raised with.
    ///
    /// # Errors
    /// `ENOSPC` if the set has its maximum number of items.
    pub fn event(&self, data: u64) -> io::Result<UserEvent> {
        self.0.add_event(data).map(UserEvent).map_err(error)
    }

    /// Removes an event that threads raise.
    ///
    /// # Errors
    /// `ENOENT` if the event was removed already, or belongs to another set.
    pub fn remove_event(&self, event: &UserEvent) -> io::Result<()> {
        self.0.delete_event(&event.0).map_err(error)
    }

    /// Takes events; if there are none, sleeps until one comes, for `timeout` at most. Returns the number of events.
    ///
    /// # Errors
    /// [`io::ErrorKind::Interrupted`] after a signal; `EBUSY` if another thread waits already; `EPERM` in a child of
    /// the process that made the set.
    pub fn take(&self, events: &mut [Event], timeout: Option<Duration>) -> io::Result<usize> {
        self.0.take(events, timeout.map(nanoseconds)).map_err(error)
    }

    /// Sleeps until the ring has events, for `timeout` at most. Returns true if it has events; [`Set::take`] takes them, or
    /// the program reads them from the memory itself.
    ///
    /// # Errors
    /// As [`Set::take`].
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        match self.0.wait(timeout.map(nanoseconds)) {
            Ok(()) => Ok(false),
            Err(Errno::ESTALE) => Ok(true),
            Err(other) => Err(error(other)),
        }
    }
}

impl AsFd for Set {
    /// The descriptor of the memory, for mapping it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the set is.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl AsRawFd for Set {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd()
    }
}

impl std::fmt::Debug for Set {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Set").field("fd", &self.as_raw_fd()).field("feeder", &self.feeder()).finish()
    }
}

/// An event of a [`Set`] that any thread, and any child of the process, can raise.
#[derive(Clone)]
pub struct UserEvent(Raiser);

impl UserEvent {
    /// Adds bits to those that the consumer takes next, and wakes a sleeping consumer. With 0 nothing happens.
    #[inline]
    pub fn raise(&self, bits: u32) {
        self.0.raise(bits);
    }
}

impl std::fmt::Debug for UserEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("UserEvent").field(&self.0.item()).finish()
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(-errno.negated())
}
