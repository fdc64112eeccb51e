//! TIMEOUT, TIMEOUT_REMOVE and LINK_TIMEOUT.
//!
//! A TIMEOUT ends by its timer or, where it counts completions, when as many others were posted.
//! Completions of timeouts themselves do not count. What counts is looked at between batches
//! ([`Core::flush_timeouts`]), never in the middle of one, as the kernel does.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use linux_raw_sys::io_uring::{
    IORING_LINK_TIMEOUT_UPDATE, IORING_TIMEOUT_ABS, IORING_TIMEOUT_BOOTTIME, IORING_TIMEOUT_CLOCK_MASK,
    IORING_TIMEOUT_ETIME_SUCCESS, IORING_TIMEOUT_MULTISHOT, IORING_TIMEOUT_REALTIME, IORING_TIMEOUT_UPDATE,
    IORING_TIMEOUT_UPDATE_MASK,
};

use crate::abi::{Errno, Sqe};
use crate::ops::{Caps, Code, Field, Op, OpData, Outcome};
use crate::os::{Timespec, user};
use crate::queue::Cqe;
use crate::request::{Flags, RequestId};
use crate::ring::Core;
use crate::ring::drive::reactor;
use crate::wait::timers::Clock;

const FIELDS: &[Field] = &[Field::Address, Field::Offset, Field::OpFlags];

/// `IORING_OP_TIMEOUT`.
pub const TIMEOUT: Op = Op::new(Code::IORING_OP_TIMEOUT, "TIMEOUT", Caps::COUNTS, prep, issue)
    .fields(FIELDS)
    .expire(expire)
    .disarm(disarm);

/// `IORING_OP_LINK_TIMEOUT`.
pub const LINK_TIMEOUT: Op =
    Op::new(Code::IORING_OP_LINK_TIMEOUT, "LINK_TIMEOUT", Caps::NONE, prep_link, issue_link)
        .fields(FIELDS)
        .expire(expire_link);

/// `IORING_OP_TIMEOUT_REMOVE`.
pub const TIMEOUT_REMOVE: Op =
    Op::new(Code::IORING_OP_TIMEOUT_REMOVE, "TIMEOUT_REMOVE", Caps::CANCELS, prep_remove, issue_remove)
        .fields(&[Field::Address, Field::Address2, Field::OpFlags])
        .of_its_ring();

/// What a timeout keeps.
#[derive(Clone, Copy, Debug)]
pub struct Timeout {
    /// How long, or until when, in nanoseconds.
    time_ns: u64,
    /// `IORING_TIMEOUT_*`.
    flags: u32,
    /// Completions to wait for, or rounds that a multishot one has left; 0 for none, or no end.
    count: u32,
    /// Its place among the ring's timeouts.
    place: Place,
}

/// Where a timeout stands in [`Timeouts`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    /// Counting: due at this number of completions; the second tells equals apart.
    Counting(i64, u64),
    /// By its timer alone.
    Timed(u64),
}

/// The armed TIMEOUTs of a ring.
#[derive(Default)]
pub struct Timeouts {
    /// Those that count, by what they wait for; then the others, oldest first.
    armed: BTreeMap<Place, RequestId>,
    /// How many count.
    counting: usize,
    /// How many timeouts have fired: their CQEs do not count.
    fired: u32,
    /// Completions that count, as of the last look.
    sequence: i64,
    /// The CQ's tail when the submission under way began.
    pub batch: Option<u32>,
    /// The submission under way is one of a call that does not wait.
    pub unwaited: bool,
    added: u64,
}

impl Timeouts {
    /// How many have fired so far.
    pub fn fired(&self) -> u32 {
        self.fired
    }

    /// How many wait for a number of completions.
    pub fn counting(&self) -> usize {
        self.counting
    }

    fn insert(&mut self, id: RequestId, target: Option<i64>) -> Place {
        self.added += 1;
        let place = match target {
            Some(target) => {
                self.counting += 1;
                Place::Counting(target, self.added)
            }
            None => Place::Timed(self.added),
        };
        self.armed.insert(place, id);
        place
    }

    fn remove(&mut self, place: Place) {
        if self.armed.remove(&place).is_some() && matches!(place, Place::Counting(..)) {
            self.counting -= 1;
        }
    }
}

fn clock_of(flags: u32) -> Clock {
    match flags & IORING_TIMEOUT_CLOCK_MASK {
        IORING_TIMEOUT_BOOTTIME => Clock::Boottime,
        IORING_TIMEOUT_REALTIME => Clock::Realtime,
        _ => Clock::Monotonic,
    }
}

/// The time at `address`, as the kernel takes it: more than a second's worth of nanoseconds is fine.
fn read_time(address: u64) -> Result<u64, Errno> {
    let time: Timespec = user::read(address)?;
    if time.seconds < 0 || time.nanoseconds < 0 {
        return Err(Errno::EINVAL);
    }
    Ok((time.seconds as u64).saturating_mul(1_000_000_000).saturating_add(time.nanoseconds as u64))
}

fn parse(sqe: &Sqe) -> Result<Timeout, Errno> {
    let flags = sqe.op_flags;
    let known = IORING_TIMEOUT_ABS
        | IORING_TIMEOUT_CLOCK_MASK
        | IORING_TIMEOUT_ETIME_SUCCESS
        | IORING_TIMEOUT_MULTISHOT;
    let bad = sqe.buf_index != 0
        || has_unused(sqe)
        || sqe.len != 1
        || sqe.file_index != 0
        || flags & !known != 0
        || flags & IORING_TIMEOUT_CLOCK_MASK == IORING_TIMEOUT_CLOCK_MASK
        || flags & IORING_TIMEOUT_MULTISHOT != 0 && flags & IORING_TIMEOUT_ABS != 0;
    if bad {
        return Err(Errno::EINVAL);
    }
    Ok(Timeout { time_ns: read_time(sqe.addr)?, flags, count: sqe.off as u32, place: Place::Timed(0) })
}

fn prep(core: &mut Core, id: RequestId) -> Result<(), Errno> {
    let timeout = parse(&core.requests[id].sqe)?;
    core.requests[id].data = OpData::Timeout(timeout);
    Ok(())
}

fn prep_link(core: &mut Core, id: RequestId) -> Result<(), Errno> {
    let sqe = core.requests[id].sqe;
    if sqe.off as u32 != 0 && sqe.buf_index == 0 && sqe.len == 1 && sqe.file_index == 0 {
        return Err(Errno::EINVAL);
    }
    let timeout = parse(&sqe)?;
    let last = core.assembly.last().ok_or(Errno::EINVAL)?;
    if core.requests[last].sqe.opcode == Code::IORING_OP_LINK_TIMEOUT as u8 {
        return Err(Errno::EINVAL);
    }
    core.requests[last].flags.set(Flags::ARM_LINK_TIMEOUT);
    let request = &mut core.requests[id];
    request.flags.set(Flags::NEVER_FAILS);
    request.data = OpData::Timeout(timeout);
    Ok(())
}

impl Core {
    fn timeout(&mut self, id: RequestId) -> Option<&mut Timeout> {
        match &mut self.requests[id].data {
            OpData::Timeout(timeout) => Some(timeout),
            _ => None,
        }
    }

    /// Those among `requests` that are armed TIMEOUTs, in the order in which a cancellation finds them.
    pub fn listed_timeouts(&self, requests: &[RequestId]) -> Vec<RequestId> {
        let place = |id: RequestId| match self.requests[id].data {
            OpData::Timeout(Timeout { place, .. }) => Some((place, id)),
            _ => None,
        };
        let armed = |&(place, id): &(Place, RequestId)| self.timeouts.armed.get(&place) == Some(&id);
        let mut listed: Vec<_> = requests.iter().filter_map(|&id| place(id)).filter(armed).collect();
        listed.sort_unstable_by_key(|&(place, _)| place);
        listed.into_iter().map(|(_, id)| id).collect()
    }

    fn start_timer(&mut self, id: RequestId, absolute: bool) {
        let Some(&mut Timeout { time_ns, flags, .. }) = self.timeout(id) else { return };
        if self.timeouts.unwaited {
            // Its time does not begin before there is who will tell that it is over.
            reactor::prepare(self);
        }
        let clock = clock_of(flags);
        let deadline_ns = if absolute { time_ns } else { clock.now_ns().saturating_add(time_ns) };
        self.arm_timer(id, clock, deadline_ns);
    }

    /// Completions so far, without those of timeouts. A timeout that has fired counts before its
    /// CQE is there, so the difference to the last look may be negative.
    fn sequence(&mut self) -> i64 {
        let now = self.cq.tail().wrapping_sub(self.timeouts.fired);
        let moved = now.wrapping_sub(self.timeouts.sequence as u32) as i32;
        self.timeouts.sequence += i64::from(moved);
        self.timeouts.sequence
    }

    /// Completions of the submission under way: to a timeout in it they come after it, for the kernel
    /// posts them when the submission ends.
    fn posted_in_batch(&self) -> i64 {
        self.timeouts.batch.map_or(0, |tail| i64::from(self.cq.tail().wrapping_sub(tail)))
    }

    /// Puts a timeout on the list.
    fn list_timeout(&mut self, id: RequestId, target: Option<i64>) {
        let place = self.timeouts.insert(id, target);
        if let Some(timeout) = self.timeout(id) {
            timeout.place = place;
        }
    }

    /// Takes a timeout off the list.
    fn unlist_timeout(&mut self, id: RequestId) {
        if let Some(&mut Timeout { place, .. }) = self.timeout(id) {
            self.timeouts.remove(place);
        }
    }

    /// Takes a timeout off the list that ends by itself: its CQE is not to count.
    fn timeout_fires(&mut self, id: RequestId) {
        self.unlist_timeout(id);
        self.timeouts.fired = self.timeouts.fired.wrapping_add(1);
        // Whoever waits for completions waits no longer, however many there are.
        self.wake_all();
    }

    /// Ends the timeouts that have counted enough completions.
    pub fn flush_timeouts(&mut self) {
        if self.timeouts.counting == 0 {
            return;
        }
        let sequence = self.sequence();
        while let Some((&Place::Counting(target, _), &id)) = self.timeouts.armed.first_key_value()
            && target <= sequence
        {
            self.timers.cancel(id);
            self.timeout_fires(id);
            self.complete(id, 0);
        }
    }
}

fn issue(core: &mut Core, id: RequestId) -> Outcome {
    if core.timeouts.batch.is_some() && core.requests[id].flags.has(Flags::THREADED) {
        // A thread arms it when the submission is over, and counts from there.
        return Outcome::Again;
    }
    let Some(&mut Timeout { flags, count, .. }) = core.timeout(id) else { return Errno::EINVAL.into() };
    let counts = count != 0 && flags & IORING_TIMEOUT_MULTISHOT == 0;
    let sequence = core.sequence() - core.posted_in_batch();
    core.list_timeout(id, counts.then(|| sequence + i64::from(count)));
    core.start_timer(id, flags & IORING_TIMEOUT_ABS != 0);
    Outcome::Armed
}

fn disarm(core: &mut Core, id: RequestId) -> bool {
    core.unlist_timeout(id);
    core.timers.cancel(id)
}

fn expire(core: &mut Core, id: RequestId) {
    core.timeout_fires(id);
    let Some(timeout) = core.timeout(id) else { return };
    let flags = timeout.flags;
    if flags & IORING_TIMEOUT_ETIME_SUCCESS != 0 {
        core.requests[id].flags.set(Flags::NEVER_FAILS);
    }
    if goes_on(core, id) && core.post_more(id, Errno::ETIME.negated(), 0) {
        core.list_timeout(id, None);
        core.start_timer(id, false);
    } else {
        core.complete(id, Errno::ETIME.negated());
    }
}

/// Counts a round of a multishot timeout; false for the last one.
fn goes_on(core: &mut Core, id: RequestId) -> bool {
    let Some(timeout) = core.timeout(id) else { return false };
    if timeout.flags & IORING_TIMEOUT_MULTISHOT == 0 {
        return false;
    }
    if timeout.count == 0 {
        return true;
    }
    timeout.count -= 1;
    timeout.count > 0
}

/// Called when the request before it has been issued and goes on.
fn issue_link(core: &mut Core, id: RequestId) -> Outcome {
    let absolute = core.timeout(id).is_some_and(|timeout| timeout.flags & IORING_TIMEOUT_ABS != 0);
    core.start_timer(id, absolute);
    Outcome::Armed
}

fn expire_link(core: &mut Core, id: RequestId) {
    let Some(watched) = core.requests[id].partner else {
        return core.complete(id, Errno::ETIME.negated());
    };
    if core.defers() {
        // The kernel's timer has gone off while the request was still to be gone on with.
        core.requests[id].partner = None;
        core.requests[watched].partner = None;
    }
    core.issue_if_woken(watched);
    let Some(timeout) = core.requests.get_mut(id) else {
        // The request has completed, and disarmed its timeout.
        return;
    };
    timeout.partner = None;
    let result = match core.requests.get_mut(watched) {
        Some(request) => {
            request.partner = None;
            core.try_cancel(watched)
        }
        None => Err(Errno::ENOENT),
    };
    let result = match result {
        Ok(0) => Errno::ETIME.negated(),
        Ok(counted) => counted as i32,
        // The kernel goes on looking elsewhere, and finds it nowhere else.
        Err(Errno::EALREADY) => Errno::ENOENT.negated(),
        Err(errno) => errno.negated(),
    };
    core.complete(id, result);
}

/// Something is set in the part of the SQE that no timeout reads.
fn has_unused(sqe: &Sqe) -> bool {
    sqe.addr3 != 0 || sqe.pad != 0
}

fn prep_remove(core: &mut Core, id: RequestId) -> Result<(), Errno> {
    let request = &mut core.requests[id];
    let sqe = request.sqe;
    let unused = sqe.buf_index != 0 || sqe.len != 0 || sqe.file_index != 0 || has_unused(&sqe);
    if request.flags.has(Flags::FIXED_FILE) || unused {
        return Err(Errno::EINVAL);
    }
    let flags = sqe.op_flags;
    if flags & IORING_TIMEOUT_UPDATE_MASK == 0 {
        return if flags == 0 { Ok(()) } else { Err(Errno::EINVAL) };
    }
    if flags & !(IORING_TIMEOUT_UPDATE_MASK | IORING_TIMEOUT_ABS) != 0 {
        return Err(Errno::EINVAL);
    }
    let time_ns = read_time(sqe.off)?;
    request.data = OpData::Timeout(Timeout { time_ns, flags, count: 0, place: Place::Timed(0) });
    Ok(())
}

fn issue_remove(core: &mut Core, id: RequestId) -> Outcome {
    let sqe = core.requests[id].sqe;
    let new = core.timeout(id).copied();
    let result = match new {
        Some(new) if sqe.op_flags & IORING_TIMEOUT_UPDATE != 0 => {
            if sqe.op_flags & IORING_LINK_TIMEOUT_UPDATE != 0 {
                update_link(core, sqe.addr, new)
            } else {
                update(core, sqe.addr, new)
            }
        }
        _ => remove(core, sqe.addr),
    };
    Outcome::from(result.map(|()| 0))
}

fn find(core: &mut Core, user_data: u64) -> Result<RequestId, Errno> {
    let named = core.requests.named(user_data);
    core.listed_timeouts(&named).into_iter().find(|&id| !is_due(core, id)).ok_or(Errno::ENOENT)
}

/// Has its time come? It is told later, but the kernel's timer has gone off already.
fn is_due(core: &Core, id: RequestId) -> bool {
    core.timers.deadline(id).is_some_and(|(clock, deadline_ns)| deadline_ns <= clock.now_ns())
}

fn remove(core: &mut Core, user_data: u64) -> Result<(), Errno> {
    let id = find(core, user_data)?;
    core.try_cancel(id).map(drop)
}

fn update(core: &mut Core, user_data: u64, new: Timeout) -> Result<(), Errno> {
    let id = find(core, user_data)?;
    let Some(timeout) = core.timeout(id) else { return Err(Errno::ENOENT) };
    // Neither completions nor rounds count any more.
    timeout.count = 0;
    core.unlist_timeout(id);
    core.list_timeout(id, None);
    restart(core, id, new);
    Ok(())
}

fn update_link(core: &mut Core, user_data: u64, new: Timeout) -> Result<(), Errno> {
    let mut named = core.requests.named(user_data).into_iter();
    let armed = |id: &RequestId| {
        let is_one = core.requests[*id].op.code == Code::IORING_OP_LINK_TIMEOUT as u8;
        is_one && core.timers.is_armed(*id) && !is_due(core, *id)
    };
    let id = named.find(armed).ok_or(Errno::ENOENT)?;
    restart(core, id, new);
    Ok(())
}

/// A timeout that goes on in another process than the one that armed it.
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    /// Of its SQE.
    pub user_data: u64,
    /// When it fires, by the clock that its flags name.
    pub deadline_ns: u64,
    /// `IORING_TIMEOUT_*`.
    pub flags: u32,
    /// `IOSQE_*`.
    pub sqe_flags: u8,
}

/// What another process needs to take an armed timeout over: one without counts, rounds or links.
pub fn to_inherit(core: &mut Core, id: RequestId) -> Option<Inherited> {
    let request = &core.requests[id];
    if request.op.code != TIMEOUT.code || request.link.is_some() {
        return None;
    }
    let (user_data, sqe_flags) = (request.sqe.user_data, request.sqe.flags);
    let (_, deadline_ns) = core.timers.deadline(id)?;
    let &mut Timeout { flags, place, .. } = core.timeout(id)?;
    let plain = matches!(place, Place::Timed(_)) && flags & IORING_TIMEOUT_MULTISHOT == 0;
    plain.then_some(Inherited { user_data, deadline_ns, flags: flags | IORING_TIMEOUT_ABS, sqe_flags })
}

/// Ends a timeout here that goes on elsewhere.
pub fn forget(core: &mut Core, id: RequestId) {
    disarm(core, id);
    core.requests.remove(id);
}

/// Takes a timeout over. Where there is no room for it, it is over.
pub fn inherit(core: &mut Core, inherited: Inherited) {
    let Inherited { user_data, deadline_ns: time_ns, flags, sqe_flags } = inherited;
    let sqe_flags = sqe_flags & Flags::CQE_SKIP.sqe();
    let sqe = Sqe { opcode: TIMEOUT.code, flags: sqe_flags, user_data, ..Sqe::default() };
    match core.requests.insert(|| sqe) {
        Ok(id) => {
            let timeout = Timeout { time_ns, flags, count: 0, place: Place::Timed(0) };
            core.requests[id].data = OpData::Timeout(timeout);
            let outcome = issue(core, id);
            core.settle(id, outcome);
        }
        Err(_) => {
            core.post(Cqe { user_data, res: Errno::ECANCELED.negated(), ..Cqe::default() });
        }
    }
}

/// Starts a timer again with another time, on the clock it had.
fn restart(core: &mut Core, id: RequestId, new: Timeout) {
    core.timers.cancel(id);
    if let Some(timeout) = core.timeout(id) {
        timeout.time_ns = new.time_ns;
    }
    core.start_timer(id, new.flags & IORING_TIMEOUT_ABS != 0);
}
