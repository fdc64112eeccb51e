//! Requests join a train here, or have it leave.

use core::mem;

use anyring_trace::event::Step;
use linux_raw_sys::net::{MSG_NOSIGNAL, MSG_WAITALL};

use crate::request::data::OpData;
use crate::request::data::net::Data;
use crate::request::train::NO_MATTER;
use crate::request::{Flags, Request, RequestId};
use crate::ring::Core;

impl Request {
    /// The length of a request that may go together with others: nothing about it is out of the ordinary.
    pub fn length_in_train(&self) -> Option<u32> {
        let OpData::Net(Data::Transfer(transfer)) = &self.data else { return None };
        // The rest of a stream's send is that send's own affair, and a datagram leaves as a whole or not at all: they
        // may differ in `MSG_WAITALL`.
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
    /// Before a request starts that does not join those held back, they go.
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

    /// Sends what is held back.
    pub(in crate::request) fn let_train_go(&mut self) {
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
        // Requests that waited for these may have begun another train.
        if self.order().train.is_empty() {
            self.order_mut().train.held = held;
        }
    }
}
