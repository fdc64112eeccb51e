//! The short way of requests about which nothing is out of the ordinary: an attempt is made by the SQE alone,
//! and only where it does not complete there is a request at all. Messages on connections go this way; what it
//! costs beside their system calls is what a server on epoll does not pay.

use linux_raw_sys::io_uring::IORING_SETUP_IOPOLL;

use super::{FileHold, Flags, RequestId};
use crate::coverage;
use crate::credentials::{self, Whose};
use crate::errno::{Errno, to_res};
use crate::memory::{Cqe, Sqe};
use crate::ops::{self, Op, Outcome, Quick, Tried};
use crate::ring::Core;
use crate::sys::Fd;

impl Core {
    /// Takes the SQE at `index` the short way. False where it has to go the ordinary one; then nothing was done.
    #[inline]
    pub(super) fn submit_quickly(&mut self, index: u32) -> bool {
        let [opcode, flags, ..] = self.memory.first_word(index).to_ne_bytes();
        let op = ops::lookup(opcode);
        let Some(quick) = &op.quick else { return false };
        let flags = Flags::of_sqe(flags);
        if flags.has_other_than(Flags::FIXED_FILE) || !self.is_at_ease() {
            return false;
        }
        let sqe = self.memory.sqe(index);
        if (sqe.opcode, sqe.flags, sqe.personality) != (opcode, flags.sqe(), 0) {
            return false;
        }
        let fd = if flags == Flags::default() { Some(sqe.fd) } else { self.files.get(sqe.fd as u32) };
        let Some(fd) = fd else { return false };
        match (quick.attempt)(self, &sqe, fd) {
            Tried::Nothing => false,
            Tried::Done(result, flags) => {
                self.tell(op, sqe.user_data, result, flags);
                true
            }
            tried => self.go_on_as_request(&sqe, quick, tried),
        }
    }

    /// Is nothing going on in the ring that a request would have to take notice of?
    #[inline(always)]
    fn is_at_ease(&self) -> bool {
        self.chain.is_none()
            && !(self.drain_active || self.drain_next)
            && self.deferred.is_empty()
            && self.train.is_empty()
            && self.closing_fds.is_empty()
            && self.restrictions.is_none()
            && !self.is(IORING_SETUP_IOPOLL)
            && !credentials::matter()
    }

    #[inline(never)]
    fn tell(&mut self, op: &Op, user_data: u64, result: i32, flags: u32) {
        coverage::seen(op, result);
        self.post(Cqe { user_data, res: result, flags, ..Cqe::default() });
    }

    /// An attempt did not complete it: from here on it is a request.
    #[inline(never)]
    fn go_on_as_request(&mut self, sqe: &Sqe, quick: &Quick, tried: Tried) -> bool {
        let Ok(id) = self.requests.insert(|| *sqe) else {
            let Tried::Attempt(result) = tried else { return false };
            self.tell(ops::lookup(sqe.opcode), sqe.user_data, to_res(result), 0);
            return true;
        };
        self.requests[id].flags.set(Flags::UNPREPARED);
        match self.file(id) {
            Ok(fd) => self.go_on(id, fd, quick, tried),
            Err(errno) => self.complete(id, errno.negated()),
        }
        true
    }

    /// Acts on what an attempt by the SQE came to.
    #[inline]
    fn go_on(&mut self, id: RequestId, fd: Fd, quick: &Quick, tried: Tried) {
        let outcome = match tried {
            Tried::Wait(events, Some(known)) => return self.arm_known(id, known, events),
            Tried::Wait(events, None) => Outcome::Wait(events),
            Tried::Done(result, flags) => {
                self.requests[id].flags.clear(Flags::UNPREPARED);
                self.requests[id].cqe_flags |= flags;
                Outcome::Complete(result)
            }
            Tried::Nothing => return self.issue(id),
            Tried::Attempt(result) => match self.prepare(id) {
                Ok(()) => (quick.go_on)(self, id, fd, result),
                Err(errno) => errno.into(),
            },
        };
        self.settle(id, outcome);
    }

    /// Prepares a request that went the short way up to here.
    #[cold]
    pub(super) fn prepare(&mut self, id: RequestId) -> Result<(), Errno> {
        let request = &mut self.requests[id];
        request.flags.clear(Flags::UNPREPARED);
        (request.op.prep)(self, id)
    }

    /// The next attempt of a request that was woken, if it can go the short way.
    #[inline]
    pub(super) fn issue_quickly(&mut self, id: RequestId) -> bool {
        let request = &self.requests[id];
        let op = request.op;
        let Some(quick) = &op.quick else { return false };
        let is_ordinary = request.whose == Whose::Common && request.file != FileHold::None;
        if !is_ordinary || !self.deferred.is_empty() || credentials::matter() {
            return false;
        }
        if request.flags.are_only(Flags::UNPREPARED, Flags::FIXED_FILE.with(Flags::WOKEN)) {
            self.try_again(id, op, quick);
            return true;
        }
        let others = Flags::FIXED_FILE.with(Flags::WOKEN).with(Flags::BUFFER_SELECT);
        if !request.flags.are_only(Flags::MULTISHOT, others) {
            return false;
        }
        match (quick.more)(self, id) {
            None => return false,
            Some(Outcome::Armed) => {}
            Some(outcome) => self.settle(id, outcome),
        }
        true
    }

    #[inline]
    fn try_again(&mut self, id: RequestId, op: &Op, quick: &Quick) {
        let request = &self.requests[id];
        let (sqe, fd) = (request.sqe, request.file.fd());
        let tried = (quick.again)(self, &sqe, fd);
        if let Tried::Done(result, flags) = tried
            && !matches!(self.requests[id].file, FileHold::Owned(_))
        {
            let file = core::mem::take(&mut self.requests[id].file);
            self.tell(op, sqe.user_data, result, flags);
            if let FileHold::Fixed(node, _) = file {
                self.release_node(node);
            }
            self.requests.remove(id);
        } else {
            self.go_on(id, fd, quick, tried);
        }
    }
}
