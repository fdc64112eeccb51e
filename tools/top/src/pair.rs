//! Assigns completions to requests when a look has missed some of them.
//!
//! If nothing was missed, a completion belongs to the oldest request with its user data. Otherwise, this module assumes that requests and
//! completions with the same user data alternate: a program uses the user data again once its request has completed. The newest entries of
//! both queues were seen, so pairs are searched from the newest back. The newest completion belongs to the newest request if it was posted
//! after that request was taken. This is so if nothing is in flight, or if at least as many completions were posted before the completion as
//! requests were taken before the request, because each request has one completion. If it is not certain, no pair is made, and the request
//! is *doubtful* from then on: in flight or done.

use std::collections::{HashMap, HashSet, VecDeque};

use anyring_kernel_trace::requests::{Key, Requests};

use linux_raw_sys::io_uring::IORING_CQE_F_MORE;

use crate::follow::{Changes, Posted, Taken};

/// The pairs that were found for one look.
#[derive(Debug, Default)]
pub struct Pairs {
    /// The request of each completion of the look, in order.
    pub of_posted: Vec<Option<Key>>,
    /// Requests that may have completed unseen.
    pub lost: Vec<Key>,
    /// Requests that are in flight or done.
    pub doubtful: Vec<Key>,
}

/// The state of the earlier looks.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// The requests that may be in flight.
    pub requests: &'a Requests,
    /// Doubtful requests: their numbers by their user data.
    pub doubtful: &'a HashMap<u64, u64>,
}

/// The events of a look with some user data, by their places in the look.
#[derive(Default)]
struct Bearing {
    taken: Vec<usize>,
    posted: VecDeque<usize>,
}

impl Pairs {
    /// Finds the pairs of a look that has missed something, or in which the user data of doubtful requests was used again. `serials` are the numbers
    /// of the requests in the look. `is_regular` is true if each request has one completion, and no two requests in flight have the same user data.
    pub fn found(changes: &Changes, known: Known<'_>, serials: &[u64], is_regular: bool) -> Pairs {
        let mut pairs = Pairs { of_posted: vec![None; changes.posted.len()], ..Pairs::default() };
        let first = serials.first().copied().unwrap_or(u64::MAX);
        let mut all: HashMap<u64, Bearing> = HashMap::new();
        for (place, taken) in changes.taken.iter().enumerate() {
            all.entry(taken.sqe.user_data).or_default().taken.push(place);
        }
        for (place, posted) in changes.posted.iter().enumerate() {
            all.entry(posted.cqe.user_data).or_default().posted.push_back(place);
        }
        let waiting: HashSet<u64> = changes.waiting.iter().map(|waiting| waiting.sqe.user_data).collect();
        for (user_data, mut bearing) in all {
            let older: Vec<u64> = known.requests.bearing(user_data).collect();
            pairs.pair_older(user_data, &older, &mut bearing, (changes, known));
            // The newest completion may belong to a request that is being taken at this moment.
            let is_waiting = waiting.contains(&user_data);
            pairs.pair_new(user_data, serials, bearing, changes, is_regular && !is_waiting);
        }
        if changes.missed_completions > 0 && changes.missed_submissions > 0 {
            // The completions of requests that were not seen may have the user data of known ones.
            pairs.lose(known.requests.without_cqe(first));
        }
        pairs
    }

    /// Finds the completions of requests of earlier looks. If none was missed, the first completion is that of the
    /// oldest request.
    fn pair_older(
        &mut self,
        user_data: u64,
        older: &[u64],
        bearing: &mut Bearing,
        (changes, known): (&Changes, Known<'_>),
    ) {
        let is_only = changes.missed_submissions == 0 && bearing.taken.is_empty();
        for key in older.iter().map(|&serial| (user_data, serial)) {
            let is_doubtful = known.doubtful.get(&user_data) == Some(&key.1);
            let is_first = changes.missed_completions == 0 && !is_doubtful;
            let lives_on = known.requests.is_multishot(key) && bearing.taken.is_empty();
            if (is_first || is_only || lives_on) && !bearing.posted.is_empty() {
                // All completions of a multishot request belong to it.
                let is_last = |place: &usize| changes.posted[*place].cqe.flags & IORING_CQE_F_MORE == 0;
                let last = bearing.posted.iter().position(is_last).unwrap_or(bearing.posted.len() - 1);
                bearing.posted.drain(..=last).for_each(|posted| self.of_posted[posted] = Some(key));
            } else if !(is_first || bearing.taken.is_empty() && bearing.posted.is_empty()) {
                self.lost.push(key);
            }
        }
    }

    /// Finds the completions of the requests of this look, from the newest one on.
    fn pair_new(
        &mut self,
        user_data: u64,
        serials: &[u64],
        mut bearing: Bearing,
        changes: &Changes,
        is_regular: bool,
    ) {
        let Some(&newest) = bearing.taken.last() else { return };
        let is_done = bearing.posted.back().is_some_and(|&last| {
            is_regular && is_after(&changes.posted[last], &changes.taken[newest], changes)
        });
        if !is_done {
            bearing.taken.pop();
            if !bearing.posted.is_empty() || changes.missed_completions > 0 {
                self.doubtful.push((user_data, serials[newest]));
            }
            bearing.posted.clear();
        }
        while let Some(taken) = bearing.taken.pop() {
            let key = (user_data, serials[taken]);
            match bearing.posted.pop_back() {
                Some(posted) => self.of_posted[posted] = Some(key),
                None => self.lost.push(key),
            }
        }
    }

    fn lose(&mut self, keys: Vec<Key>) {
        let known: HashSet<Key> =
            self.lost.iter().copied().chain(self.of_posted.iter().flatten().copied()).collect();
        self.lost.extend(keys.into_iter().filter(|key| !known.contains(key)));
    }
}

/// True if a completion was certainly posted after a request was taken.
fn is_after(posted: &Posted, taken: &Taken, changes: &Changes) -> bool {
    let counters = &changes.counters;
    let before = taken.position.wrapping_sub(counters.dropped);
    let has_none = counters.in_flight() == Some(0) && counters.sq_ready() == 0;
    has_none || posted.position.wrapping_sub(before) <= i32::MAX as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Counters;
    use anyring_engine::abi::Sqe;
    use anyring_engine::observe::trace::Moment;
    use anyring_engine::queue::Cqe;

    /// Returns a look that has found requests and completions with this user data, up to these positions.
    fn look(taken: &[u64], sq_head: u32, posted: &[u64], cq_tail: u32) -> Changes {
        let position = |end: u32, count: usize, place: usize| end - (count - place) as u32;
        let taken_at = |(place, &user_data)| Taken {
            position: position(sq_head, taken.len(), place),
            sqe: Sqe { user_data, ..Sqe::EMPTY },
        };
        let posted_at = |(place, &user_data)| Posted {
            position: position(cq_tail, posted.len(), place),
            cqe: Cqe { user_data, ..Cqe::default() },
            ready: 0,
        };
        Changes {
            counters: Counters { sq_head, cq_tail, overflow: Some(0), ..Counters::default() },
            taken: taken.iter().enumerate().map(taken_at).collect(),
            posted: posted.iter().enumerate().map(posted_at).collect(),
            missed_submissions: 10,
            missed_completions: 10,
            ..Changes::default()
        }
    }

    /// Returns the number of the request of each completion, 0 for none; and the requests that are lost.
    fn pairs(changes: &Changes, older: &[(u64, u64)], is_regular: bool) -> (Vec<u64>, Vec<u64>) {
        let mut known = Requests::new();
        for &(user_data, serial) in older {
            known.add(serial, &Sqe { user_data, ..Sqe::EMPTY }, None, Moment::now());
        }
        let serials: Vec<u64> = changes.taken.iter().map(|taken| u64::from(taken.position) + 1).collect();
        let doubtful = HashMap::new();
        let known = Known { requests: &known, doubtful: &doubtful };
        let pairs = Pairs::found(changes, known, &serials, is_regular);
        let mut lost: Vec<u64> = pairs.lost.iter().map(|key| key.1).collect();
        lost.sort_unstable();
        (pairs.of_posted.iter().map(|key| key.map_or(0, |key| key.1)).collect(), lost)
    }

    #[test]
    fn from_the_newest_one_on() {
        // No request is in flight: the first completion belongs to a request that was not seen.
        let changes = look(&[7, 7, 8], 100, &[7, 7, 7, 8], 100);
        assert_eq!(pairs(&changes, &[], true), (vec![0, 98, 99, 100], vec![]));
        // There are more requests than completions: the completion of the oldest request was not seen.
        let changes = look(&[7, 7, 8], 100, &[7, 8], 100);
        assert_eq!(pairs(&changes, &[], true), (vec![99, 100], vec![98]));
    }

    #[test]
    fn what_may_be_in_flight_has_no_pair() {
        // The completion was posted as the 90th, and the request was taken as the 100th: the completion may belong to
        // an earlier request.
        let changes = look(&[7], 100, &[7], 90);
        assert_eq!(pairs(&changes, &[], true), (vec![0], vec![]));
        // The completion was posted as the 90th, and the request was taken as the 88th.
        let mut changes = look(&[7], 100, &[7], 90);
        changes.taken[0].position = 87;
        assert_eq!(pairs(&changes, &[], true), (vec![88], vec![]));
        assert_eq!(pairs(&changes, &[], false), (vec![0], vec![]));
    }

    #[test]
    fn requests_of_earlier_looks() {
        let older = [(7, 50), (9, 51)];
        // Submissions and completions were missed: the known requests may be done.
        let mut changes = look(&[8], 100, &[7], 99);
        assert_eq!(pairs(&changes, &older, true), (vec![0], vec![50, 51]));
        // All requests were seen: no other request has this user data.
        changes.missed_submissions = 0;
        assert_eq!(pairs(&changes, &older, true), (vec![50], vec![]));
        // All completions were seen.
        changes = look(&[7], 100, &[7, 7], 100);
        changes.missed_completions = 0;
        assert_eq!(pairs(&changes, &older, true), (vec![50, 100], vec![]));
    }

    /// The queues have the largest size, and the requests have different user data or all the same: the time must not
    /// grow with the square of their number.
    #[test]
    fn many_requests_take_no_time_of_their_square() {
        const MANY: u64 = 1 << 15;
        let own: Vec<u64> = (0..MANY).collect();
        let same = vec![7; MANY as usize];
        for user_data in [own, same] {
            let mut changes = look(&user_data, 3 * MANY as u32, &user_data, 3 * MANY as u32);
            changes.waiting = changes.taken.clone();
            changes.waiting.iter_mut().for_each(|waiting| waiting.sqe.user_data += 1 << 40);
            let older: Vec<(u64, u64)> = (1..=MANY).map(|serial| (MANY + serial, serial)).collect();
            let (of_posted, lost) = pairs(&changes, &older, true);
            assert!(of_posted.iter().all(|&serial| serial != 0));
            assert_eq!(lost.len() as u64, MANY);
        }
    }

    #[test]
    fn a_doubtful_request_has_a_completion_only_if_no_other_can() {
        let mut requests = Requests::new();
        requests.add(50, &Sqe { user_data: 7, ..Sqe::EMPTY }, None, Moment::now());
        let doubtful = HashMap::from([(7, 50)]);
        let known = Known { requests: &requests, doubtful: &doubtful };
        let lossless = |mut changes: Changes| {
            (changes.missed_submissions, changes.missed_completions) = (0, 0);
            let serials: Vec<u64> = changes.taken.iter().map(|taken| u64::from(taken.position) + 1).collect();
            Pairs::found(&changes, known, &serials, true)
        };
        let pairs = lossless(look(&[8], 100, &[7], 99));
        assert_eq!((pairs.of_posted, pairs.lost), (vec![Some((7, 50))], vec![]));
        // The completion may belong to the new request, too.
        let pairs = lossless(look(&[7], 100, &[7], 99));
        assert_eq!(
            (pairs.of_posted, pairs.lost, pairs.doubtful),
            (vec![None], vec![(7, 50)], vec![(7, 100)])
        );
    }
}
