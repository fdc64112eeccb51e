//! Receiving without asking: a server that cannot keep up finds data on nearly every connection it turns to, in the
//! order in which it answered them. To ask epoll first is a tenth of what a message costs.
//!
//! So once epoll has reported as much at once as it can, or most of what waits, several times in a row, the
//! receives that have waited longest are tried without a word from it, some at a time. What they find is no
//! less an event to epoll, which is asked now and then all the same: for other files, and for those whose turn
//! has not come. Where too many find nothing, guessing ends, and begins later the next time.
//!
//! Only receives from connections over TCP are tried like this: an attempt in vain changes nothing there.

mod guess;

use alloc::collections::VecDeque;

use linux_raw_sys::general::EPOLLIN;

use crate::ring::drive::names::BATCH;
use crate::ring::drive::readiness::SocketKind;
use crate::ring::drive::readiness::entries::Entry;

/// Connections tried at once.
const AT_ONCE: usize = 32;

/// Where more wait, nothing is guessed: what epoll touches then has to come from memory anyway, and it fetches that
/// for many at a time.
const MOST: usize = 4096;

/// Of so many attempts one may be in vain: it costs no more than what the others save.
const HITS: u32 = 3;

/// Large reports in a row before the first guess, and before one after many in vain.
const PATIENCE: u32 = 2;

const LONGEST_PATIENCE: u32 = 256;

/// Guesses at the connections that wait.
pub(crate) struct Guesses {
    /// In the order in which they began to wait.
    queue: VecDeque<Guess>,
    /// epoll's last reports were large, so many in a row, but no more than it takes.
    large_reports: u32,
    /// The number of large reports that it takes.
    patience: u32,
    /// Connections tried the last time.
    made: u32,
    /// Attempts in vain since.
    missed: u32,
}

struct Guess {
    index: u32,
    generation: u32,
    /// [`Entry::armed`] when the receive began to wait: if it moved since, others have begun to.
    armed: u32,
}

impl Guess {
    /// True if the receive is still there, and alone. A poll beside it would take the guess for an event.
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
    /// epoll has reported `count` events while `waiting` requests waited.
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

    /// A request that is no poll begins to wait for `events` at `entry`.
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

    /// An attempt was in vain, of those made last or of another.
    #[inline]
    pub(crate) fn missed(&mut self) {
        // Nobody judges where no caller waits.
        self.missed = self.missed.saturating_add(1);
    }

    /// Looks at what came of the last guesses.
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
