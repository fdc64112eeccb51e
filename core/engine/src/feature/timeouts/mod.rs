//! The timeouts of a ring that are armed.
//!
//! A TIMEOUT ends by its timer or, where it counts completions, when as many others were posted.
//! Completions of timeouts themselves do not count. What counts is looked at between batches
//! (`Core::flush_timeouts`), never in the middle of one, as the kernel does.

mod arm;
pub mod ops;

use alloc::collections::BTreeMap;

use crate::request::RequestId;

pub use arm::{Inherited, forget, inherit, to_inherit};

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
