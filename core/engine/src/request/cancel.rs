//! Cancellation: finding requests by user data, file or opcode, and ending them with `-ECANCELED`.
//!
//! A request that waits for readiness, is armed or is queued ends immediately, through the ready
//! queue, so that the canceller's own completion is posted first. A request that a thread works on
//! cannot be stopped (`-EALREADY`) and ends with the attempt. Links that have not started and
//! requests held back by a drain are not found, as in the kernel.

use alloc::vec::Vec;

use anyring_trace::event::Step;
use linux_raw_sys::io_uring::{
    IORING_ASYNC_CANCEL_ALL, IORING_ASYNC_CANCEL_ANY, IORING_ASYNC_CANCEL_FD, IORING_ASYNC_CANCEL_FD_FIXED,
    IORING_ASYNC_CANCEL_OP, IORING_ASYNC_CANCEL_USERDATA, io_uring_sync_cancel_reg,
};

use crate::abi::Errno;
use crate::abi::errno::to_res;
use crate::os::{self, Fd, user};
use crate::request::data::OpData;
use crate::request::op::Caps;
use crate::request::{FileHold, Flags, Phase, Request, RequestId};
use crate::ring::drive::caller;
use crate::ring::shared::Question;
use crate::ring::{Core, CoreGuard, live, registry};
use crate::work::Recalled;

const FLAGS: u32 = IORING_ASYNC_CANCEL_ALL
    | IORING_ASYNC_CANCEL_FD
    | IORING_ASYNC_CANCEL_ANY
    | IORING_ASYNC_CANCEL_FD_FIXED
    | IORING_ASYNC_CANCEL_USERDATA
    | IORING_ASYNC_CANCEL_OP;

/// The criteria of a cancellation.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    question: Question,
    /// The file to match, with `IORING_ASYNC_CANCEL_FD`.
    file: Fd,
    /// The serial number of that file, if it is a ring: a poll of it has another file, the ring's stand-in.
    ring: Option<u64>,
}

impl Wanted {
    /// Makes criteria of `question`, for any file.
    pub fn new(question: Question) -> Wanted {
        Wanted { question, file: -1, ring: None }
    }

    /// Restricts the criteria to requests on this file.
    pub fn of_file(self, file: Fd) -> Wanted {
        let ring = registry::get(file).filter(|_| registry::is_ring(file)).map(|ring| ring.serial());
        Wanted { file, ring, ..self }
    }

    fn has(&self, flag: u32) -> bool {
        self.question.flags & flag != 0
    }

    /// True if all matching requests are cancelled, not only the first.
    fn all(&self) -> bool {
        self.has(IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY)
    }

    /// True if the user data must match.
    fn by_user_data(&self) -> bool {
        !self.has(IORING_ASYNC_CANCEL_ANY)
            && (self.has(IORING_ASYNC_CANCEL_USERDATA)
                || !self.has(IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_OP))
    }

    /// True if the request matches. `last` caches the last compared descriptor and the result of the comparison.
    fn matches(&self, core: &Core, id: RequestId, last: &mut Option<(Fd, bool)>) -> bool {
        let request = &core[id];
        if self.has(IORING_ASYNC_CANCEL_ANY) {
            return true;
        }
        (!self.by_user_data() || request.sqe.user_data == self.question.user_data)
            && (!self.has(IORING_ASYNC_CANCEL_OP) || request.sqe.opcode == self.question.opcode)
            && (!self.has(IORING_ASYNC_CANCEL_FD)
                || request.op.caps.has(Caps::FILE)
                    && request.file != FileHold::None
                    && (self.is_of(request.file.fd(), last) || self.is_polled_by(request)))
    }

    /// True if the request polls the wanted ring.
    fn is_polled_by(&self, request: &Request) -> bool {
        matches!(request.data, OpData::Polled { ring, .. } if self.ring == Some(ring))
    }

    /// True if `fd` refers to the wanted file. The cache helps because many requests have the same descriptor.
    fn is_of(&self, fd: Fd, last: &mut Option<(Fd, bool)>) -> bool {
        match *last {
            Some((known, same)) if known == fd => same,
            _ => last.insert((fd, os::same_file(fd, self.file))).1,
        }
    }
}

/// Returns the position of the request's kind in the kernel's search: workers, polls, other waits, timeouts.
fn rank(core: &Core, id: RequestId) -> Option<u8> {
    let request = &core[id];
    match request.phase {
        // The kernel does not find its own reads in flight either.
        Phase::Prepared | Phase::Deferred | Phase::InFlight => None,
        Phase::Working => (!core.is_past_recall(id)).then_some(0),
        Phase::Waiting => Some(1),
        Phase::Ready => request.flags.has(Flags::WOKEN).then_some(1),
        Phase::Armed => (!request.op.caps.has(Caps::HIDDEN)).then_some(2),
    }
}

impl Core {
    /// Returns the matching requests that a cancellation can find, in the order of the search.
    fn cancellable(&mut self, wanted: &Wanted) -> Vec<RequestId> {
        let mut candidates = if wanted.by_user_data() {
            self.requests_mut().named(wanted.question.user_data)
        } else if wanted.has(IORING_ASYNC_CANCEL_FD)
            && !wanted.has(IORING_ASYNC_CANCEL_ANY)
            && wanted.ring.is_none()
        {
            self.requests_mut().on_file(wanted.file, |request| request.op.caps.has(Caps::FILE))
        } else {
            self.requests().ids().collect()
        };
        let mut last = None;
        candidates.retain(|&id| wanted.matches(self, id, &mut last));
        let mut found: Vec<(u8, RequestId)> =
            candidates.iter().filter_map(|&id| rank(self, id).map(|rank| (rank, id))).collect();
        found.sort_by_key(|&(rank, _)| rank);
        if wanted.by_user_data() {
            // Among waiting requests the newest comes first, among those that a thread works on the oldest.
            let worked_on = found.partition_point(|&(rank, _)| rank == 0);
            found[..worked_on].reverse();
        }
        let timeouts = self.time().timeouts.listed(self.requests(), &candidates);
        found.into_iter().map(|(_, id)| id).chain(timeouts).collect()
    }

    /// Cancels the wanted requests. Returns their number with ALL or ANY, otherwise the kernel's value for a single one.
    ///
    /// # Errors
    /// `ENOENT` if none matches, `EALREADY` if a thread works on the one that does.
    pub fn cancel(&mut self, wanted: &Wanted) -> Result<usize, Errno> {
        let mut result = Err(Errno::ENOENT);
        let mut count = 0;
        let mut emptied = Caps::NONE;
        let found = self.cancellable(wanted);
        if wanted.all() {
            self.requests().call_off_waits(&found);
        }
        for id in found {
            let Some(request) = self.requests().get(id) else { continue };
            let list = request.op.caps.and(Caps::LISTED);
            match self.try_cancel(id) {
                Ok(found) if !wanted.all() => return Ok(found),
                // With ALL, the kernel cancels the requests of a list in one step, and counts them as one.
                Ok(0) => count += 1,
                Ok(_) if emptied.has(list) => {}
                Ok(_) => {
                    count += 1;
                    if wanted.has(IORING_ASYNC_CANCEL_ALL) {
                        emptied = emptied.with(list);
                    }
                }
                Err(Errno::EALREADY) => result = Err(Errno::EALREADY),
                Err(_) => {}
            }
        }
        if wanted.all() { Ok(count) } else { result }
    }

    /// Cancels one request: it completes with `-ECANCELED` when the ready queue is run, or when the
    /// interrupted thread returns. Returns 1 for operations that the kernel counts, otherwise 0.
    ///
    /// # Errors
    /// `ENOENT` if its phase does not allow cancellation, `EALREADY` if a thread works on it.
    pub fn try_cancel(&mut self, id: RequestId) -> Result<usize, Errno> {
        let result = self.cancel_by_phase(id);
        let is_traced = self.requests().get(id).is_some_and(|request| request.flags.has(Flags::TRACED));
        if is_traced && result != Err(Errno::ENOENT) {
            self.trace_step(id, Step::Canceled, to_res(result) as u32);
        }
        result
    }

    /// True if the kernel would have executed the request, or handed it to the device, at its submission, so that no cancellation finds
    /// it. That goes for a close: if it were cancelled, the descriptor would leak.
    fn is_past_recall(&self, id: RequestId) -> bool {
        self.aio().is_at_device(id, &self[id]) || self[id].op.caps.has(Caps::EMPTIES)
    }

    fn cancel_by_phase(&mut self, id: RequestId) -> Result<usize, Errno> {
        let request = &mut self[id];
        let counts = usize::from(request.op.caps.has(Caps::LISTED));
        match request.phase {
            Phase::Prepared | Phase::Deferred | Phase::InFlight => return Err(Errno::ENOENT),
            Phase::Ready => {
                // A futex wait that was woken is not in the kernel's list any more.
                if !request.flags.has(Flags::WOKEN) || request.op.caps.has(Caps::LISTED_FUTEX) {
                    return Err(Errno::ENOENT);
                }
                request.flags.set(Flags::CANCELED);
                if request.flags.has(Flags::CHAOS) {
                    self.cancels_under_chaos(id);
                }
                return Ok(0);
            }
            Phase::Waiting => {
                request.flags.set(Flags::WOKEN);
                self.attempt(id).disarm();
            }
            Phase::Armed => {
                let disarm = self.row(id).disarm;
                if !disarm(&mut self.attempt(id)) {
                    let ends = self[id].phase == Phase::Ready;
                    return Err(if ends { Errno::ENOENT } else { Errno::EALREADY });
                }
            }
            Phase::Working => {
                let is_done = self.work().has_finished(id);
                let goes_on = self[id].op.caps.has(Caps::POLLS) || self[id].flags.has(Flags::MULTISHOT);
                if is_done && goes_on && !self[id].flags.has(Flags::CANCELED) {
                    // A thread has made one step of a request that then waits. When the submitter fetches that, the request ends instead.
                    self[id].flags.set(Flags::CANCELED);
                    return Ok(counts);
                }
                if self.is_past_recall(id) || is_done {
                    return Err(Errno::ENOENT);
                }
                if self[id].op.caps.has(Caps::COMMITTED) {
                    return Err(Errno::EALREADY);
                }
                // If a thread is at it, the request ends as soon as the current attempt does.
                self[id].flags.set(Flags::CANCELED);
                match self.recall(id) {
                    Recalled::Withdrawn => {}
                    Recalled::Disarmed => return Ok(counts),
                    Recalled::Interrupted => return Err(Errno::EALREADY),
                }
            }
        }
        self[id].flags.set(Flags::CANCELED);
        if self[id].flags.has(Flags::CHAOS) {
            self.cancels_under_chaos(id);
        }
        self.attempt(id).make_ready();
        Ok(counts)
    }
}

/// Checks the flags `IORING_ASYNC_CANCEL_*`.
pub fn check_flags(flags: u32) -> Result<(), Errno> {
    let contradicts = flags & IORING_ASYNC_CANCEL_ANY != 0
        && flags & (IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_OP) != 0;
    if flags & !FLAGS != 0 || contradicts { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Cancels requests on behalf of another process of the ring.
pub fn answer(core: &mut Core, question: Question) -> Result<usize, Errno> {
    core.cancel(&Wanted::new(question))
}

/// True if these flags cancel every matching request.
pub fn is_plural(flags: u32) -> bool {
    flags & (IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY) != 0
}

/// Implements `IORING_REGISTER_SYNC_CANCEL`: cancels, and waits until requests that a thread works on have ended.
pub fn sync_cancel(guard: &mut CoreGuard<'_>, serial: u64, address: u64) -> Result<usize, Errno> {
    let argument: io_uring_sync_cancel_reg = user::read(address)?;
    if argument.flags & !FLAGS != 0
        || argument.pad.iter().any(|&byte| byte != 0)
        || argument.pad2.iter().any(|&word| word != 0)
    {
        return Err(Errno::EINVAL);
    }
    let first = sync_cancel_once(guard, serial, &argument);
    if first != Err(Errno::EALREADY) {
        return first;
    }
    let (seconds, nanoseconds) = (argument.timeout.tv_sec, argument.timeout.tv_nsec);
    let deadline_ns = (seconds != -1 || nanoseconds != -1).then(|| {
        let time = (seconds.max(0) as u64).saturating_mul(1_000_000_000);
        os::monotonic_ns().saturating_add(time).saturating_add(nanoseconds.max(0) as u64)
    });
    loop {
        let left = deadline_ns.map(|deadline| deadline.saturating_sub(os::monotonic_ns()));
        if left == Some(0) {
            return Err(Errno::ETIME);
        }
        caller::observe(guard, serial, left)?;
        let core = live(guard, serial).ok_or(Errno::EBADF)?;
        core.advance();
        match sync_cancel_once(guard, serial, &argument) {
            Err(Errno::EALREADY) => {}
            Ok(_) | Err(Errno::ENOENT) => return Ok(0),
            Err(errno) => return Err(errno),
        }
    }
}

fn sync_cancel_once(
    guard: &mut CoreGuard<'_>,
    serial: u64,
    argument: &io_uring_sync_cancel_reg,
) -> Result<usize, Errno> {
    let core = live(guard, serial).ok_or(Errno::EBADF)?;
    core.catch_up();
    let question = Question { flags: argument.flags, user_data: argument.addr, opcode: argument.opcode };
    let mut wanted = Wanted::new(question);
    let mut hold = FileHold::None;
    if wanted.has(IORING_ASYNC_CANCEL_FD) {
        if wanted.has(IORING_ASYNC_CANCEL_FD_FIXED) {
            hold = FileHold::fixed(core.resources_mut().files.hold(argument.fd as u32)?);
        } else if os::is_open(argument.fd) {
            hold = FileHold::Plain(argument.fd);
        } else {
            return Err(Errno::EBADF);
        }
        wanted = wanted.of_file(hold.fd());
    }
    let result = core.cancel(&wanted);
    core.let_go(hold);
    if !core.defers() {
        core.advance();
    } else if !core.order().ready.is_empty() {
        // The submitting thread has to enter the ring for the cancelled requests.
        core.notify_deferred();
    }
    result
}
