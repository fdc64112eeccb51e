//! Fetching of reads in flight, by threads that wait for completions.

use anyring_trace::event::Step;
use linux_raw_sys::general::RWF_NOWAIT;
use linux_raw_sys::io_uring::IORING_SETUP_SQPOLL;

use crate::abi::Errno;
use crate::assets::kinds::{self, Kind};
use crate::assets::notes::Interest;
use crate::os::{self, Fd, host};
use crate::process::credentials::Whose;
use crate::request::op::Op;
use crate::request::{FileHold, Phase, RequestId};
use crate::ring::row::Outcome;
use crate::ring::{Core, CoreGuard, live};
use crate::wait::Driver;
use crate::wait::limits::Limits;
use crate::work::in_flight::{LONG_AMONG_OTHERS_US, LONG_US, Read, SOON_US};
use crate::work::pool;
use crate::work::run::length;
use crate::work::{Work, run_by_caller};

/// True if an attempt that does not block can find out whether the request is done, which has its file by `fd`.
fn can_be_tried(op: &Op, fd: Fd) -> bool {
    !op.is_sync() && !kinds::noted(fd).has(Kind::OF_READS)
}

impl Core {
    /// Lists a request whose read the device has begun.
    #[cold]
    pub fn keep_in_flight(&mut self, id: RequestId) {
        // The SQ thread does not block.
        let has_no_fetcher = self.is(IORING_SETUP_SQPOLL) && !can_be_tried(self[id].op, self[id].file.fd());
        if self[id].whose != Whose::Common || has_no_fetcher {
            return self.settle(id, Outcome::Block);
        }
        if !host::sees_closes()
            && let Err(errno) = self[id].hold_file()
        {
            return self.complete(id, errno.negated());
        }
        let number = self.ring().number();
        self.trace_step(id, Step::Queued, 0);
        let request = &mut self[id];
        request.phase = Phase::InFlight;
        let interest = request.file.plain().map(|fd| Interest::new(fd, number));
        self.work_mut().in_flight.reads.push_back(Read { id, _interest: interest });
    }

    /// Takes the oldest read that no thread fetches, as work.
    fn take_in_flight(&mut self) -> Option<Work> {
        loop {
            let read = self.work_mut().in_flight.reads.pop_front()?;
            let request = self.requests_mut().get_mut(read.id);
            let Some(request) = request.filter(|request| request.phase == Phase::InFlight) else { continue };
            request.phase = Phase::Working;
            // The work's interest in the descriptor begins before the read's ends: a close looks for interests without the lock.
            let mut work = Work::new(self, read.id, false);
            work.is_fetched = true;
            return Some(work);
        }
    }

    /// Hands all reads to workers.
    pub fn hand_over_in_flight(&mut self) {
        while let Some(work) = self.take_in_flight() {
            self.queue_work(work);
        }
        self.hand_over();
    }

    /// Decides at the end of a call whether its reads wait for the next call, or go to workers.
    #[inline]
    pub fn leave_in_flight(&mut self) {
        if self.work().in_flight.is_any() {
            self.leave_to_others();
        }
    }

    #[cold]
    fn leave_to_others(&mut self) {
        let oldest = self.work().in_flight.reads.front().and_then(|read| self.requests().get(read.id));
        // Nothing has begun a sync yet.
        let nobody_comes = self.work().in_flight.is_left_alone() || self.drive().is_awaited_beside();
        if nobody_comes || oldest.is_some_and(|request| request.op.is_sync()) {
            self.hand_over_in_flight();
        } else if self.shared().is_awaited_elsewhere()
            && self.work().out() == 0
            && let Some(work) = self.take_in_flight()
        {
            // One after the other: most likely, this process's own caller comes soon, and needs no workers.
            self.queue_work(work);
            self.hand_over();
        }
    }

    /// Ends the reads that the device has answered, the oldest first, up to the first that is not answered.
    pub fn fetch_answered(&mut self) {
        let mut is_any = false;
        while !self.has_fetched_enough()
            && let Some(mut work) = self.take_in_flight()
        {
            let id = work.id;
            let Some(part) = self.part_answered(&mut work) else {
                self.conclude(&mut work);
                is_any = true;
                self.work_mut().in_flight.is_in_vain = false;
                continue;
            };
            self.work_mut().in_flight.is_in_vain = !is_any;
            self.work_mut().ends(&work);
            let request = &mut self[id];
            request.data = core::mem::take(&mut work.data);
            request.phase = Phase::InFlight;
            request.step_over(part);
            let read = Read { id, _interest: work.exposed.take() };
            self.work_mut().in_flight.reads.push_front(read);
            return;
        }
    }

    /// Does the same as [`Core::fetch_answered`], unless it is too early for that.
    fn fetch_timely(&mut self) {
        if !self.work().in_flight.is_too_early(os::ticks(), os::ticks_per_us()) {
            self.fetch_answered();
        }
    }

    /// Ends the reads that are answered, for a caller that does not wait. If no attempt can find out which, workers do the reads.
    pub fn look_at_in_flight(&mut self) {
        self.fetch_timely();
        let oldest = self.work().in_flight.reads.front().map(|read| read.id);
        let oldest = oldest.and_then(|id| self.requests().get(id));
        if oldest.is_some_and(|request| !can_be_tried(request.op, request.file.fd())) {
            self.hand_over_in_flight();
        }
    }

    /// Returns how much of a request's read is there by now; `None` if that is all, and the work has its result.
    fn part_answered(&self, work: &mut Work) -> Option<usize> {
        if !can_be_tried(self[work.id].op, work.fd) {
            return Some(0);
        }
        let flags = work.sqe.op_flags;
        work.sqe.op_flags |= RWF_NOWAIT;
        work.attempt();
        work.sqe.op_flags = flags;
        match work.result {
            Ok(done) => (done > 0 && done < length(work)).then_some(done),
            Err(Errno::EAGAIN | Errno::EOPNOTSUPP) => Some(0),
            Err(_) => None,
        }
    }

    /// True if a caller whose wait ends by `limits` may block in a read from the device.
    fn may_block(&self, limits: &Limits) -> bool {
        let takes_us = self.work().in_flight.takes_us;
        let among_others = self.readiness().waiting() > 0 || self.zero_copy().is_waiting();
        let bound_us = if among_others { LONG_AMONG_OTHERS_US } else { LONG_US };
        if takes_us > bound_us {
            return false;
        }
        let ends_ns = limits.enough_ns.or(limits.deadline_ns);
        let left_ns = ends_ns.map(|end_ns| end_ns.saturating_sub(os::monotonic_ns()));
        let ends = [left_ns, self.next_timer_ns()].into_iter().flatten().min();
        // Nobody knows how long a device takes that has just stalled.
        ends.is_none_or(|left_ns| left_ns / 1000 >= SOON_US.max(2 * takes_us))
    }
}

/// Does a share of the ring's work, for a caller that waits: a queued piece, a read in flight, or a piece that no worker has begun. Returns
/// false if there is none.
pub fn work_while_waiting(guard: &mut CoreGuard<'_>, serial: u64, limits: &Limits) -> bool {
    let Some(core) = live(guard, serial) else { return false };
    if !core.work().is_empty() {
        return run_by_caller(guard, serial, true);
    }
    if core.work().in_flight.is_any() {
        return fetch_oldest(guard, serial, limits);
    }
    if core.work().out() == 0 || !core.may_block(limits) {
        return false;
    }
    let Some(mut stolen) = pool::steal(serial) else { return false };
    guard.unlocked(|| stolen.run_by_caller());
    if let Some(core) = live(guard, serial) {
        core.finish(stolen);
    }
    true
}

/// Does the share of a caller that waits for reads: fetches the oldest, and the answered ones behind it. Returns false if there is none, or if
/// the device is too slow and workers have the reads. If no worker can be had, the caller has the reads as queued work.
fn fetch_oldest(guard: &mut CoreGuard<'_>, serial: u64, limits: &Limits) -> bool {
    let Some(core) = live(guard, serial) else { return false };
    core.work_mut().in_flight.note_presence();
    if !core.may_block(limits) {
        core.hand_over_in_flight();
        return !core.work().is_empty() || core.work().finished() > 0;
    }
    let Some(mut work) = core.take_in_flight() else { return false };
    let id = work.id;
    core.work_mut().goes_out(1);
    core.work_mut().in_flight.fetched.push(id);
    if core.drive().token.driver() == Driver::Nobody {
        // A thread that sleeps beside may drive meanwhile, and see other events.
        core.drive_mut().pass_on();
    }
    loop {
        guard.unlocked(|| work.attempt_timed());
        let Some(core) = live(guard, serial) else { return true };
        let request = core.requests().get(id);
        // A failed sync is not repeated: each description of a file reports an error of the device once.
        let has_error = work.result.is_err() && request.is_some_and(|request| request.op.is_sync());
        match request.map(|request| request.file) {
            Some(FileHold::None) => work.result = Err(Errno::EBADF),
            // The program has closed its descriptor meanwhile.
            Some(hold) if hold.fd() != work.fd && !has_error => {
                work.fd = hold.fd();
                work.covered();
                continue;
            }
            _ => {}
        }
        core.work_mut().in_flight.fetched.retain(|&fetched| fetched != id);
        core.give_back(work);
        core.fetch_timely();
        if core.readiness().waiting() > 0 && core.drive().token.is_free() {
            // One read after the other must not keep other events from being seen.
            core.harvest_now();
        }
        return true;
    }
}
