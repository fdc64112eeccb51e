//! Feeders: they find out what files are ready for.
//!
//! | feeder | a file is watched by | events are taken by |
//! |---|---|---|
//! | `Epoll` | an edge-triggered registration with an epoll instance inside | the consumer, one `epoll_wait` when its ring is empty |
//! | `Uring` | a multishot poll of the kernel's `io_uring` | the consumer, out of the completion queue, without a call |
//! | `Aio` | a poll of Linux AIO, armed again in batches | the consumer, out of the context's memory, without a call |
//! | `Reactor` | the epoll instance inside | a thread, while the consumer does something else |
//!
//! What a feeder cannot watch rightly, the epoll instance inside does: level-triggered files above all.

pub mod aio;
pub mod uring;

use crate::insert;
use crate::layout::MOST_ITEMS;
use crate::ring::{Event, Ring};
use anyring_engine::os::Fd;
use linux_raw_sys::general::{EPOLLERR, EPOLLHUP, EPOLLONESHOT};

/// The way to find out what files are ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Feeder {
    /// The feeder that was measured to be best of those that are there.
    #[default]
    Auto,
    /// The consumer, by an epoll instance inside.
    Epoll,
    /// The kernel's `io_uring`; what comes in is taken by the consumer without a call.
    Uring,
    /// Linux AIO, which works where `io_uring` is denied; what comes in is taken without a call.
    Aio,
    /// A thread of its own.
    Reactor,
}

/// The number by which feeders call a registration.
pub type Token = u64;

/// The token of the bell: somebody raised something, or wants to be heard.
pub const BELL: Token = u64::MAX;

/// The epoll instance inside has something.
pub const INSIDE: Token = u64::MAX - (1 << 32);

/// Nobody wants to know.
pub const NOBODY: Token = u64::MAX - (2 << 32);

/// The name of an item's registration. `arm` tells one attempt to watch it from the next.
pub fn token(item: u32, generation: u32, arm: u16) -> Token {
    u64::from(generation) << 32 | u64::from(arm) << 16 | u64::from(item)
}

/// The item that a token names; there need not be one.
pub fn item_of(token: Token) -> usize {
    (token & u64::from(MOST_ITEMS)) as usize
}

/// Which attempt.
pub fn arm_of(token: Token) -> u16 {
    (token >> 16) as u16
}

/// By whom a file is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nobody: the item is free, or an event that threads raise.
    Nowhere,
    /// The epoll instance inside.
    Inside,
    /// The feeder.
    Feeder,
}

/// The registration of an item. Unlike the item itself, the program cannot reach it.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Changes with each registration.
    pub generation: u32,
    /// The file's number; -1 where there is none.
    pub fd: Fd,
    /// The events that the file is registered for.
    pub events: u32,
    /// The program's word.
    pub data: u64,
    /// The watcher of the file.
    pub place: Place,
    /// Not so between an event of a one-shot registration and its modification.
    pub enabled: bool,
    /// Which attempt of the feeder counts.
    pub arm: u16,
    /// Which of the set's registrations it was to end, where one has.
    pub ended: u64,
    /// Where its event is among those that one look takes, and which look that was.
    pub told: (u32, usize),
}

impl Slot {
    /// Nothing.
    pub const FREE: Slot = Slot {
        generation: 0,
        fd: -1,
        events: 0,
        data: 0,
        place: Place::Nowhere,
        enabled: false,
        arm: 0,
        ended: 0,
        told: (0, 0),
    };

    /// The events that a poll is asked for.
    pub fn interest(&self) -> u32 {
        // The bits above 27 say how to watch, not what for.
        self.events & 0x0fff_ffff | EPOLLERR | EPOLLHUP
    }
}

/// Where the consumer wants events, and how many there are already.
pub struct Target<'a> {
    /// Without it, they go into the ring.
    pub out: Option<&'a mut [Event]>,
    /// How many there are.
    pub count: usize,
    /// The number of this look; 0 is none's.
    pub look: u32,
}

impl Target<'_> {
    /// A reborrow, for somebody who works on it for a while.
    pub fn again(&mut self) -> Target<'_> {
        Target { out: self.out.as_deref_mut(), count: self.count, look: self.look }
    }

    /// No more can come.
    pub fn is_full(&self) -> bool {
        self.out.as_ref().is_some_and(|out| self.count == out.len())
    }
}

/// Where events go: into the ring, or straight to a caller that asked for them.
pub struct Sink<'a> {
    ring: &'a Ring,
    /// All registrations.
    pub slots: &'a mut [Slot],
    out: Option<&'a mut [Event]>,
    /// How many events have come.
    pub count: usize,
    look: u32,
    fresh: [u32; 64],
    waiting: usize,
}

impl<'a> Sink<'a> {
    /// One for the ring alone.
    pub fn new(ring: &'a Ring, slots: &'a mut [Slot]) -> Sink<'a> {
        Sink { ring, slots, out: None, count: 0, look: 0, fresh: [0; 64], waiting: 0 }
    }

    /// One that `target` continues.
    pub fn to(ring: &'a Ring, slots: &'a mut [Slot], target: Target<'a>) -> Sink<'a> {
        Sink { out: target.out, count: target.count, look: target.look, ..Sink::new(ring, slots) }
    }

    /// Nothing more can be taken.
    pub fn is_full(&self) -> bool {
        self.out.as_ref().is_some_and(|out| self.count == out.len())
    }

    /// An event; returns whether its registration is one that goes on.
    #[inline]
    pub fn event(&mut self, token: Token, events: u32) -> bool {
        let item = item_of(token);
        let Some(slot) = self.slots.get_mut(item) else { return false };
        if slot.generation != (token >> 32) as u32 || !slot.enabled {
            return false;
        }
        let events = events & slot.interest();
        if events == 0 {
            return true;
        }
        let goes_on = slot.events & EPOLLONESHOT == 0;
        slot.enabled = goes_on;
        if let Some(out) = &mut self.out {
            // Each file once: whoever closes it upon an event must not meet another of it behind that.
            if slot.told.0 == self.look && slot.told.1 < self.count {
                out[slot.told.1].events |= events;
            } else {
                out[self.count] = Event { events, data: slot.data };
                slot.told = (self.look, self.count);
                self.count += 1;
            }
            return goes_on;
        }
        self.count += 1;
        if insert::Cells::mark(self.ring, item as u32, events) == 0 {
            self.fresh[self.waiting] = item as u32;
            self.waiting += 1;
            if self.waiting == self.fresh.len() {
                self.flush();
            }
        }
        goes_on
    }

    /// Lets the program see what came.
    pub fn flush(&mut self) {
        if self.waiting > 0 {
            insert::insert(self.ring, &self.fresh[..self.waiting]);
            self.waiting = 0;
        }
    }
}
