//! Who turns readiness into completions.
//!
//! There is no kernel behind the curtain: somebody in the process has to sleep in the ring's
//! `epoll_wait`, retry what became ready and post. That role is a token, [`Driver`], kept under the
//! ring's lock; exactly one thread holds it or nobody does.
//!
//! ```text
//!                    waits in enter                    leaves enter
//!        Nobody ───────────────────────► Caller ─────────────────────► Nobody
//!          │                               ▲
//!          │ the reactor's tick finds      │ waits in enter: takes the ring's epoll
//!          │ requests and no activity      │ out of the reactor's (no wake-up needed)
//!          ▼                               │
//!        Reactor ──────────────────────────┘          SqThread: for ever (IORING_SETUP_SQPOLL)
//! ```
//!
//! An event-loop program is always back in `enter` before the reactor's next tick, so it never pays
//! a thread switch. A program that only looks at the CQ gets the reactor after one tick, and at
//! once where it registered an eventfd or polls the ring's descriptor.

pub mod caller;
pub mod reactor;
pub mod readiness;
pub mod sq_thread;
pub mod stand_in;
mod timers;
pub mod zero_copy;

use alloc::boxed::Box;
use alloc::vec::Vec;

use linux_raw_sys::io_uring::{
    IORING_CQ_EVENTFD_DISABLED, IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_TASKRUN_FLAG, IORING_SQ_TASKRUN,
};

use crate::Outlet;
use crate::abi::Errno;
use crate::abi::layout::Word;
use crate::os::{self, EpollEvent, Fd};
use crate::ring::{Core, Counted, Ring, live};
use crate::wait::Driver;
use crate::wait::token::Wake;

/// A registered eventfd.
#[derive(Clone, Copy, Debug)]
pub struct RegisteredEventfd {
    /// The engine's duplicate.
    pub fd: Fd,
    /// Only completions that did not happen during submission signal it.
    pub async_only: bool,
}

/// What sleepers and observers of a ring are told by.
#[derive(Default)]
pub struct External {
    /// The program's eventfd.
    pub eventfd: Option<RegisteredEventfd>,
    /// It was signalled since a poll of it began.
    pub rung: bool,
    /// Stands in where the program polls the ring's descriptor.
    pub readiness_fd: Option<Fd>,
    /// It has the place of the program's descriptor: nobody sees when that is polled.
    pub shown: bool,
    /// It is readable, as far as this process has a say in it.
    pub readable: bool,
    /// Since a caller last slept here the program has looked for completions and found none: it may be polling.
    pub looked: bool,
    /// Rings in which a request polls this one.
    pub pollers: Vec<(&'static Ring, u64)>,
    /// Something was posted that they have not been told of.
    pub pollers_wait: bool,
    /// The driver's own eventfd, in its epoll set.
    pub kick: Option<Fd>,
    /// What sleepers beside the driver sleep on, by their place in the token.
    pub sleepers: Vec<Fd>,
    /// The reactor knows of this ring.
    pub attended: bool,
    /// The reactor drove it, and may sleep as if it still did.
    pub was_driven: bool,
    /// Observers of a ring that defers have been told that something waits.
    pub told: bool,
    /// Whether the current posts happen inside a submission.
    pub inline: bool,
    /// Where completions go that nobody enters the ring for.
    pub outlet: Option<Box<dyn Outlet>>,
}

/// Rings that a ring tells of its completions; the reactor finds out for others.
const POLLERS: usize = 16;

impl External {
    /// A request of `ring` is about to poll this one.
    pub fn polled_by(&mut self, ring: &'static Ring, serial: u64) {
        let known = self.pollers.iter().any(|&(other, of)| core::ptr::eq(other, ring) && of == serial);
        if !known && self.pollers.len() < POLLERS && self.pollers.try_reserve(1).is_ok() {
            self.pollers.push((ring, serial));
        }
    }

    /// Whom to [`look_in`] on once the lock is given up: their polls are told once.
    pub fn pollers_to_tell(&mut self) -> Vec<(&'static Ring, u64)> {
        if core::mem::take(&mut self.pollers_wait) { core::mem::take(&mut self.pollers) } else { Vec::new() }
    }
}

/// Takes what is ready in a ring for which nobody sleeps at the moment, so that its completions are
/// there when the call returns that made them.
pub fn look_in(ring: &'static Ring, serial: u64) {
    let mut guard = ring.lock();
    let Some(core) = live(&mut guard, serial) else { return };
    if core.closing || core.defers() || !core.token.is_free() {
        return;
    }
    core.external.inline = false;
    core.harvest_now();
    core.advance();
    caller::leave(core);
}

/// Events that a driver takes at once.
pub const BATCH: usize = 64;

/// Names the driver's eventfd among epoll events.
pub(crate) const KICK: u64 = u64::MAX;

/// Names the eventfd of finished O_DIRECT transfers.
pub(crate) const AIO: u64 = u64::MAX - 1;

/// The upper half of what names the channels of [`zero_copy`].
const CHANNEL: u32 = u32::MAX - 1;

/// Names a channel among epoll events.
pub(crate) fn channel_data(index: usize) -> u64 {
    (u64::from(CHANNEL) << 32) | index as u64
}
/// Names what other processes of the ring ring.
pub const BELL: u64 = u64::MAX - 2;

impl Core {
    /// Completions wait for the program's thread to come and fetch them.
    pub fn defers(&self) -> bool {
        self.is(IORING_SETUP_DEFER_TASKRUN)
    }

    /// Are completions deferred, and nobody is told of any? Then nothing is missed while no caller is here.
    pub fn is_left_to_callers(&self) -> bool {
        let told = self.observed() || self.is_crowded() || self.is(IORING_SETUP_TASKRUN_FLAG);
        self.defers() && !told
    }

    /// Does the reactor leave the ring to a caller who waits for so many completions, sleeping or not? Every event would
    /// wake it beside the caller. Who only looks does not take its place.
    #[inline]
    pub fn reactor_gives_way(&self, wanted: u32) -> bool {
        wanted > 0 && self.token.driver() == Driver::Reactor && !self.is_watched()
    }

    /// Is what else is ready left to the next call?
    pub fn has_fetched_enough(&self) -> bool {
        self.defers() && self.cq_ready() >= self.fetched_at_once
    }

    /// Does anything here need somebody to sleep for it?
    pub fn needs_driver(&self) -> bool {
        self.readiness.waiting() > 0
            || !self.timers.is_empty()
            || self.aio.in_flight() > 0
            || self.zero_copy.is_waiting()
            || self.is_owed()
    }

    /// Is there anything that is to be looked at by and by, whoever drives?
    pub fn needs_ticks(&self) -> bool {
        self.readiness.needs_recheck() || self.zero_copy.needs_ticks() || !self.directories.is_empty()
    }

    /// The ring's epoll instance, with the driver's eventfd in it.
    pub fn epoll(&mut self) -> Result<Fd, Errno> {
        if let Some(fd) = self.readiness.epoll {
            return Ok(fd);
        }
        let epoll = os::epoll_create()?;
        let kick = os::eventfd().inspect_err(|_| os::close(epoll))?;
        // Not edge-triggered: who only looks into epoll must not take it away from the driver, who drains it.
        os::epoll_ctl(epoll, os::nr::EPOLL_CTL_ADD, kick, os::nr::EPOLLIN, KICK)?;
        self.readiness.busy_poll.carry_over(epoll);
        self.external.kick = Some(kick);
        self.readiness.epoll = Some(epoll);
        self.hear(epoll);
        Ok(epoll)
    }

    /// Takes what is ready now, without sleeping.
    pub fn harvest_now(&mut self) {
        let Some(epoll) = self.readiness.epoll else { return };
        self.readiness.unasked = 0;
        self.look_beside_epoll();
        if self.readiness.waiting() == 0 && !self.zero_copy.is_watched() {
            return;
        }
        let mut events = [EpollEvent { events: 0, data: 0 }; BATCH];
        let count = os::epoll_wait(epoll, &mut events, Some(0), None).unwrap_or(0);
        self.take_events(&events[..count]);
    }

    /// Completes what is ready and fires what is due by now: the kernel does that in the submitter's thread as soon as
    /// it happens. On a ring that defers it is only known from then on, and done in the call that fetches.
    pub fn catch_up(&mut self) {
        self.readiness.looked = true;
        self.harvest_now();
        if !self.defers() {
            self.advance();
        }
    }

    /// Wakes the sleeping driver, so that it looks at the ring again.
    pub fn kick_driver(&mut self) {
        if let Some(kick) = self.external.kick {
            os::eventfd_signal(kick);
        }
    }

    /// Takes what epoll reported to the driver.
    pub fn take_events_as_driver(&mut self, events: &[EpollEvent]) {
        if self.take_events(events)
            && let Some(kick) = self.external.kick
        {
            os::eventfd_drain(kick);
        }
    }

    /// Takes what epoll reported: marks descriptors ready and requests to be issued again. Was the driver kicked?
    pub fn take_events(&mut self, events: &[EpollEvent]) -> bool {
        let mut kicked = false;
        self.readiness.unasked = 0;
        self.readiness.reported(events.len());
        self.expect_entries(events.iter().map(|event| { event.data } as u32));
        for event in events {
            let (data, bits) = (event.data, event.events);
            // Finished transfers, and what other processes did, are seen by whoever looks at the ring next.
            if (data >> 32) as u32 == CHANNEL {
                self.look_for_pages(data as u32 as usize);
            } else if data < BELL {
                self.readiness_event(data, bits);
            } else {
                kicked |= data == KICK;
            }
        }
        kicked
    }

    /// Fires what is due, issues what is ready, takes back what workers finished.
    pub fn advance(&mut self) {
        self.look_for_prompt_pages();
        self.fire_timers();
        self.advance_before_work();
    }

    /// The same without what is due: the caller is about to do its queued work.
    pub fn advance_before_work(&mut self) {
        self.post_messages();
        self.serve_others();
        self.reap_direct();
        loop {
            self.run_finished();
            self.flush_timeouts();
            if self.readiness.take_reports() {
                self.harvest_now();
                // What epoll told of these it does not tell again.
                self.serve_others();
                self.reap_direct();
                continue;
            }
            if self.ready.is_empty() || self.has_fetched_enough() {
                break;
            }
            self.run_ready();
        }
    }

    /// Is there, beside what is ready, nothing that [`Core::advance_before_work`], a timer or queued work could come to,
    /// and nothing to be told but to those whom [`Core::notify`] tells? Then a call whose completions are there need
    /// not look.
    #[inline(always)]
    pub fn is_at_rest(&self) -> bool {
        self.work.is_at_rest()
            && self.cq.is_at_rest()
            && !self.unsettled
            && self.timers.is_empty()
            && self.timeouts.counting() == 0
            && self.aio.in_flight() == 0
            && !self.readiness.has_reports()
            && self.external.pollers.is_empty()
            && !self.external.told
            && self.shared.is_none()
    }

    /// Tells sleepers and observers of what was posted since the last time. To be called before the
    /// lock is given up wherever something may have been posted.
    #[inline]
    pub fn notify(&mut self) {
        let Some(uncounted) = self.cq.take_news() else { return };
        self.ring.count(Counted::Completed, uncounted);
        if self.observed() || self.external.outlet.is_some() {
            self.notify_observers();
        }
        if self.token.is_awaited() {
            self.wake_sleepers();
        }
        if self.shared.is_some() {
            self.tell_others();
        }
    }

    /// Tells those beside the callers who sleep.
    #[inline(never)]
    fn notify_observers(&mut self) {
        if let Some(fd) = self.eventfd_to_signal() {
            self.signal_eventfd(fd);
        }
        if self.external.readiness_fd.is_some() {
            self.signal_readiness();
            self.external.pollers_wait = !self.external.pollers.is_empty();
        }
        if self.external.outlet.is_some() {
            self.pour_out();
        }
    }

    /// Completions leave by the outlet, those that found no room in the ring, too.
    #[cold]
    fn pour_out(&mut self) {
        let Some(mut outlet) = self.external.outlet.take() else { return };
        outlet.posted();
        while self.cq.kept() > 0 {
            self.flush_overflow();
            outlet.posted();
        }
        self.external.outlet = Some(outlet);
    }

    /// The program's eventfd, if it is to hear of what was posted just now.
    fn eventfd_to_signal(&self) -> Option<Fd> {
        let eventfd = self.external.eventfd?;
        let silent = eventfd.async_only && self.external.inline;
        (!silent).then_some(eventfd.fd)
    }

    fn is_eventfd_disabled(&self) -> bool {
        self.memory.load(Word::CqFlags, 0) & IORING_CQ_EVENTFD_DISABLED != 0
    }

    /// Is what was posted just now going to signal the program's eventfd?
    pub fn is_about_to_signal(&self) -> bool {
        self.eventfd_to_signal().is_some() && !self.is_eventfd_disabled()
    }

    /// Tells the program by its eventfd.
    pub fn signal_eventfd(&mut self, fd: Fd) {
        if !self.is_eventfd_disabled() {
            self.external.rung = true;
            os::eventfd_signal(fd);
        }
    }

    /// Is `fd` the program's eventfd?
    pub fn is_own_eventfd(&self, fd: Fd) -> bool {
        self.external.eventfd.is_some_and(|eventfd| os::same_file(eventfd.fd, fd))
    }

    /// Wakes the callers for whom enough completions are there.
    pub fn wake_sleepers(&mut self) {
        let ready = self.cq_ready();
        let External { kick, sleepers, .. } = &self.external;
        self.token.posted(ready, |wake| wake_one(*kick, sleepers, wake));
    }

    /// The driver must look at the ring again: a deadline came closer, a request became ready.
    pub fn disturb_driver(&mut self) {
        match self.token.driver() {
            Driver::Nobody => {}
            Driver::Reactor => reactor::deadline_changed(self),
            Driver::SqThread => self.kick_driver(),
            Driver::Caller => {
                let External { kick, sleepers, .. } = &self.external;
                self.token.disturb(|wake| wake_one(*kick, sleepers, wake));
            }
        }
    }

    /// The role is free: lets a sleeper take it. False where there is none.
    #[inline]
    pub fn pass_on(&mut self) -> bool {
        if !self.token.is_awaited() {
            return false;
        }
        let External { kick, sleepers, .. } = &self.external;
        self.token.pass_on(|wake| wake_one(*kick, sleepers, wake))
    }

    /// Wakes those who wait for work to end, where nothing is posted of it yet.
    pub fn wake_observers(&mut self) {
        let External { kick, sleepers, .. } = &self.external;
        self.token.work_ended(|wake| wake_one(*kick, sleepers, wake));
    }

    /// Wakes every caller that sleeps for this ring.
    pub fn wake_all(&mut self) {
        let External { kick, sleepers, .. } = &self.external;
        self.token.wake_all(|wake| wake_one(*kick, sleepers, wake));
    }

    /// On a ring that asked for it, `IORING_SQ_TASKRUN` says "come in, there may be something". The
    /// kernel sets it when a wake-up queued work; here nobody hears of one before somebody asks
    /// epoll, so it stands for as long as anything is waited for.
    #[inline]
    pub fn mark_task_work(&self) {
        if self.is(IORING_SETUP_TASKRUN_FLAG) {
            self.show_task_work();
        }
    }

    fn show_task_work(&self) {
        let shown = self.external.shown && self.external.readable;
        let waits = self.needs_driver() || self.work.is_under_way();
        if shown || waits || !self.ready.is_empty() {
            self.memory.change_sq_flags(IORING_SQ_TASKRUN, 0);
        } else {
            self.memory.change_sq_flags(0, IORING_SQ_TASKRUN);
        }
    }

    /// Lets who polls the ring's descriptor wake up. One that is shown stays readable until it is drained here, so
    /// most of the time there is nothing to be done.
    pub fn signal_readiness(&mut self) {
        let Some(fd) = self.external.readiness_fd else { return };
        let alone = self.shared.is_none();
        if self.external.shown && self.external.readable && alone {
            return;
        }
        os::eventfd_signal(fd);
        self.external.readable = true;
        self.mark_shown();
    }

    /// Is there somebody who would wait for completions without coming in, as far as can be told?
    pub fn is_watched(&self) -> bool {
        let External { eventfd, readiness_fd, shown, looked, outlet, .. } = &self.external;
        eventfd.is_some() || outlet.is_some() || readiness_fd.is_some() && (!shown || *looked)
    }

    /// Where readiness is shown at the descriptor, a program that finds the CQ empty must come in, or what it
    /// polls would stay readable: `IORING_SQ_TASKRUN` tells it to.
    fn mark_shown(&self) {
        if self.external.shown {
            self.memory.change_sq_flags(IORING_SQ_TASKRUN, 0);
        }
    }

    /// It came in, and there is nothing.
    pub fn unmark_shown(&mut self) {
        self.external.looked = true;
        if self.external.shown {
            self.memory.change_sq_flags(0, IORING_SQ_TASKRUN);
            self.mark_task_work();
        }
    }

    /// On a DEFER_TASKRUN ring: something waits to be fetched by `enter`.
    pub fn notify_deferred(&mut self) {
        if self.is(IORING_SETUP_TASKRUN_FLAG) {
            self.memory.change_sq_flags(IORING_SQ_TASKRUN, 0);
        }
        if let Some(eventfd) = self.external.eventfd
            && !self.only_waits_for(eventfd.fd)
        {
            self.signal_eventfd(eventfd.fd);
        }
        self.signal_readiness();
        self.disturb_driver();
    }
}

impl Core {
    /// Is the registered eventfd itself all that became ready? Whoever watches it knows already, and a
    /// request that reads it shall find the count that woke it.
    fn only_waits_for(&self, eventfd: Fd) -> bool {
        !self.ready.is_empty()
            && self.work.finished() == 0
            && self.timers.next_ns() != Some(0)
            && self
                .ready
                .iter()
                .filter_map(|id| self.requests.get(id))
                .all(|r| os::same_file(r.file.fd(), eventfd))
    }
}

fn wake_one(kick: Option<Fd>, sleepers: &[Fd], wake: Wake) {
    let fd = match wake {
        Wake::Driver => kick,
        Wake::Sleeper(place) => sleepers.get(place).copied(),
    };
    if let Some(fd) = fd {
        os::eventfd_signal(fd);
    }
}
