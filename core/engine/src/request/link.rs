//! Chains: the links behind a request, and the LINK_TIMEOUT that watches it.

use crate::abi::Errno;
use crate::request::{Flags, RequestId};
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
            self.make_ready(next);
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
            self.make_ready(link);
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
