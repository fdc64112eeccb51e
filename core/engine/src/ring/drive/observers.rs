//! Observers, which hear of a ring's completions without coming in: eventfds, pollers of its descriptor, an outlet.

use alloc::boxed::Box;
use alloc::vec::Vec;

use linux_raw_sys::io_uring::{IORING_CQ_EVENTFD_DISABLED, IORING_SQ_TASKRUN};

use crate::Outlet;
use crate::abi::layout::Word;
use crate::assets::eventfd::RegisteredEventfd;
use crate::os::{self, Fd};
use crate::ring::drive::glimpse::Glimpse;
use crate::ring::drive::reactor::{self, TICK_NS};
use crate::ring::{Core, Ring};

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
    pollers: Vec<(&'static Ring, u64)>,
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
    pub(super) fn glimpse_mut(&mut self) -> Option<&mut Glimpse> {
        self.glimpse.as_mut()
    }

    /// The poll `glimpse` hears of the eventfd's events from now on.
    pub(super) fn set_glimpse(&mut self, glimpse: Glimpse) {
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
    pub(super) fn mark_lit(&mut self) -> bool {
        self.in_epoll && !core::mem::replace(&mut self.lit, true)
    }

    /// Notes that the stand-in is not lit. False where it was not.
    pub(super) fn unmark_lit(&mut self) -> bool {
        core::mem::take(&mut self.lit)
    }

    /// The stand-in is readable, or not, or others may have drained it.
    pub fn set_readable(&mut self, readable: bool) {
        self.readable = readable;
    }

    /// True if the stand-in is readable, as far as this process has a say in it.
    pub(super) fn is_readable(&self) -> bool {
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
    pub fn polled_by(&mut self, ring: &'static Ring, serial: u64) {
        let known = self.pollers.iter().any(|&(other, of)| core::ptr::eq(other, ring) && of == serial);
        if !known && self.pollers.len() < POLLERS && self.pollers.try_reserve(1).is_ok() {
            self.pollers.push((ring, serial));
        }
    }

    /// Whom to [`look_in`](crate::ring::drive::look_in) on once the lock is given up: their polls are told once.
    pub fn pollers_to_tell(&mut self) -> Vec<(&'static Ring, u64)> {
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

impl Core {
    /// Tells those beside the callers who sleep.
    #[inline(never)]
    pub(super) fn notify_observers(&mut self) {
        if self.drive.observers.is_eventfd_to_signal() {
            self.signal_eventfd();
        }
        if self.drive.observers.stand_in.is_some() {
            self.signal_readiness();
            self.drive.observers.pollers_wait = !self.drive.observers.pollers.is_empty();
        }
        if self.drive.observers.outlet.is_some() {
            self.pour_out();
        }
    }

    /// Completions leave by the outlet, those that found no room in the ring, too.
    #[cold]
    fn pour_out(&mut self) {
        let Some(mut outlet) = self.drive.observers.outlet.take() else { return };
        outlet.posted();
        while self.queues.cq.kept() > 0 {
            self.flush_overflow();
            outlet.posted();
        }
        self.drive.observers.outlet = Some(outlet);
    }

    fn is_eventfd_disabled(&self) -> bool {
        self.queues.memory.load(Word::CqFlags, 0) & IORING_CQ_EVENTFD_DISABLED != 0
    }

    /// True if what was posted just now is going to signal the program's eventfd.
    pub fn is_about_to_signal(&self) -> bool {
        self.drive.observers.is_eventfd_to_signal() && !self.is_eventfd_disabled()
    }

    /// Tells the program by its eventfd.
    pub fn signal_eventfd(&mut self) {
        if self.is_eventfd_disabled() {
            return;
        }
        // First: who is woken may look for it at once.
        self.drive.observers.rung = true;
        if let Some(eventfd) = &self.drive.observers.eventfd {
            eventfd.signal();
        }
    }

    /// True if `fd` is the program's eventfd.
    pub fn is_own_eventfd(&self, fd: Fd) -> bool {
        self.drive.observers.eventfd().is_some_and(|own| os::same_file(own, fd))
    }

    /// Lets who polls the ring's descriptor wake up. One that is shown stays readable until it is drained here. Who waits for an edge
    /// there hears of each completion, but for those that are posted in a call that waits for them: most of the time there is nothing
    /// to be done.
    pub fn signal_readiness(&mut self) {
        let Some(fd) = self.drive.observers.stand_in else { return };
        let known = self.shared.is_none() || self.common_stand_in_is_readable().is_some();
        if known && self.drive.observers.awaited && self.shows_readable() {
            return;
        }
        // First: who is woken may take what there is, and look for the mark, before this thread runs again.
        self.mark_shown();
        // A process may have closed its own descriptor of what others still have.
        let signalled = os::eventfd_signal(fd);
        self.drive.observers.readable = signalled;
        self.light();
        self.tell_of_stand_in(signalled);
        if self.drive.observers.may_be_stale() {
            reactor::attend_stale(self);
        }
    }

    /// Notes what the CQ holds at a tick, for the time until the next one.
    pub(super) fn note_left(&mut self) {
        let left = self.left();
        self.drive.observers.note_left(left);
    }

    fn left(&self) -> (u32, u32) {
        (self.queues.cq.tail(), self.queues.cq_ready())
    }

    /// How long a tick is at present. Where there is nothing to look after but whether the program takes completions that are shown,
    /// it is the longer the longer they are left.
    pub(super) fn tick_ns(&self) -> u64 {
        let is_left = self.drive.observers.may_be_stale()
            && !self.needs_other_ticks()
            && self.drive.observers.left == self.left();
        if is_left { TICK_NS << self.drive.observers.times_left } else { TICK_NS }
    }

    /// Drains what stands in, so that it is not readable.
    pub(super) fn drain_stand_in(&mut self) {
        let Some(fd) = self.drive.observers.stand_in else { return };
        self.drive.observers.readable = false;
        self.put_out_own();
        // Before the drain: a process that dies in between leaves it readable for too long, not silent for ever.
        self.tell_of_stand_in(false);
        os::eventfd_drain(fd);
    }

    /// True if the stand-in is readable in the place of the program's descriptor. A ring of several processes
    /// keeps that in its page, if all have the stand-in.
    pub fn shows_readable(&self) -> bool {
        match self.common_stand_in_is_readable() {
            Some(readable) => readable && self.drive.observers.shown,
            None => self.drive.observers.shows_readable(),
        }
    }

    /// Where readiness is shown at the descriptor, a program that finds the CQ empty must come in, or what it
    /// polls would stay readable: `IORING_SQ_TASKRUN` tells it to.
    fn mark_shown(&self) {
        if self.drive.observers.shown {
            self.queues.memory.change_sq_flags(IORING_SQ_TASKRUN, 0);
        }
    }

    /// Takes `IORING_SQ_TASKRUN` back: the program came in, and there is nothing.
    pub fn unmark_shown(&mut self) {
        self.drive.observers.looked = true;
        if self.drive.observers.shown {
            self.queues.memory.change_sq_flags(0, IORING_SQ_TASKRUN);
            self.mark_task_work();
        }
    }
}
