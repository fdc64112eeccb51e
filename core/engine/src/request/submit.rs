//! From the SQE to the first attempt.

use anyring_trace::event::Step;
use linux_raw_sys::general::EPOLLIN;
use linux_raw_sys::io_uring::{IORING_SETUP_IOPOLL, IORING_SETUP_SQE128, IORING_SETUP_SUBMIT_ALL};
use linux_raw_sys::net::SO_TYPE;

use crate::abi::{Errno, IORING_SETUP_SQE_MIXED, KNOWN_SQE_FLAGS, Sqe};
use crate::assets::kinds;
use crate::feature::restrictions::filters::Context;
use crate::observe::{coverage, trace};
use crate::os;
use crate::process::credentials::{self, Whose};
use crate::request::op::Caps;
use crate::request::order::Place;
use crate::request::{FileHold, Flags, Phase, Request, RequestId, version};
use crate::ring::row::{Outcome, Row};
use crate::ring::{Core, Counted, Lent};
use crate::work::{self, Work};

impl Core {
    /// Consumes and issues up to `wanted` SQEs. Returns their number. With `does_work`, the caller runs queued
    /// work, if any, by [`crate::work::run_by_caller`].
    ///
    /// # Errors
    /// `EAGAIN` if not even one request could be made.
    pub fn submit(&mut self, wanted: u32, does_work: bool) -> Result<u32, Errno> {
        let available = wanted.min(self.queues().sq_pending());
        if self.cancels_what_may_be_ready(available) {
            self.catch_up();
        }
        let is_common = !credentials::matter();
        trace::notice_watchers(self);
        // A ring that is traced or under chaos uses the ordinary way.
        let is_ordinary = is_common && !self.instruments().traced.is_on() && self.submits_quickly();
        let whose = if is_common { Whose::Common } else { credentials::of_submitter() };
        let tail = self.queues().cq.tail();
        self.time_mut().timeouts.begin_batch(tail);
        // A caller that does the work can do it on the program's descriptors.
        let may_lend = does_work && !self.shared().has_page();
        self.work_mut().begin_submission(may_lend);
        self.queues_mut().sq.begin(available);
        while let Some(index) = self.queues_mut().take_sqe() {
            if is_ordinary && self.submit_quickly(index) {
                continue;
            }
            match self.submit_request(index, whose) {
                Ok(true) => {}
                Ok(false) => break,
                Err(errno) => {
                    self.queues_mut().sq.give_back();
                    if self.queues().sq.left() == available {
                        self.abandon_submission();
                        return Err(errno);
                    }
                    break;
                }
            }
        }
        let taken = available - self.queues().sq.left();
        self.end_batch();
        self.ring().count(Counted::Submitted, u64::from(taken));
        Ok(taken)
    }

    /// Ends a submission of which not even the first SQE could be taken.
    #[cold]
    fn abandon_submission(&mut self) {
        self.queues_mut().sq.end();
        self.time_mut().timeouts.end_batch();
        self.work_mut().begin_submission(false);
    }

    /// True if one of the next SQEs may cancel or change a waiting request. The request may be ready without
    /// the engine's knowledge; the kernel would know, and the cancellation would come too late.
    #[inline]
    fn cancels_what_may_be_ready(&self, available: u32) -> bool {
        let waits = self.readiness().waiting() > 0 || !self.time().timers.is_empty();
        waits && self.cancels_among(available)
    }

    /// True if one of the next SQEs cancels. The SQEs are only peeked at here, and copied later.
    #[inline(never)]
    fn cancels_among(&self, available: u32) -> bool {
        self.queues().sqes_ahead(available).any(|index| {
            let [opcode, ..] = self.queues().memory.first_word(index).to_ne_bytes();
            self.identity().table.lookup(opcode).caps.has(Caps::CANCELS)
        })
    }

    /// Submits the SQE at `index` the ordinary way: checks it, and adds it to its chain. False if it ends the batch, as a bad SQE does at the
    /// end of its chain. Otherwise the batch goes on, and the chain fails as a whole at its end.
    ///
    /// # Errors
    /// `EAGAIN` if no request can be made: the SQE is not consumed.
    #[inline(never)]
    fn submit_request(&mut self, index: u32, whose: Whose) -> Result<bool, Errno> {
        let id = self.insert_request(index, None)?;
        if whose != Whose::Common {
            self[id].whose = whose;
        }
        if self.instruments().traced.is_on() {
            self.trace_submission(id);
            self.under_chaos(id, index);
        }
        let is_wide = self[id].op.caps.has(Caps::WIDE);
        let whole = if is_wide { self.take_second_half(index) } else { Ok(()) };
        let checked = whole.and_then(|()| self.initialise(id)).and_then(|()| self.ask_filters(id));
        if let Err(errno) = checked {
            self.fail_early(id, errno);
            // The assembly of the chain continues, but its head is marked as failed.
            if let Some(head) = self.order().assembly.head()
                && !self[head].flags.has(Flags::FAILED_EARLY)
            {
                self.fail_early(head, Errno::ECANCELED);
            }
        }
        let links = self[id].flags.links();
        match self.order_mut().assembly.add(id, links) {
            Place::Alone => self.queue(id),
            Place::Head => {}
            Place::Behind { before, complete } => {
                self[before].link = Some(id);
                if let Some(head) = complete {
                    self.queue(head);
                }
            }
        }
        Ok(links || checked.is_ok() || self.is(IORING_SETUP_SUBMIT_ALL))
    }

    /// Ends a submission. A chain whose last SQE still has LINK set ends here.
    fn end_batch(&mut self) {
        if let Some(head) = self.order_mut().assembly.take() {
            self.end_chain(head);
        }
        self.queues_mut().sq.end();
        self.zero_copy_mut().forget_checked();
        self.post_announced();
        if !self.order().train.is_empty() {
            self.let_train_go();
        }
        self.time_mut().timeouts.end_batch();
        self.submit_direct(self.time().timeouts.are_awaited());
        let (head, posted) = (self.queues().sq.head(), self.queues().posted());
        if !self.work_mut().end_submission(head, posted) {
            self.publish_sq_head();
        }
    }

    #[cold]
    fn end_chain(&mut self, head: RequestId) {
        self[head].flags.set(Flags::THREADED);
        self.queue(head);
    }

    /// Takes the second half of the SQE that was taken last, which is at `index`.
    ///
    /// # Errors
    /// `EINVAL` if there is none: the ring has no SQEs of this size, or ends there, or the submission does.
    fn take_second_half(&mut self, index: u32) -> Result<(), Errno> {
        if self.is(IORING_SETUP_SQE128) {
            return Ok(());
        }
        if !self.is(IORING_SETUP_SQE_MIXED) {
            return Err(Errno::EINVAL);
        }
        self.queues_mut().take_second_half(index)
    }

    /// Runs the BPF filters of the request's operation, if any.
    #[inline]
    fn ask_filters(&self, id: RequestId) -> Result<(), Errno> {
        let request = &self[id];
        let Some(filters) = self.resources().restrictions.filters_of(request.op.code) else { return Ok(()) };
        let Sqe { opcode, flags, user_data, .. } = request.sqe;
        let own = self.row(id).filtered;
        let bytes = own.map_or(0, |own| own.bytes);
        let mut context = Context::new(user_data, opcode, flags, bytes);
        if let Some(own) = own {
            let mut words = [0; 6];
            (own.show)(request, &mut words);
            context.0[Context::OWN..].copy_from_slice(&words);
        }
        if filters.allow(opcode, &context) { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Marks a request as failed before its first attempt.
    fn fail_early(&mut self, id: RequestId, errno: Errno) {
        let request = &mut self[id];
        request.fail();
        request.flags.set(Flags::FAILED_EARLY);
        request.result = errno.negated();
    }

    /// Makes the checks that all operations share, then the operation's own.
    fn initialise(&mut self, id: RequestId) -> Result<(), Errno> {
        let Request { op, sqe: Sqe { flags, .. }, .. } = self[id];
        if op.is_unknown() {
            return Err(Errno::EINVAL);
        }
        if flags != 0 {
            self.check_flags(id, flags, op.caps)?;
        }
        if !self.resources().restrictions.allow(&self[id].sqe) {
            return Err(Errno::EACCES);
        }
        if self.order().assembly.head().is_none() && self.order_mut().drain.continues() {
            self[id].flags.set(Flags::DRAIN);
        }
        if self.order().drain.is_active() {
            self[id].flags.set(Flags::THREADED);
        }
        if self.is(IORING_SETUP_IOPOLL) && !op.caps.has(Caps::IOPOLL) {
            return Err(Errno::EINVAL);
        }
        let row = self.identity().table.row(op);
        self.initialise_alone(id, row)
    }

    /// Makes the checks that depend on the request alone, and on nothing that holds for the whole ring. `row` is its operation's.
    #[inline(always)]
    pub(super) fn initialise_alone(&mut self, id: RequestId, row: &'static Row) -> Result<(), Errno> {
        let Sqe { ioprio, personality, .. } = self[id].sqe;
        if ioprio != 0 && !row.caps.has(Caps::IOPRIO) {
            return Err(Errno::EINVAL);
        }
        if personality != 0 {
            self[id].whose = self.resources().personalities.find(personality).ok_or(Errno::EINVAL)?;
        }
        self.prep(id, row)
    }

    /// Makes the operation's own checks.
    #[inline(always)]
    pub(super) fn prep(&mut self, id: RequestId, row: &'static Row) -> Result<(), Errno> {
        let sqe = &mut self[id].sqe;
        let prepared = match version::admit(sqe) {
            Ok(()) if row.refuses(sqe) => Err(Errno::EINVAL),
            Ok(()) => (row.prep)(&mut self.attempt(id)),
            refused => refused,
        };
        prepared.inspect_err(|errno| coverage::seen(row.code, errno.negated()))
    }

    fn check_flags(&mut self, id: RequestId, flags: u8, caps: Caps) -> Result<(), Errno> {
        if flags & !KNOWN_SQE_FLAGS != 0 {
            return Err(Errno::EINVAL);
        }
        let flags = Flags::of_sqe(flags);
        if flags.has(Flags::ASYNC) {
            self[id].flags.set(Flags::THREADED);
        }
        if flags.has(Flags::BUFFER_SELECT) && !caps.has(Caps::BUFFER_SELECT) {
            return Err(Errno::EOPNOTSUPP);
        }
        if flags.has(Flags::CQE_SKIP) {
            self.order_mut().drain.refuse();
        }
        if flags.has(Flags::DRAIN) {
            if self.order().drain.is_refused() {
                return Err(Errno::EOPNOTSUPP);
            }
            self.start_drain(id);
        }
        Ok(())
    }

    /// Starts a request or the chain that it heads, unless a drain defers it.
    #[inline]
    fn queue(&mut self, id: RequestId) {
        self.let_train_go_before(id);
        let request = &mut self[id];
        if request.flags.has(Flags::FAILED_EARLY) {
            request.flags.clear(Flags::HARDLINK);
            if request.link.is_some() {
                request.flags.set(Flags::LINK);
            }
            let result = request.result;
            self.complete(id, result);
        } else if self.order().drain.is_active() {
            self.defer(id);
        } else {
            self.start(id);
        }
    }

    /// Makes the first attempt.
    #[inline]
    pub(crate) fn start(&mut self, id: RequestId) {
        let request = &self[id];
        let has_timeout = request.flags.has(Flags::ARM_LINK_TIMEOUT);
        if self.is_foreign(id) {
            self.send_home(id, work::Step::Start);
        } else if request.flags.has(Flags::ASYNC) && request.op.caps.has(Caps::ASYNC_BLOCKS) {
            let outcome = match self.file_if_needed(id) {
                Ok(()) => Outcome::Block,
                Err(errno) => errno.into(),
            };
            let outcome = match self.inject_first(id) {
                Err(instead) if outcome == Outcome::Block => instead,
                _ => outcome,
            };
            self.settle(id, outcome);
        } else if request.flags.has(Flags::THREADED)
            && request.flags.has(Flags::MULTISHOT)
            && request.op.caps.has(Caps::FILE)
        {
            let outcome = self.wait_first(id).unwrap_or_else(Outcome::from);
            self.settle(id, outcome);
        } else {
            let row = self.row(id);
            self.issue_here(id, row);
        }
        if has_timeout
            && let Some(request) = self.requests().get(id)
            && request.flags.has(Flags::ARM_LINK_TIMEOUT)
        {
            self.arm_link_timeout(id);
        }
    }

    /// Arms a multishot request before its first attempt, as a thread of the kernel does.
    fn wait_first(&mut self, id: RequestId) -> Result<Outcome, Errno> {
        let fd = self.attempt(id).file()?;
        match self.watch(fd) {
            Ok(_) => {}
            Err(Errno::EPERM) => return Err(Errno::EBADFD),
            Err(errno) => return Err(errno),
        }
        let ready = os::poll_now(fd, EPOLLIN)? != 0;
        Ok(if ready { Outcome::Again } else { Outcome::Wait(EPOLLIN) })
    }

    fn file_if_needed(&mut self, id: RequestId) -> Result<(), Errno> {
        if self[id].op.caps.has(Caps::FILE) { self.attempt(id).file().map(drop) } else { Ok(()) }
    }

    /// Makes one attempt that does not block, and acts on its outcome.
    #[inline(always)]
    pub fn issue(&mut self, id: RequestId) {
        if self.is_foreign(id) {
            return self.send_home(id, work::Step::Issue);
        }
        let row = self.row(id);
        self.issue_here(id, row);
    }

    /// Issues a request whose credentials the calling thread has, by the steps in `row`.
    #[inline(always)]
    pub(super) fn issue_here(&mut self, id: RequestId, row: &'static Row) {
        let flags = self[id].flags;
        if row.caps.has(Caps::FILE) {
            if let Err(errno) = self.attempt(id).file() {
                return self.complete(id, errno.negated());
            }
            if self.is(IORING_SETUP_IOPOLL)
                && !row.caps.has(Caps::UNPOLLED)
                && !kinds::can_be_polled(self[id].file.fd())
            {
                return self.complete(id, Errno::EOPNOTSUPP.negated());
            }
        }
        let prepared = if flags.has(Flags::UNPREPARED.with(Flags::UNTRIED)) {
            self.before_first_attempt(id)
        } else {
            Ok(())
        };
        let outcome = match prepared {
            Ok(()) => (row.issue)(&mut self.attempt(id)),
            Err(instead) => instead,
        };
        self.settle(id, outcome);
    }

    /// Prepares a request, or injects faults, before its first attempt.
    #[cold]
    fn before_first_attempt(&mut self, id: RequestId) -> Result<(), Outcome> {
        let is_unprepared = self[id].flags.has(Flags::UNPREPARED);
        if is_unprepared { self.prepare(id).map_err(Outcome::from) } else { self.inject_first(id) }
    }

    /// Acts on the outcome of an attempt.
    #[inline(always)]
    pub fn settle(&mut self, id: RequestId, outcome: Outcome) {
        match outcome {
            Outcome::Complete(result @ 0..) => self.complete(id, result),
            Outcome::Block => self.block(id, false),
            outcome => self.settle_other(id, outcome),
        }
    }

    /// Acts on the outcome of an attempt that has failed, or has to go on.
    fn settle_other(&mut self, id: RequestId, outcome: Outcome) {
        match outcome {
            Outcome::Complete(result) => {
                let result = self.file_comes_first(id, result);
                let request = &mut self[id];
                if request.op.caps.has(Caps::SPARES_LINKS) && !had_no_file(request, result) {
                    request.flags.set(Flags::NEVER_FAILS);
                }
                self.complete(id, result);
            }
            Outcome::Armed => {
                if let Some(request) = self.requests_mut().get_mut(id)
                    && matches!(request.phase, Phase::Prepared | Phase::Ready)
                {
                    request.phase = Phase::Armed;
                    request.flags.clear(Flags::THREADED);
                    self.trace_step(id, Step::Armed, 0);
                }
            }
            Outcome::Wait(events) => {
                let flags = self[id].flags;
                if flags.has(Flags::NOWAIT) {
                    let needs = self[id].op.caps.has(Caps::FILE);
                    let open = !needs || os::is_open(self[id].file.fd());
                    self.complete(id, if open { Errno::EAGAIN } else { Errno::EBADF }.negated());
                } else if flags.has(Flags::CANCELED) {
                    self.complete(id, Errno::ECANCELED.negated());
                } else {
                    self.wait_for(id, events);
                }
            }
            Outcome::Again => self.attempt(id).make_ready_again(),
            Outcome::Control => self.control(id),
            Outcome::InFlight => self.keep_in_flight(id),
            Outcome::Block | Outcome::BlockForLong => self.block(id, outcome == Outcome::BlockForLong),
        }
    }

    /// Runs the step of an operation that has the whole ring.
    #[inline(never)]
    fn control(&mut self, id: RequestId) {
        let outcome = (self.row(id).control)(self, id);
        self.settle(id, outcome);
    }

    fn wait_for(&mut self, id: RequestId, events: u32) {
        // The thread that wakes the request continues its chain.
        self[id].flags.clear(Flags::THREADED);
        self.trace_step(id, Step::Waits, events);
        match self.arm(id, events) {
            Ok(()) => {}
            // The file cannot be polled: a thread has to block on it.
            Err(Errno::EPERM) if self.row(id).block.is_some() => self.block(id, true),
            Err(Errno::EPERM) => self.complete(id, Errno::EAGAIN.negated()),
            Err(errno) => self.complete(id, errno.negated()),
        }
    }

    /// Queues the request's blocking attempt as work, unless the request was cancelled during the attempt before.
    fn block(&mut self, id: RequestId, long: bool) {
        debug_assert!(self.row(id).block.is_some(), "only operations that can block do");
        let request = &mut self[id];
        if request.flags.has(Flags::CANCELED) {
            return self.complete(id, Errno::ECANCELED.negated());
        }
        request.phase = Phase::Working;
        if long {
            request.flags.set(Flags::LONG);
        }
        self.trace_step(id, Step::Queued, 0);
        let work = Work::new(self, id, long);
        self.queue_work(work);
    }

    /// Issues ready requests until none is left.
    pub fn run_ready(&mut self) {
        while !self.has_fetched_enough()
            && let Some(id) = self.order_mut().ready.pop()
        {
            let Some(request) = self.requests().get(id) else { continue };
            if request.phase != Phase::Ready {
                continue;
            }
            if !self.issue_quickly(id) {
                self.issue_ready(id);
            }
        }
        self.post_announced();
    }

    /// Issues a request that readiness has woken, before its turn. Its entry in the queue becomes void.
    pub fn issue_if_woken(&mut self, id: RequestId) {
        let Some(request) = self.requests().get(id) else { return };
        let woken = request.phase == Phase::Ready && request.events != 0 && request.flags.has(Flags::WOKEN);
        if woken && !request.flags.has(Flags::CANCELED) && !self.issue_quickly(id) {
            self.issue_ready(id);
        }
    }

    fn issue_ready(&mut self, id: RequestId) {
        let request = &mut self[id];
        if request.flags.has(Flags::FAILED_EARLY) {
            let result = request.result;
            self.complete(id, result);
        } else if request.flags.has(Flags::CANCELED) {
            self.complete(id, Errno::ECANCELED.negated());
        } else if request.is_notification() {
            self.complete_as_noted(id);
        } else if request.file == FileHold::None && !request.flags.has(Flags::WOKEN) {
            request.phase = Phase::Prepared;
            if request.flags.has(Flags::TRACED) {
                self.trace_begin(id);
            }
            self.start(id);
        } else {
            let events = request.events;
            if request.flags.has(Flags::WOKEN) && events != 0 {
                self.trace_step(id, Step::Woken, events);
            }
            self.issue(id);
        }
    }

    /// Corrects the error of an attempt, since the kernel checks the descriptor first: `EBADF` if it
    /// is closed, or the error of a file that is no socket but must be.
    #[cold]
    fn file_comes_first(&self, id: RequestId, result: i32) -> i32 {
        let request = &self[id];
        if !request.op.caps.has(Caps::FILE) || result == Errno::EBADF.negated() {
            return result;
        }
        let fd = request.file.fd();
        if !os::is_open(fd) {
            return Errno::EBADF.negated();
        }
        if result == Errno::EBADFD.negated() {
            return result;
        }
        match request.op.caps.has(Caps::SOCKET).then(|| os::socket_option(fd, SO_TYPE)) {
            Some(Err(errno)) => errno.negated(),
            _ => result,
        }
    }
}

/// True if the attempt failed because its descriptor is closed, opened with `O_PATH`, or not a socket.
fn had_no_file(request: &Request, result: i32) -> bool {
    if result == Errno::ENOTSOCK.negated() {
        return true;
    }
    result == Errno::EBADF.negated() && request.op.caps.has(Caps::FILE) && !os::is_open(request.file.fd())
}

impl Lent {
    /// Returns the `len` of the next SQE of the current submission, if opcode, flags, `ioprio` and `fd` equal those
    /// of `sqe`. The SQE is only peeked at.
    #[inline]
    pub fn length_of_next_like(&self, sqe: &Sqe) -> Option<u32> {
        let core = self.core();
        let next = core.queues().next_sqe()?;
        (core.queues().memory.first_word(next) == sqe.first_word()).then(|| core.queues().memory.length(next))
    }
}

/// Requests that the acting thread must not continue, because its credentials differ from those of the submitter or of the personality that
/// the request names.
impl Core {
    /// True if the calling thread's credentials differ from those that this request needs.
    #[inline(always)]
    fn is_foreign(&self, id: RequestId) -> bool {
        let whose = self[id].whose;
        (whose != Whose::Common || credentials::matter()) && self.is_foreign_now(id, whose)
    }

    #[cold]
    fn is_foreign_now(&self, id: RequestId, whose: Whose) -> bool {
        let row = self.row(id);
        let minds = row.block.is_some() || row.op.caps.has(Caps::FILE.with(Caps::CREDENTIALS));
        minds && whose.credentials() != credentials::acting()
    }

    /// Passes the request's next step to a thread with the right credentials.
    #[cold]
    fn send_home(&mut self, id: RequestId, step: work::Step) {
        if let Err(errno) = self.file_if_needed(id) {
            return self.complete(id, errno.negated());
        }
        self[id].phase = Phase::Working;
        let work = Work::step(self, id, step);
        let handed_over = self.hand_over_one(work);
        debug_assert!(handed_over.is_ok(), "what nobody can do has failed");
    }
}
