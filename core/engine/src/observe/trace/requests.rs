//! Reports of rings about their requests.

use alloc::boxed::Box;
use alloc::vec::Vec;

use anyring_trace::event::{self, Kind, Step};
use linux_raw_sys::io_uring::{IORING_CQE_F_MORE, IORING_CQE_F_NOTIF};

use crate::abi::Sqe;
use crate::observe::trace::demand::{self, Held};
use crate::observe::trace::{Lent, PROCESS, Samples, Tracer, counts, tell, tracer};
use crate::os::Fd;
use crate::os::host::{self, RequestMemory};
use crate::os::sync::atomic::Ordering;
use crate::queue::Cqe;
use crate::request::op::Op;
use crate::request::{Flags, RequestId};
use crate::ring::{Attempt, Core, Counted, registry};

/// Reports the end of the process, and of the rings that it has used and not closed.
pub fn ends() {
    let Some(tracer) = tracer() else { return };
    registry::for_each_live(|ring| {
        if let Some(core) = ring.lock().as_ref().filter(|core| core.instruments().traced.is_of_this_process())
        {
            core.trace_end();
        }
    });
    tracer.publish(0, Kind::Ended, &event::Ended::default(), &Samples::NONE);
}

/// The maximal number of a ring's requests whose memory is remembered.
const MOST_LENT: usize = 1 << 16;

/// The request that an event is about.
struct About<'a> {
    tracer: Held,
    ring: u32,
    serial: u64,
    op: &'static Op,
    sqe: &'a Sqe,
}

/// Begins or ends to report a ring's requests, if a watcher has come or gone.
#[inline(always)]
pub fn notice_watchers(core: &mut Core) {
    if core.instruments().traced.is_behind() {
        core.follow_watchers();
    }
}

impl Core {
    #[cold]
    fn follow_watchers(&mut self) {
        demand::answer();
        let (state, tracer) = (demand::state(), tracer());
        let last = self.ring().counted(Counted::Submitted);
        let traced = &mut self.instruments_mut().traced;
        if state == traced.seen || state == demand::ASKED {
            // Somebody has asked in vain, or asks again: then the next call looks again.
            return;
        }
        traced.seen = state;
        traced.lent.retain(|_| traced.is_for_good);
        match tracer {
            Some(tracer) if tracer.lease.is_some() => self.trace_in_flight(&tracer, last),
            _ if !traced.is_for_good => traced.last = None,
            _ => {}
        }
    }

    /// Reports the requests in flight to a reader that has come now. Their numbers are the last ones before it came.
    fn trace_in_flight(&mut self, tracer: &Tracer, last: u64) {
        let is_request = |id: &RequestId| self[*id].cqe_flags & IORING_CQE_F_NOTIF == 0;
        let ids: Vec<RequestId> = self.requests().ids().filter(is_request).collect();
        let mut number = last.saturating_sub(ids.len() as u64);
        for id in ids {
            number += 1;
            if !self.instruments().traced.is_for_good {
                self[id].serial = number;
            }
            let (serial, notification) = (self[id].serial, self[id].notification);
            for id in [Some(id), notification].into_iter().flatten() {
                self[id].serial = serial;
                self[id].flags.set(Flags::TRACED);
            }
            let file = self.trace_names(tracer, id);
            let body = event::Submitted { serial, sqe: *self[id].sqe.words(), behind: 0, file, reserved: 0 };
            tracer.publish(self.serial() as u32, Kind::Submitted, &body, &Samples::NONE);
        }
        let traced = &mut self.instruments_mut().traced;
        traced.before = number.max(last);
        if !traced.is_for_good {
            traced.last = Some(traced.before);
        }
    }

    /// Reports the names of a request's files; returns its file, or -1.
    fn trace_names(&self, tracer: &Tracer, id: RequestId) -> Fd {
        let (op, sqe) = (self[id].op, &self[id].sqe);
        tracer.tell_names(self.serial() as u32, op, sqe, |slot| self.resources().files.named(slot))
    }

    fn about(&self, id: RequestId) -> Option<About<'_>> {
        let request = &self[id];
        let (serial, op, sqe) = (request.serial, request.op, &request.sqe);
        Some(About { tracer: tracer()?, ring: self.serial() as u32, serial, op, sqe })
    }

    /// Reports a request that was consumed from the SQ.
    #[cold]
    pub(crate) fn trace_submission(&mut self, id: RequestId) {
        let traced = &mut self.instruments_mut().traced;
        let Some(last) = &mut traced.last else { return };
        *last += 1;
        let serial = *last;
        traced.process = PROCESS.load(Ordering::Relaxed);
        let behind = if self.order().assembly.head().is_some() { serial - 1 } else { 0 };
        self[id].serial = serial;
        let checker = host::checker();
        if tracer().is_none() && counts::get().is_none() && checker.is_none() {
            return;
        }
        self[id].flags.set(Flags::TRACED);
        if let Some(counts) = counts::get() {
            counts.submitted(self[id].op.code);
        }
        if tracer().is_none() && checker.is_none() {
            return;
        }
        let (op, sqe) = (self[id].op, &self[id].sqe);
        let about = self.about(id);
        let may_copy = about.as_ref().is_none_or(|about| about.tracer.may_copy());
        let mut lent = if may_copy { Lent::of(op, sqe) } else { Lent::NONE };
        if let Some(About { tracer, ring, .. }) = about {
            let file = self.trace_names(&tracer, id);
            let body = event::Submitted { serial, sqe: *sqe.words(), behind, file, reserved: 0 };
            let samples = || Samples::of_submission(op, sqe, &lent, tracer.data());
            let samples = if may_copy { samples() } else { Samples::NONE };
            tracer.publish(ring, Kind::Submitted, &body, &samples);
        }
        // If this request must wait, earlier requests may still change its memory.
        let may_wait =
            behind != 0 || Flags::of_sqe(sqe.flags).has(Flags::DRAIN) || !self.order().drain.is_idle();
        if !may_wait && tracer().is_some() {
            lent.begin();
        }
        let takes = may_copy && Flags::of_sqe(sqe.flags).has(Flags::BUFFER_SELECT);
        if !takes && lent.is_empty() || self.instruments().traced.lent.len() >= MOST_LENT {
            return;
        }
        if let Some(checker) = checker.filter(|_| !takes) {
            lent.tell_begin(checker, &RequestMemory { may_wait, ..self.described(id) });
        }
        self.instruments_mut().traced.lent.push_back((serial, Box::new(lent)));
    }

    /// Notes that a traced request begins, which had to wait for others.
    #[cold]
    pub(crate) fn trace_begin(&mut self, id: RequestId) {
        let serial = self[id].serial;
        if let Some(lent) = self.instruments_mut().traced.lent_mut(serial).filter(|_| tracer().is_some()) {
            lent.begin();
        }
    }

    /// Describes a request to a checker of memory.
    fn described(&self, id: RequestId) -> RequestMemory<'static> {
        let (serial, operation) = (self[id].serial, self[id].op.name);
        let file = self.ring().file.each_ref().map(|word| word.load(Ordering::Relaxed));
        let ring = self.serial();
        RequestMemory { ring, file, serial, operation, pieces: &[], is_filled: false, may_wait: false }
    }

    /// Reports a step of a request, if it is traced.
    #[inline]
    pub fn trace_step(&self, id: RequestId, step: Step, value: u32) {
        if self[id].flags.has(Flags::TRACED) {
            self.tell_step(id, step, value);
        }
    }

    #[cold]
    fn tell_step(&self, id: RequestId, step: Step, value: u32) {
        let Some(About { tracer, ring, serial, .. }) = self.about(id) else { return };
        let body = event::Stepped { serial, step: step as u32, value };
        tracer.publish(ring, Kind::Stepped, &body, &Samples::NONE);
    }

    /// Reports a completion of a traced request, which is about to be posted, or is skipped.
    #[cold]
    pub(crate) fn trace_completion(&mut self, id: RequestId, cqe: &Cqe, marks: u32) {
        if let Some(counts) = counts::get() {
            counts.completed(self[id].op.code, cqe.res);
        }
        let lent = self.lent_until(id, cqe);
        if let Some(checker) = host::checker()
            && cqe.flags & IORING_CQE_F_MORE == 0
        {
            lent.tell_end(checker, &self.described(id));
        }
        let Some(About { tracer, ring, serial, op, sqe }) = self.about(id) else { return };
        let samples = || Samples::of_completion(op, sqe, &lent, cqe, tracer.data());
        let samples = if tracer.may_copy() { samples() } else { Samples::NONE };
        let earlier = if serial <= self.instruments().traced.before { event::EARLIER } else { 0 };
        self.trace_cqe(&tracer, ring, serial, cqe, marks | earlier | lent.marks(), &samples);
    }

    /// Returns the memory of a request, and forgets it if no more CQEs follow.
    fn lent_until(&mut self, id: RequestId, cqe: &Cqe) -> Lent {
        let serial = self[id].serial;
        let traced = &mut self.instruments_mut().traced;
        let Some(place) = traced.place_of(serial) else { return Lent::NONE };
        let goes_on = cqe.flags & IORING_CQE_F_MORE != 0;
        let lent = if goes_on { traced.lent.get(place).cloned() } else { traced.lent.remove(place) };
        lent.map_or(Lent::NONE, |(_, lent)| *lent)
    }

    /// Posts and reports a completion without a request of this ring.
    pub(crate) fn post_unrequested(&mut self, cqe: Cqe) {
        if self.instruments().traced.is_on()
            && let Some(tracer) = tracer()
        {
            self.trace_cqe(&tracer, self.serial() as u32, 0, &cqe, event::LAST, &Samples::NONE);
        }
        self.post(cqe);
    }

    /// Reports that the ring ends in this process.
    #[cold]
    pub(crate) fn trace_end(&self) {
        let (in_flight, cq_ready) = (self.requests().live() as u64, self.queues().cq_ready());
        let body = event::RingEnded { in_flight, cq_ready, reserved: 0 };
        tell(self.serial() as u32, Kind::RingEnded, &body, &Samples::NONE);
    }

    fn trace_cqe(&self, tracer: &Tracer, ring: u32, serial: u64, cqe: &Cqe, marks: u32, samples: &Samples) {
        let posted = marks & event::SKIPPED == 0;
        let overflows = posted && !self.queues().has_room_for(1);
        let marks = marks | if overflows { event::OVERFLOWED } else { 0 };
        let cq_ready = self.queues().cq_ready() + u32::from(posted && !overflows);
        tracer.publish(ring, Kind::Completed, &completed(serial, cqe, marks, cq_ready), samples);
    }
}

pub(super) fn completed(serial: u64, cqe: &Cqe, marks: u32, cq_ready: u32) -> event::Completed {
    let Cqe { user_data, res, flags, big } = *cqe;
    event::Completed { serial, user_data, res, flags, big, marks, cq_ready }
}

impl Attempt<'_> {
    /// Notes that a traced request uses a provided buffer.
    #[cold]
    pub fn trace_buffer(&mut self, address: u64) {
        let (core, id) = self.core_mut();
        let serial = core[id].serial;
        if let Some(lent) = core.instruments_mut().traced.lent_mut(serial) {
            lent.takes(address);
        }
    }
}
