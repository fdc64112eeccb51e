//! Arming, counting and firing timeouts; the list of armed ones is [`Timeouts`](crate::feature::timeouts::Timeouts).

use alloc::vec::Vec;

use linux_raw_sys::io_uring::{
    IORING_TIMEOUT_ABS, IORING_TIMEOUT_BOOTTIME, IORING_TIMEOUT_CLOCK_MASK, IORING_TIMEOUT_MULTISHOT,
    IORING_TIMEOUT_REALTIME,
};

use crate::abi::{Errno, Sqe};
use crate::feature::timeouts::{Place, Timeout, Timeouts};
use crate::queue::Cqe;
use crate::request::data::OpData;
use crate::request::op::Caps;
use crate::request::{Flags, Request, RequestId, Slab};
use crate::ring::drive::reactor;
use crate::ring::drive::timers::now_ns;
use crate::ring::{Attempt, Core, Lent};
use crate::wait::timers::Clock;

fn clock_of(flags: u32) -> Clock {
    match flags & IORING_TIMEOUT_CLOCK_MASK {
        IORING_TIMEOUT_BOOTTIME => Clock::Boottime,
        IORING_TIMEOUT_REALTIME => Clock::Realtime,
        _ => Clock::Monotonic,
    }
}

impl Request {
    /// Returns the request's [`Timeout`], if it has one.
    pub fn timeout(&mut self) -> Option<&mut Timeout> {
        match &mut self.data {
            OpData::Timeout(timeout) => Some(timeout),
            _ => None,
        }
    }
}

impl Timeouts {
    /// Returns the armed TIMEOUTs among `ids`, in the order in which a cancellation finds them.
    pub fn listed(&self, requests: &Slab, ids: &[RequestId]) -> Vec<RequestId> {
        let place = |id: RequestId| match &requests[id].data {
            OpData::Timeout(timeout) if self.is_armed(id, timeout) => Some((timeout.place, id)),
            _ => None,
        };
        let mut listed: Vec<_> = ids.iter().filter_map(|&id| place(id)).collect();
        listed.sort_unstable_by_key(|&(place, _)| place);
        listed.into_iter().map(|(_, id)| id).collect()
    }
}

impl Core {
    /// Returns the number of completions so far, without those of timeouts. A fired timeout is subtracted
    /// before its CQE is posted, so the difference to the last call may be negative.
    fn sequence(&mut self) -> i64 {
        let now = self.queues().cq.tail().wrapping_sub(self.time().timeouts.fired);
        let moved = now.wrapping_sub(self.time().timeouts.sequence as u32) as i32;
        self.time_mut().timeouts.sequence += i64::from(moved);
        self.time().timeouts.sequence
    }

    /// Returns the number of completions of the current submission. A timeout in that submission counts them,
    /// because the kernel posts them when the submission ends.
    fn posted_in_batch(&self) -> i64 {
        self.time().timeouts.batch.map_or(0, |tail| i64::from(self.queues().cq.tail().wrapping_sub(tail)))
    }

    /// Ends the timeouts that have counted enough completions.
    #[inline]
    pub fn flush_timeouts(&mut self) {
        if self.time().timeouts.counting > 0 {
            self.end_counted();
        }
    }

    fn end_counted(&mut self) {
        let sequence = self.sequence();
        while let Some((&Place::Counting(target, _), &id)) = self.time().timeouts.armed.first_key_value()
            && target <= sequence
        {
            self.time_mut().timers.cancel(id);
            self.attempt(id).timeout_fires();
            self.complete(id, 0);
        }
    }

    /// True if the timeout's time has come: the engine fires it later, but the kernel's timer would have fired already.
    pub(in crate::feature::timeouts) fn is_timer_due(&self, id: RequestId) -> bool {
        self.time().timers.deadline(id).is_some_and(|(clock, deadline_ns)| deadline_ns <= now_ns(clock))
    }

    /// Restarts the timer with the time of `new`, on the timer's own clock.
    pub(in crate::feature::timeouts) fn restart_timer(&mut self, id: RequestId, new: Timeout) {
        self.time_mut().timers.cancel(id);
        if let Some(timeout) = self[id].timeout() {
            timeout.time_ns = new.time_ns;
        }
        self.attempt(id).start_timer(new.flags & IORING_TIMEOUT_ABS != 0);
    }
}

/// An armed timeout that another process takes over.
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    /// The SQE's user data.
    pub user_data: u64,
    /// The time when it fires, by the clock in its flags.
    pub deadline_ns: u64,
    /// `IORING_TIMEOUT_*`.
    pub flags: u32,
    /// The opcode of its operation.
    pub opcode: u8,
    /// `IOSQE_*`.
    pub sqe_flags: u8,
}

/// Returns the data with which another process takes over an armed timeout, if it has no counts, rounds or links.
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

/// Removes a timeout that another process takes over.
pub fn forget(core: &mut Core, id: RequestId) {
    core.attempt(id).unlist_timeout();
    core.time_mut().timers.cancel(id);
    core.requests_mut().remove(id);
}

/// Takes over a timeout. If no request can be made for it, posts `ECANCELED`.
pub fn inherit(core: &mut Core, inherited: Inherited) {
    let row = core.identity().table.lookup(inherited.opcode);
    if !row.caps.has(Caps::INHERITED) {
        // No process of this engine wrote this opcode.
        return;
    }
    let Inherited { user_data, deadline_ns, flags, opcode, sqe_flags } = inherited;
    let sqe_flags = sqe_flags & Flags::CQE_SKIP.sqe();
    let sqe = Sqe { opcode, flags: sqe_flags, user_data, ..Sqe::default() };
    match core.requests_mut().insert(|| sqe, |_| &row.op) {
        Ok(id) => {
            core[id].data = OpData::Timeout(Timeout::new(deadline_ns, flags, 0));
            let outcome = (row.issue)(&mut core.attempt(id));
            core.settle(id, outcome);
        }
        Err(_) => {
            core.post_unrequested(Cqe { user_data, res: Errno::ECANCELED.negated(), ..Cqe::default() });
        }
    }
}

impl Lent {
    /// Returns the number of completions at which a timeout ends that counts `count` completions from now on.
    pub fn timeout_target(&mut self, count: u32) -> i64 {
        let core = self.core_mut();
        core.sequence() - core.posted_in_batch() + i64::from(count)
    }
}

impl Attempt<'_> {
    /// Adds a timeout to the list.
    pub fn list_timeout(&mut self, target: Option<i64>) {
        let (core, id) = self.core_mut();
        let place = core.time_mut().timeouts.insert(id, target);
        if let Some(timeout) = core[id].timeout() {
            timeout.place = place;
        }
    }

    /// Starts a request's timer; `absolute` says whether its time is a point of time or a span.
    pub fn start_timer(&mut self, absolute: bool) {
        let (core, id) = self.core_mut();
        let Some(&mut Timeout { time_ns, flags, .. }) = core[id].timeout() else { return };
        if core.time().timeouts.unwaited {
            // The reactor must exist before the time begins, because the submitter does not wait for the timeout.
            reactor::prepare(core);
        }
        let clock = clock_of(flags);
        let deadline_ns = if absolute { time_ns } else { now_ns(clock).saturating_add(time_ns) };
        core.attempt(id).arm_timer(clock, deadline_ns);
    }

    /// Removes a timeout that fires from the list; its CQE must not be counted.
    pub fn timeout_fires(&mut self) {
        let (core, id) = self.core_mut();
        core.attempt(id).unlist_timeout();
        core.time_mut().timeouts.fired = core.time().timeouts.fired.wrapping_add(1);
        // A fired timeout ends waits for completions, however many they still lack.
        core.drive_mut().wake_all();
    }

    /// Removes a timeout from the list.
    pub fn unlist_timeout(&mut self) {
        let (core, id) = self.core_mut();
        if let Some(&mut Timeout { place, .. }) = core[id].timeout() {
            core.time_mut().timeouts.remove(place);
        }
    }
}
