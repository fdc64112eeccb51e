//! Feeders: the means to find out what files are ready for.
//!
//! | feeder | a file is watched by | events are taken by |
//! |---|---|---|
//! | `Epoll` | an inner epoll instance | the consumer, one `epoll_wait` when its ring is empty |
//! | `Uring` | a multishot poll of the kernel's `io_uring` | the consumer, from the completion queue, without a call |
//! | `Aio` | a poll of Linux AIO, armed again in batches | the consumer, from the context's memory, without a call |
//! | `Reactor` | the inner epoll instance | a thread, while the consumer does something else |
//!
//! The inner epoll instance watches files that a feeder cannot watch correctly, mostly level-triggered ones.

pub mod aio;
pub mod uring;

use crate::insert;
use crate::layout::MOST_ITEMS;
use crate::ring::{Event, Ring};
use anyring_engine::os::Fd;
use linux_raw_sys::general::{EPOLLERR, EPOLLHUP, EPOLLONESHOT};

/// The ways to find out what files are ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Feeder {
    /// The default: [`Feeder::Epoll`], on every machine.
    #[default]
    Auto,
    /// An inner epoll instance, from which the consumer takes events by a call.
    Epoll,
    /// The kernel's `io_uring`; the consumer takes events without a call.
    Uring,
    /// Linux AIO, which works where `io_uring` is denied; the consumer takes events without a call.
    Aio,
    /// A thread of the set's own.
    Reactor,
}

/// The number of a registration, as feeders use it.
pub type Token = u64;

/// The token of the bell: an event was raised, or a registration has changed.
pub const BELL: Token = u64::MAX;

/// The token of the inner epoll instance, which has events.
pub const INSIDE: Token = u64::MAX - (1 << 32);

/// The token of requests whose completion is ignored.
pub const NOBODY: Token = u64::MAX - (2 << 32);

/// Returns the token of an item's registration. `arm` distinguishes successive watches of one registration.
pub fn token(item: u32, generation: u32, arm: u16) -> Token {
    u64::from(generation) << 32 | u64::from(arm) << 16 | u64::from(item)
}

/// Returns the item that a token names, which need not exist.
pub fn item_of(token: Token) -> usize {
    (token & u64::from(MOST_ITEMS)) as usize
}

/// Returns the `arm` of a token.
pub fn arm_of(token: Token) -> u16 {
    (token >> 16) as u16
}

/// The watcher of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// None: the item is free, or an event that threads raise.
    Nowhere,
    /// The inner epoll instance.
    Inside,
    /// The feeder.
    Feeder,
}

/// The registration of an item. Unlike the item itself, it is not in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Changes with each registration.
    pub generation: u32,
    /// The file's descriptor; -1 if there is none.
    pub fd: Fd,
    /// The events that the file is registered for.
    pub events: u32,
    /// The program's data.
    pub data: u64,
    /// The watcher of the file.
    pub place: Place,
    /// False between an event of a one-shot registration and its modification.
    pub enabled: bool,
    /// The `arm` of the feeder's current watch.
    pub arm: u16,
    /// The set's number of ended registrations when the last registration of this item ended.
    pub ended: u64,
    /// The look that last reported an event of the item, by its number, and the event's index in the array of that
    /// look.
    pub told: (u32, usize),
}

impl Slot {
    /// An unused slot.
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

    /// Returns the events to poll for.
    pub fn interest(&self) -> u32 {
        // The bits from 28 on are flags of the registration, not events.
        self.events & 0x0fff_ffff | EPOLLERR | EPOLLHUP
    }
}

/// The destination of events, and the number of events there.
pub struct Target<'a> {
    /// An array for the events; without it, they are put into the ring.
    pub out: Option<&'a mut [Event]>,
    /// The number of events.
    pub count: usize,
    /// The number of the look; no look has the number 0.
    pub look: u32,
}

impl Target<'_> {
    /// Reborrows the target.
    pub fn again(&mut self) -> Target<'_> {
        Target { out: self.out.as_deref_mut(), count: self.count, look: self.look }
    }

    /// True if no more events fit.
    pub fn is_full(&self) -> bool {
        self.out.as_ref().is_some_and(|out| self.count == out.len())
    }
}

/// The destination of a feeder's events: the ring, or an array of a caller.
pub struct Sink<'a> {
    ring: &'a Ring,
    /// All registrations.
    pub slots: &'a mut [Slot],
    out: Option<&'a mut [Event]>,
    /// The number of events.
    pub count: usize,
    look: u32,
    fresh: [u32; 64],
    waiting: usize,
}

impl<'a> Sink<'a> {
    /// Makes a sink for the ring.
    pub fn new(ring: &'a Ring, slots: &'a mut [Slot]) -> Sink<'a> {
        Sink { ring, slots, out: None, count: 0, look: 0, fresh: [0; 64], waiting: 0 }
    }

    /// Makes a sink that continues `target`.
    pub fn to(ring: &'a Ring, slots: &'a mut [Slot], target: Target<'a>) -> Sink<'a> {
        Sink { out: target.out, count: target.count, look: target.look, ..Sink::new(ring, slots) }
    }

    /// True if no more events fit.
    pub fn is_full(&self) -> bool {
        self.out.as_ref().is_some_and(|out| self.count == out.len())
    }

    /// Adds an event; returns true if its registration continues.
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
            // Each file has one event: a program that closes the file upon its event must not find another one behind it.
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

    /// Makes added events visible to the program.
    pub fn flush(&mut self) {
        if self.waiting > 0 {
            insert::insert(self.ring, &self.fresh[..self.waiting]);
            self.waiting = 0;
        }
    }
}
