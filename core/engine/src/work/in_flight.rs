//! Reads that the device has: begun without a thread, and fetched later by whoever waits for completions.
//!
//! A read that misses the page cache is under way when its first attempt returns: `RWF_NOWAIT` has begun it, or
//! `POSIX_FADV_WILLNEED` (`ops/rw.rs` says which). Any number of reads is, and none of them needs a thread:
//!
//! ```text
//!  a miss ──► in flight ──┬─ a caller that waits: the oldest by a read that blocks, the next ones as long as they are there
//!                         ├─ a caller that only looks, the SQ thread: as long as they are there
//!                         └─ workers: where the device is slow, where somebody waits elsewhere than in `enter`, where nobody
//!                            came for the time of a tick, and where there is no reactor to notice that
//! ```
//!
//! A look for a read that is not there costs a call. So after a look in vain, callers do not look again until the device can have answered.
//!
//! A read of a file cannot be interrupted. So a caller blocks only for as long as the device has taken of late, and leaves that
//! to workers where it is long.
//!
//! No duplicate holds the file: a process loses its POSIX locks with any descriptor that is closed. The front end tells of a close
//! before it is done, and then the request gets a duplicate. A caller may be about to read at that moment, by the program's
//! descriptor and without the ring's lock; it finds the duplicate when it comes back, and reads once more by that, for its call may have met the
//! number's next file. All reads here are at offsets: what has no offsets refuses them. Where closes are not seen, a request has its duplicate from the
//! beginning.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use anyring_trace::event::Step;
use linux_raw_sys::general::RWF_NOWAIT;
use linux_raw_sys::io_uring::IORING_SETUP_SQPOLL;

use crate::abi::Errno;
use crate::assets::kinds::{self, Kind};
use crate::assets::notes::Interest;
use crate::os::{self, Fd, host};
use crate::process::credentials::Whose;
use crate::request::{FileHold, Flags, Phase, RequestId};
use crate::ring::drive::caller::Limits;
use crate::ring::{Core, CoreGuard, live};
use crate::wait::Driver;
use crate::work::{Work, length};

/// Microseconds for which a caller may be held up that has nothing else to look at than its reads. A signal handler waits as long.
const LONG_US: u64 = 20_000;
/// Microseconds for which a caller may be held up that would hear of sockets and the like meanwhile.
const LONG_AMONG_OTHERS_US: u64 = 500;

/// A caller whose wait ends within so many microseconds is not held up.
const SOON_US: u64 = 100_000;

/// One read.
struct Read {
    id: RequestId,
    /// In the program's descriptor, if the request has the file by that.
    _interest: Option<Interest>,
}

/// The reads of one ring.
#[derive(Default)]
pub struct InFlight {
    /// The oldest first.
    reads: VecDeque<Read>,
    /// Requests for which a caller reads at the moment.
    fetched: Vec<RequestId>,
    /// How long reads that block have taken of late, in microseconds.
    takes_us: u64,
    /// The time at which the last read that blocked has ended, in ticks.
    ended_ticks: u64,
    /// The last look found nothing.
    is_in_vain: bool,
    /// The oldest read at the reactor's last look.
    seen: Option<RequestId>,
    /// Grows where the program does not come for what is in flight, and falls where it does: as long as it is not 0, workers do reads at
    /// once, and an eventfd tells of transfers.
    absences: u8,
    /// The number that the next absence adds to `absences`: the greater, the more absences have followed one another. A thread that came
    /// late once had no processor, perhaps.
    growth: u8,
    /// A call has come for completions since the reactor's last look.
    is_fetched: bool,
}

/// How often a program has to come for what is in flight, at most, after it did not.
const ABSENCE: u8 = 32;

impl InFlight {
    /// The requests of all reads, for which nobody has come or a caller reads at the moment.
    pub(super) fn ids(&self) -> impl Iterator<Item = RequestId> {
        self.reads.iter().map(|read| read.id).chain(self.fetched.iter().copied())
    }

    /// Is there any read for which nobody has come?
    #[inline]
    pub fn is_any(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Does the program not come for what is in flight?
    pub fn is_left_alone(&self) -> bool {
        self.absences > 0
    }

    /// A call comes for completions.
    #[inline]
    pub(super) fn note_fetch(&mut self) {
        self.is_fetched = true;
    }

    /// True if a call has come for completions since the last question; the next answer is about the time from now on.
    pub(super) fn take_fetched(&mut self) -> bool {
        core::mem::take(&mut self.is_fetched)
    }

    /// Nobody came for the time of a tick.
    pub(super) fn note_absence(&mut self) {
        self.growth = ABSENCE.min(2 * self.growth + 1);
        self.absences = self.absences.saturating_add(self.growth);
    }

    /// A caller waits.
    pub(super) fn note_presence(&mut self) {
        if self.absences > 0 {
            self.absences -= 1;
        } else {
            self.growth = self.growth.saturating_sub(1);
        }
    }

    /// A read that blocks has taken so long.
    pub(super) fn note_time(&mut self, took_us: u64, now_ticks: u64) {
        // A read that took no time was there already: a look would have found it.
        self.is_in_vain &= took_us >= self.takes_us / 4;
        self.takes_us = (3 * self.takes_us + took_us) / 4;
        self.ended_ticks = now_ticks;
    }

    /// Is the next read most likely not there yet? A busy device answers one read after the other, and each look costs a call. Time
    /// bounds what is missed by a program that never waits.
    fn is_too_early(&self, now_ticks: u64, ticks_per_us: u64) -> bool {
        let bound_us = self.takes_us.min(LONG_US) / 2;
        self.is_in_vain && now_ticks.wrapping_sub(self.ended_ticks) < bound_us * ticks_per_us
    }
}

/// Can it be found out by an attempt that does not block whether a read of this file is there?
fn can_be_tried(fd: Fd) -> bool {
    !kinds::noted(fd).has(Kind::OF_READS)
}

impl Core {
    /// The device has what a request reads.
    #[cold]
    pub fn keep_in_flight(&mut self, id: RequestId) {
        // The SQ thread does not block.
        let has_no_fetcher = self.is(IORING_SETUP_SQPOLL) && !can_be_tried(self[id].file.fd());
        if self[id].whose != Whose::Common || has_no_fetcher {
            return self.block(id, false);
        }
        if !host::sees_closes()
            && let Err(errno) = self[id].hold_file()
        {
            return self.complete(id, errno.negated());
        }
        let number = self.ring().number();
        if self[id].flags.has(Flags::TRACED) {
            self.trace_step(id, Step::Queued, 0);
        }
        let request = &mut self[id];
        request.phase = Phase::InFlight;
        let interest = request.file.plain().map(|fd| Interest::new(fd, number));
        self.work_mut().in_flight.reads.push_back(Read { id, _interest: interest });
    }

    /// Takes the oldest read that nobody has fetched, as work.
    fn take_in_flight(&mut self) -> Option<Work> {
        loop {
            let read = self.work_mut().in_flight.reads.pop_front()?;
            let request = self.requests_mut().get_mut(read.id);
            let Some(request) = request.filter(|request| request.phase == Phase::InFlight) else { continue };
            request.phase = Phase::Working;
            // It has an interest of its own in the descriptor before the read's ends: who closes that looks without the lock.
            let mut work = Work::new(self, read.id, false);
            work.is_fetched = true;
            return Some(work);
        }
    }

    /// Gives all reads to workers.
    pub fn hand_over_in_flight(&mut self) {
        while let Some(work) = self.take_in_flight() {
            self.queue_work(work);
        }
        self.hand_over();
    }

    /// A call ends. Do its reads wait for the next one?
    #[inline]
    pub fn leave_in_flight(&mut self) {
        if self.work().in_flight.is_any() {
            self.leave_to_others();
        }
    }

    #[cold]
    fn leave_to_others(&mut self) {
        if self.nobody_comes() {
            self.hand_over_in_flight();
        } else if self.is_awaited_elsewhere()
            && self.work().out() == 0
            && let Some(work) = self.take_in_flight()
        {
            // One after the other: this process's own caller comes soon, most likely, and needs no workers.
            self.queue_work(work);
            self.hand_over();
        }
    }

    pub(super) fn nobody_comes(&self) -> bool {
        let observers = &self.drive().observers;
        self.work().in_flight.is_left_alone()
            || observers.may_wait_outside()
            || self.drive().token.is_awaited()
    }

    /// The reactor looks at the ring, once in a tick. Reads for which nobody came since its last look are for workers.
    pub fn rescue_in_flight(&mut self) {
        let in_flight = &mut self.work_mut().in_flight;
        let oldest = in_flight.reads.front().map(|read| read.id);
        if oldest.is_some() && oldest == in_flight.seen {
            in_flight.note_absence();
            self.hand_over_in_flight();
        } else {
            in_flight.seen = oldest;
        }
    }

    /// Ends the reads that the device has answered, the oldest first, until one is not there.
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

    /// As [`Core::fetch_answered`], unless it is too early for that.
    fn fetch_timely(&mut self) {
        if !self.work().in_flight.is_too_early(os::ticks(), os::ticks_per_us()) {
            self.fetch_answered();
        }
    }

    /// A caller looks, and does not wait: ends the reads that are there. Where that cannot be found out, workers do them.
    pub fn look_at_in_flight(&mut self) {
        self.fetch_timely();
        let oldest = self.work().in_flight.reads.front().map(|read| read.id);
        let oldest = oldest.and_then(|id| self.requests().get(id));
        if oldest.is_some_and(|request| !can_be_tried(request.file.fd())) {
            self.hand_over_in_flight();
        }
    }

    /// How much of what a request reads is there by now, where that is not all; else the work has its result.
    fn part_answered(&self, work: &mut Work) -> Option<usize> {
        if !can_be_tried(work.fd) {
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

    /// May a caller be held up by the device until then?
    pub fn may_block(&self, limits: &Limits) -> bool {
        let takes_us = self.work().in_flight.takes_us;
        let among_others = self.readiness().waiting() > 0 || self.zero_copy().is_waiting();
        let bound_us = if among_others { LONG_AMONG_OTHERS_US } else { LONG_US };
        if takes_us > bound_us {
            return false;
        }
        let ends_ns = limits.enough_ns.or(limits.deadline_ns);
        let left_ns = ends_ns.map(|end_ns| end_ns.saturating_sub(os::monotonic_ns()));
        let ends = [left_ns, self.time().timers.next_ns()].into_iter().flatten().min();
        // What a device takes that has just stalled nobody knows.
        ends.is_none_or(|left_ns| left_ns / 1000 >= SOON_US.max(2 * takes_us))
    }
}

/// The share of a caller that waits: fetches the oldest read, and those behind it that are there. False where there is none, or the
/// device is too slow for that and workers have them; where no worker can be had the caller has them as queued work.
pub fn fetch_oldest(guard: &mut CoreGuard<'_>, serial: u64, limits: &Limits) -> bool {
    let Some(core) = live(guard, serial).filter(|core| core.work().in_flight.is_any()) else { return false };
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
        // Whoever sleeps beside may hear of something else meanwhile.
        core.pass_on();
    }
    loop {
        guard.unlocked(|| work.attempt_timed());
        let Some(core) = live(guard, serial) else { return true };
        match core.requests().get(id).map(|request| request.file) {
            Some(FileHold::None) => work.result = Err(Errno::EBADF),
            // The program has closed its descriptor meanwhile.
            Some(hold) if hold.fd() != work.fd => {
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
            // One read after the other must not keep what else is ready from being seen.
            core.harvest_now();
        }
        return true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads that took 4 ms each, the last of which ended at tick 1000, of which there are 10 in a microsecond; and a look in vain.
    fn busy() -> InFlight {
        let mut in_flight = InFlight { takes_us: 4000, ..InFlight::default() };
        in_flight.note_time(4000, 1000);
        in_flight.is_in_vain = true;
        in_flight
    }

    #[test]
    fn a_program_that_comes_late_now_and_then_is_not_left_alone_for_long() {
        let mut in_flight = InFlight::default();
        for _ in 0..3 {
            in_flight.note_absence();
            assert!(in_flight.is_left_alone());
            in_flight.note_presence();
            assert!(!in_flight.is_left_alone());
            in_flight.note_presence();
        }
        (0..6).for_each(|_| in_flight.note_absence());
        (0..ABSENCE).for_each(|_| in_flight.note_presence());
        assert!(in_flight.is_left_alone(), "one that does not come is");
    }

    #[test]
    fn a_busy_device_is_not_looked_at_before_it_can_have_answered() {
        let in_flight = busy();
        assert!(in_flight.is_too_early(1000, 10));
        assert!(in_flight.is_too_early(1000 + 2000 * 10 - 1, 10));
        assert!(!in_flight.is_too_early(1000 + 2000 * 10, 10));
    }

    #[test]
    fn it_is_looked_at_where_the_last_look_found_something() {
        let in_flight = InFlight { is_in_vain: false, ..busy() };
        assert!(!in_flight.is_too_early(1000, 10));
    }

    #[test]
    fn it_is_looked_at_where_a_read_has_waited_for_its_caller() {
        let mut in_flight = busy();
        in_flight.note_time(1000, 1000);
        assert!(in_flight.is_too_early(1000, 10), "as long as this may be the device");
        in_flight.note_time(1, 1000);
        assert!(!in_flight.is_too_early(1000, 10));
    }

    #[test]
    fn a_device_that_has_stalled_is_looked_at_soon() {
        let mut in_flight = busy();
        in_flight.note_time(10_000_000, 1000);
        assert!(!in_flight.is_too_early(1000 + LONG_US / 2 * 10, 10));
    }
}
