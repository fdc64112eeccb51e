//! The notification of a zero-copy send: its second CQE, which returns the memory to the program.
//!
//! As in the kernel, a notification is a request of its own, so that a drain waits for it; no cancellation finds it. The notification of a
//! send without a request is only counted ([`Announced`]), until it must wait for its turn and becomes a request.

use linux_raw_sys::io_uring::IORING_CQE_F_NOTIF;

use crate::abi::{Errno, Sqe};
use crate::feature::zero_copy_send::{Announced, usage, user_data};
use crate::queue::Cqe;
use crate::request::data::OpData;
use crate::request::data::net::{Data, Pages};
use crate::request::{Flags, Request, RequestId};
use crate::ring::row::NOTIFICATION;
use crate::ring::{Attempt, Core, Lent};

impl Request {
    /// True if the request is the notification of another request.
    pub(crate) fn is_notification(&self) -> bool {
        core::ptr::eq(self.op, &raw const NOTIFICATION.op)
    }

    /// True if the request failed because another request of its chain failed.
    pub(crate) fn fell_with_its_chain(&self) -> bool {
        self.flags.has(Flags::FAILED_EARLY) && self.flags.has(Flags::NEVER_FAILS)
    }
}

impl Core {
    fn new_notification(&mut self, user_data: u64, usage: i32) -> Result<RequestId, Errno> {
        let sqe = || Sqe { user_data, ..Sqe::default() };
        let notification = self.requests_mut().insert(sqe, |_| &NOTIFICATION.op)?;
        let request = &mut self[notification];
        request.flags = Flags::NEVER_FAILS;
        request.cqe_flags = IORING_CQE_F_NOTIF;
        request.result = usage;
        Ok(notification)
    }

    /// Announces the end of a send without a request, whose notification has been counted.
    #[inline]
    pub(in crate::feature::zero_copy_send) fn announce_expected(&mut self, notification: Announced) {
        if !self.zero_copy_mut().announce(notification) {
            self.requests_mut().end_beside(1);
            self.post_announced_one(notification);
        }
    }

    /// Posts announced notifications, after the completions of the sends that were made together.
    #[inline]
    pub fn post_announced(&mut self) {
        if self.zero_copy().has_announced() {
            self.take_announced(true);
        }
    }

    /// Makes requests of announced notifications, to be posted in their turn, because another request follows
    /// the sends (perhaps a drain, which waits for the notifications).
    #[inline]
    pub fn list_announced(&mut self) {
        if self.zero_copy().has_announced() {
            self.take_announced(false);
        }
    }

    fn take_announced(&mut self, at_once: bool) {
        // If completions are deferred, the next call that reaps posts the notifications.
        let at_once = at_once && !(self.defers() && self.readiness().is_eager());
        let mut announced = self.zero_copy_mut().take_announced();
        self.requests_mut().end_beside(announced.len());
        for one in announced.drain(..) {
            // If the CQ is full, notifications are posted when the program has made room.
            if !(at_once && self.order().ready.is_empty() && self.queues().has_room())
                && let Ok(notification) = self.new_notification(one.user_data, one.result)
            {
                self[notification].registered_buffer = one.buffer;
                self.attempt(notification).make_ready();
            } else {
                self.post_announced_one(one);
            }
        }
        self.zero_copy_mut().keep_room(announced);
        self.run_deferred();
    }

    #[inline]
    fn post_announced_one(&mut self, one: Announced) {
        self.post_notification(one.user_data, one.result);
        if let Some(node) = one.buffer {
            self.release_buffer(node);
        }
    }

    fn post_notification(&mut self, user_data: u64, res: i32) {
        self.post(Cqe { user_data, res, flags: IORING_CQE_F_NOTIF, big: [0; 2] });
    }

    /// Notes that the pages of one system call are free.
    pub(in crate::feature::zero_copy_send) fn piece_is_free(
        &mut self,
        notification: RequestId,
        copied: bool,
    ) {
        let Some(request) = self.requests_mut().get_mut(notification) else { return };
        let OpData::Net(Data::Pages(pages)) = &mut request.data else { return };
        pages.out -= 1;
        pages.copied |= copied;
        if pages.out == 0 && pages.ended {
            self.finish_notification(notification);
        }
    }

    fn finish_notification(&mut self, notification: RequestId) {
        let request = &mut self[notification];
        if let OpData::Net(Data::Pages(Pages { copied: false, .. })) = request.data {
            request.result = 0;
        }
        if request.flags.has(Flags::CHAOS) && self.delay_notification(notification) {
            return;
        }
        self.attempt(notification).make_ready();
    }
}

impl Lent {
    /// Announces the end of a send without a request, whose data was copied.
    #[inline]
    pub fn announce_copied(&mut self, sqe: &Sqe) {
        let core = self.core_mut();
        core.requests_mut().count_beside();
        core.announce_expected(Announced::of(sqe, None));
    }
}

impl Attempt<'_> {
    /// Announces that a send does not need its memory any longer: the notification follows.
    pub fn announce(&mut self) {
        let (core, id) = self.core_mut();
        core[id].flags.clear(Flags::NOTIFIES);
        match core.attempt(id).notification() {
            Ok(notification) => match &mut core[notification].data {
                OpData::Net(Data::Pages(pages)) if pages.out > 0 => pages.ended = true,
                _ => core.finish_notification(notification),
            },
            Err(_) => {
                let request = &core[id];
                core.post_notification(user_data(&request.sqe), usage(request.sqe.ioprio));
            }
        }
    }
    /// Returns the notification of a send, which is created if there is none. If the program asked for it,
    /// the notification reports a copy, until a notice says otherwise.
    ///
    /// # Errors
    /// `EAGAIN` if no request can be created.
    pub fn notification(&mut self) -> Result<RequestId, Errno> {
        let (core, id) = self.core_mut();
        let request = &core[id];
        if let Some(notification) = request.notification {
            return Ok(notification);
        }
        let (user_data, usage) = (user_data(&request.sqe), usage(request.sqe.ioprio));
        let notification = core.new_notification(user_data, usage)?;
        let Request { serial, flags, .. } = core[id];
        core[id].notification = Some(notification);
        let watched = Flags::TRACED.with(Flags::CHAOS);
        if flags.has(watched) {
            core[notification].serial = serial;
            core[notification].flags.set(flags.and(watched));
        }
        Ok(notification)
    }

    /// Notes that a part of a send was copied.
    pub fn piece_is_copied(&mut self) {
        let (core, id) = self.core_mut();
        if let Some(notification) = core[id].notification
            && let OpData::Net(Data::Pages(pages)) = &mut core[notification].data
        {
            pages.copied = true;
        }
    }
}
