//! Handover of a multishot poll whose descriptor is closed: it goes on waiting by another descriptor of its file, sees every edge, and none
//! twice.
//!
//! A new registration reports at once what its file is ready for, even if the poll was told of that. So it is made while the old one still
//! exists, and its first report is dropped: every edge since then reaches the old one, too.

use alloc::vec::Vec;

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLLET, EPOLLONESHOT};

use crate::os::{self, EpollEvent, Fd};
use crate::request::RequestId;
use crate::request::op::Caps;
use crate::ring::Core;
use crate::ring::drive::names::BATCH;
use crate::ring::drive::readiness::{ALL_EVENTS, Kept};
use crate::wait::Driver;

impl Core {
    /// Gives multishot polls that wait for `fd`, which is about to be closed, another descriptor. If that is impossible, since a thread
    /// sleeps in epoll or a resource is lacking, the polls are left to the caller, and may report an edge twice.
    pub(super) fn hand_polls_over(&mut self, fd: Fd, index: u32, kept: &mut Kept) {
        let polls = self.waiting_polls(index);
        // A driver that sleeps may have taken an edge out of epoll that no poll has seen.
        let driver_sleeps = matches!(self.drive.token.driver(), Driver::Caller | Driver::SqThread);
        if polls.is_empty() || driver_sleeps || !os::poll_now(fd, ALL_EVENTS).is_ok_and(|now| now != 0) {
            return;
        }
        let Ok(barrier) = os::epoll_create() else { return };
        if let Ok(heir) = self.kept_duplicate(fd, kept).and_then(|(_, own)| self.watch(own)) {
            let (new, old) = (self.epoll_name(heir), self.epoll_name(index));
            self.take_all(|core, events| core.take_without(events, new));
            polls.into_iter().for_each(|poll| self.move_wait(index, heir, poll, fd, kept));
            // A wake-up that has reached the new registration and not yet the old one holds the lock of the file's wait queue: it is over
            // once one more waiter is added.
            let _ = os::epoll_ctl(barrier, EPOLL_CTL_ADD, fd, ALL_EVENTS | EPOLLET, 0);
            self.take_all(|core, events| core.take_and_pass_on(events, old, new));
        }
        os::close(barrier);
    }

    /// Returns the multishot polls that wait by a registration.
    fn waiting_polls(&self, index: u32) -> Vec<RequestId> {
        let waiters = self.readiness.entries[index as usize].waiters.as_slice();
        let repeats = |id: &RequestId| {
            let request = &self.requests[*id];
            request.op.caps.has(Caps::POLLS) && request.sqe.op_flags & EPOLLONESHOT == 0
        };
        waiters.iter().map(|waiter| waiter.id).filter(repeats).collect()
    }

    fn epoll_name(&self, index: u32) -> u64 {
        self.readiness.entries[index as usize].data(index)
    }

    /// Takes the events that epoll has now. Each registration is reported once, unless more happens meanwhile.
    fn take_all(&mut self, mut take: impl FnMut(&mut Core, &mut [EpollEvent])) {
        let Some(epoll) = self.readiness.epoll else { return };
        let mut events = [EpollEvent { events: 0, data: 0 }; BATCH];
        for _ in 0..=self.readiness.entries.len() / BATCH {
            let count = os::epoll_wait(epoll, &mut events, Some(0), None).unwrap_or(0);
            take(self, &mut events[..count]);
            if count < BATCH {
                return;
            }
        }
    }

    /// Takes events. The new registration's event sets ready bits, and wakes no request.
    fn take_without(&mut self, events: &mut [EpollEvent], new: u64) {
        let mut kept = 0;
        for at in 0..events.len() {
            if { events[at].data } == new {
                self.readiness.entries[new as u32 as usize].ready |= events[at].events;
            } else {
                events[kept] = events[at];
                kept += 1;
            }
        }
        self.take_events(&events[..kept]);
    }

    /// Takes events. Events of the old registration count for the new one, too.
    fn take_and_pass_on(&mut self, events: &mut [EpollEvent], old: u64, new: u64) {
        self.take_events(events);
        for event in events.iter().filter(|event| { event.data } == old) {
            self.readiness_event(new, event.events);
        }
    }

    /// Gives a poll the kept file. If the poll still waits, it waits by that file's registration from now on.
    fn move_wait(&mut self, old: u32, heir: u32, poll: RequestId, fd: Fd, kept: &mut Kept) {
        let Ok(file) = self.keep_file(fd, kept) else { return };
        let waiter = self.readiness.entries[old as usize].waiters.remove(poll);
        self.requests[poll].file = file;
        if let Some(waiter) = waiter {
            self.readiness.entries[heir as usize].waiters.push(waiter);
        }
    }
}
