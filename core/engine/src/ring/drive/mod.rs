//! The driver: the thread that turns readiness into completions.
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
mod glimpse;
pub mod leave;
pub mod names;
pub mod observers;
pub mod reactor;
pub mod readiness;
pub mod sleepers;
pub mod sq_thread;
pub mod stand_in;
mod timers;

use linux_raw_sys::io_uring::{IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_TASKRUN_FLAG, IORING_SQ_TASKRUN};

use crate::abi::Errno;
use crate::os::{self, EpollEvent, Fd};
use crate::ring::drive::names::{BATCH, CHANNEL, GLIMPSE, KICK};
use crate::ring::drive::observers::Poller;
use crate::ring::{Core, Counted, Ring, live};
use crate::wait::Driver;

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

impl Core {
    /// Completions wait for the program's thread to come and fetch them.
    pub fn defers(&self) -> bool {
        self.is(IORING_SETUP_DEFER_TASKRUN)
    }

    /// Are completions deferred, and nobody is told of any? Then nothing is missed while no caller is here.
    pub(in crate::ring::drive) fn is_left_to_callers(&self) -> bool {
        let told = self.observed() || self.is_crowded() || self.is(IORING_SETUP_TASKRUN_FLAG);
        self.defers() && !told
    }

    /// Does the reactor leave the ring to a caller who waits for so many completions, sleeping or not? Every event would
    /// wake it beside the caller. Who only looks does not take its place.
    #[inline]
    pub fn reactor_gives_way(&self, wanted: u32) -> bool {
        wanted > 0 && self.drive.token.driver() == Driver::Reactor && !self.drive.observers.may_wait_outside()
    }

    /// Is what else is ready left to the next call?
    pub fn has_fetched_enough(&self) -> bool {
        self.defers() && self.queues.cq_ready() >= self.drive.fetched_at_once
    }

    /// Does anything here need somebody to sleep for it?
    pub fn needs_driver(&self) -> bool {
        self.readiness.waiting() > 0
            || !self.time.timers.is_empty()
            || self.aio.in_flight() > 0
            || self.zero_copy.is_waiting()
            || self.is_owed()
            || self.work.in_flight().is_any()
            || !self.work.is_empty()
    }

    /// Is there anything that is to be looked at by and by, whoever drives?
    pub(in crate::ring::drive) fn needs_ticks(&self) -> bool {
        self.drive.observers.may_be_stale() || self.needs_other_ticks()
    }

    /// Is there anything to be looked at by and by beside completions that are shown?
    fn needs_other_ticks(&self) -> bool {
        self.readiness.needs_recheck()
            || self.zero_copy.needs_ticks()
            || !self.resources.directories.is_empty()
            || self.work.in_flight().is_any()
            || self.aio.needs_ticks()
            // There was no worker for it.
            || !self.work.is_empty()
    }

    /// Whether the ring's epoll instance was gone, for the program has closed it where nobody saw that: another one has all that it had.
    pub(in crate::ring::drive) fn renews_epoll(&mut self) -> bool {
        let Some(lost) = self.readiness.epoll().filter(|&epoll| !os::is_still_own(epoll)) else {
            return false;
        };
        os::close_own(lost);
        self.readiness.lose_epoll();
        self.drive.sleepers.lose_kick();
        self.aio.lose_kick();
        let Ok(epoll) = self.epoll() else { return true };
        self.hear_again(epoll);
        self.zero_copy.watch_by(epoll);
        for index in self.readiness.register_again(epoll) {
            self.wake_waiters(index, readiness::ALL_EVENTS);
        }
        true
    }

    /// The ring's epoll instance, with the driver's eventfd in it.
    pub fn epoll(&mut self) -> Result<Fd, Errno> {
        if let Some(fd) = self.readiness.epoll() {
            return Ok(fd);
        }
        let epoll = os::epoll_create()?;
        let kick = os::eventfd().inspect_err(|_| os::close(epoll))?;
        // Not edge-triggered: who only looks into epoll must not take it away from the driver, who drains it.
        os::epoll_ctl(epoll, os::nr::EPOLL_CTL_ADD, kick, os::nr::EPOLLIN, KICK)?;
        self.drive.sleepers.set_kick(kick);
        self.readiness.set_epoll(epoll);
        self.hear(epoll);
        Ok(epoll)
    }

    /// Takes what is ready now, without sleeping.
    pub fn harvest_now(&mut self) {
        let Some(epoll) = self.readiness.epoll() else { return };
        self.readiness.note_epoll_asked();
        self.look_beside_epoll();
        if self.readiness.waiting() == 0 && !self.zero_copy.is_watched() {
            return;
        }
        let mut events = [EpollEvent { events: 0, data: 0 }; BATCH];
        let count = match os::epoll_wait(epoll, &mut events, Some(0), None) {
            Ok(count) => count,
            Err(_) => {
                self.renews_epoll();
                0
            }
        };
        self.take_events(&events[..count]);
    }

    /// Completes what is ready and fires what is due by now: the kernel does that in the submitter's thread as soon as
    /// it happens. On a ring that defers it is only known from then on, and done in the call that fetches.
    pub fn catch_up(&mut self) {
        self.readiness.looks_before();
        self.harvest_now();
        if !self.defers() {
            self.advance();
        }
    }

    /// Takes what epoll reported to the driver.
    pub(in crate::ring::drive) fn take_events_as_driver(&mut self, events: &[EpollEvent]) {
        if self.take_events(events) {
            self.drive.sleepers.drain_kick();
        }
    }

    /// Takes what epoll reported to a driver that slept without the lock.
    pub(in crate::ring::drive) fn take_events_of_sleep(&mut self, events: &[EpollEvent]) {
        self.readiness.tells_of_sleep(true);
        self.take_events_as_driver(events);
        self.readiness.tells_of_sleep(false);
    }

    /// Takes what epoll reported: marks descriptors ready and requests to be issued again. Was the driver kicked?
    pub(in crate::ring::drive) fn take_events(&mut self, events: &[EpollEvent]) -> bool {
        let (mut kicked, mut glimpsed) = (false, false);
        self.readiness.note_epoll_asked();
        self.readiness.reported(events.len());
        self.expect_entries(events.iter().map(|event| { event.data } as u32));
        for event in events {
            let (data, bits) = (event.data, event.events);
            // Finished transfers, and what other processes did, are seen by whoever looks at the ring next.
            if (data >> 32) as u32 == CHANNEL {
                self.look_for_pages(data as u32 as usize);
            } else if data < GLIMPSE {
                self.readiness_event(data, bits);
            } else {
                kicked |= data == KICK;
                glimpsed |= data == GLIMPSE;
            }
        }
        if glimpsed {
            self.take_glimpse();
        }
        kicked
    }

    /// Fires what is due, issues what is ready, takes back what workers finished.
    pub fn advance(&mut self) {
        self.look_for_prompt_pages();
        self.fire_timers();
        self.advance_before_work();
    }

    /// As [`Core::advance`], without timers: the caller is about to do its queued work.
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
            if self.order.ready.is_empty() || self.has_fetched_enough() {
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
            && self.queues.cq.is_at_rest()
            && self.time.timers.is_empty()
            && self.time.timeouts.counting() == 0
            && self.aio.in_flight() == 0
            && !self.readiness.has_reports()
            && self.drive.observers.are_told()
            && self.shared.is_none()
    }

    /// Tells sleepers and observers of what was posted since the last time. To be called before the
    /// lock is given up wherever something may have been posted.
    #[inline]
    pub fn notify(&mut self) {
        let Some(uncounted) = self.queues.cq.take_news() else { return };
        self.identity.ring.count(Counted::Completed, uncounted);
        if self.drive.observers.are_any() {
            self.notify_observers();
        }
        if self.drive.token.is_awaited() {
            self.wake_sleepers();
        }
        if self.shared.is_some() {
            self.tell_others();
        }
    }

    /// On a ring that asked for it, `IORING_SQ_TASKRUN` says "come in, there may be something". The
    /// kernel sets it when a wake-up queued work; here nobody hears of one before somebody asks
    /// epoll, so it stands for as long as anything is waited for.
    #[inline]
    pub(in crate::ring::drive) fn mark_task_work(&self) {
        if self.is(IORING_SETUP_TASKRUN_FLAG) {
            self.show_task_work();
        }
    }

    fn show_task_work(&self) {
        let waits = self.needs_driver() || self.work.is_under_way();
        if self.shows_readable() || waits || !self.order.ready.is_empty() {
            self.queues.memory.change_sq_flags(IORING_SQ_TASKRUN, 0);
        } else {
            self.queues.memory.change_sq_flags(0, IORING_SQ_TASKRUN);
        }
    }

    /// On a DEFER_TASKRUN ring: something waits to be fetched by `enter`.
    pub fn notify_deferred(&mut self) {
        if self.is(IORING_SETUP_TASKRUN_FLAG) {
            self.queues.memory.change_sq_flags(IORING_SQ_TASKRUN, 0);
        }
        if let Some(eventfd) = self.drive.observers.eventfd()
            && !self.only_waits_for(eventfd)
        {
            self.signal_eventfd();
        }
        self.signal_readiness();
        self.disturb_driver();
    }
}

impl Core {
    /// Is the registered eventfd itself all that became ready? Whoever watches it knows already, and a
    /// request that reads it shall find the count that woke it.
    fn only_waits_for(&self, eventfd: Fd) -> bool {
        !self.order.ready.is_empty()
            && self.work.finished() == 0
            && self.time.timers.next_ns() != Some(0)
            && self
                .order
                .ready
                .iter()
                .filter_map(|id| self.requests.get(id))
                .all(|r| os::same_file(r.file.fd(), eventfd))
    }
}
