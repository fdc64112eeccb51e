//! `IOSQE_IO_DRAIN`: a request that waits for all before it, and that all behind it wait for.
//!
//! As in the kernel (`io_drain_req`, `io_queue_deferred` since 6.16): while a drain is in force,
//! chains queue up; the first of them, and every draining one, starts when no request lives that is
//! not queued here itself.

use crate::request::{Flags, Phase, RequestId};
use crate::ring::Core;

impl Core {
    /// An SQE with DRAIN was met. In a chain the drain applies to the head, and to what follows the chain.
    pub(super) fn start_drain(&mut self, id: RequestId) {
        self.drain_active = true;
        self.requests[id].flags.set(Flags::DRAIN);
        if let Some(chain) = self.chain {
            self.drain_next = true;
            self.requests[chain.head].flags.set(Flags::DRAIN.with(Flags::THREADED));
        }
    }

    /// Holds back a chain, if it has to be.
    pub(super) fn defer(&mut self, id: RequestId) {
        let drains = self.requests[id].flags.has(Flags::DRAIN);
        self.requests[id].phase = Phase::Deferred;
        self.deferred_requests += self.chain_length(id);
        self.deferred.push_back(id);
        self.run_deferred();
        if !drains && self.deferred.is_empty() {
            self.drain_active = false;
        }
    }

    /// Starts the chains that need not wait any longer.
    pub(super) fn run_deferred(&mut self) {
        let mut first = true;
        let mut drain_seen = false;
        while let Some(&id) = self.deferred.front() {
            drain_seen |= self.requests[id].flags.has(Flags::DRAIN);
            if (first || drain_seen) && self.requests.live() != self.deferred_requests {
                return;
            }
            first = false;
            self.deferred.pop_front();
            self.deferred_requests -= self.chain_length(id);
            self.make_ready(id);
        }
    }
}
