//! Observers, which are notified of a ring's completions without a call: eventfds, pollers of its descriptor, an outlet.

pub mod stand_in;
mod tell;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::Outlet;
use crate::feature::eventfd::RegisteredEventfd;
use crate::os::Fd;
use crate::ring::drive::glimpse::Glimpse;
use crate::wait::listing::TICK_NS;

/// The observers of a ring, and what they were notified of.
#[derive(Default)]
pub struct Observers {
    /// The program's eventfd.
    eventfd: Option<RegisteredEventfd>,
    /// The CQ's tail when the eventfd was registered or last signalled for a completion.
    signalled_at: u32,
    /// The eventfd was signalled since a poll of it began.
    rung: bool,
    /// Sees events of the eventfd that are over before epoll is asked, once the eventfd was polled.
    glimpse: Option<Glimpse>,
    /// The stand-in: the eventfd that is polled in place of the ring's descriptor.
    stand_in: Option<Fd>,
    /// The stand-in replaced the ring's descriptor, so the engine cannot see the program poll it.
    shown: bool,
    /// The stand-in is readable, as far as this process alone decides.
    readable: bool,
    /// The completions that the last tick found where the stand-in is shown: the CQ's tail, and how many completions were unreaped.
    left: (u32, u32),
    /// The number of consecutive ticks that found the same completions.
    times_left: u32,
    /// The threads that have polled the stand-in.
    watchers: Watchers,
    /// The kernel may have signalled the stand-in before it was drained, for transfers that were not taken back yet.
    has_doubts: bool,
    /// The threads that polled the stand-in were lookers, before there were others.
    had_lookers: bool,
    /// The stand-in was put into an epoll instance of the program.
    in_epoll: bool,
    /// The stand-in is on the list of [lit](crate::ring::drive::observers::stand_in) ones.
    lit: bool,
    /// Since a caller last slept here the program has looked for completions and found none: it may be polling.
    looked: bool,
    /// Rings in which a request polls this one.
    pollers: Vec<(&'static dyn Poller, u64)>,
    /// Something was posted of which the pollers were not notified.
    pollers_wait: bool,
    /// Observers of a ring that defers were notified that something waits.
    told: bool,
    /// The current posts happen inside a submission.
    inline: bool,
    /// The current posts happen in a call that waits for completions.
    awaited: bool,
    /// Takes completions, as soon as they are posted, of a ring that no thread enters for them.
    outlet: Option<Box<dyn Outlet>>,
}

/// The threads that have polled a stand-in. A *looker* is a thread that looks at the ring before each poll, and after a poll that finds the
/// stand-in readable.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Watchers {
    /// No thread so far.
    #[default]
    Nobody,
    /// Lookers only.
    Lookers,
    /// Other threads, too, at some time: they take what the stand-in says for what the CQ holds.
    Others,
}

/// The maximum number of pollers that a ring notifies. For further ones, the reactor finds the events.
const POLLERS: usize = 16;

/// How often the time between two looks at unreaped completions is doubled at most: up to a second.
const MOST_DOUBLED: u32 = 8;

/// A ring in which a request polls another ring.
pub trait Poller: Sync {
    /// Takes the events of the ring with this serial number, if no thread sleeps for it. So its completions are there when the call returns
    /// that caused them.
    fn look_in(&'static self, serial: u64);
}

impl Observers {
    /// True if there is an observer to be notified of completions.
    #[inline]
    pub fn are_any(&self) -> bool {
        self.eventfd.is_some() || self.stand_in.is_some() || self.outlet.is_some()
    }

    /// True if there is an observer other than an outlet.
    #[inline]
    pub fn watch(&self) -> bool {
        self.eventfd.is_some() || self.stand_in.is_some()
    }

    /// True if no poller waits for the end of the call, and no observer was told that something waits.
    #[inline]
    pub fn are_told(&self) -> bool {
        self.pollers.is_empty() && !self.told
    }

    /// Notes that a submission begins, in which later posts happen; `awaited`: in a call that waits for completions.
    #[inline]
    pub fn posts_in_submission(&mut self, awaited: bool) {
        self.inline = true;
        self.awaited = awaited;
    }

    /// Notes that the submission is over: later posts happen outside it, and no call waits for them.
    #[inline]
    pub fn posts_later(&mut self) {
        self.inline = false;
        self.awaited = false;
    }

    /// True if the stand-in, in the place of the program's descriptor, may be readable though the program has taken all completions:
    /// reaping is not seen. False in a call that waits: the program does not poll then.
    #[inline]
    pub fn may_be_stale(&self) -> bool {
        self.shown && self.readable && !self.awaited
    }

    /// Notes the completions that a tick finds, from which the length of the next one follows.
    pub(in crate::ring::drive) fn note_left(&mut self, left: (u32, u32)) {
        self.times_left = if self.left == left { MOST_DOUBLED.min(self.times_left + 1) } else { 0 };
        self.left = left;
    }

    /// Returns the length of a tick that only checks whether the program has taken the completions that are shown: the longer they are left,
    /// the longer it gets.
    pub(in crate::ring::drive) fn tick_ns(&self, left: (u32, u32)) -> u64 {
        if self.left == left { TICK_NS << self.times_left } else { TICK_NS }
    }

    /// Returns the program's eventfd.
    pub fn eventfd(&self) -> Option<Fd> {
        self.eventfd.as_ref().map(RegisteredEventfd::fd)
    }

    /// Sets the program's eventfd; `tail` is that of the CQ.
    pub fn set_eventfd(&mut self, eventfd: RegisteredEventfd, tail: u32) {
        self.eventfd = Some(eventfd);
        self.signalled_at = tail;
    }

    /// Removes the program's eventfd, and returns it.
    pub fn take_eventfd(&mut self) -> Option<RegisteredEventfd> {
        self.glimpse = None;
        self.eventfd.take()
    }

    /// Forgets earlier signals of the program's eventfd, because a poll of it begins.
    pub fn clear_rung(&mut self) {
        self.rung = false;
    }

    /// True if the program's eventfd was signalled since its last poll began.
    pub fn has_rung(&self) -> bool {
        self.rung
    }

    /// Returns the AIO poll that sees the eventfd's events.
    pub(in crate::ring::drive) fn glimpse_mut(&mut self) -> Option<&mut Glimpse> {
        self.glimpse.as_mut()
    }

    /// Takes the event that the AIO poll has seen, as [`Glimpse::take`] does.
    pub(in crate::ring::drive) fn take_glimpse(&mut self) -> Option<(u64, u32)> {
        self.glimpse.as_mut()?.take()
    }

    /// Sets the AIO poll that sees the eventfd's events.
    pub(in crate::ring::drive) fn set_glimpse(&mut self, glimpse: Glimpse) {
        self.glimpse = Some(glimpse);
    }

    /// True if the program's eventfd has to be signalled for what was posted just now.
    fn is_eventfd_to_signal(&self) -> bool {
        self.eventfd.as_ref().is_some_and(|eventfd| !(eventfd.is_async_only() && self.inline))
    }

    /// Returns the stand-in, which is polled in place of the ring's descriptor.
    #[inline]
    pub fn stand_in(&self) -> Option<Fd> {
        self.stand_in
    }

    /// Sets the stand-in, which is not readable. Transfers may be on their way that signal one from before.
    pub fn set_stand_in(&mut self, fd: Fd) {
        if self.stand_in.replace(fd).is_some() {
            self.note_others();
        }
        self.readable = false;
    }

    /// Notes a poll of the stand-in by a looker.
    pub(in crate::ring::drive) fn note_looker(&mut self) {
        if self.watchers == Watchers::Nobody {
            self.watchers = Watchers::Lookers;
        }
    }

    /// Notes that threads that are no lookers may poll the stand-in from now on. Transfers on their way may signal it still.
    pub(in crate::ring::drive) fn note_others(&mut self) {
        self.had_lookers |= self.watchers == Watchers::Lookers;
        self.watchers = Watchers::Others;
    }

    /// True if the kernel may signal the stand-in by itself though others watch it, too.
    pub(in crate::ring::drive) fn were_lookers(&self) -> bool {
        self.had_lookers
    }

    /// True if all threads of this process that wait for completions outside `enter` are lookers. So the stand-in may be
    /// readable though there are no completions, and needs no signal if it is readable.
    pub fn are_lookers(&self) -> bool {
        self.watchers == Watchers::Lookers && self.eventfd.is_none() && self.outlet.is_none()
    }

    /// Notes that the stand-in has replaced the program's descriptor.
    pub fn note_stand_in_shown(&mut self) {
        self.note_others();
        self.shown = true;
    }

    /// Notes that the stand-in was put into an epoll instance of the program.
    pub fn note_in_epoll(&mut self) {
        self.in_epoll = true;
    }

    /// Notes that a stand-in in an epoll instance is lit. Returns false if it was lit before, or is in no epoll instance.
    pub(in crate::ring::drive) fn mark_lit(&mut self) -> bool {
        self.in_epoll && !core::mem::replace(&mut self.lit, true)
    }

    /// Notes that the stand-in is not lit. Returns false if it was not lit before.
    pub(in crate::ring::drive) fn unmark_lit(&mut self) -> bool {
        core::mem::take(&mut self.lit)
    }

    /// Notes whether the stand-in is readable. Other processes may have drained it.
    pub fn set_readable(&mut self, readable: bool) {
        self.readable = readable;
    }

    /// Notes that the kernel signals the stand-in, or has done so, for a transfer that was taken back.
    pub fn note_signal_of_kernel(&mut self) {
        self.readable |= self.are_lookers() && !self.has_doubts;
    }

    /// Sets whether transfers may have ended when the stand-in was drained that were not taken back then.
    pub(in crate::ring) fn set_doubts(&mut self, doubts: bool) {
        self.has_doubts = doubts;
    }

    /// True if the stand-in is readable, as far as this process alone decides.
    pub(in crate::ring::drive) fn is_readable(&self) -> bool {
        self.readable
    }

    /// True if the stand-in is readable in the place of the program's descriptor. `common`: what the page says of it, if all processes of the
    /// ring have the stand-in.
    pub fn shows_readable(&self, common: Option<bool>) -> bool {
        self.shown && common.unwrap_or(self.readable)
    }

    /// True if something may wait for completions outside `enter`, as far as can be known.
    pub fn may_wait_outside(&self) -> bool {
        self.eventfd.is_some()
            || self.outlet.is_some()
            || self.stand_in.is_some() && (!self.shown || self.looked)
    }

    /// True if an AIO poll of the eventfd exists beside its registration.
    pub fn has_glimpse(&self) -> bool {
        self.glimpse.is_some()
    }

    /// Notes that a caller sleeps in the ring, so that the program does not poll.
    pub fn caller_sleeps(&mut self) {
        self.looked = false;
    }

    /// Notes that a request of `ring` is about to poll this ring.
    pub fn polled_by(&mut self, ring: &'static dyn Poller, serial: u64) {
        let known = self.pollers.iter().any(|&(other, of)| core::ptr::addr_eq(other, ring) && of == serial);
        if !known && self.pollers.len() < POLLERS && self.pollers.try_reserve(1).is_ok() {
            self.pollers.push((ring, serial));
        }
    }

    /// Returns the pollers to [`look in`](Poller::look_in) on after the lock is released. Each is notified once.
    pub fn pollers_to_tell(&mut self) -> Vec<(&'static dyn Poller, u64)> {
        if core::mem::take(&mut self.pollers_wait) { core::mem::take(&mut self.pollers) } else { Vec::new() }
    }

    /// True if, on a ring that defers, the observers were notified that something waits.
    pub fn know_of_deferred(&self) -> bool {
        self.told
    }

    /// Notes that the observers are notified.
    pub fn note_deferred_told(&mut self) {
        self.told = true;
    }

    /// Notes that the program has come to fetch completions. Returns true if the observers were notified.
    pub fn take_deferred_told(&mut self) -> bool {
        core::mem::take(&mut self.told)
    }

    /// Sets the outlet by which completions leave from now on.
    pub fn set_outlet(&mut self, outlet: Box<dyn Outlet>) {
        self.outlet = Some(outlet);
    }

    /// Resets the observers in a child after `fork`.
    pub fn forked(&mut self) {
        if let Some(glimpse) = self.glimpse.take() {
            glimpse.forked();
        }
        self.readable = false;
        self.told = false;
        self.outlet = None;
    }

    /// Ends the observers with the ring. Returns the stand-in, for the caller to close.
    pub fn end(&mut self) -> Option<Fd> {
        self.glimpse = None;
        self.stand_in.take()
    }
}
