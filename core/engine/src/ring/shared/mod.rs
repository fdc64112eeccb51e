//! Rings of several processes: made before a `fork`, used after it by parent and child.
//!
//! Ring memory is shared anyway. All other state of a ring (`Core`) is one process's own. A child begins with a copy of it, without the
//! requests, which stay its parent's. State on which the processes have to agree is in a [`Page`], which exists from the first `fork` in
//! the ring's life on:
//!
//! - a lock, taken inside the ring's own lock ([`crate::ring::CoreGuard`]). A process that finds that another process held it last reads
//!   the counts anew from ring memory;
//! - the number of those who sleep for completions, so that other processes signal the *bell*: an eventfd that all inherit and nobody ever
//!   reads. Each signal is an edge, which the driver's epoll instance reports;
//! - letters ([`mail`]): only the process that has a request can cancel it.
//!
//! A process may be killed after it has posted and before it rings the bell. So a thread that sleeps for a ring that several processes have
//! used looks at the ring every second; the look takes the lock over from a dead process.
//!
//! A ring whose processes never forked has no page, and pays one look at a null pointer.

mod agree;
mod departure;
mod mail;

use crate::os::{self, Fd};
use crate::process::page::{Page, State};

pub use departure::{executes, exits, thread_ends};
pub use mail::{Question, expire as look_for_answers};

/// This process's side of a ring's page.
pub struct Shared {
    page: &'static Page,
    bell: Fd,
    /// The ring's epoll instance reports the bell.
    heard: bool,
    /// This process is one of [`State::users`].
    joined: bool,
    /// More than one process has used the ring.
    crowded: bool,
    /// Threads that sleep for completions.
    asleep: u32,
    /// The CQ's tail when a process that keeps CQEs, or has reads at the device, was last asked for them.
    asked_at: Option<u32>,
    /// An eventfd was registered that other processes may not know of.
    own_eventfd: bool,
    /// The stand-in was made after the page: other processes may not have it.
    own_stand_in: bool,
    /// The part of this process's state that the page shows.
    published: Published,
}

#[derive(Default)]
struct Published {
    hearers: u32,
    overflowing: u32,
    reading: u32,
    /// This process's place among the owners.
    owner: Option<usize>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The page is unmapped after its lock is unlocked.
        os::close_own(self.bell);
    }
}

impl Shared {
    /// Returns the state in the page. The page's lock is held, because the ring's guard leads here.
    #[expect(clippy::mut_from_ref, reason = "the lock in the page guards it")]
    fn state(&self) -> &mut State {
        // SAFETY: a core is reached through its guard, which holds the page's lock; callers use one
        // reference at a time.
        unsafe { self.page.state() }
    }

    /// True if this process has an eventfd or a stand-in that other processes may lack. An eventfd that every process has is signalled by
    /// the process that posts, so that no other process need be told.
    fn observes_alone(&self) -> bool {
        self.own_eventfd || self.own_stand_in
    }

    /// Has every other process that sleeps or watches look at the ring.
    fn ring_the_bell(&self) {
        os::eventfd_signal(self.bell);
    }
}
