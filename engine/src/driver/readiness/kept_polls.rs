//! Multishot polls whose descriptor is closed. They go on with a duplicate, but to register that makes epoll report what
//! the file is ready for at the moment, and of that they have told. So both descriptors are registered for a while: the
//! duplicate's first report falls on nobody, and all that either of them reports behind it is an edge.

use alloc::vec::Vec;

use linux_raw_sys::general::EPOLL_CTL_DEL;

use super::Known;
use crate::driver::{BATCH, Driver};
use crate::request::{FileHold, RequestId};
use crate::ring::Core;
use crate::sys::{self, EpollEvent, Fd};

/// A poll with the duplicate that it is going to wait on.
struct Kept {
    id: RequestId,
    events: u32,
    own: Fd,
}

/// What epoll called a registration that is gone, and calls the one that stands for it.
pub(super) struct Moved {
    from: u64,
    to: u64,
}

impl Core {
    /// Lets the multishot polls that wait on `fd`, which is about to be closed, wait on duplicates. One that cannot
    /// have any stays where it is.
    pub(super) fn keep_polls(&mut self, fd: Fd) {
        let Some(Known(old)) = self.readiness.known(fd) else { return };
        let entry = &self.readiness.entries[old as usize];
        let from = entry.data(old);
        let polls = entry.waiters.as_slice().iter().filter(|waiter| self.posts_per_edge(waiter.id));
        let polls: Vec<_> = polls.map(|waiter| (waiter.id, waiter.events)).collect();
        let watch = |(id, events)| Some(Kept { id, events, own: self.watch_duplicate(fd)? });
        let kept: Vec<Kept> = polls.into_iter().filter_map(watch).collect();
        if kept.is_empty() {
            return;
        }
        self.harvest_all();
        // Edges among these are the old registration's, too.
        kept.iter().for_each(|poll| self.readiness.drained(poll.own, u32::MAX));
        self.harvest_all();
        for poll in kept {
            self.leave_word(from, poll.own);
            self.move_poll(poll);
        }
        self.unregister(fd);
        // What was fetched here may have been about to wake a sleeper.
        self.kick_driver();
    }

    /// A duplicate, registered.
    fn watch_duplicate(&mut self, fd: Fd) -> Option<Fd> {
        let own = sys::duplicate(fd).ok()?;
        if self.watch(own).is_err() {
            sys::close(own);
            return None;
        }
        Some(own)
    }

    /// Takes all that epoll has to report.
    fn harvest_all(&mut self) {
        let Some(epoll) = self.readiness.epoll else { return };
        let mut events = [EpollEvent { events: 0, data: 0 }; BATCH];
        loop {
            let count = sys::epoll_wait(epoll, &mut events, Some(0), None).unwrap_or(0);
            self.take_events(&events[..count]);
            if count < BATCH {
                return;
            }
        }
    }

    /// From here on a poll waits on its duplicate; it is told of the edges that this has shown.
    fn move_poll(&mut self, Kept { id, events, own }: Kept) {
        let edges = self.readiness.find(own).map_or(0, |new| self.readiness.entries[new as usize].ready);
        let waited = self.disarm(id);
        self.requests[id].file = FileHold::Owned(own);
        if !waited {
            // It was woken already, and is going to tell of everything at once.
            self.requests[id].events |= edges;
        } else if self.arm_poll(id, events, false).is_err() {
            self.make_ready(id);
        } else if let Some(new) = self.readiness.find(own) {
            self.wake_waiters(new, edges);
        }
    }

    fn unregister(&mut self, fd: Fd) {
        if let (Some(epoll), Some(old)) = (self.readiness.epoll, self.readiness.find(fd)) {
            let _ = sys::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, 0, 0);
            self.readiness.entries[old as usize].registered = false;
        }
    }

    /// A driver that sleeps may have fetched an edge already, and has yet to come for the lock.
    fn leave_word(&mut self, from: u64, own: Fd) {
        let asleep = self.token.driver() == Driver::Caller || self.sq_asleep;
        if let (true, Some(new)) = (asleep, self.readiness.find(own)) {
            let to = self.readiness.entries[new as usize].data(new);
            self.readiness.moved.push(Moved { from, to });
        }
    }

    /// epoll had reported `bits` for a registration before it was given up: passes them on to those that stand for
    /// it. False where there are none.
    pub(super) fn pass_to_heirs(&mut self, data: u64, bits: u32) -> bool {
        let moved = self.readiness.moved.iter().filter(|moved| moved.from == data);
        let heirs: Vec<u64> = moved.map(|moved| moved.to).collect();
        heirs.iter().for_each(|&heir| self.readiness_event(heir, bits));
        !heirs.is_empty()
    }
}
