//! The timeouts of a ring that are armed.
//!
//! A TIMEOUT ends by its timer or, where it counts completions, when as many others were posted.
//! Completions of timeouts themselves do not count. What counts is looked at between batches
//! ([`Core::flush_timeouts`]), never in the middle of one, as the kernel does.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use linux_raw_sys::io_uring::{
    IORING_TIMEOUT_ABS, IORING_TIMEOUT_BOOTTIME, IORING_TIMEOUT_CLOCK_MASK, IORING_TIMEOUT_MULTISHOT,
    IORING_TIMEOUT_REALTIME,
};

use crate::abi::{Errno, Sqe};
use crate::queue::Cqe;
use crate::request::data::OpData;
use crate::request::op::Caps;
use crate::request::{Flags, Request, RequestId};
use crate::ring::Core;
use crate::ring::drive::reactor;
use crate::wait::timers::Clock;

/// The data of TIMEOUT, LINK_TIMEOUT and TIMEOUT_REMOVE.
#[derive(Clone, Copy, Debug)]
pub struct Timeout {
    /// The span, or the point of time, in nanoseconds.
    pub time_ns: u64,
    /// `IORING_TIMEOUT_*`.
    pub flags: u32,
    /// Completions to wait for, or rounds that a multishot one has left; 0 for none, or no end.
    pub count: u32,
    /// Its place among the ring's timeouts.
    place: Place,
}

impl Timeout {
    /// A timeout that is not armed.
    pub fn new(time_ns: u64, flags: u32, count: u32) -> Timeout {
        Timeout { time_ns, flags, count, place: Place::Timed(0) }
    }
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
    /// Timeouts that count, by what they wait for; then the others, oldest first.
    armed: BTreeMap<Place, RequestId>,
    /// The number of timeouts that count.
    counting: usize,
    /// How many timeouts have fired: their CQEs do not count.
    fired: u32,
    /// Completions that count, as of the last look.
    sequence: i64,
    /// The CQ's tail when the submission under way began.
    batch: Option<u32>,
    /// The submission under way is one of a call that does not wait.
    unwaited: bool,
    added: u64,
}

impl Timeouts {
    /// The number of timeouts that have fired so far.
    pub fn fired(&self) -> u32 {
        self.fired
    }

    /// The number of timeouts that wait for a number of completions.
    pub fn counting(&self) -> usize {
        self.counting
    }

    /// A submission begins, with the CQ's tail here.
    #[inline]
    pub fn begin_batch(&mut self, cq_tail: u32) {
        self.batch = Some(cq_tail);
    }

    /// The submission is over.
    #[inline]
    pub fn end_batch(&mut self) {
        self.batch = None;
    }

    /// True if a submission is under way.
    pub fn in_batch(&self) -> bool {
        self.batch.is_some()
    }

    /// So many completions were posted beside those of the submission under way, which come when it ends.
    #[inline]
    pub fn count_beside_batch(&mut self, posted: u32) {
        if let Some(tail) = &mut self.batch {
            *tail = tail.wrapping_add(posted);
        }
    }

    /// Says whether the call that submits from now on does not wait.
    #[inline]
    pub fn set_unwaited(&mut self, unwaited: bool) {
        self.unwaited = unwaited;
    }

    fn is_armed(&self, id: RequestId, timeout: &Timeout) -> bool {
        self.armed.get(&timeout.place) == Some(&id)
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

impl Request {
    /// The request's [`Timeout`], if it has one.
    pub fn timeout(&mut self) -> Option<&mut Timeout> {
        match &mut self.data {
            OpData::Timeout(timeout) => Some(timeout),
            _ => None,
        }
    }
}

impl Core {
    /// The armed TIMEOUTs among `requests`, in the order in which a cancellation finds them.
    pub fn listed_timeouts(&self, requests: &[RequestId]) -> Vec<RequestId> {
        let place = |id: RequestId| match &self[id].data {
            OpData::Timeout(timeout) if self.time().timeouts.is_armed(id, timeout) => {
                Some((timeout.place, id))
            }
            _ => None,
        };
        let mut listed: Vec<_> = requests.iter().filter_map(|&id| place(id)).collect();
        listed.sort_unstable_by_key(|&(place, _)| place);
        listed.into_iter().map(|(_, id)| id).collect()
    }

    /// Starts the timer of one, at its time or after it.
    pub fn start_timer(&mut self, id: RequestId, absolute: bool) {
        let Some(&mut Timeout { time_ns, flags, .. }) = self[id].timeout() else { return };
        if self.time().timeouts.unwaited {
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
        let now = self.queues().cq.tail().wrapping_sub(self.time().timeouts.fired);
        let moved = now.wrapping_sub(self.time().timeouts.sequence as u32) as i32;
        self.time_mut().timeouts.sequence += i64::from(moved);
        self.time().timeouts.sequence
    }

    /// How many completions end a timeout that counts this many from now on.
    pub fn timeout_target(&mut self, count: u32) -> i64 {
        self.sequence() - self.posted_in_batch() + i64::from(count)
    }

    /// Completions of the submission under way: to a timeout in it they come after it, for the kernel
    /// posts them when the submission ends.
    fn posted_in_batch(&self) -> i64 {
        self.time().timeouts.batch.map_or(0, |tail| i64::from(self.queues().cq.tail().wrapping_sub(tail)))
    }

    /// Puts a timeout on the list.
    pub fn list_timeout(&mut self, id: RequestId, target: Option<i64>) {
        let place = self.time_mut().timeouts.insert(id, target);
        if let Some(timeout) = self[id].timeout() {
            timeout.place = place;
        }
    }

    /// Takes a timeout off the list.
    pub fn unlist_timeout(&mut self, id: RequestId) {
        if let Some(&mut Timeout { place, .. }) = self[id].timeout() {
            self.time_mut().timeouts.remove(place);
        }
    }

    /// Takes a timeout off the list that ends by itself: its CQE is not to count.
    pub fn timeout_fires(&mut self, id: RequestId) {
        self.unlist_timeout(id);
        self.time_mut().timeouts.fired = self.time().timeouts.fired.wrapping_add(1);
        // Whoever waits for completions waits no longer, however many there are.
        self.wake_all();
    }

    /// Ends the timeouts that have counted enough completions.
    pub fn flush_timeouts(&mut self) {
        if self.time().timeouts.counting == 0 {
            return;
        }
        let sequence = self.sequence();
        while let Some((&Place::Counting(target, _), &id)) = self.time().timeouts.armed.first_key_value()
            && target <= sequence
        {
            self.time_mut().timers.cancel(id);
            self.timeout_fires(id);
            self.complete(id, 0);
        }
    }

    /// True if the timeout's time has come. It is told later, but the kernel's timer has gone off already.
    pub fn is_timer_due(&self, id: RequestId) -> bool {
        self.time().timers.deadline(id).is_some_and(|(clock, deadline_ns)| deadline_ns <= clock.now_ns())
    }

    /// Starts its timer again with the time of another, on the clock it had.
    pub fn restart_timer(&mut self, id: RequestId, new: Timeout) {
        self.time_mut().timers.cancel(id);
        if let Some(timeout) = self[id].timeout() {
            timeout.time_ns = new.time_ns;
        }
        self.start_timer(id, new.flags & IORING_TIMEOUT_ABS != 0);
    }
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
    /// Its operation.
    pub opcode: u8,
    /// `IOSQE_*`.
    pub sqe_flags: u8,
}

/// The data by which another process takes an armed timeout over: one without counts, rounds or links.
pub fn to_inherit(core: &mut Core, id: RequestId) -> Option<Inherited> {
    let &mut timeout = core[id].timeout()?;
    let request = &core[id];
    let listed = request.op.caps.has(Caps::INHERITED) && core.time().timeouts.is_armed(id, &timeout);
    if !listed || request.link.is_some() {
        return None;
    }
    let Sqe { opcode, user_data, flags: sqe_flags, .. } = request.sqe;
    let (_, deadline_ns) = core.time().timers.deadline(id)?;
    let Timeout { flags, place, .. } = timeout;
    let plain = matches!(place, Place::Timed(_)) && flags & IORING_TIMEOUT_MULTISHOT == 0;
    let flags = flags | IORING_TIMEOUT_ABS;
    plain.then_some(Inherited { user_data, deadline_ns, flags, opcode, sqe_flags })
}

/// Ends a timeout here that goes on elsewhere.
pub fn forget(core: &mut Core, id: RequestId) {
    core.unlist_timeout(id);
    core.time_mut().timers.cancel(id);
    core.requests_mut().remove(id);
}

/// Takes a timeout over. Where there is no room for it, it is over.
pub fn inherit(core: &mut Core, inherited: Inherited) {
    if !core.requests().operation(inherited.opcode).caps.has(Caps::INHERITED) {
        // No process of this engine wrote that.
        return;
    }
    let Inherited { user_data, deadline_ns, flags, opcode, sqe_flags } = inherited;
    let sqe_flags = sqe_flags & Flags::CQE_SKIP.sqe();
    let sqe = Sqe { opcode, flags: sqe_flags, user_data, ..Sqe::default() };
    match core.requests_mut().insert(|| sqe) {
        Ok(id) => {
            core[id].data = OpData::Timeout(Timeout::new(deadline_ns, flags, 0));
            let outcome = (core.row(id).issue)(&mut core.attempt(id));
            core.settle(id, outcome);
        }
        Err(_) => {
            core.post_unrequested(Cqe { user_data, res: Errno::ECANCELED.negated(), ..Cqe::default() });
        }
    }
}
