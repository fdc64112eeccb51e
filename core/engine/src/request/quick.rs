//! The short way of ordinary requests: an attempt is made by the SQE alone, and a request is made only if that
//! does not complete. It is for messages on connections: there, all cost beside the system calls is what a
//! server using epoll does not pay.

use linux_raw_sys::io_uring::IORING_SETUP_IOPOLL;

use crate::abi::errno::to_res;
use crate::abi::{Errno, Sqe};
use crate::observe::coverage;
use crate::os::Fd;
use crate::process::credentials::{self, Whose};
use crate::queue::Cqe;
use crate::request::op::{Caps, Op};
use crate::request::{FileHold, Flags, RequestId};
use crate::ring::Core;
use crate::ring::row::{Outcome, Quick, Row, Tried};

impl Core {
    /// Submits the SQE at `index` the short way, with the one linked behind it if that is the only link. False if
    /// the ordinary way is needed; then nothing is done. Only for submissions with the common credentials.
    #[inline]
    pub(super) fn submit_quickly(&mut self, index: u32) -> bool {
        let first = self.queues().memory.first_word(index);
        let [opcode, flags, ..] = first.to_ne_bytes();
        let row = self.identity().table.lookup(opcode);
        let flags = Flags::of_sqe(flags);
        let order = self.order();
        // A chain, a drain or a train goes before.
        if flags.has_other_than(Flags::FIXED_FILE.with(Flags::LINK))
            || order.assembly.head().is_some()
            || !order.drain.is_idle()
            || !order.train.is_empty()
        {
            return false;
        }
        let Some(quick) = &row.quick else {
            return !flags.has(Flags::LINK)
                && !row.caps.has(Caps::WIDE)
                && self.submit_alone(row, index, first);
        };
        if self.work().closes_any() {
            return false;
        }
        let sqe = self.queues().memory.sqe(index);
        // The program may have changed the SQE since the check.
        if sqe.first_word() != first || sqe.personality != 0 {
            return false;
        }
        let fd = if flags.has(Flags::FIXED_FILE) {
            self.resources_mut().files.get(sqe.fd as u32)
        } else {
            Some(sqe.fd)
        };
        let Some(fd) = fd else { return false };
        if flags.has(Flags::LINK) {
            return self.submit_pair(row, quick, &sqe, fd);
        }
        match (quick.attempt)(self, &sqe, fd) {
            Tried::Nothing => false,
            Tried::Done(result, flags) => {
                self.complete_at_once(row, sqe.user_data, result, flags);
                true
            }
            tried => self.go_on_as_request(&sqe, row, quick, tried, None),
        }
    }

    /// Submits the SQE at `index`, whose first word is `first`, as a request that has to respect no other one. False if the ordinary way is
    /// needed.
    #[inline(always)]
    fn submit_alone(&mut self, row: &'static Row, index: u32, first: u64) -> bool {
        let Some(id) = self.insert_prepared(row, index, first) else { return false };
        // The calling thread has the common credentials.
        if self[id].whose == Whose::Common {
            self.issue_here(id, row)
        } else {
            self.issue(id)
        }
        true
    }

    /// Makes and prepares a request for the SQE at `index`. `None` if that fails, or if the SQE's first word is not `first` any more: the
    /// program may have changed it since `row` was found by it.
    #[inline(always)]
    fn insert_prepared(&mut self, row: &'static Row, index: u32, first: u64) -> Option<RequestId> {
        let id = self.insert_request(index, Some(row)).ok()?;
        if self[id].sqe.first_word() == first && self.initialise_alone(id, row).is_ok() {
            return Some(id);
        }
        self.requests_mut().remove(id);
        None
    }

    /// Submits the head of a chain by its SQE. The request linked behind it is prepared first, as on the ordinary way.
    #[inline(never)]
    fn submit_pair(&mut self, op: &'static Op, quick: &Quick, sqe: &Sqe, fd: Fd) -> bool {
        // The order of a request with a notification is different.
        if op.caps.has(Caps::OF_ITS_RING) {
            return false;
        }
        let Some(next) = self.prepare_last() else { return false };
        let taken = match (quick.attempt)(self, sqe, fd) {
            Tried::Nothing => false,
            Tried::Done(result, flags) => {
                self.complete_at_once(op, sqe.user_data, result, flags);
                self.attempt(next).make_ready();
                true
            }
            tried => self.go_on_as_request(sqe, op, quick, tried, Some(next)),
        };
        if taken {
            self.queues_mut().sq.take_next();
        } else {
            self.requests_mut().remove(next);
        }
        taken
    }

    /// Makes and prepares a request for the next SQE of this submission, if it is ordinary and the last of its chain.
    fn prepare_last(&mut self) -> Option<RequestId> {
        let index = self.queues().next_sqe()?;
        let first = self.queues().memory.first_word(index);
        let [opcode, flags, ..] = first.to_ne_bytes();
        // LINK_TIMEOUT needs a request to watch.
        let row = self.identity().table.lookup(opcode);
        if flags != 0 || !row.caps.has(Caps::FILE.with(Caps::AT_ONCE)) || row.caps.has(Caps::WIDE) {
            return None;
        }
        self.insert_prepared(row, index, first)
    }

    /// True if no request of a submission has to be checked for what holds for the whole ring.
    #[inline]
    pub(super) fn submits_quickly(&self) -> bool {
        !self.resources().restrictions.are_there() && !self.is(IORING_SETUP_IOPOLL)
    }

    /// Posts the CQE of an SQE that needs no request.
    #[inline(always)]
    fn complete_at_once(&mut self, op: &Op, user_data: u64, result: i32, flags: u32) {
        coverage::seen(op.code, result);
        self.post(Cqe { user_data, res: result, flags, ..Cqe::default() });
    }

    /// Makes a request because the attempt did not complete. False if no request can be made and nothing is done yet.
    #[inline(never)]
    fn go_on_as_request(
        &mut self,
        sqe: &Sqe,
        op: &'static Op,
        quick: &Quick,
        tried: Tried,
        next: Option<RequestId>,
    ) -> bool {
        let Ok(id) = self.requests_mut().insert(|| *sqe, |_| op) else {
            let Tried::Attempt(result) = tried else { return false };
            self.complete_at_once(op, sqe.user_data, to_res(result), 0);
            if let Some(next) = next {
                self.complete(next, Errno::ECANCELED.negated());
            }
            return true;
        };
        self[id].flags.set(Flags::UNPREPARED);
        if next.is_some() {
            self[id].link = next;
            // A request that waits with a link behind it must be prepared.
            if matches!(tried, Tried::Wait(..))
                && let Err(errno) = self.prepare(id)
            {
                self.complete(id, errno.negated());
                return true;
            }
        }
        match self.attempt(id).file() {
            Ok(fd) => self.go_on(id, fd, quick, tried),
            Err(errno) => self.complete(id, errno.negated()),
        }
        true
    }

    /// Continues a request by the result of an attempt that was made by the SQE.
    #[inline]
    fn go_on(&mut self, id: RequestId, fd: Fd, quick: &Quick, tried: Tried) {
        let outcome = match tried {
            Tried::Wait(events, Some(known)) => return self.attempt(id).arm_known(known, events),
            Tried::Wait(events, None) => Outcome::Wait(events),
            Tried::Done(result, flags) => {
                self[id].flags.clear(Flags::UNPREPARED);
                self[id].cqe_flags |= flags;
                Outcome::Complete(result)
            }
            Tried::Nothing => return self.issue(id),
            Tried::Attempt(result) => match self.prepare(id) {
                Ok(()) => (quick.go_on)(&mut self.attempt(id), fd, result),
                Err(errno) => errno.into(),
            },
        };
        self.settle(id, outcome);
    }

    /// Prepares a request that went the short way so far.
    #[cold]
    pub(super) fn prepare(&mut self, id: RequestId) -> Result<(), Errno> {
        let request = &mut self[id];
        request.flags.clear(Flags::UNPREPARED);
        let row = self.row(id);
        self.prep(id, row)
    }

    /// Makes the next attempt of a woken request the short way. False if the ordinary way is needed.
    #[inline]
    pub(super) fn issue_quickly(&mut self, id: RequestId) -> bool {
        let request = &self[id];
        let op = request.op;
        let Some(quick) = &self.identity().table.row(op).quick else { return false };
        let is_ordinary = request.whose == Whose::Common && request.file != FileHold::None;
        if !is_ordinary || !self.order().drain.holds_nothing() || credentials::matter() {
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
        match (quick.more)(&mut self.attempt(id)) {
            None => return false,
            Some(Outcome::Armed) => {}
            Some(outcome) => self.settle(id, outcome),
        }
        true
    }

    #[inline]
    fn try_again(&mut self, id: RequestId, op: &Op, quick: &Quick) {
        let request = &self[id];
        let (sqe, fd) = (request.sqe, request.file.fd());
        let tried = (quick.again)(self, &sqe, fd);
        if let Tried::Done(result, flags) = tried
            && !matches!(self[id].file, FileHold::Owned(_) | FileHold::Kept(..))
        {
            let file = core::mem::take(&mut self[id].file);
            self.complete_at_once(op, sqe.user_data, result, flags);
            self.let_go(file);
            self.requests_mut().remove(id);
        } else {
            self.go_on(id, fd, quick, tried);
        }
    }
}
