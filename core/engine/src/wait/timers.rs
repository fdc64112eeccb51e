//! Deadlines of a ring, on the three clocks that requests can name.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::os;
use crate::request::RequestId;
use crate::ring::Core;

/// A clock that a timeout can name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// Since boot, without sleep.
    Monotonic,
    /// Since boot, with sleep.
    Boottime,
    /// Of day.
    Realtime,
}

const CLOCKS: [Clock; 3] = [Clock::Monotonic, Clock::Boottime, Clock::Realtime];

impl Clock {
    /// The time now, in nanoseconds.
    pub fn now_ns(self) -> u64 {
        os::clock_ns(self.number())
    }

    /// `CLOCK_*`.
    pub fn number(self) -> u32 {
        match self {
            Clock::Monotonic => os::nr::CLOCK_MONOTONIC,
            Clock::Boottime => os::nr::CLOCK_BOOTTIME,
            Clock::Realtime => os::nr::CLOCK_REALTIME,
        }
    }
}

/// The deadlines of one ring.
#[derive(Default)]
pub struct Timers {
    queues: [BTreeMap<(u64, u64), RequestId>; 3],
    keys: Vec<Option<(RequestId, Clock, u64, u64)>>,
    sequence: u64,
    armed: usize,
}

impl Timers {
    /// None armed?
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// Arms `id` to expire when `clock` shows `deadline_ns`. It must not be armed.
    pub fn arm(&mut self, id: RequestId, clock: Clock, deadline_ns: u64) {
        let index = id.index as usize;
        if self.keys.len() <= index {
            self.keys.resize(index + 1, None);
        }
        debug_assert!(self.keys[index].is_none(), "armed once");
        self.sequence += 1;
        self.armed += 1;
        self.keys[index] = Some((id, clock, deadline_ns, self.sequence));
        self.queues[clock as usize].insert((deadline_ns, self.sequence), id);
    }

    /// Disarms `id`; false where it was not armed.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let Some(&Some((armed, clock, deadline_ns, sequence))) = self.keys.get(id.index as usize) else {
            return false;
        };
        if armed != id {
            return false;
        }
        self.keys[id.index as usize] = None;
        self.armed -= 1;
        self.queues[clock as usize].remove(&(deadline_ns, sequence)).is_some()
    }

    /// When `id` expires, if it is armed.
    pub fn deadline(&self, id: RequestId) -> Option<(Clock, u64)> {
        let &(armed, clock, deadline_ns, _) = self.keys.get(id.index as usize)?.as_ref()?;
        (armed == id).then_some((clock, deadline_ns))
    }

    /// Is `id` armed?
    pub fn is_armed(&self, id: RequestId) -> bool {
        self.keys.get(id.index as usize).is_some_and(|key| key.is_some_and(|(armed, ..)| armed == id))
    }

    /// Is `id` the next to expire on its clock?
    fn is_first(&self, id: RequestId) -> bool {
        self.queues.iter().any(|queue| queue.first_key_value().is_some_and(|(_, &first)| first == id))
    }

    /// Takes one that is due.
    fn pop_due(&mut self) -> Option<RequestId> {
        if self.is_empty() {
            return None;
        }
        for clock in CLOCKS {
            let Some((&(deadline_ns, _), &id)) = self.queues[clock as usize].first_key_value() else {
                continue;
            };
            if deadline_ns <= clock.now_ns() {
                self.cancel(id);
                return Some(id);
            }
        }
        None
    }

    /// How long until the next is due, in nanoseconds.
    pub fn next_ns(&self) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        CLOCKS
            .iter()
            .filter_map(|&clock| {
                let (&(deadline_ns, _), _) = self.queues[clock as usize].first_key_value()?;
                let left = deadline_ns.saturating_sub(clock.now_ns());
                // The wall clock can be set: look again before long.
                Some(if clock == Clock::Realtime { left.min(1_000_000_000) } else { left })
            })
            .min()
    }
}

impl Core {
    /// Arms a timer, and tells whoever sleeps for this ring if it is to wake earlier now.
    pub fn arm_timer(&mut self, id: RequestId, clock: Clock, deadline_ns: u64) {
        self.timers.arm(id, clock, deadline_ns);
        if self.timers.is_first(id) {
            self.disturb_driver();
        }
    }

    /// Fires all timers that are due. What became ready before is told as well, and not cancelled.
    pub fn fire_timers(&mut self) {
        let mut looked = false;
        while let Some(id) = self.timers.pop_due() {
            if !core::mem::replace(&mut looked, true) {
                self.harvest_now();
            }
            let expire = self.requests[id].op.expire;
            expire(self, id);
        }
    }
}
