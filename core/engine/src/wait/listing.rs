//! The rings that the reactor looks after, and when it wakes: how a ring that is listed is never slept over.
//!
//! Plain state under the reactor's lock, without descriptors or system calls, so that the very code
//! that runs is what the model checker runs (`core/engine/tests/models/listing.rs`).

use alloc::vec::Vec;

/// Between two looks at the rings on the list.
pub const TICK_NS: u64 = 4_000_000;

/// Has the reactor to be kicked, so that it looks again?
#[must_use = "a reactor that sleeps on is not told of the change"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kick(pub bool);

/// The list, and the end of the reactor's sleep.
#[derive(Debug)]
pub struct Listing<R> {
    rings: Vec<R>,
    /// When the reactor wakes by itself, on the monotonic clock. `u64::MAX`: never, or it is looking at the rings and
    /// does not know yet.
    wakes_at_ns: u64,
}

impl<R: Clone> Listing<R> {
    /// No rings, and a reactor that sleeps for good.
    pub const fn new() -> Listing<R> {
        Listing { rings: Vec::new(), wakes_at_ns: u64::MAX }
    }

    /// Lists a ring; `None` where there is no memory for it.
    pub fn add(&mut self, ring: R, now_ns: u64) -> Option<Kick> {
        self.rings.try_reserve(1).ok()?;
        self.rings.push(ring);
        Some(self.needs_tick(now_ns))
    }

    /// Something has to be looked at within the time of a tick.
    pub fn needs_tick(&self, now_ns: u64) -> Kick {
        Kick(self.wakes_at_ns > now_ns.saturating_add(TICK_NS))
    }

    /// A ring that the reactor drives has something due at that time.
    pub fn is_due(&self, due_ns: u64) -> Kick {
        Kick(due_ns < self.wakes_at_ns)
    }

    /// The reactor begins to look at the rings, to find out how long it may sleep. Whatever is listed or changed from
    /// now on kicks: the list is copied in the same moment, so what is not in the copy does.
    pub fn look(&mut self) -> Vec<R> {
        self.wakes_at_ns = u64::MAX;
        self.rings.clone()
    }

    /// The reactor is about to sleep, until it is kicked or this time has come.
    pub fn sleeps_until(&mut self, wakes_at_ns: u64) {
        self.wakes_at_ns = wakes_at_ns;
    }

    /// The rings as they are now.
    pub fn rings(&self) -> Vec<R> {
        self.rings.clone()
    }

    /// The first ring on the list that fits.
    pub fn find(&mut self, fits: impl Fn(&R) -> bool) -> Option<&mut R> {
        self.rings.iter_mut().find(|ring| fits(ring))
    }

    /// Takes rings off the list.
    pub fn remove(&mut self, fits: impl Fn(&R) -> bool) {
        self.rings.retain(|ring| !fits(ring));
    }

    /// No rings any more.
    pub fn clear(&mut self) {
        self.rings.clear();
        self.wakes_at_ns = u64::MAX;
    }
}

impl<R: Clone> Default for Listing<R> {
    fn default() -> Listing<R> {
        Listing::new()
    }
}
