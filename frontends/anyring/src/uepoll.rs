//! epoll whose events are taken from memory that is shared with whoever finds them, without a system call.
//!
//! A [`Set`] takes files as epoll does, edge-triggered, and events that threads raise themselves. [`Set::take`] takes
//! what is there and sleeps only if nothing is. Who finds out what the files are ready for is the set's [`Feeder`].
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
//! A program that maps the ring itself, by the descriptor ([`AsFd`]), uses [`Set::wait`]; how the memory is laid out
//! is said in [`layout`].

use std::io;
use std::ops::BitOr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use anyring_engine::abi::Errno;
use anyring_uepoll::{ADD, DELETE, MODIFY, Options, Raiser};
pub use anyring_uepoll::{Event, Feeder, layout};

/// The `EPOLL*` bits that a file is watched for. Errors and hang-ups are told in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Interest(u32);

impl Interest {
    /// Something can be read.
    pub const READABLE: Interest = Interest(libc::EPOLLIN as u32);
    /// Something can be written.
    pub const WRITABLE: Interest = Interest(libc::EPOLLOUT as u32);
    /// The other end sends no more.
    pub const READ_CLOSED: Interest = Interest(libc::EPOLLRDHUP as u32);
    /// Out-of-band data.
    pub const PRIORITY: Interest = Interest(libc::EPOLLPRI as u32);
    /// One event, then none until the file is modified.
    pub const ONCE: Interest = Interest(libc::EPOLLONESHOT as u32);
    /// Told again and again as long as it is so; for sets with [`Builder::extended`].
    pub const LEVEL: Interest = Interest(LEVEL);
    /// Of several sets that watch a file, not all need be told; for sets with [`Builder::extended`].
    pub const EXCLUSIVE: Interest = Interest(libc::EPOLLEXCLUSIVE as u32);

    fn bits(self) -> u32 {
        if self.0 & LEVEL != 0 { self.0 & !LEVEL } else { self.0 | libc::EPOLLET as u32 }
    }
}

/// A bit that epoll does not have.
const LEVEL: u32 = 1 << 26;

impl BitOr for Interest {
    type Output = Interest;

    fn bitor(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }
}

/// How a [`Set`] is made.
#[derive(Clone, Debug)]
pub struct Builder(Options);

impl Builder {
    /// By whom the set is fed.
    pub fn feeder(mut self, feeder: Feeder) -> Builder {
        self.0.feeder = feeder;
        self
    }

    /// Lets files be watched by level, and exclusively.
    pub fn extended(mut self) -> Builder {
        self.0.extended = true;
        self
    }

    /// Lets one look for events for some time before one sleeps: the processor is busy meanwhile, but what comes is
    /// found without the time that waking takes.
    pub fn spin(mut self, time: Duration) -> Builder {
        self.0.spin_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// Makes it.
    ///
    /// # Errors
    /// What the system says; [`io::ErrorKind::InvalidInput`] for a number of items that cannot be.
    pub fn build(self) -> io::Result<Set> {
        anyring_uepoll::Set::create(self.0).map(Set).map_err(error)
    }
}

/// A set of files and events.
pub struct Set(anyring_uepoll::Set);

impl Set {
    /// A set for so many files and events, fed by what was found to be best.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(max_items: u32) -> io::Result<Set> {
        Set::builder(max_items).build()
    }

    /// A set with more to say about it.
    pub fn builder(max_items: u32) -> Builder {
        Builder(Options { spawn: Some(crate::engine::spawn), ..Options::new(max_items) })
    }

    /// By whom it is fed; never [`Feeder::Auto`].
    pub fn feeder(&self) -> Feeder {
        self.0.feeder()
    }

    /// Watches a file; its events come with `data`. Remove it before it is closed: epoll alone, [`Feeder::Epoll`] and
    /// [`Feeder::Reactor`], lets go of a file that is closed.
    ///
    /// # Errors
    /// As `epoll_ctl(2)`; `ENOSPC` where as many items are there as there can be.
    pub fn add(&self, file: impl AsFd, interest: Interest, data: u64) -> io::Result<()> {
        self.control(ADD, file, Event { events: interest.bits(), data })
    }

    /// Watches it for something else from now on. What is under way is not lost.
    ///
    /// # Errors
    /// As `epoll_ctl(2)`.
    pub fn modify(&self, file: impl AsFd, interest: Interest, data: u64) -> io::Result<()> {
        self.control(MODIFY, file, Event { events: interest.bits(), data })
    }

    /// Watches it no longer. What it has in the ring is taken back.
    ///
    /// # Errors
    /// As `epoll_ctl(2)`.
    pub fn remove(&self, file: impl AsFd) -> io::Result<()> {
        self.control(DELETE, file, Event::default())
    }

    fn control(&self, operation: u32, file: impl AsFd, event: Event) -> io::Result<()> {
        self.0.control(operation, file.as_fd().as_raw_fd(), event).map_err(error)
    }

    /// An event that threads raise; it comes with `data`, and with the bits that it was raised with.
    ///
    /// # Errors
    /// `ENOSPC` where as many items are there as there can be.
    pub fn event(&self, data: u64) -> io::Result<UserEvent> {
        self.0.add_event(data).map(UserEvent).map_err(error)
    }

    /// Removes it.
    ///
    /// # Errors
    /// `ENOENT` where it was removed already, or is another set's.
    pub fn remove_event(&self, event: &UserEvent) -> io::Result<()> {
        self.0.delete_event(&event.0).map_err(error)
    }

    /// Takes events; sleeps for the first if there are none, for `timeout` at most. Returns how many came.
    ///
    /// # Errors
    /// [`io::ErrorKind::Interrupted`] by a signal; `EBUSY` where another thread waits already; `EPERM` in a child of
    /// the process whose set it is.
    pub fn take(&self, events: &mut [Event], timeout: Option<Duration>) -> io::Result<usize> {
        self.0.take(events, timeout.map(nanoseconds)).map_err(error)
    }

    /// Sleeps until the ring has events, for `timeout` at most; whether it has. They are taken by [`Set::take`], or
    /// out of the memory itself.
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
    /// The memory's descriptor, to map it by.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the set is.
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

/// An event of a [`Set`] that any thread raises, and any child of the process.
#[derive(Clone)]
pub struct UserEvent(Raiser);

impl UserEvent {
    /// Adds bits to those that the consumer takes next; a sleeping consumer is woken. With 0 nothing happens.
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
