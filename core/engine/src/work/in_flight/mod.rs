//! Reads that the device has: begun without a thread, and fetched later by threads that wait for completions.
//!
//! A read that misses the page cache is in progress when its first attempt returns: `RWF_NOWAIT` has begun it, or `POSIX_FADV_WILLNEED`
//! (`ops/rw.rs` says which). Any number of reads can be in flight, and none of them needs a thread:
//!
//! ```text
//!  a miss ──► in flight ──┬─ a caller that waits: the oldest by a read that blocks, the next ones as long as they are there
//!                         ├─ a caller that only looks, the SQ thread: as long as they are there
//!                         └─ workers: if the device is slow, if a thread waits elsewhere than in `enter`, if no caller
//!                            came for the time of a tick, or if there is no reactor to notice that
//! ```
//!
//! A look for a read that is not answered costs a call. After a look in vain, callers do not look again until the device can have answered.
//!
//! The list also has an FSYNC that its caller is to do itself (`keep_sync_for_caller` says when). Nothing has begun such a sync: the caller does it
//! when it waits, and if the call ends without a wait, a worker does it.
//!
//! A read of a file cannot be interrupted. So a caller blocks only as long as the device has taken of late; if that is long, workers do the
//! reads.
//!
//! No duplicate holds the file, because a process loses its POSIX locks with any descriptor that it closes. The front end reports a close
//! before it is done, and then the request gets a duplicate. At that moment a caller may be about to read, by the program's descriptor and
//! without the ring's lock. When the caller comes back, it finds the duplicate and reads once more by that, because its read may have met
//! the number's next file. All reads here have offsets: files without offsets refuse them. If closes are not seen, a request has its
//! duplicate from the beginning.

mod fetch;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::assets::notes::Interest;
use crate::request::RequestId;

pub use fetch::work_while_waiting;

/// Microseconds for which a read may block a caller that waits for nothing but reads. A signal handler waits as long.
const LONG_US: u64 = 20_000;

/// Microseconds for which a read may block a caller that also waits for sockets and the like.
const LONG_AMONG_OTHERS_US: u64 = 500;

/// Microseconds for which a sync may block the caller that submits it.
const LONG_SYNC_US: u64 = 500;

/// A caller whose wait ends within so many microseconds does not block in a read.
const SOON_US: u64 = 100_000;

/// One read.
struct Read {
    id: RequestId,
    /// The interest in the program's descriptor, if the request has the file by that.
    _interest: Option<Interest>,
}

/// The reads of one ring.
#[derive(Default)]
pub struct InFlight {
    /// The oldest first.
    reads: VecDeque<Read>,
    /// Requests whose reads callers fetch at the moment.
    fetched: Vec<RequestId>,
    /// How long blocking reads have taken of late, in microseconds.
    takes_us: u64,
    /// How long syncs have taken callers of late, in microseconds. Falls with each sync that others do, so that it is measured again.
    sync_takes_us: u64,
    /// The time at which the last blocking read ended, in ticks.
    ended_ticks: u64,
    /// The last look found nothing.
    is_in_vain: bool,
    /// The oldest read at the reactor's last look.
    seen: Option<RequestId>,
    /// Grows when the program does not fetch what is in flight, and falls when it does. While it is not 0, workers do reads at once, and an
    /// eventfd reports transfers.
    absences: u8,
    /// The number that the next absence adds to `absences`. It grows with each absence in a row: a thread that was late once may have had
    /// no processor.
    growth: u8,
    /// A call has fetched completions since the reactor's last look.
    is_fetched: bool,
}

/// The maximum that one absence adds to `absences`: so many times the program has to fetch afterwards.
const ABSENCE: u8 = 32;

impl InFlight {
    /// Returns the requests of all reads, whether or not a caller fetches them at the moment.
    pub fn ids(&self) -> impl Iterator<Item = RequestId> {
        self.reads.iter().map(|read| read.id).chain(self.fetched.iter().copied())
    }

    /// True if there is no read, whether or not a caller fetches it at the moment.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.fetched.is_empty()
    }

    /// True if there is a read that no caller fetches.
    #[inline]
    pub fn is_any(&self) -> bool {
        !self.reads.is_empty()
    }

    /// True if the program does not fetch what is in flight.
    pub fn is_left_alone(&self) -> bool {
        self.absences > 0
    }

    /// Notes that a call fetches completions.
    #[inline]
    pub(super) fn note_fetch(&mut self) {
        self.is_fetched = true;
    }

    /// Returns whether a call has fetched completions since the last call of this function.
    pub(super) fn take_fetched(&mut self) -> bool {
        core::mem::take(&mut self.is_fetched)
    }

    /// Notes that no caller fetched anything for the time of a tick.
    pub(super) fn note_absence(&mut self) {
        self.growth = ABSENCE.min(2 * self.growth + 1);
        self.absences = self.absences.saturating_add(self.growth);
    }

    /// Looks at the reads, once in a tick of the reactor. Returns true if no caller has fetched the oldest since the last look.
    pub(super) fn note_tick(&mut self) -> bool {
        let oldest = self.reads.front().map(|read| read.id);
        let is_left = oldest.is_some() && oldest == self.seen;
        if is_left {
            self.note_absence();
        }
        self.seen = oldest;
        is_left
    }

    /// Notes that a caller waits.
    pub(super) fn note_presence(&mut self) {
        if self.absences > 0 {
            self.absences -= 1;
        } else {
            self.growth = self.growth.saturating_sub(1);
        }
    }

    /// Notes how long a blocking read has taken.
    pub(super) fn note_time(&mut self, took_us: u64, now_ticks: u64) {
        // A read that took no time was there already: a look would have found it.
        self.is_in_vain &= took_us >= self.takes_us / 4;
        self.takes_us = (3 * self.takes_us + took_us) / 4;
        self.ended_ticks = now_ticks;
    }

    /// Notes how long a sync has taken the thread that did it.
    pub(super) fn note_sync(&mut self, took_us: u64) {
        self.sync_takes_us = (3 * self.sync_takes_us + took_us) / 4;
    }

    /// Returns whether a caller may do a sync itself: if syncs are so quick that no signal handler waits for long.
    pub(super) fn lets_caller_sync(&mut self) -> bool {
        let is_quick = self.sync_takes_us <= LONG_SYNC_US;
        if !is_quick {
            self.sync_takes_us -= self.sync_takes_us.div_ceil(16);
        }
        is_quick
    }

    /// True if the next read is most likely not answered yet. A busy device answers one read after the other, and each look costs a call. A
    /// time limit bounds what a program misses that never waits.
    fn is_too_early(&self, now_ticks: u64, ticks_per_us: u64) -> bool {
        let bound_us = self.takes_us.min(LONG_US) / 2;
        self.is_in_vain && now_ticks.wrapping_sub(self.ended_ticks) < bound_us * ticks_per_us
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
    fn slow_syncs_are_tried_again_by_a_caller_now_and_then() {
        let mut in_flight = InFlight::default();
        in_flight.note_sync(1000);
        assert!(in_flight.lets_caller_sync(), "a single one may have been preempted");
        in_flight.note_sync(10_000);
        assert!(!in_flight.lets_caller_sync());
        assert!((0..60).any(|_| in_flight.lets_caller_sync()));
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
