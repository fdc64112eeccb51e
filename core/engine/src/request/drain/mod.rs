//! `IOSQE_IO_DRAIN`: a request that waits for all before it, and that all behind it wait for.
//!
//! As in the kernel (`io_drain_req`, `io_queue_deferred` since 6.16): while a drain is in force,
//! chains queue up; the first of them, and every draining one, starts when no request lives that is
//! not queued here itself.

mod defer;

use alloc::collections::VecDeque;

use crate::request::RequestId;

/// The requests that drains of a ring hold back.
#[derive(Default)]
pub struct Drain {
    /// Heads of chains that are held back, in order.
    held: VecDeque<RequestId>,
    /// Requests in those chains.
    held_requests: usize,
    /// A drain is in force.
    active: bool,
    /// The request after the chain under assembly drains.
    after_chain: bool,
    /// A request that skips its CQE was seen: drains are refused from then on, as the kernel does.
    refused: bool,
}

impl Drain {
    /// True if no chain is held back.
    #[inline]
    pub fn holds_nothing(&self) -> bool {
        self.held.is_empty()
    }

    /// True if no drain is in force or about to be, and nothing held back.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !(self.active || self.after_chain) && self.held.is_empty()
    }

    /// True if what is submitted now must wait for its turn.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// From now on the ring refuses drains.
    pub fn refuse(&mut self) {
        self.refused = true;
    }

    /// True if the ring refuses drains.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// A request that drains is submitted, as part of a chain or not. What follows a chain drains too.
    fn begin(&mut self, in_chain: bool) {
        self.active = true;
        self.after_chain |= in_chain;
    }

    /// True if the first request after a chain that drained drains, too. Asked once.
    pub fn continues(&mut self) -> bool {
        if !self.after_chain {
            return false;
        }
        self.after_chain = false;
        self.active = true;
        true
    }

    /// Holds back a chain of so many requests.
    fn hold(&mut self, head: RequestId, length: usize) {
        self.held_requests += length;
        self.held.push_back(head);
    }

    /// The first chain is let go, which has so many requests.
    fn let_go(&mut self, length: usize) {
        self.held.pop_front();
        self.held_requests -= length;
    }

    /// Forgets the chains that are held back, and says which they were.
    pub fn clear(&mut self) -> VecDeque<RequestId> {
        self.held_requests = 0;
        core::mem::take(&mut self.held)
    }
}
