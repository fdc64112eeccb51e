//! The requests in flight, and the request that a CQE belongs to.
//!
//! A CQE contains only user data, which the program may give to several requests; these are assumed to complete in the
//! order of their submission.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use anyring_engine::abi::{IOSQE_CQE_SKIP_SUCCESS, IOSQE_IO_DRAIN, Sqe};
use anyring_engine::observe::trace::{Lent, Moment};
use anyring_engine::ops::TABLE;
use anyring_engine::queue::Cqe;
use anyring_engine::request::op::Caps;
use anyring_trace::event::LAST;
use linux_raw_sys::io_uring::{IORING_CQE_F_MORE, IORING_CQE_F_NOTIF};

/// The maximum number of requests that are remembered.
const MOST: usize = 1 << 16;

/// A request.
struct Known {
    sqe: Sqe,
    /// The moment that was reported for the submission.
    submitted: Moment,
    /// The memory that the request uses; `None` if it uses none.
    lent: Option<Box<Lent>>,
    /// The request's CQE has come, but not the notification that its memory is free.
    owes_notification: bool,
    /// True once a CQE has come that was not the last one.
    is_multishot: bool,
}

/// The request that a CQE is about.
pub struct Match {
    /// The request's number; 0 if unknown.
    pub serial: u64,
    /// The request's SQE, and the memory that it uses, if any.
    pub request: Option<(Sqe, Option<Box<Lent>>)>,
    /// The moment that was reported for the submission, if the request is known.
    pub submitted: Option<Moment>,
    /// [`LAST`] if no further CQE comes, except a notification.
    pub marks: u32,
}

/// The key of a request: its user data and its number.
pub type Key = (u64, u64);

/// The requests of a ring.
pub struct Requests {
    known: BTreeMap<Key, Known>,
    /// Requests up to this number may have completed unseen.
    doubtful: u64,
    /// The number of requests that drain.
    draining: usize,
}

/// True if the request's success has no CQE.
pub fn skips(sqe: &Sqe) -> bool {
    u32::from(sqe.flags) & IOSQE_CQE_SKIP_SUCCESS != 0
}

fn drains(sqe: &Sqe) -> bool {
    u32::from(sqe.flags) & IOSQE_IO_DRAIN != 0
}

fn notifies(sqe: &Sqe) -> bool {
    TABLE.lookup(sqe.opcode).caps.has(Caps::NOTIFIES)
}

impl Default for Requests {
    fn default() -> Requests {
        Requests::new()
    }
}

impl Requests {
    /// Returns an empty set.
    pub const fn new() -> Requests {
        Requests { known: BTreeMap::new(), doubtful: 0, draining: 0 }
    }

    /// Returns the number of requests whose CQE is due.
    pub fn due(&self) -> usize {
        self.known.values().filter(|known| !skips(&known.sqe)).count()
    }

    /// Forgets all requests.
    pub fn clear(&mut self) {
        self.known.clear();
        self.draining = 0;
    }

    /// True if a request that is submitted now may have to wait, because it drains or an earlier request does.
    pub fn may_hold_back(&self, sqe: &Sqe) -> bool {
        drains(sqe) || self.draining > 0
    }

    /// Adds a request, with the moment reported for its submission.
    pub fn add(&mut self, serial: u64, sqe: &Sqe, lent: Option<Box<Lent>>, submitted: Moment) {
        if self.known.len() >= MOST {
            self.make_room();
        }
        self.draining += usize::from(drains(sqe));
        let known = Known { sqe: *sqe, submitted, lent, owes_notification: false, is_multishot: false };
        self.known.insert((sqe.user_data, serial), known);
    }

    /// Forgets the requests that have no CQE on success and, if that is not enough, the older half of all requests.
    fn make_room(&mut self) {
        self.known.retain(|_, known| !skips(&known.sqe));
        if self.known.len() >= MOST / 2 {
            let mut serials: Vec<u64> = self.known.keys().map(|key| key.1).collect();
            let middle = serials.len() / 2;
            let oldest_kept = *serials.select_nth_unstable(middle).1;
            self.known.retain(|key, _| key.1 >= oldest_kept);
        }
    }

    /// True if a CQE can belong to one of the requests.
    pub fn has(&self, cqe: &Cqe) -> bool {
        self.find(cqe).is_some()
    }

    /// True if a CQE is due for this request, whether it succeeds or fails.
    pub fn expects(&self, key: Key) -> bool {
        self.known.get(&key).is_some_and(|known| !skips(&known.sqe))
    }

    /// Notes that CQEs were lost: any request known so far may have completed.
    pub fn lost(&mut self) {
        self.doubtful = self.known.keys().map(|key| key.1).max().unwrap_or(self.doubtful);
    }

    /// Iterates over the numbers of the requests with this user data, the oldest first.
    pub fn bearing(&self, user_data: u64) -> impl Iterator<Item = u64> {
        self.known.range((user_data, 0)..=(user_data, u64::MAX)).map(|(key, _)| key.1)
    }

    /// True if a request has had CQEs and lives on: a multishot request.
    pub fn is_multishot(&self, key: Key) -> bool {
        self.known.get(&key).is_some_and(|known| known.is_multishot)
    }

    /// Returns the keys of the requests before this number, except multishot requests that have had a CQE.
    pub fn without_cqe(&self, before: u64) -> Vec<Key> {
        let is_meant = |(key, known): &(&Key, &Known)| key.1 < before && !known.is_multishot;
        self.known.iter().filter(is_meant).map(|(key, _)| *key).collect()
    }

    /// Forgets a request of which nothing more will be seen. Returns its number.
    pub fn forget(&mut self, key: Key) -> Option<u64> {
        let known = self.known.remove(&key)?;
        if drains(&known.sqe) {
            self.draining = self.draining.saturating_sub(1);
        }
        Some(key.1)
    }

    /// Returns the request that a CQE belongs to.
    pub fn find(&self, cqe: &Cqe) -> Option<Key> {
        let (newer, older) = (self.doubtful.saturating_add(1)..=u64::MAX, 0..=self.doubtful);
        self.find_within(cqe, newer).or_else(|| self.find_within(cqe, older))
    }

    /// Returns the request, among those with these numbers, that a CQE belongs to.
    fn find_within(&self, cqe: &Cqe, serials: RangeInclusive<u64>) -> Option<(u64, u64)> {
        if serials.is_empty() {
            return None;
        }
        let range = (cqe.user_data, *serials.start())..=(cqe.user_data, *serials.end());
        let same = || self.known.range(range.clone());
        let first =
            |wanted: &dyn Fn(&Known) -> bool| same().find(|(_, known)| wanted(known)).map(|(key, _)| *key);
        if cqe.flags & IORING_CQE_F_NOTIF != 0 {
            return first(&|known| known.owes_notification).or_else(|| first(&|known| notifies(&known.sqe)));
        }
        // A request that has a CQE only if it fails is the less likely one.
        first(&|known| !known.owes_notification && !skips(&known.sqe))
            .or_else(|| first(&|known| !known.owes_notification))
    }

    /// Handles a CQE of the request with this key, and returns the request. The request is forgotten if this CQE is its
    /// last.
    pub fn complete(&mut self, key: Option<Key>, cqe: &Cqe) -> Match {
        let known = key.and_then(|key| Some((key, self.known.get_mut(&key)?)));
        let Some((key, known)) = known else {
            let marks = if cqe.flags & IORING_CQE_F_MORE == 0 || key.is_none() { LAST } else { 0 };
            return Match { serial: key.map_or(0, |key| key.1), request: None, submitted: None, marks };
        };
        let submitted = Some(known.submitted);
        if cqe.flags & IORING_CQE_F_MORE == 0 {
            let request = self.known.remove(&key).map(|known| (known.sqe, known.lent));
            if request.as_ref().is_some_and(|(sqe, _)| drains(sqe)) {
                self.draining = self.draining.saturating_sub(1);
            }
            return Match { serial: key.1, request, submitted, marks: LAST };
        }
        let announces = notifies(&known.sqe);
        known.owes_notification |= announces;
        known.is_multishot |= !announces;
        let request = Some((known.sqe, known.lent.clone()));
        Match { serial: key.1, request, submitted, marks: if announces { LAST } else { 0 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux_raw_sys::io_uring::io_uring_op as Code;

    fn sqe(opcode: Code, user_data: u64, flags: u32) -> Sqe {
        Sqe { opcode: opcode as u8, flags: flags as u8, user_data, ..Sqe::EMPTY }
    }

    fn cqe(user_data: u64, res: i32, flags: u32) -> Cqe {
        Cqe { user_data, res, flags, big: [0; 2] }
    }

    fn told(requests: &mut Requests, user_data: u64, res: i32, flags: u32) -> (u64, bool) {
        let cqe = cqe(user_data, res, flags);
        let found = requests.complete(requests.find(&cqe), &cqe);
        (found.serial, found.marks & LAST != 0)
    }

    #[test]
    fn same_user_data_in_the_order_of_submission() {
        let mut requests = Requests::new();
        for serial in 1..=3 {
            requests.add(serial, &sqe(Code::IORING_OP_NOP, 7, 0), None, Moment::now());
        }
        for serial in 1..=3 {
            assert_eq!(told(&mut requests, 7, 0, 0), (serial, true));
        }
        assert_eq!(told(&mut requests, 7, 0, 0), (0, true));
    }

    #[test]
    fn multishots_and_notifications() {
        let mut requests = Requests::new();
        requests.add(1, &sqe(Code::IORING_OP_POLL_ADD, 1, 0), None, Moment::now());
        requests.add(2, &sqe(Code::IORING_OP_SEND_ZC, 2, 0), None, Moment::now());
        requests.add(3, &sqe(Code::IORING_OP_SEND_ZC, 2, 0), None, Moment::now());
        assert_eq!(told(&mut requests, 1, 1, IORING_CQE_F_MORE), (1, false));
        assert_eq!(told(&mut requests, 2, 5, IORING_CQE_F_MORE), (2, true));
        // The second send fails, and has no notification.
        assert_eq!(told(&mut requests, 2, -32, 0), (3, true));
        assert_eq!(told(&mut requests, 2, 0, IORING_CQE_F_NOTIF), (2, true));
        assert_eq!(told(&mut requests, 1, -125, 0), (1, true));
        assert_eq!(requests.due(), 0);
    }

    #[test]
    fn what_skips_its_cqe_takes_nobody_elses() {
        let mut requests = Requests::new();
        requests.add(1, &sqe(Code::IORING_OP_NOP, 0, IOSQE_CQE_SKIP_SUCCESS), None, Moment::now());
        requests.add(2, &sqe(Code::IORING_OP_NOP, 0, 0), None, Moment::now());
        assert_eq!(requests.due(), 1);
        assert_eq!(told(&mut requests, 0, 0, 0), (2, true));
        assert_eq!(told(&mut requests, 0, -22, 0), (1, true));
    }

    #[test]
    fn after_a_loss_the_newer_one_is_meant() {
        let mut requests = Requests::new();
        requests.add(1, &sqe(Code::IORING_OP_NOP, 0, 0), None, Moment::now());
        requests.add(2, &sqe(Code::IORING_OP_POLL_ADD, 1, 0), None, Moment::now());
        requests.lost();
        requests.add(3, &sqe(Code::IORING_OP_NOP, 0, 0), None, Moment::now());
        assert_eq!(told(&mut requests, 0, 0, 0), (3, true));
        assert_eq!(told(&mut requests, 1, 1, IORING_CQE_F_MORE), (2, false));
    }

    #[test]
    fn those_of_which_nothing_more_is_seen_are_forgotten() {
        let mut requests = Requests::new();
        for serial in 1..=4 {
            requests.add(serial, &sqe(Code::IORING_OP_POLL_ADD, serial % 2, 0), None, Moment::now());
        }
        assert_eq!(requests.bearing(1).collect::<Vec<_>>(), [1, 3]);
        told(&mut requests, 0, 1, IORING_CQE_F_MORE);
        assert_eq!(requests.without_cqe(4), [(1, 1), (1, 3)]);
        assert_eq!((requests.forget((1, 1)), requests.forget((1, 1)), requests.due()), (Some(1), None, 3));
    }

    #[test]
    fn memory_is_bounded() {
        let mut requests = Requests::new();
        for serial in 1..=3 * MOST as u64 {
            let flags = if serial % 2 == 0 { IOSQE_CQE_SKIP_SUCCESS } else { 0 };
            requests.add(serial, &sqe(Code::IORING_OP_NOP, serial, flags), None, Moment::now());
            assert!(requests.known.len() <= MOST);
        }
        // The newest requests are known.
        assert!(requests.has(&cqe(3 * MOST as u64 - 1, 0, 0)));
    }
}
