//! Holds back chains because of drains, and starts them.

use anyring_trace::event::Step;

use crate::request::{Flags, Phase, RequestId};
use crate::ring::Core;

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
        if self[id].flags.has(Flags::TRACED) {
            self.trace_step(id, Step::Deferred, 0);
        }
        let length = self.chain_length(id);
        self.order_mut().drain.hold(id, length);
        self.run_deferred();
        if !drains && self.order().drain.holds_nothing() {
            self.order_mut().drain.active = false;
        }
    }

    /// Starts the chains that need not wait any longer, in order.
    pub(crate) fn run_deferred(&mut self) {
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
            self.make_ready(id);
        }
    }
}
