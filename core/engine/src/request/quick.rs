//! The short way of requests about which nothing is out of the ordinary: an attempt is made by the SQE alone,
//! and only where it does not complete there is a request at all. Messages on connections go this way; what it
//! costs beside their system calls is what a server on epoll does not pay.

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
use crate::ring::row::{Outcome, Quick, Tried};

impl Core {
    /// Takes the SQE at `index` the short way, and the one linked behind it, if it is the only one. False where they
    /// have to go the ordinary way: then nothing was done. Only of a submission with the common credentials.
    #[inline]
    pub(super) fn submit_quickly(&mut self, index: u32) -> bool {
        let first = self.queues().memory.first_word(index);
        let [opcode, flags, ..] = first.to_ne_bytes();
        let op = self.requests().operation(opcode);
        let Some(quick) = &self.row_of(op).quick else { return false };
        let flags = Flags::of_sqe(flags);
        if flags.has_other_than(Flags::FIXED_FILE.with(Flags::LINK)) || !self.is_at_ease() {
            return false;
        }
        let sqe = self.queues().memory.sqe(index);
        // The program may have changed it meanwhile.
        if sqe.first_word() != first || sqe.personality != 0 {
            return false;
        }
        let fd = if flags.has(Flags::FIXED_FILE) {
            self.resources().files.get(sqe.fd as u32)
        } else {
            Some(sqe.fd)
        };
        let Some(fd) = fd else { return false };
        if flags.has(Flags::LINK) {
            return self.submit_pair(op, quick, &sqe, fd);
        }
        match (quick.attempt)(self.lend(), &sqe, fd) {
            Tried::Nothing => false,
            Tried::Done(result, flags) => {
                self.tell(op, sqe.user_data, result, flags);
                true
            }
            tried => self.go_on_as_request(&sqe, quick, tried, None),
        }
    }

    /// Submits the head of a chain by its SQE. What is linked behind it is prepared first, as always.
    #[inline(never)]
    fn submit_pair(&mut self, op: &Op, quick: &Quick, sqe: &Sqe, fd: Fd) -> bool {
        // A request that has a notification has an order of its own.
        if op.caps.has(Caps::OF_ITS_RING) {
            return false;
        }
        let Some(next) = self.prepare_last() else { return false };
        let taken = match (quick.attempt)(self.lend(), sqe, fd) {
            Tried::Nothing => false,
            Tried::Done(result, flags) => {
                self.tell(op, sqe.user_data, result, flags);
                self.make_ready(next);
                true
            }
            tried => self.go_on_as_request(sqe, quick, tried, Some(next)),
        };
        if taken {
            self.queues_mut().sq.take_next();
        } else {
            self.requests_mut().remove(next);
        }
        taken
    }

    /// A request for the SQE that this submission takes next, prepared, if that is the last of its chain and nothing out
    /// of the ordinary.
    fn prepare_last(&mut self) -> Option<RequestId> {
        let index = self.queues().sq.next(&self.queues().memory)?;
        let [opcode, flags, ..] = self.queues().memory.first_word(index).to_ne_bytes();
        // A link timeout looks for what it is linked to.
        let caps = self.requests().operation(opcode).caps;
        if flags != 0 || !caps.has(Caps::FILE.with(Caps::AT_ONCE)) || caps.has(Caps::WIDE) {
            return None;
        }
        self.list_announced();
        let id = self.insert_request(index).ok()?;
        let sqe = &self[id].sqe;
        // The program may have changed it meanwhile.
        if (sqe.opcode, sqe.flags) == (opcode, flags) && self.initialise(id).is_ok() {
            return Some(id);
        }
        self.requests_mut().remove(id);
        None
    }

    /// True if nothing is going on in the ring that a request would have to take notice of.
    #[inline(always)]
    fn is_at_ease(&self) -> bool {
        self.order().assembly.head().is_none()
            && self.order().drain.is_idle()
            && self.order().train.is_empty()
            && !self.work().closes_any()
            && !self.resources().restrictions.are_there()
            && !self.is(IORING_SETUP_IOPOLL)
    }

    #[inline(never)]
    fn tell(&mut self, op: &Op, user_data: u64, result: i32, flags: u32) {
        coverage::seen(op.code, result);
        self.post(Cqe { user_data, res: result, flags, ..Cqe::default() });
    }

    /// An attempt did not complete it: from here on it is a request. False where there cannot be another, and nothing
    /// was done yet.
    #[inline(never)]
    fn go_on_as_request(&mut self, sqe: &Sqe, quick: &Quick, tried: Tried, next: Option<RequestId>) -> bool {
        let Ok(id) = self.requests_mut().insert(|| *sqe) else {
            let Tried::Attempt(result) = tried else { return false };
            self.tell(self.requests().operation(sqe.opcode), sqe.user_data, to_res(result), 0);
            if let Some(next) = next {
                self.complete(next, Errno::ECANCELED.negated());
            }
            return true;
        };
        self[id].flags.set(Flags::UNPREPARED);
        if next.is_some() {
            self[id].link = next;
            // One that waits with something behind it is not one that waits by its SQE alone.
            if matches!(tried, Tried::Wait(..))
                && let Err(errno) = self.prepare(id)
            {
                self.complete(id, errno.negated());
                return true;
            }
        }
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

    /// Prepares a request that went the short way up to here.
    #[cold]
    pub(super) fn prepare(&mut self, id: RequestId) -> Result<(), Errno> {
        let request = &mut self[id];
        request.flags.clear(Flags::UNPREPARED);
        self.prep(id)
    }

    /// The next attempt of a request that was woken, if it can go the short way.
    #[inline]
    pub(super) fn issue_quickly(&mut self, id: RequestId) -> bool {
        let request = &self[id];
        let op = request.op;
        let Some(quick) = &self.row_of(op).quick else { return false };
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
        let tried = (quick.again)(self.lend(), &sqe, fd);
        if let Tried::Done(result, flags) = tried
            && !matches!(self[id].file, FileHold::Owned(_) | FileHold::Kept(..))
        {
            let file = core::mem::take(&mut self[id].file);
            self.tell(op, sqe.user_data, result, flags);
            if let FileHold::Fixed(node, _) = file {
                self.release_node(node);
            }
            self.requests_mut().remove(id);
        } else {
            self.go_on(id, fd, quick, tried);
        }
    }
}
