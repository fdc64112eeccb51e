//! A multishot poll whose descriptor is closed waits on by another descriptor of its file. It hears of every edge, and of
//! none twice.
//!
//! A new registration reports at once what its file is ready for, though the poll may have been told of that. So it is
//! made while the old one still stands, and its first report is dropped: every edge since then reaches the old one, too.

use alloc::vec::Vec;

use linux_raw_sys::general::{EPOLL_CTL_ADD, EPOLLET, EPOLLONESHOT};

use crate::abi::Errno;
use crate::assets::notes;
use crate::os::{self, EpollEvent, Fd};
use crate::request::op::Caps;
use crate::request::{FileHold, RequestId};
use crate::ring::Core;
use crate::ring::drive::BATCH;
use crate::ring::drive::readiness::ALL_EVENTS;
use crate::wait::Driver;

/// A poll with the descriptor that is to be its own.
struct Heir {
    poll: RequestId,
    own: Fd,
    /// The entry of that descriptor.
    index: u32,
}

impl Core {
    /// `fd` is about to be closed: gives multishot polls that wait for it descriptors of their own. Those that remain,
    /// since a thread sleeps in epoll or a resource is lacking, are left to the caller, and may be told of an edge twice.
    pub(super) fn hand_polls_over(&mut self, fd: Fd, index: u32) {
        let polls = self.waiting_polls(index);
        // A driver that sleeps may have taken an edge out of epoll that nobody has been told of.
        let driver_sleeps = matches!(self.token.driver(), Driver::Caller | Driver::SqThread);
        if polls.is_empty() || driver_sleeps || !os::poll_now(fd, ALL_EVENTS).is_ok_and(|now| now != 0) {
            return;
        }
        let Ok(barrier) = os::epoll_create() else { return };
        let heirs: Vec<Heir> = polls.iter().filter_map(|&poll| self.heir(poll, fd).ok()).collect();
        let new: Vec<u64> = heirs.iter().map(|heir| self.epoll_name(heir.index)).collect();
        let old = self.epoll_name(index);
        self.take_all(|core, events| core.take_without(events, &new));
        for heir in &heirs {
            self.move_wait(index, heir);
        }
        // A wake-up that has reached a new registration and not yet the old one holds the file's queue of waiters:
        // it is over once one more waiter is added.
        let _ = os::epoll_ctl(barrier, EPOLL_CTL_ADD, fd, ALL_EVENTS | EPOLLET, 0);
        os::close(barrier);
        self.take_all(|core, events| core.take_and_pass_on(events, old, &new));
    }

    /// The multishot polls that wait by a registration.
    fn waiting_polls(&self, index: u32) -> Vec<RequestId> {
        let waiters = self.readiness.entries[index as usize].waiters.as_slice();
        let repeats = |id: &RequestId| {
            let request = &self.requests[*id];
            request.op.caps.has(Caps::POLLS) && request.sqe.op_flags & EPOLLONESHOT == 0
        };
        waiters.iter().map(|waiter| waiter.id).filter(repeats).collect()
    }

    fn heir(&mut self, poll: RequestId, fd: Fd) -> Result<Heir, Errno> {
        let own = notes::duplicate(fd)?;
        let index = self.watch(own).inspect_err(|_| os::close(own))?;
        Ok(Heir { poll, own, index })
    }

    fn epoll_name(&self, index: u32) -> u64 {
        self.readiness.entries[index as usize].data(index)
    }

    /// Takes what epoll has to report now. Each registration is reported once, unless more happens meanwhile.
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

    /// Takes events, those of new registrations left out.
    fn take_without(&mut self, events: &mut [EpollEvent], new: &[u64]) {
        let mut kept = 0;
        for at in 0..events.len() {
            if !new.contains(&{ events[at].data }) {
                events[kept] = events[at];
                kept += 1;
            }
        }
        self.take_events(&events[..kept]);
    }

    /// Takes events; those of the old registration are for the new ones, too.
    fn take_and_pass_on(&mut self, events: &mut [EpollEvent], old: u64, new: &[u64]) {
        self.take_events(events);
        for event in events.iter().filter(|event| { event.data } == old) {
            new.iter().for_each(|&data| self.readiness_event(data, event.events));
        }
    }

    /// A poll has a file of its own from now on, and if it still waits, by the registration of that.
    fn move_wait(&mut self, old: u32, heir: &Heir) {
        let waiter = self.readiness.entries[old as usize].waiters.remove(heir.poll);
        self.requests[heir.poll].file = FileHold::Owned(heir.own);
        if let Some(waiter) = waiter {
            self.readiness.entries[heir.index as usize].waiters.push(waiter);
        }
    }
}
