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
//! - letters ([`mail`]): only the process that has a request can cancel it;
//! - the CQEs that wait ([`crate::queue::Cq`]), in one order for all processes: any process posts those that found the CQ full, and the
//!   process of the one thread that fetches posts messages.
//!
//! A process may be killed after it has posted and before it rings the bell. So a thread that sleeps for a ring on which several processes have
//! called looks at the ring every second; the look takes the lock over from a dead process. A thread that sleeps for a ring that others only
//! send messages to, as to any ring that defers, does not look.
//!
//! A ring whose processes never forked has no page, and pays one look at a null pointer.

mod agree;
mod departure;
mod mail;

use alloc::boxed::Box;

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLLET, EPOLLIN};

use crate::os::{self, Fd};
use crate::process::family;
use crate::process::page::{Page, State};
use crate::ring::drive::names::BELL;

pub use departure::{executes, exits, thread_ends};
pub use mail::{Question, expire as look_for_answers};

/// The time between two checks whether another process posted and was killed before it could ring the bell.
const LOOK_NS: u64 = 1_000_000_000;

/// A ring's [`Shared`]. There is one if the ring has a page, because other processes may use the ring.
#[derive(Default)]
pub struct Sharing(Option<Box<Shared>>);

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
    /// The CQ's tail when a process that has reads at the device was last asked for them.
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

impl Sharing {
    /// True if the ring has a page: other processes may use it.
    #[inline(always)]
    pub fn has_page(&self) -> bool {
        self.0.is_some()
    }

    /// Has an epoll instance of this ring report the bell.
    pub(in crate::ring) fn hear(&mut self, epoll: Fd) {
        if let Some(shared) = &mut self.0
            && !shared.heard
        {
            shared.heard = os::epoll_ctl(epoll, EPOLL_CTL_ADD, shared.bell, EPOLLIN | EPOLLET, BELL).is_ok();
        }
    }

    /// Has an epoll instance report the bell in place of a lost one.
    pub(in crate::ring) fn hear_again(&mut self, epoll: Fd) {
        if let Some(shared) = &mut self.0 {
            shared.heard = false;
        }
        self.hear(epoll);
    }

    /// Publishes in the page whether the ring is enabled, and, if `is_here`, that its submitter is in this process.
    pub(in crate::ring) fn publish_submitter(&self, is_enabled: bool, is_here: bool) {
        if let Some(shared) = &self.0 {
            let state = shared.state();
            state.enabled = u32::from(is_enabled);
            if is_here {
                state.submitter = family::own();
            }
        }
    }

    /// True if other processes use the ring, or wait for what this process does on it.
    pub(in crate::ring) fn is_crowded(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.crowded)
    }

    /// Returns how long a thread may sleep for the ring before it has to look at it again: nothing reports what a process posted that was
    /// killed before it could ring the bell.
    pub(in crate::ring) fn next_look_ns(&self) -> Option<u64> {
        self.is_crowded().then_some(LOOK_NS)
    }

    /// Notes that an eventfd was registered. Only children of later forks will know it.
    pub fn note_own_eventfd(&mut self) {
        if let Some(shared) = &mut self.0 {
            shared.own_eventfd = true;
        }
    }

    /// Notes that a stand-in was made. Only children of later forks will have it.
    pub(in crate::ring) fn note_own_stand_in(&mut self) {
        if let Some(shared) = &mut self.0 {
            shared.own_stand_in = true;
        }
    }

    /// Returns whether the stand-in that all processes of the ring have is readable, whichever process signalled it; `None` without one.
    pub(in crate::ring) fn common_stand_in_is_readable(&self) -> Option<bool> {
        let shared = self.0.as_ref().filter(|shared| !shared.own_stand_in)?;
        Some(shared.state().readable != 0)
    }

    /// Notes in the page that the stand-in was signalled, or is about to be drained, for the other processes that have it.
    pub(in crate::ring) fn tell_of_stand_in(&mut self, readable: bool) {
        if let Some(shared) = self.0.as_ref().filter(|shared| !shared.own_stand_in) {
            shared.state().readable = u32::from(readable);
        }
    }

    /// True if another process waits for completions, or watches for them.
    pub fn is_awaited_elsewhere(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.state().hearers > shared.published.hearers)
    }

    /// Rings the bell if other processes wait for what was posted.
    pub(in crate::ring) fn tell_others(&self) {
        if self.is_awaited_elsewhere()
            && let Some(shared) = &self.0
        {
            shared.ring_the_bell();
        }
    }

    /// Returns the next id of a queue of zero-copy receives, as far as other processes know it.
    pub fn receive_queue_ids(&self) -> u32 {
        self.0.as_ref().map_or(0, |shared| shared.state().receive_queues)
    }

    /// Counts a thread that goes to sleep for completions, or (-1) is back. `tail`: the tail of the CQ.
    pub(in crate::ring) fn sleeps(&mut self, change: i32, tail: u32) {
        let Some(shared) = &mut self.0 else { return };
        shared.asleep = shared.asleep.saturating_add_signed(change);
        let asks = shared.state().reading > shared.published.reading;
        if change > 0 && asks && shared.asked_at.replace(tail) != Some(tail) {
            // No other process may fetch these reads. Once for each tail: the bell wakes this process, too.
            shared.ring_the_bell();
        }
    }

    /// Publishes the next id of a queue of zero-copy receives.
    pub fn publish_receive_queue_ids(&self, next_id: u32) {
        if let Some(shared) = &self.0 {
            shared.state().receive_queues = next_id;
        }
    }
}
