//! How the server waits.

use std::time::Duration;

use anyring::uepoll::{Event, Feeder, Interest, Set};
use clap::{Args, ValueEnum};

use crate::failure::{Doing, Result};
use crate::workload::sockets::Epoll;

/// Arguments that say how to wait.
#[derive(Clone, Copy, Debug, Args)]
pub struct How {
    /// How ready files are found.
    #[arg(long, value_enum)]
    pub means: Means,
    /// Microseconds to look for events before sleeping.
    #[arg(long, default_value_t = 0)]
    pub spin_us: u64,
}

/// How ready files are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Means {
    /// epoll, edge-triggered.
    Epoll,
    /// epoll, level-triggered.
    Level,
    /// The ring, with its default feeder.
    Ring,
    /// The ring, fed by epoll.
    RingEpoll,
    /// The ring, fed by the kernel's io_uring.
    RingUring,
    /// The ring, fed by Linux AIO.
    RingAio,
    /// The ring, fed by a thread.
    RingReactor,
}

/// The epoll instance or ring by which the server waits.
pub enum Poller {
    /// An epoll instance, and `EPOLLET` or 0.
    Epoll(Epoll, i32),
    /// A ring, and the events of the last wait.
    Ring(Box<Set>, Vec<Event>),
}

/// The maximum number of events per wait.
const MOST: usize = 512;

impl Poller {
    /// Creates a poller for `files` files.
    pub fn new(how: How, files: usize) -> Result<Self> {
        let feeder = match how.means {
            Means::Epoll => return Ok(Self::Epoll(Epoll::new()?, libc::EPOLLET)),
            Means::Level => return Ok(Self::Epoll(Epoll::new()?, 0)),
            Means::Ring => Feeder::Auto,
            Means::RingEpoll => Feeder::Epoll,
            Means::RingUring => Feeder::Uring,
            Means::RingAio => Feeder::Aio,
            Means::RingReactor => Feeder::Reactor,
        };
        let builder = Set::builder(files as u32).feeder(feeder).spin(Duration::from_micros(how.spin_us));
        let set = builder.build().doing(|| format!("making a set fed by {feeder:?}"))?;
        Ok(Self::Ring(Box::new(set), vec![Event::default(); MOST]))
    }

    /// Adds a file, whose readability is then waited for.
    pub fn add(&self, file: i32, token: u64) -> Result<()> {
        match self {
            Self::Epoll(epoll, edge) => epoll.add(file, libc::EPOLLIN | libc::EPOLLRDHUP | edge, token),
            // SAFETY: an open file of the caller's.
            Self::Ring(set, _) => set
                .add(
                    unsafe { std::os::fd::BorrowedFd::borrow_raw(file) },
                    Interest::READABLE | Interest::READ_CLOSED,
                    token,
                )
                .doing(|| "adding a file to the set".into()),
        }
    }

    /// Removes a file that is about to be closed.
    pub fn remove(&self, file: i32) {
        if let Self::Ring(set, _) = self {
            // SAFETY: an open file of the caller's.
            let _ = set.remove(unsafe { std::os::fd::BorrowedFd::borrow_raw(file) });
        }
    }

    /// Waits for events, without a timeout if `timeout_ms` is -1. Returns their number.
    pub fn wait(&mut self, timeout_ms: i32) -> Result<usize> {
        match self {
            Self::Epoll(epoll, _) => epoll.wait(timeout_ms),
            Self::Ring(set, events) => {
                let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
                match set.take(events, timeout) {
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(0),
                    result => result.doing(|| "taking events".into()),
                }
            }
        }
    }

    /// Returns the token and the event bits of one of the last events.
    pub fn event(&self, index: usize) -> (u64, u32) {
        match self {
            Self::Epoll(epoll, _) => (epoll.events[index].u64, epoll.events[index].events),
            Self::Ring(_, events) => (events[index].data, events[index].events),
        }
    }
}
