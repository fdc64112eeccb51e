//! Chains: the links behind a request, and the LINK_TIMEOUT that watches it; drains, which hold chains back; trains.

use core::mem;

use anyring_trace::event::Step;
use linux_raw_sys::net::{MSG_NOSIGNAL, MSG_WAITALL};

use crate::abi::Errno;
use crate::request::data::OpData;
use crate::request::data::net::Data;
use crate::request::order::NO_MATTER;
use crate::request::{Flags, Phase, Request, RequestId};
use crate::ring::Core;

impl Core {
    /// Continues or fails the chain behind a completed request, and ends its LINK_TIMEOUT.
    pub(super) fn end_link(&mut self, id: RequestId) {
        self.disarm_link_timeout(id);
        let flags = self[id].flags;
        if flags.has(Flags::FAILED) && !flags.has(Flags::HARDLINK) {
            self.fail_links(id);
        }
        if let Some(next) = self[id].link.take() {
            // With `DEFER_TASKRUN`, the submitting thread continues the chain.
            if flags.has(Flags::THREADED) && !self.defers() {
                self[next].flags.set(Flags::THREADED);
            }
            self.attempt(next).make_ready();
        }
    }

    /// Completes the LINK_TIMEOUT behind `id`, armed or not, with `-ECANCELED`.
    fn disarm_link_timeout(&mut self, id: RequestId) {
        if self[id].flags.has(Flags::ARM_LINK_TIMEOUT) {
            let request = &mut self[id];
            request.flags.clear(Flags::ARM_LINK_TIMEOUT);
            if let Some(timeout) = request.link.take() {
                let next = self[timeout].link.take();
                self[id].link = next;
                self[timeout].partner = None;
                self.complete(timeout, Errno::ECANCELED.negated());
            }
        } else if let Some(timeout) = self[id].partner.take()
            && let Some(request) = self.requests_mut().get_mut(timeout)
        {
            request.partner = None;
            self.time_mut().timers.cancel(timeout);
            self.complete(timeout, Errno::ECANCELED.negated());
        }
    }

    /// Arms the LINK_TIMEOUT behind a request that was issued and has not completed.
    pub(super) fn arm_link_timeout(&mut self, id: RequestId) {
        let request = &mut self[id];
        request.flags.clear(Flags::ARM_LINK_TIMEOUT);
        let Some(timeout) = request.link.take() else { return };
        request.partner = Some(timeout);
        let next = self[timeout].link.take();
        self[id].link = next;
        self[timeout].partner = Some(id);
        self.issue(timeout);
    }

    /// Fails all links behind a failed request.
    fn fail_links(&mut self, id: RequestId) {
        let skip = self[id].flags.has(Flags::SKIP_LINK_CQES);
        let mut next = self[id].link.take();
        while let Some(link) = next {
            let request = &mut self[link];
            next = request.link.take();
            request.partner = None;
            request.flags.clear(Flags::ARM_LINK_TIMEOUT);
            if !request.flags.has(Flags::FAILED_EARLY) {
                request.result = Errno::ECANCELED.negated();
            }
            request.flags.set(Flags::FAILED_EARLY.with(Flags::NEVER_FAILS));
            if skip {
                request.flags.set(Flags::CQE_SKIP);
            } else {
                request.flags.clear(Flags::CQE_SKIP);
            }
            self.attempt(link).make_ready();
        }
    }

    /// Returns the number of requests in the chain with the head `id`.
    pub(super) fn chain_length(&self, id: RequestId) -> usize {
        let mut length = 1;
        let mut at = id;
        while let Some(next) = self[at].link {
            length += 1;
            at = next;
        }
        length
    }
}

impl Core {
    /// Begins a drain at an SQE with DRAIN. In a chain, the drain applies to the head, and to the request after the chain.
    pub(in crate::request) fn start_drain(&mut self, id: RequestId) {
        let head = self.order().assembly.head();
        self.order_mut().drain.begin(head.is_some());
        self[id].flags.set(Flags::DRAIN);
        if let Some(head) = head {
            self[head].flags.set(Flags::DRAIN.with(Flags::THREADED));
        }
    }

    /// Holds back a chain, unless it can start immediately.
    pub(in crate::request) fn defer(&mut self, id: RequestId) {
        let drains = self[id].flags.has(Flags::DRAIN);
        self[id].phase = Phase::Deferred;
        self.trace_step(id, Step::Deferred, 0);
        let length = self.chain_length(id);
        self.order_mut().drain.hold(id, length);
        self.run_deferred();
        if !drains && self.order().drain.holds_nothing() {
            self.order_mut().drain.active = false;
        }
    }

    /// Starts the chains that need not wait any longer, in order, after requests have ended.
    #[inline(always)]
    pub(crate) fn run_deferred(&mut self) {
        if !self.order().drain.holds_nothing() {
            self.run_some_deferred();
        }
    }

    fn run_some_deferred(&mut self) {
        let mut first = true;
        let mut drain_seen = false;
        while let Some(&id) = self.order().drain.held.front() {
            drain_seen |= self[id].flags.has(Flags::DRAIN);
            if (first || drain_seen) && self.requests().live() != self.order().drain.held_requests {
                return;
            }
            first = false;
            let length = self.chain_length(id);
            self.order_mut().drain.let_go(length);
            self.attempt(id).make_ready();
        }
    }
}

impl Request {
    /// Returns the length of a request that may join a train: an ordinary send.
    pub fn length_in_train(&self) -> Option<u32> {
        let OpData::Net(Data::Transfer(transfer)) = &self.data else { return None };
        // `MSG_WAITALL` may differ: the rest of a stream's send is handled by that send alone, and a datagram leaves
        // as a whole or not at all.
        let plain = Flags::of_sqe(self.sqe.flags & !1) == Flags::default()
            && !self.flags.has(Flags::FAILED_EARLY)
            && self.sqe.ioprio & !NO_MATTER == 0
            && self.sqe.personality == 0
            && transfer.progress.flags & !MSG_WAITALL == MSG_NOSIGNAL
            && transfer.to.is_none();
        (plain && (1..=self.op.together_bytes).contains(&transfer.length)).then_some(transfer.length)
    }
}

impl Core {
    /// Sends the train before a request starts that does not join it.
    #[inline]
    pub(in crate::request) fn let_train_go_before(&mut self, id: RequestId) {
        if !self.order().train.is_empty() && !self.joins_train(id) {
            self.let_train_go();
        }
    }

    fn joins_train(&self, id: RequestId) -> bool {
        let (request, train) = (&self[id], &self.order().train);
        let head = &self[train.held[0]].sqe;
        request.sqe.first_word() == head.first_word()
            && request.length_in_train().is_some_and(|length| train.takes(length))
    }

    /// Sends the train.
    pub(crate) fn let_train_go(&mut self) {
        let mut held = mem::take(&mut self.order_mut().train.held);
        if let Some(&head) = held.first()
            && let Some(depart) = self.row(head).together
        {
            if self.instruments().traced.is_on() {
                held.iter().for_each(|&id| self.trace_step(id, Step::InTrain, held.len() as u32));
            }
            depart(self, &held);
        }
        held.clear();
        // Requests that waited for these sends may have begun another train.
        if self.order().train.is_empty() {
            self.order_mut().train.held = held;
        }
    }
}
