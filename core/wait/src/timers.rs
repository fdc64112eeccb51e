//! Deadlines, on the three clocks that requests can name.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use linux_raw_sys::general as nr;

/// A clock that a timeout can name.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Clock {
    /// Time since boot, without suspend.
    #[default]
    Monotonic,
    /// Time since boot, with suspend.
    Boottime,
    /// Time of day.
    Realtime,
}

const CLOCKS: [Clock; 3] = [Clock::Monotonic, Clock::Boottime, Clock::Realtime];

impl Clock {
    /// Returns the number of the clock (`CLOCK_*`).
    pub fn number(self) -> u32 {
        match self {
            Clock::Monotonic => nr::CLOCK_MONOTONIC,
            Clock::Boottime => nr::CLOCK_BOOTTIME,
            Clock::Realtime => nr::CLOCK_REALTIME,
        }
    }
}

/// The subject of a deadline. No two subjects that exist at the same time have the same place.
pub trait Mark: Copy + Eq {
    /// Returns the subject's index.
    fn place(self) -> usize;
}

/// Deadlines; each subject has at most one.
pub struct Timers<M> {
    queues: [BTreeMap<(u64, u64), M>; 3],
    keys: Vec<Option<(M, Clock, u64, u64)>>,
    sequence: u64,
    armed: usize,
}

impl<M> Default for Timers<M> {
    fn default() -> Timers<M> {
        Timers { queues: Default::default(), keys: Vec::new(), sequence: 0, armed: 0 }
    }
}

impl<M: Mark> Timers<M> {
    /// True if no deadline is armed.
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// Arms `id`, which must not be armed, to expire when `clock` shows `deadline_ns`.
    pub fn arm(&mut self, id: M, clock: Clock, deadline_ns: u64) {
        let index = id.place();
        if self.keys.len() <= index {
            self.keys.resize(index + 1, None);
        }
        debug_assert!(self.keys[index].is_none(), "armed once");
        self.sequence += 1;
        self.armed += 1;
        self.keys[index] = Some((id, clock, deadline_ns, self.sequence));
        self.queues[clock as usize].insert((deadline_ns, self.sequence), id);
    }

    /// Disarms `id`. False if `id` was not armed.
    pub fn cancel(&mut self, id: M) -> bool {
        let Some(&Some((armed, clock, deadline_ns, sequence))) = self.keys.get(id.place()) else {
            return false;
        };
        if armed != id {
            return false;
        }
        self.keys[id.place()] = None;
        self.armed -= 1;
        self.queues[clock as usize].remove(&(deadline_ns, sequence)).is_some()
    }

    /// Returns when `id` expires, if armed.
    pub fn deadline(&self, id: M) -> Option<(Clock, u64)> {
        let &(armed, clock, deadline_ns, _) = self.keys.get(id.place())?.as_ref()?;
        (armed == id).then_some((clock, deadline_ns))
    }

    /// True if `id` is armed.
    pub fn is_armed(&self, id: M) -> bool {
        self.keys.get(id.place()).is_some_and(|key| key.is_some_and(|(armed, ..)| armed == id))
    }

    /// True if `id` is the next to expire on its clock.
    pub fn is_first(&self, id: M) -> bool {
        self.queues.iter().any(|queue| queue.first_key_value().is_some_and(|(_, &first)| first == id))
    }

    /// Disarms and returns a subject whose deadline has passed. `now_ns` reads a clock.
    pub fn pop_due(&mut self, now_ns: impl Fn(Clock) -> u64) -> Option<M> {
        if self.is_empty() {
            return None;
        }
        for clock in CLOCKS {
            let Some((&(deadline_ns, _), &id)) = self.queues[clock as usize].first_key_value() else {
                continue;
            };
            if deadline_ns <= now_ns(clock) {
                self.cancel(id);
                return Some(id);
            }
        }
        None
    }

    /// Returns the time until the earliest deadline, in nanoseconds. `now_ns` reads a clock.
    pub fn next_ns(&self, now_ns: impl Fn(Clock) -> u64) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        CLOCKS
            .iter()
            .filter_map(|&clock| {
                let (&(deadline_ns, _), _) = self.queues[clock as usize].first_key_value()?;
                let left = deadline_ns.saturating_sub(now_ns(clock));
                // The wall clock can be set, so look again within a second.
                Some(if clock == Clock::Realtime { left.min(1_000_000_000) } else { left })
            })
            .min()
    }
}
