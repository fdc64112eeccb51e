//! The driver: the thread that turns readiness into completions.
//!
//! No kernel does this in the background: a thread of the process has to sleep in the ring's `epoll_wait`, retry requests that became
//! ready, and post. This role is a token, [`Driver`], under the ring's lock; at most one thread holds it.
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
//! An event-loop program is always back in `enter` before the reactor's next tick, so it never pays for a thread switch. A program that
//! only looks at the CQ gets the reactor after one tick, or at once if it registered an eventfd or polls the ring's descriptor.

pub mod caller;
mod glimpse;
pub mod leave;
pub mod names;
pub mod observers;
pub mod reactor;
pub mod readiness;
pub mod sleepers;
pub mod sq_thread;
pub mod timers;

use linux_raw_sys::io_uring::{IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_TASKRUN_FLAG, IORING_SQ_TASKRUN};

use crate::abi::Errno;
use crate::observe::trace;
use crate::os::{self, EpollEvent, Fd};
use crate::ring::drive::names::{BATCH, CHANNEL, GLIMPSE, KICK};
use crate::ring::drive::observers::Poller;
use crate::ring::parts::Drive;
use crate::ring::{Core, Counted, Ring, live};
use crate::wait::Driver;
use crate::wait::listing::TICK_NS;
use crate::wait::token::Wake;

impl Poller for Ring {
    fn look_in(&'static self, serial: u64) {
        let mut guard = self.lock_to_drive();
        let Some(core) = live(&mut guard, serial) else { return };
        if core.life.is_closing() || core.defers() || !core.drive.token.is_free() {
            return;
        }
        core.drive.observers.posts_later();
        core.harvest_now();
        core.advance();
    }
}

impl Drive {
    /// True if the reactor leaves the ring to a caller that waits for `wanted` completions, sleeping or not: every event would wake the
    /// reactor beside the caller. A caller that only looks does not replace the reactor.
    #[inline]
    pub fn reactor_gives_way(&self, wanted: u32) -> bool {
        wanted > 0 && self.token.driver() == Driver::Reactor && !self.observers.may_wait_outside()
    }

    /// True if something waits for completions outside `enter`, or a thread sleeps beside the driver.
    pub fn is_awaited_beside(&self) -> bool {
        self.observers.may_wait_outside() || self.token.is_awaited()
    }

    /// Wakes the sleeping driver, so that it looks at the ring again.
    pub fn kick_driver(&self) {
        self.sleepers.wake(Wake::Driver);
    }

    /// Wakes the callers for which enough completions were posted; `tail` is that of the CQ.
    pub(in crate::ring) fn wake_sleepers(&mut self, tail: u32) {
        self.token.posted(tail, |wake| self.sleepers.wake(wake));
    }

    /// Passes the driver's role, which is free, to a sleeper. Returns false if there is none.
    #[inline]
    pub fn pass_on(&mut self) -> bool {
        if !self.token.is_awaited() {
            return false;
        }
        self.token.pass_on(|wake| self.sleepers.wake(wake))
    }

    /// Wakes the threads that wait for work to end, when its completion is not posted yet.
    pub fn wake_observers(&mut self) {
        self.token.work_ended(|wake| self.sleepers.wake(wake));
    }

    /// Wakes every caller that sleeps for this ring.
    pub fn wake_all(&mut self) {
        self.token.wake_all(|wake| self.sleepers.wake(wake));
    }
}

impl Core {
    /// True if completions wait until the program's thread fetches them.
    pub fn defers(&self) -> bool {
        self.is(IORING_SETUP_DEFER_TASKRUN)
    }

    /// True if completions are deferred, and nobody is notified of any. Then nothing is missed while no caller is inside.
    pub(in crate::ring::drive) fn is_left_to_callers(&self) -> bool {
        let told =
            self.drive.observers.watch() || self.shared.is_crowded() || self.is(IORING_SETUP_TASKRUN_FLAG);
        self.defers() && !told
    }

    /// True if further ready requests are left to the next call.
    pub fn has_fetched_enough(&self) -> bool {
        self.defers() && self.queues.cq_ready() >= self.drive.fetched_at_once
    }

    /// True if anything in the ring needs a thread that sleeps for it.
    #[inline(always)]
    pub(in crate::ring::drive) fn needs_driver(&self) -> bool {
        self.readiness.waiting() > 0
            || !self.time.timers.is_empty()
            || self.aio.in_flight() > 0
            || self.zero_copy.is_waiting()
            || self.is_owed()
            || self.work.in_flight().is_any()
            || !self.work.is_empty()
    }

    /// True if anything in the ring has to be checked at ticks, whichever thread drives.
    pub(in crate::ring::drive) fn needs_ticks(&self) -> bool {
        self.drive.observers.may_be_stale() || self.needs_other_ticks()
    }

    /// True if anything has to be checked at ticks, beside completions that the stand-in shows.
    fn needs_other_ticks(&self) -> bool {
        self.readiness.needs_recheck()
            || self.zero_copy.needs_ticks()
            || !self.resources.directories.is_empty()
            || self.work.in_flight().is_any()
            || self.aio.needs_ticks()
            // No worker could be had for this work.
            || !self.work.is_empty()
    }

    /// Returns the current length of a tick.
    pub(in crate::ring::drive) fn tick_ns(&self) -> u64 {
        let only_shows = self.drive.observers.may_be_stale() && !self.needs_other_ticks();
        if only_shows { self.drive.observers.tick_ns(self.queues.left()) } else { TICK_NS }
    }

    /// True if the ring's callers recheck, not the reactor. Every system call is cheaper in a program with one thread than in one with two.
    pub(in crate::ring::drive) fn rechecks_itself(&self) -> bool {
        let ticks = self.drive.attendance.is_listed()
            || self.zero_copy.needs_ticks()
            || !self.resources.directories.is_empty()
            || self.aio.needs_ticks();
        self.is_left_to_callers() && !ticks
    }

    /// Has the driver look at the ring again: a deadline came closer, or a request became ready.
    pub(in crate::ring::drive) fn disturb_driver(&mut self) {
        match self.drive.token.driver() {
            Driver::Nobody => {}
            Driver::Reactor => reactor::deadline_changed(self),
            Driver::SqThread => self.drive.kick_driver(),
            Driver::Caller => self.drive.token.disturb(|wake| self.drive.sleepers.wake(wake)),
        }
    }
    /// Replaces the ring's epoll instance, with all that was registered, if the program has closed it without the engine's knowledge.
    /// Returns whether it did.
    pub(in crate::ring::drive) fn renews_epoll(&mut self) -> bool {
        let Some(lost) = self.readiness.epoll().filter(|&epoll| !os::is_still_own(epoll)) else {
            return false;
        };
        os::close_own(lost);
        self.readiness.lose_epoll();
        self.drive.sleepers.lose_kick();
        self.aio.lose_kick();
        let Ok(epoll) = self.epoll() else { return true };
        self.shared.hear_again(epoll);
        self.zero_copy.watch_by(epoll);
        for index in self.readiness.register_again(epoll) {
            self.wake_waiters(index, readiness::ALL_EVENTS);
        }
        true
    }

    /// Returns the ring's epoll instance, with the driver's eventfd in it. Makes it if there is none.
    pub fn epoll(&mut self) -> Result<Fd, Errno> {
        if let Some(fd) = self.readiness.epoll() {
            return Ok(fd);
        }
        let epoll = os::epoll_create()?;
        let kick = os::eventfd().inspect_err(|_| os::close(epoll))?;
        // Level-triggered: a thread that only looks into epoll must not take the event from the driver, which drains the eventfd.
        os::epoll_ctl(epoll, os::nr::EPOLL_CTL_ADD, kick, os::nr::EPOLLIN, KICK)?;
        self.drive.sleepers.set_kick(kick);
        self.readiness.set_epoll(epoll);
        self.shared.hear(epoll);
        Ok(epoll)
    }

    /// Takes the events that epoll has now, without sleeping.
    pub fn harvest_now(&mut self) {
        self.harvest(false);
    }

    /// Takes the events that epoll has now, without sleeping; `as_driver`: also the one by which the driver is kicked. Returns true if there
    /// were any.
    pub(in crate::ring::drive) fn harvest(&mut self, as_driver: bool) -> bool {
        let Some(epoll) = self.readiness.epoll() else { return false };
        self.readiness.note_epoll_asked();
        self.look_beside_epoll();
        if !as_driver && self.readiness.waiting() == 0 && !self.zero_copy.is_watched() {
            return false;
        }
        let mut events = [EpollEvent { events: 0, data: 0 }; BATCH];
        let count = match os::epoll_wait(epoll, &mut events, Some(0), None) {
            Ok(count) => count,
            Err(_) => {
                self.renews_epoll();
                0
            }
        };
        if self.take_events(&events[..count]) && as_driver {
            self.drive.sleepers.drain_kick();
        }
        count > 0
    }

    /// Completes requests that are ready and fires timers that are due, as the kernel does in the submitter's thread at the time of the
    /// event. On a ring that defers, only takes the events: the call that fetches does the rest.
    pub fn catch_up(&mut self) {
        self.readiness.looks_before();
        self.harvest_now();
        if !self.defers() {
            self.advance();
        }
    }

    /// Takes events that epoll reported to the driver.
    pub(in crate::ring::drive) fn take_events_as_driver(&mut self, events: &[EpollEvent]) {
        if self.take_events(events) {
            self.drive.sleepers.drain_kick();
        }
    }

    /// Takes events that epoll reported to a driver that slept without the lock.
    pub(in crate::ring::drive) fn take_events_of_sleep(&mut self, events: &[EpollEvent]) {
        self.readiness.tells_of_sleep(true);
        self.take_events_as_driver(events);
        self.readiness.tells_of_sleep(false);
    }

    /// Takes events that epoll reported: marks descriptors ready, and requests to be issued again. Returns true if the driver was kicked.
    pub(in crate::ring::drive) fn take_events(&mut self, events: &[EpollEvent]) -> bool {
        let (mut kicked, mut glimpsed) = (false, false);
        self.readiness.note_epoll_asked();
        self.readiness.reported(events.len());
        self.readiness.expect_entries(&self.requests, events.iter().map(|event| { event.data } as u32));
        for event in events {
            let (data, bits) = (event.data, event.events);
            // The next look at the ring finds finished transfers, and what other processes did, without these events.
            if (data >> 32) as u32 == CHANNEL {
                self.look_for_pages(data as u32 as usize);
            } else if data < GLIMPSE {
                self.readiness_event(data, bits);
            } else {
                kicked |= data == KICK;
                glimpsed |= data == GLIMPSE;
            }
        }
        // If epoll has reported the event that AIO has seen already, no request waits for it any more.
        if glimpsed
            && let Some((registration, bits)) = self.drive.observers.take_glimpse()
            && self.readiness.is_awaited(registration)
        {
            self.readiness_event(registration, bits);
        }
        kicked
    }

    /// Fires due timers, issues ready requests, and takes back work that workers finished.
    pub fn advance(&mut self) {
        trace::notice_watchers(self);
        self.look_for_prompt_pages();
        self.fire_timers();
        self.advance_before_work();
    }

    /// Does the same as [`Core::advance`], without timers: the caller is about to do its queued work.
    pub fn advance_before_work(&mut self) {
        self.post_messages();
        self.read_mail();
        self.reap_direct();
        loop {
            self.run_finished();
            self.flush_timeouts();
            if self.readiness.take_reports() {
                self.harvest_now();
                // Epoll has reported other processes and finished transfers, and does not report them again.
                self.read_mail();
                self.reap_direct();
                continue;
            }
            if self.order.ready.is_empty() || self.has_fetched_enough() {
                break;
            }
            self.run_ready();
        }
    }

    /// True if, beside ready requests, there is nothing that [`Core::advance_before_work`], a timer or queued work could find, and no
    /// observer that [`Core::notify`] leaves out. Then a call whose completions are there need not look.
    #[inline(always)]
    pub fn is_at_rest(&self) -> bool {
        self.work.is_at_rest()
            && self.queues.cq.is_at_rest()
            && self.time.timers.is_empty()
            && self.time.timeouts.counting() == 0
            && self.aio.in_flight() == 0
            && !self.readiness.has_reports()
            && self.drive.observers.are_told()
            && !self.shared.has_page()
    }

    /// Counts the CQEs that were posted since the last time. Returns whether there is news for sleepers and observers.
    #[inline(always)]
    pub(in crate::ring::drive) fn count_news(&mut self) -> bool {
        let Some(uncounted) = self.queues.cq.take_news() else { return false };
        self.identity.ring.count(Counted::Completed, uncounted);
        true
    }

    /// Updates `IORING_SQ_TASKRUN`, which asks the program to enter, on a ring that asked for the flag. The kernel sets it when a wake-up
    /// queued work. Here nobody learns of a wake-up before epoll is asked, so the flag is set as long as anything is waited for.
    #[inline]
    pub(in crate::ring::drive) fn mark_task_work(&self) {
        if self.is(IORING_SETUP_TASKRUN_FLAG) {
            self.show_task_work();
        }
    }

    fn show_task_work(&self) {
        let waits = self.needs_driver() || self.work.is_under_way();
        let shown = self.drive.observers.shows_readable(self.shared.common_stand_in_is_readable());
        if shown || waits || !self.order.ready.is_empty() {
            self.queues.memory.change_sq_flags(IORING_SQ_TASKRUN, 0);
        } else {
            self.queues.memory.change_sq_flags(0, IORING_SQ_TASKRUN);
        }
    }
}
