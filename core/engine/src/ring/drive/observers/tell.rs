//! Notifying observers of completions.

use linux_raw_sys::io_uring::{IORING_CQ_EVENTFD_DISABLED, IORING_SETUP_TASKRUN_FLAG, IORING_SQ_TASKRUN};

use crate::abi::layout::Word;
use crate::os::{self, Fd};
use crate::queue::RingMemory;
use crate::ring::drive::observers::Observers;
use crate::ring::drive::reactor::{self};
use crate::ring::{Core, Lent};

/// True if the program has disabled its eventfd.
fn is_eventfd_disabled(memory: &RingMemory) -> bool {
    memory.load(Word::CqFlags, 0) & IORING_CQ_EVENTFD_DISABLED != 0
}

impl Observers {
    /// Signals the program's eventfd, unless the program has disabled it.
    pub(in crate::ring) fn signal_eventfd(&mut self, memory: &RingMemory) {
        if is_eventfd_disabled(memory) {
            return;
        }
        // Before the signal: the woken thread may read the mark at once.
        self.rung = true;
        if let Some(eventfd) = &self.eventfd {
            eventfd.signal();
        }
    }
}

impl Core {
    /// Notifies sleepers and observers of what was posted since the last time. Must be called before the lock is released, wherever
    /// something may have been posted.
    #[inline]
    pub fn notify(&mut self) {
        if !self.count_news() {
            return;
        }
        if self.drive.observers.are_any() {
            self.notify_observers();
        }
        if self.drive.token.is_awaited() {
            self.drive.wake_sleepers(self.queues.cq.tail());
        }
        if self.shared.has_page() {
            self.shared.tell_others();
        }
    }

    /// Notifies everyone except sleeping callers.
    #[inline(never)]
    fn notify_observers(&mut self) {
        if self.is_eventfd_to_signal() {
            self.drive.observers.signalled_at = self.queues.cq.tail();
            self.drive.observers.signal_eventfd(&self.queues.memory);
        }
        if self.drive.observers.stand_in.is_some() {
            self.signal_readiness();
            self.drive.observers.pollers_wait = !self.drive.observers.pollers.is_empty();
        }
        if self.drive.observers.outlet.is_some() {
            self.pour_out();
        }
    }

    /// Notifies the observers of a DEFER_TASKRUN ring that `enter` has something to fetch.
    pub fn notify_deferred(&mut self) {
        if self.is(IORING_SETUP_TASKRUN_FLAG) {
            self.queues.memory.change_sq_flags(IORING_SQ_TASKRUN, 0);
        }
        if let Some(eventfd) = self.drive.observers.eventfd()
            && !self.only_waits_for(eventfd)
        {
            self.drive.observers.signal_eventfd(&self.queues.memory);
        }
        self.signal_readiness();
        self.disturb_driver();
    }

    /// True if all that is ready waits for the registered eventfd itself. Its observers know already, and a request that reads the eventfd
    /// must find the count that woke it.
    fn only_waits_for(&self, eventfd: Fd) -> bool {
        !self.order.ready.is_empty()
            && self.work.finished() == 0
            && self.next_timer_ns() != Some(0)
            && self
                .order
                .ready
                .iter()
                .filter_map(|id| self.requests.get(id))
                .all(|r| os::same_file(r.file.fd(), eventfd))
    }

    /// Has the outlet take the completions, including those that found no room in the ring.
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

    /// True if the program's eventfd is to be signalled for what was posted just now: not if all of it found no room in the ring.
    fn is_eventfd_to_signal(&self) -> bool {
        self.drive.observers.is_eventfd_to_signal()
            && self.queues.cq.tail() != self.drive.observers.signalled_at
            && !is_eventfd_disabled(&self.queues.memory)
    }

    /// Makes the stand-in readable, which wakes pollers of the ring's descriptor. In the descriptor's place it stays readable until it is
    /// drained here. An edge is made for each completion, except for those posted in a call that waits for them: most of the time nothing
    /// has to be done.
    pub(super) fn signal_readiness(&mut self) {
        let Some(fd) = self.drive.observers.stand_in else { return };
        let common = self.shared.common_stand_in_is_readable();
        let known = !self.shared.has_page() || common.is_some();
        if known && self.drive.observers.awaited && self.drive.observers.shows_readable(common) {
            return;
        }
        if self.drive.observers.readable && self.has_only_lookers() {
            // Whoever polls is awake already, or wakes by a signal of the kernel that comes.
            return;
        }
        // Before the signal: the woken thread may take the completions, and look for the flag, before this thread runs again.
        self.mark_shown();
        // The signal fails if this process's descriptor of the stand-in was closed; other processes may still have theirs.
        let signalled = os::eventfd_signal(fd);
        self.drive.observers.readable = signalled;
        self.light();
        self.shared.tell_of_stand_in(signalled);
        if self.drive.observers.may_be_stale() {
            reactor::attend_stale(self);
        }
    }

    /// True if all threads that poll the stand-in are lookers, and no other process has it.
    fn has_only_lookers(&self) -> bool {
        self.drive.observers.are_lookers() && !self.shared.has_page()
    }

    /// Has `drain` reset the stand-in, so that it is not readable.
    pub(super) fn drain_stand_in(&mut self, drain: fn(Fd)) {
        let Some(fd) = self.drive.observers.stand_in else { return };
        let was_readable = core::mem::take(&mut self.drive.observers.readable);
        if !was_readable && self.has_only_lookers() {
            // If the kernel has signalled it meanwhile, whoever polls looks, and drains it.
            return;
        }
        self.put_out_own();
        // Before the drain: if the process dies in between, the stand-in is readable for too long, but not silent for ever.
        self.shared.tell_of_stand_in(false);
        drain(fd);
    }

    /// Sets `IORING_SQ_TASKRUN` if the stand-in is in the place of the ring's descriptor. A program that finds the CQ empty then enters;
    /// otherwise the stand-in would stay readable.
    fn mark_shown(&self) {
        if self.drive.observers.shown {
            self.queues.memory.change_sq_flags(IORING_SQ_TASKRUN, 0);
        }
    }

    /// Clears `IORING_SQ_TASKRUN`: the program has entered, and there are no completions.
    pub(super) fn unmark_shown(&mut self) {
        self.drive.observers.looked = true;
        if self.drive.observers.shown {
            self.queues.memory.change_sq_flags(0, IORING_SQ_TASKRUN);
            self.mark_task_work();
        }
    }
}

impl Lent {
    /// True if what was posted just now is going to signal the program's eventfd.
    pub fn is_about_to_signal(&self) -> bool {
        self.core().is_eventfd_to_signal()
    }

    /// True if `fd` is the program's eventfd.
    pub fn is_own_eventfd(&self, fd: Fd) -> bool {
        let core = self.core();
        core.drive.observers.eventfd().is_some_and(|own| os::same_file(own, fd))
    }
}
