//! Lets requests join a train, and lets the train depart.

use core::mem;

use anyring_trace::event::Step;
use linux_raw_sys::net::{MSG_NOSIGNAL, MSG_WAITALL};

use crate::request::data::OpData;
use crate::request::data::net::Data;
use crate::request::train::NO_MATTER;
use crate::request::{Flags, Request, RequestId};
use crate::ring::Core;

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
