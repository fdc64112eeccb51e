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

mod fetch;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::assets::notes::Interest;
use crate::request::RequestId;

pub use fetch::fetch_oldest;

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
