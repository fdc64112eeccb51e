//! Observers, which hear of a ring's completions without coming in: eventfds, pollers of its descriptor, an outlet.

mod tell;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::Outlet;
use crate::feature::eventfd::RegisteredEventfd;
use crate::os::Fd;
use crate::ring::drive::glimpse::Glimpse;

/// The observers of a ring, and what they have been told.
#[derive(Default)]
pub struct Observers {
    /// The program's eventfd.
    eventfd: Option<RegisteredEventfd>,
    /// The eventfd was signalled since a poll of it began.
    rung: bool,
    /// Hears of events of it that are over before epoll is asked, once it was polled.
    glimpse: Option<Glimpse>,
    /// Stands in where the program polls the ring's descriptor.
    stand_in: Option<Fd>,
    /// The stand-in replaced the ring's descriptor, so the engine cannot see the program poll it.
    shown: bool,
    /// The stand-in is readable, as far as this process has a say in it.
    readable: bool,
    /// The completions that a tick found where the stand-in is shown: how far the CQ was, and how many of them were there.
    left: (u32, u32),
    /// How many ticks in a row found the same.
    times_left: u32,
    /// The stand-in was put into an epoll instance of the program.
    in_epoll: bool,
    /// The stand-in is among those that are [lit](crate::ring::drive::stand_in).
    lit: bool,
    /// Since a caller last slept here the program has looked for completions and found none: it may be polling.
    looked: bool,
    /// Rings in which a request polls this one.
    pollers: Vec<(&'static dyn Poller, u64)>,
    /// Something was posted that the pollers have not been told of.
    pollers_wait: bool,
    /// Observers of a ring that defers have been told that something waits.
    told: bool,
    /// Whether the current posts happen inside a submission.
    inline: bool,
    /// Whether the current posts happen in a call that waits for completions.
    awaited: bool,
    /// Where completions go that nobody enters the ring for.
    outlet: Option<Box<dyn Outlet>>,
}

/// Rings that a ring tells of its completions; the reactor finds out for others.
const POLLERS: usize = 16;

/// As often the time between two looks at completions that the program leaves is doubled: up to a second.
const MOST_DOUBLED: u32 = 8;

/// A ring in which a request polls another one.
pub trait Poller: Sync {
    /// Takes what is ready in the ring with this serial number, for which nobody sleeps at the moment, so that its completions are there
    /// when the call returns that made them.
    fn look_in(&'static self, serial: u64);
}

impl Observers {
    /// True if there is somebody to be told of completions.
    #[inline]
    pub fn are_any(&self) -> bool {
        self.eventfd.is_some() || self.stand_in.is_some() || self.outlet.is_some()
    }

    /// True if there is somebody beside an outlet.
    #[inline]
    pub fn watch(&self) -> bool {
        self.eventfd.is_some() || self.stand_in.is_some()
    }

    /// True if no poller waits for the end of the call, and no observer was told that something waits.
    #[inline]
    pub fn are_told(&self) -> bool {
        self.pollers.is_empty() && !self.told
    }

    /// A submission begins, which posts what is posted from now on; `awaited`: in a call that waits for completions.
    #[inline]
    pub fn posts_in_submission(&mut self, awaited: bool) {
        self.inline = true;
        self.awaited = awaited;
    }

    /// A submission is over: no submission posts what is posted from now on, and no call waits for it.
    #[inline]
    pub fn posts_later(&mut self) {
        self.inline = false;
        self.awaited = false;
    }

    /// True if the stand-in, in the place of the program's descriptor, may be readable though the program has
    /// taken all completions. Nobody sees who takes them. A program that is in a call that waits does not poll.
    #[inline]
    pub fn may_be_stale(&self) -> bool {
        self.shown && self.readable && !self.awaited
    }

    /// A tick finds these completions.
    fn note_left(&mut self, left: (u32, u32)) {
        self.times_left = if self.left == left { MOST_DOUBLED.min(self.times_left + 1) } else { 0 };
        self.left = left;
    }

    /// The program's eventfd.
    pub fn eventfd(&self) -> Option<Fd> {
        self.eventfd.as_ref().map(RegisteredEventfd::fd)
    }

    /// The program's eventfd is this one from now on.
    pub fn set_eventfd(&mut self, eventfd: RegisteredEventfd) {
        self.eventfd = Some(eventfd);
    }

    /// Takes the program's eventfd away.
    pub fn take_eventfd(&mut self) -> Option<RegisteredEventfd> {
        self.glimpse = None;
        self.eventfd.take()
    }

    /// A poll of the program's eventfd begins: what it was signalled for before does not count.
    pub fn clear_rung(&mut self) {
        self.rung = false;
    }

    /// True if the program's eventfd was signalled since.
    pub fn has_rung(&self) -> bool {
        self.rung
    }

    /// The poll that hears of the eventfd's events.
    pub(in crate::ring::drive) fn glimpse_mut(&mut self) -> Option<&mut Glimpse> {
        self.glimpse.as_mut()
    }

    /// The poll `glimpse` hears of the eventfd's events from now on.
    pub(in crate::ring::drive) fn set_glimpse(&mut self, glimpse: Glimpse) {
        self.glimpse = Some(glimpse);
    }

    /// True if the program's eventfd is to hear of what was posted just now.
    fn is_eventfd_to_signal(&self) -> bool {
        self.eventfd.as_ref().is_some_and(|eventfd| !(eventfd.is_async_only() && self.inline))
    }

    /// The eventfd that stands in where the program polls the ring's descriptor.
    #[inline]
    pub fn stand_in(&self) -> Option<Fd> {
        self.stand_in
    }

    /// The eventfd `fd` stands in from now on.
    pub fn set_stand_in(&mut self, fd: Fd) {
        self.stand_in = Some(fd);
    }

    /// The stand-in is in the place of the program's descriptor from now on.
    pub fn note_stand_in_shown(&mut self) {
        self.shown = true;
    }

    /// The stand-in was put into an epoll instance of the program.
    pub fn note_in_epoll(&mut self) {
        self.in_epoll = true;
    }

    /// Notes a stand-in that is in an epoll instance as lit. False where it was, or is in none.
    pub(in crate::ring::drive) fn mark_lit(&mut self) -> bool {
        self.in_epoll && !core::mem::replace(&mut self.lit, true)
    }

    /// Notes that the stand-in is not lit. False where it was not.
    pub(in crate::ring::drive) fn unmark_lit(&mut self) -> bool {
        core::mem::take(&mut self.lit)
    }

    /// The stand-in is readable, or not, or others may have drained it.
    pub fn set_readable(&mut self, readable: bool) {
        self.readable = readable;
    }

    /// True if the stand-in is readable, as far as this process has a say in it.
    pub(in crate::ring::drive) fn is_readable(&self) -> bool {
        self.readable
    }

    /// True if the stand-in is readable in the place of the program's descriptor, as far as this process knows by itself.
    pub fn shows_readable(&self) -> bool {
        self.shown && self.readable
    }

    /// True if there is somebody who would wait for completions without coming in, as far as can be told.
    pub fn may_wait_outside(&self) -> bool {
        self.eventfd.is_some()
            || self.outlet.is_some()
            || self.stand_in.is_some() && (!self.shown || self.looked)
    }

    /// True if a poll by Linux AIO stands beside a registration.
    pub fn has_glimpse(&self) -> bool {
        self.glimpse.is_some()
    }

    /// A caller sleeps here: the program does not poll.
    pub fn caller_sleeps(&mut self) {
        self.looked = false;
    }

    /// A request of `ring` is about to poll this one.
    pub fn polled_by(&mut self, ring: &'static dyn Poller, serial: u64) {
        let known = self.pollers.iter().any(|&(other, of)| core::ptr::addr_eq(other, ring) && of == serial);
        if !known && self.pollers.len() < POLLERS && self.pollers.try_reserve(1).is_ok() {
            self.pollers.push((ring, serial));
        }
    }

    /// Whom to [`look in`](Poller::look_in) on once the lock is given up: their polls are told once.
    pub fn pollers_to_tell(&mut self) -> Vec<(&'static dyn Poller, u64)> {
        if core::mem::take(&mut self.pollers_wait) { core::mem::take(&mut self.pollers) } else { Vec::new() }
    }

    /// True if, on a ring that defers, the observers have been told that something waits.
    pub fn know_of_deferred(&self) -> bool {
        self.told
    }

    /// The observers are told now.
    pub fn note_deferred_told(&mut self) {
        self.told = true;
    }

    /// The program has come to fetch what waits. Returns true if the observers had been told.
    pub fn take_deferred_told(&mut self) -> bool {
        core::mem::take(&mut self.told)
    }

    /// From now on completions leave by this.
    pub fn set_outlet(&mut self, outlet: Box<dyn Outlet>) {
        self.outlet = Some(outlet);
    }

    /// In a child after `fork`.
    pub fn forked(&mut self) {
        if let Some(glimpse) = self.glimpse.take() {
            glimpse.forked();
        }
        self.readable = false;
        self.outlet = None;
    }

    /// The ring ends: what is left to be closed.
    pub fn end(&mut self) -> Option<Fd> {
        self.glimpse = None;
        self.stand_in.take()
    }
}
