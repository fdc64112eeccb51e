//! The rings that the reactor looks after, and when it wakes: how a ring that is listed is never slept over, and how one that has
//! nothing due is not looked at.
//!
//! Plain state under the reactor's lock, without descriptors or system calls, so that the very code
//! that runs is what the model checker runs (`core/engine/tests/models/listing.rs`).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// Between two looks at a ring that is to be looked at from time to time.
pub const TICK_NS: u64 = 4_000_000;

/// True if the reactor has to be kicked, so that it looks again.
#[must_use = "a reactor that sleeps on is not told of the change"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kick(pub bool);

/// The list, and the end of the reactor's sleep.
#[derive(Debug)]
pub struct Listing<R> {
    /// The rings by their serial numbers, with the time at which each is to be looked at, on the monotonic clock; `u64::MAX` is never.
    rings: BTreeMap<u64, (R, u64)>,
    /// The times at which rings are to be looked at, with the rings' serial numbers; a ring that is never looked at is not here.
    due: BTreeSet<(u64, u64)>,
    /// When the reactor wakes by itself. `u64::MAX`: never. 0: it is awake, and finds what is due before it sleeps.
    wakes_at_ns: u64,
}

impl<R: Clone> Listing<R> {
    /// No rings, and a reactor that sleeps for good.
    pub const fn new() -> Listing<R> {
        Listing { rings: BTreeMap::new(), due: BTreeSet::new(), wakes_at_ns: u64::MAX }
    }

    /// Lists a ring, which is looked at within the time of a tick.
    pub fn add(&mut self, serial: u64, ring: R, now_ns: u64) -> Kick {
        self.rings.insert(serial, (ring, u64::MAX));
        self.bring_look_forward(serial, now_ns.saturating_add(TICK_NS))
    }

    /// Has a ring on the list looked at by that time, if it is not to be looked at before.
    pub fn bring_look_forward(&mut self, serial: u64, due_ns: u64) -> Kick {
        match self.rings.get(&serial) {
            Some(&(_, before_ns)) if due_ns < before_ns => self.set_due(serial, due_ns),
            _ => {}
        }
        Kick(due_ns < self.wakes_at_ns)
    }

    /// The reactor has looked at a ring, whose lock it has: it is to be looked at again at that time.
    pub fn set_due(&mut self, serial: u64, due_ns: u64) {
        let Some((_, due)) = self.rings.get_mut(&serial) else { return };
        self.due.remove(&(*due, serial));
        *due = due_ns;
        if due_ns != u64::MAX {
            self.due.insert((due_ns, serial));
        }
    }

    /// The rings that are due by now. They are due no more until that is said again.
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

    /// The reactor is about to sleep, until it is kicked or this time has come. What is listed or changed from now on kicks where
    /// that is sooner.
    pub fn falls_asleep(&mut self) -> u64 {
        self.wakes_at_ns = self.due.first().map_or(u64::MAX, |&(due_ns, _)| due_ns);
        self.wakes_at_ns
    }

    /// The reactor is awake.
    pub fn wakes(&mut self) {
        self.wakes_at_ns = 0;
    }

    /// All rings on the list.
    pub fn rings(&self) -> Vec<R> {
        self.rings.values().map(|(ring, _)| ring.clone()).collect()
    }

    /// The ring on the list with this serial number.
    pub fn get(&self, serial: u64) -> Option<R> {
        self.rings.get(&serial).map(|(ring, _)| ring.clone())
    }

    /// [`Listing::get`] of what is on the list itself, to be changed.
    pub fn get_mut(&mut self, serial: u64) -> Option<&mut R> {
        self.rings.get_mut(&serial).map(|(ring, _)| ring)
    }

    /// Takes a ring off the list.
    pub fn remove(&mut self, serial: u64) {
        self.set_due(serial, u64::MAX);
        self.rings.remove(&serial);
    }

    /// No rings any more.
    pub fn clear(&mut self) {
        *self = Listing::new();
    }
}

impl<R: Clone> Default for Listing<R> {
    fn default() -> Listing<R> {
        Listing::new()
    }
}
