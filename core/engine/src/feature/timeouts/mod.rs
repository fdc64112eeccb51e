//! The armed timeouts of a ring.
//!
//! A TIMEOUT ends by its timer or, if it counts completions, when that many other CQEs were posted. CQEs of
//! timeouts do not count. Counts are compared between batches (`Core::flush_timeouts`), never inside a batch,
//! as in the kernel.

mod arm;
pub mod ops;

use alloc::collections::BTreeMap;

use crate::request::RequestId;

pub use arm::{Inherited, forget, inherit, to_inherit};

/// The data of TIMEOUT, LINK_TIMEOUT and TIMEOUT_REMOVE.
#[derive(Clone, Copy, Debug)]
pub struct Timeout {
    /// The span or the point of time, in nanoseconds.
    pub time_ns: u64,
    /// `IORING_TIMEOUT_*`.
    pub flags: u32,
    /// Completions to wait for, or remaining rounds of a multishot timeout; 0 for none, or no limit.
    pub count: u32,
    /// The timeout's key in [`Timeouts`].
    place: Place,
}

impl Timeout {
    /// Makes a timeout that is not armed.
    pub fn new(time_ns: u64, flags: u32, count: u32) -> Timeout {
        Timeout { time_ns, flags, count, place: Place::Timed(0) }
    }
}

/// The key of a timeout in [`Timeouts`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    /// Counting: due at this number of completions; the second number makes keys unique.
    Counting(i64, u64),
    /// Ended by its timer alone.
    Timed(u64),
}

/// The armed TIMEOUTs of a ring.
#[derive(Default)]
pub struct Timeouts {
    /// Timeouts that count, by their targets; then the others, oldest first.
    armed: BTreeMap<Place, RequestId>,
    /// The number of timeouts that count.
    counting: usize,
    /// The number of fired timeouts, whose CQEs do not count.
    fired: u32,
    /// The number of counted completions, when it was updated last.
    sequence: i64,
    /// The CQ's tail when the current submission began, advanced by CQEs that were posted beside it.
    batch: Option<u32>,
    /// The current submission is one of a call that does not wait.
    unwaited: bool,
    added: u64,
}

impl Timeouts {
    /// Returns the number of timeouts that have fired so far.
    pub fn fired(&self) -> u32 {
        self.fired
    }

    /// Returns the number of timeouts that wait for a number of completions.
    pub fn counting(&self) -> usize {
        self.counting
    }

    /// Begins a submission, at which the CQ's tail is `cq_tail`.
    #[inline]
    pub fn begin_batch(&mut self, cq_tail: u32) {
        self.batch = Some(cq_tail);
    }

    /// Ends the submission.
    #[inline]
    pub fn end_batch(&mut self) {
        self.batch = None;
    }

    /// True if there is a current submission.
    pub fn in_batch(&self) -> bool {
        self.batch.is_some()
    }

    /// Excludes `posted` completions from those of the current submission, which the kernel posts when it ends.
    #[inline]
    pub fn count_beside_batch(&mut self, posted: u32) {
        if let Some(tail) = &mut self.batch {
            *tail = tail.wrapping_add(posted);
        }
    }

    /// True if the current submission is one of a call that waits, or of the SQ thread.
    #[inline]
    pub fn are_awaited(&self) -> bool {
        !self.unwaited
    }

    /// Sets whether the call that submits from now on does not wait.
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
