//! The rings that the reactor looks after, and the end of its sleep. The reactor never sleeps past the time at which a listed
//! ring is due, and does not look at a ring that is not due.
//!
//! Plain state under the reactor's lock, without descriptors or system calls, so that the model
//! checker runs this very code (`core/engine/tests/models/listing.rs`).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// Time between two periodic looks at a ring.
pub const TICK_NS: u64 = 4_000_000;

/// True if the reactor has to be woken, so that it computes its sleep again.
#[must_use = "a reactor that sleeps on is not told of the change"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kick(pub bool);

/// The list, and the end of the reactor's sleep.
#[derive(Debug)]
pub struct Listing<R> {
    /// The rings by serial number, each with the time of its next look on the monotonic clock; `u64::MAX` is never.
    rings: BTreeMap<u64, (R, u64)>,
    /// The times of the next looks, with the rings' serial numbers. A ring whose time is never is not in here.
    due: BTreeSet<(u64, u64)>,
    /// When the reactor wakes by itself. `u64::MAX` is never; 0 means that the reactor is awake and checks the list before it sleeps.
    wakes_at_ns: u64,
}

impl<R: Clone> Listing<R> {
    /// Makes an empty list, with a reactor that sleeps without a limit.
    pub const fn new() -> Listing<R> {
        Listing { rings: BTreeMap::new(), due: BTreeSet::new(), wakes_at_ns: u64::MAX }
    }

    /// Lists a ring, with its first look within one tick.
    pub fn add(&mut self, serial: u64, ring: R, now_ns: u64) -> Kick {
        self.rings.insert(serial, (ring, u64::MAX));
        self.bring_look_forward(serial, now_ns.saturating_add(TICK_NS))
    }

    /// Moves the next look at a listed ring to `due_ns`, if it is later now.
    pub fn bring_look_forward(&mut self, serial: u64, due_ns: u64) -> Kick {
        match self.rings.get(&serial) {
            Some(&(_, before_ns)) if due_ns < before_ns => self.set_due(serial, due_ns),
            _ => {}
        }
        Kick(due_ns < self.wakes_at_ns)
    }

    /// Sets the time of the next look at a ring; called by the reactor after a look, with the ring's lock held.
    pub fn set_due(&mut self, serial: u64, due_ns: u64) {
        let Some((_, due)) = self.rings.get_mut(&serial) else { return };
        self.due.remove(&(*due, serial));
        *due = due_ns;
        if due_ns != u64::MAX {
            self.due.insert((due_ns, serial));
        }
    }

    /// Returns the rings that are due at `now_ns`, and sets their next look to never.
    pub fn take_due(&mut self, now_ns: u64) -> Vec<R> {
        let mut rings = Vec::new();
        while let Some(&(due_ns, serial)) = self.due.first()
            && due_ns <= now_ns
        {
            self.set_due(serial, u64::MAX);
            rings.extend(self.get(serial));
        }
        rings
    }

    /// Notes that the reactor is about to sleep, and returns the time until which it sleeps. A ring that becomes due earlier needs
    /// a [`Kick`].
    pub fn falls_asleep(&mut self) -> u64 {
        self.wakes_at_ns = self.due.first().map_or(u64::MAX, |&(due_ns, _)| due_ns);
        self.wakes_at_ns
    }

    /// Notes that the reactor is awake.
    pub fn wakes(&mut self) {
        self.wakes_at_ns = 0;
    }

    /// Returns all rings on the list.
    pub fn rings(&self) -> Vec<R> {
        self.rings.values().map(|(ring, _)| ring.clone()).collect()
    }

    /// Returns the ring on the list with this serial number.
    pub fn get(&self, serial: u64) -> Option<R> {
        self.rings.get(&serial).map(|(ring, _)| ring.clone())
    }

    /// Returns the list's own copy of the ring with this serial number, to be changed.
    pub fn get_mut(&mut self, serial: u64) -> Option<&mut R> {
        self.rings.get_mut(&serial).map(|(ring, _)| ring)
    }

    /// Removes a ring from the list.
    pub fn remove(&mut self, serial: u64) {
        self.set_due(serial, u64::MAX);
        self.rings.remove(&serial);
    }

    /// Removes all rings.
    pub fn clear(&mut self) {
        *self = Listing::new();
    }
}

impl<R: Clone> Default for Listing<R> {
    fn default() -> Listing<R> {
        Listing::new()
    }
}
