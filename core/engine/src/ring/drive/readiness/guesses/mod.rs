//! Receiving without asking. A server that cannot keep up finds data on nearly every connection that it turns to, in the order in which it
//! answered them. Asking epoll first would be a tenth of the cost of a message.
//!
//! So once epoll has reported as many events at once as it can, or most of the waiting connections, several times in a row, the receives
//! that have waited longest are tried without a report, some at a time. The data that they find still make events for epoll, which is asked
//! now and then all the same: for other files, and for connections whose turn has not come. If too many attempts find nothing, guessing
//! ends, and begins later the next time.
//!
//! Only receives from TCP connections are tried in this way: there an attempt in vain changes nothing.

mod guess;

use alloc::collections::VecDeque;

use linux_raw_sys::general::EPOLLIN;

use crate::ring::drive::names::BATCH;
use crate::ring::drive::readiness::SocketKind;
use crate::ring::drive::readiness::entries::Entry;

/// The number of connections tried at once.
const AT_ONCE: usize = 32;

/// With more waiting requests, nothing is guessed: what epoll touches then has to come from memory anyway, and epoll fetches it for many at
/// a time.
const MOST: usize = 4096;

/// One of so many attempts may be in vain: it costs no more than the others save.
const HITS: u32 = 3;

/// The number of consecutive large reports before the first guess. It doubles when too many guesses are in vain.
const PATIENCE: u32 = 2;

const LONGEST_PATIENCE: u32 = 256;

/// Guesses which of the waiting connections have data.
pub(crate) struct Guesses {
    /// The receives in the order in which they began to wait.
    queue: VecDeque<Guess>,
    /// The number of consecutive large reports from epoll, counted until it reaches `patience`.
    large_reports: u32,
    /// The number of large reports after which guessing begins.
    patience: u32,
    /// The number of connections tried the last time.
    made: u32,
    /// The number of attempts in vain since then.
    missed: u32,
}

struct Guess {
    index: u32,
    generation: u32,
    /// [`Entry::armed`] when the receive began to wait: if it has changed since, other requests began to wait.
    armed: u32,
}

impl Guess {
    /// True if the receive still waits, and alone. A poll beside it would take the guess for an event.
    fn holds(&self, entry: &Entry) -> bool {
        (entry.generation, entry.armed) == (self.generation, self.armed)
            && entry.registered
            && entry.waiters.as_slice().len() == 1
    }
}

impl Default for Guesses {
    fn default() -> Guesses {
        Guesses { queue: VecDeque::new(), large_reports: 0, patience: PATIENCE, made: 0, missed: 0 }
    }
}

impl Guesses {
    /// Counts a report: epoll has reported `count` events while `waiting` requests waited.
    #[inline]
    pub(crate) fn reported(&mut self, count: usize, waiting: usize) {
        if self.are_on() {
            return;
        }
        let most = count >= AT_ONCE / 2 && count * 2 >= waiting;
        let large = (count == BATCH || most) && waiting <= MOST;
        self.large_reports = if large { self.large_reports + 1 } else { 0 };
    }

    fn are_on(&self) -> bool {
        self.large_reports >= self.patience
    }

    /// Notes that a request other than a poll begins to wait for `events` at `entry`.
    #[inline]
    pub(crate) fn expect(&mut self, index: u32, entry: &Entry, events: u32) {
        if self.large_reports == 0 || self.queue.len() >= MOST {
            return;
        }
        if entry.kind == Some(SocketKind::Tcp) && events & EPOLLIN != 0 {
            let Entry { generation, armed, .. } = *entry;
            self.queue.push_back(Guess { index, generation, armed });
        }
    }

    /// Counts an attempt in vain, whether or not it was a guess.
    #[inline]
    pub(crate) fn missed(&mut self) {
        // Without a waiting caller, nothing resets the count.
        self.missed = self.missed.saturating_add(1);
    }

    /// Decides by the results of the last guesses whether guessing goes on.
    fn judge(&mut self) {
        let (made, missed) = (core::mem::take(&mut self.made), core::mem::take(&mut self.missed));
        if made == 0 {
            return;
        }
        if missed.saturating_mul(HITS) > made {
            self.patience = (self.patience * 2).min(LONGEST_PATIENCE);
            self.end();
        } else {
            self.patience = PATIENCE;
        }
    }

    fn end(&mut self) {
        self.large_reports = 0;
        self.queue.clear();
    }
}
