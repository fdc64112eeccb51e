//! Rings of several processes: made before `fork`, used after it by parent and child.
//!
//! Ring memory is shared anyway. Everything else of a ring (`Core`) is one process's own, and a
//! child begins with a copy of it, without the requests: those stay its parent's. What the sides have
//! to agree on lies in a [`Page`] that exists from the first `fork` on which the ring lives to see:
//!
//! - a lock, taken inside the ring's own by whoever holds that one ([`crate::ring::CoreGuard`]); who
//!   finds that another process held it last takes the counts anew from ring memory;
//! - who sleeps for completions, so that others ring the *bell*, an eventfd that all inherit and
//!   nobody ever reads: the epoll instance of whoever drives reports every ring of it, by its edge;
//! - letters ([`mail`]): a request can only be cancelled by the process that has it.
//!
//! A process may be killed after it has posted and before it rings the bell. So who sleeps for a ring that several processes have
//! used looks at it every second; the look takes the lock over from the dead.
//!
//! A ring in which nobody ever forked has no page, and pays one look at a null pointer.

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
    /// Where the completion queue ended when whoever keeps CQEs, or has reads at the device, was last asked for them.
    asked_at: Option<u32>,
    /// An eventfd was registered that other processes may not know of.
    own_eventfd: bool,
    /// The stand-in of the ring's descriptor came after the page: other processes may not have it.
    own_stand_in: bool,
    /// The part of this process's state that the page shows.
    published: Published,
}

#[derive(Default)]
struct Published {
    hearers: u32,
    overflowing: u32,
    reading: u32,
    /// The place among the owners.
    owner: Option<usize>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The page goes when its lock has been given up.
        os::close_own(self.bell);
    }
}

impl Shared {
    /// The state in the page. The page's lock is held, for this is part of what the ring's guards.
    #[expect(clippy::mut_from_ref, reason = "the lock in the page guards it")]
    fn state(&self) -> &mut State {
        // SAFETY: a core is reached through its guard, which holds the page's lock; callers use one
        // reference at a time.
        unsafe { self.page.state() }
    }

    /// True if this process has an eventfd or a stand-in that the other processes may lack. What every
    /// process has is signalled by the process that posts, so that nobody else need be told.
    fn observes_alone(&self) -> bool {
        self.own_eventfd || self.own_stand_in
    }

    /// Tells every other process that sleeps or watches to look at the ring.
    fn ring_the_bell(&self) {
        os::eventfd_signal(self.bell);
    }
}
