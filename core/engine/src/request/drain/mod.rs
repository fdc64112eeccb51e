//! `IOSQE_IO_DRAIN`: a request that starts after all earlier requests have completed, and before any later one starts.
//!
//! As in the kernel (`io_drain_req`, `io_queue_deferred` since 6.16): while a drain is in force,
//! chains are queued. The first one starts when all live requests are queued here; so does every
//! later chain from a draining one on.

mod defer;

use alloc::collections::VecDeque;

use crate::request::RequestId;

/// The requests that drains of a ring hold back.
#[derive(Default)]
pub struct Drain {
    /// Heads of chains that are held back, in order.
    held: VecDeque<RequestId>,
    /// Number of requests in these chains.
    held_requests: usize,
    /// A drain is in force.
    active: bool,
    /// The request after the chain under assembly drains, too.
    after_chain: bool,
    /// A request with CQE_SKIP was submitted: drains are refused from then on, as by the kernel.
    refused: bool,
}

impl Drain {
    /// True if no chain is held back.
    #[inline]
    pub fn holds_nothing(&self) -> bool {
        self.held.is_empty()
    }

    /// True if no drain is in force or about to be, and no chain is held back.
    #[inline]
    pub fn is_idle(&self) -> bool {
        debug_assert!(self.active || self.held.is_empty(), "only a drain in force holds chains back");
        !(self.active || self.after_chain)
    }

    /// True if newly submitted chains must be queued.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Makes the ring refuse drains from now on.
    pub fn refuse(&mut self) {
        self.refused = true;
    }

    /// True if the ring refuses drains.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Begins a drain. If it is `in_chain`, the request after the chain drains, too.
    fn begin(&mut self, in_chain: bool) {
        self.active = true;
        self.after_chain |= in_chain;
    }

    /// True, once, if a drain in the previous chain applies to this request, the first one behind the chain.
    pub fn continues(&mut self) -> bool {
        if !self.after_chain {
            return false;
        }
        self.after_chain = false;
        self.active = true;
        true
    }

    /// Holds back a chain of `length` requests.
    fn hold(&mut self, head: RequestId, length: usize) {
        self.held_requests += length;
        self.held.push_back(head);
    }

    /// Removes the first chain, which has `length` requests.
    fn let_go(&mut self, length: usize) {
        self.held.pop_front();
        self.held_requests -= length;
    }

    /// Removes all chains, and returns their heads.
    pub fn clear(&mut self) -> VecDeque<RequestId> {
        self.held_requests = 0;
        core::mem::take(&mut self.held)
    }
}
