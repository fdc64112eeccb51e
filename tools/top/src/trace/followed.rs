//! The state of a watched ring: the events that were reported.

use std::collections::{HashMap, HashSet};

use anyring_engine::observe::trace::Moment;
use anyring_kernel_trace::requests::Requests;

use super::now_ns;
use crate::follow::{Changes, Taken};
use crate::irregular;

/// The state of a watched ring: the events that were reported.
pub struct Followed {
    /// The known requests in flight.
    pub requests: Requests,
    /// The number of requests that were taken from the queue before the last look.
    pub serial: u64,
    /// The position behind the last request, if the next one is linked to it.
    pub chain: Option<u32>,
    /// True if a request may have several completions, or none. Then the counters do not give the number of requests in
    /// flight.
    pub is_irregular: bool,
    /// True if two requests in flight have had the same user data.
    pub is_ambiguous: bool,
    /// True if the process has no descriptor of the ring any more.
    pub is_gone: bool,
    /// The time of the last look.
    pub looked: (Moment, u64),
    /// The numbers of requests missed, of completions missed, and of completions whose requests were missed, since the
    /// last report.
    pub missed: [u64; 3],
    /// Requests that are in flight or done: their numbers by their user data.
    pub doubtful: HashMap<u64, u64>,
    /// Requests from before the trace that may be in flight, by their user data; the newest one for each user data.
    pub earlier: HashMap<u64, Taken>,
    /// The numbers of requests from before the trace that have had completions, and may have more.
    pub earlier_serials: HashSet<u64>,
    /// The time at which the ring was found.
    pub begun_ns: u64,
    /// Positions of requests whose completions were posted before the queue's head was moved past them.
    pub foretold: HashSet<u32>,
    /// The time at which missed requests were last reported.
    pub told_missed_ns: u64,
    /// The number of CQEs that waited to be reaped at the last look.
    pub cq_ready: u32,
}

impl Followed {
    /// Makes the state of a ring whose first look found these changes.
    pub fn new(changes: &Changes) -> Followed {
        let counters = &changes.counters;
        Followed {
            requests: Requests::new(),
            serial: u64::from(counters.sq_head.wrapping_sub(changes.submissions)),
            chain: None,
            is_irregular: false,
            is_ambiguous: false,
            is_gone: false,
            looked: (Moment::now(), now_ns()),
            missed: [0; 3],
            doubtful: HashMap::new(),
            earlier: changes.earlier.iter().map(|taken| (taken.sqe.user_data, *taken)).collect(),
            earlier_serials: HashSet::new(),
            begun_ns: now_ns(),
            foretold: HashSet::new(),
            told_missed_ns: now_ns(),
            cq_ready: 0,
        }
    }

    /// Returns true if the request was submitted before the trace. If it has ended, its number is forgotten.
    pub fn end_earlier(&mut self, serial: u64, has_ended: bool) -> bool {
        if has_ended { self.earlier_serials.remove(&serial) } else { self.earlier_serials.contains(&serial) }
    }

    /// Notes whether requests have several completions, or none.
    pub fn note_irregularities(&mut self, changes: &Changes) {
        self.is_irregular |= irregular::is_seen_in(changes);
    }

    /// True if user data of doubtful requests was used again.
    pub fn meets_doubtful(&self, changes: &Changes) -> bool {
        changes.taken.iter().any(|taken| self.doubtful.contains_key(&taken.sqe.user_data))
    }

    /// Notes whether two requests in flight have the same user data.
    pub fn note_ambiguity(&mut self, changes: &Changes) {
        let is_shared = |taken: &Taken| self.requests.bearing(taken.sqe.user_data).nth(1).is_some();
        self.is_ambiguous |= changes.taken.iter().any(is_shared);
    }

    /// Returns the number of requests in flight, if the counters say so.
    pub fn in_flight(&self, changes: &Changes) -> Option<usize> {
        changes.counters.in_flight().filter(|_| !self.is_irregular).map(|count| count as usize)
    }
}
