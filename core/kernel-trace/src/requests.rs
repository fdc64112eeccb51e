//! Requests that are under way: which of them a CQE is about.
//!
//! A CQE bears user data alone, which the program may give to several requests; they are taken to complete in the order of
//! their submission.

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

/// As many are remembered.
const MOST: usize = 1 << 16;

/// A request.
struct Known {
    sqe: Sqe,
    /// When it was told that it is submitted.
    submitted: Moment,
    /// None where it has none.
    lent: Option<Box<Lent>>,
    /// Its CQE has come, and that about its memory has not.
    owes_notification: bool,
    /// True once a CQE has come that was not the last.
    is_multishot: bool,
}

/// The request that a CQE is about.
pub struct Match {
    /// The request's number; 0 where none is known.
    pub serial: u64,
    /// Its SQE, and its memory, if it has any.
    pub request: Option<(Sqe, Option<Box<Lent>>)>,
    /// When it was told that it is submitted, where one is known.
    pub submitted: Option<Moment>,
    /// [`LAST`], where no further one comes.
    pub marks: u32,
}

/// By what a request is found: its user data and its number.
pub type Key = (u64, u64);

/// The requests of a ring.
pub struct Requests {
    known: BTreeMap<Key, Known>,
    /// Up to this number, some may be done without a CQE that was seen.
    doubtful: u64,
    /// How many of them drain.
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
    /// None.
    pub const fn new() -> Requests {
        Requests { known: BTreeMap::new(), doubtful: 0, draining: 0 }
    }

    /// How many there are of which a CQE is due.
    pub fn due(&self) -> usize {
        self.known.values().filter(|known| !skips(&known.sqe)).count()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.known.clear();
        self.draining = 0;
    }

    /// True if a request that is submitted now must wait, because it drains or others do.
    pub fn may_hold_back(&self, sqe: &Sqe) -> bool {
        drains(sqe) || self.draining > 0
    }

    /// One was submitted, as of a moment.
    pub fn add(&mut self, serial: u64, sqe: &Sqe, lent: Option<Box<Lent>>, submitted: Moment) {
        if self.known.len() >= MOST {
            self.make_room();
        }
        self.draining += usize::from(drains(sqe));
        let known = Known { sqe: *sqe, submitted, lent, owes_notification: false, is_multishot: false };
        self.known.insert((sqe.user_data, serial), known);
    }

    /// Forgets those that tell nobody when they succeed, and where that is not enough the older half of all.
    fn make_room(&mut self) {
        self.known.retain(|_, known| !skips(&known.sqe));
        if self.known.len() >= MOST / 2 {
            let mut serials: Vec<u64> = self.known.keys().map(|key| key.1).collect();
            let middle = serials.len() / 2;
            let oldest_kept = *serials.select_nth_unstable(middle).1;
            self.known.retain(|key, _| key.1 >= oldest_kept);
        }
    }

    /// Whether a CQE can be about one of them.
    pub fn has(&self, cqe: &Cqe) -> bool {
        self.find(cqe).is_some()
    }

    /// Whether this one waits for a CQE: one that tells of failures only does not.
    pub fn expects(&self, key: Key) -> bool {
        self.known.get(&key).is_some_and(|known| !skips(&known.sqe))
    }

    /// CQEs were lost: some of those that are known may be done.
    pub fn lost(&mut self) {
        self.doubtful = self.known.keys().map(|key| key.1).max().unwrap_or(self.doubtful);
    }

    /// The numbers of those with this user data, the oldest first.
    pub fn bearing(&self, user_data: u64) -> impl Iterator<Item = u64> {
        self.known.range((user_data, 0)..=(user_data, u64::MAX)).map(|(key, _)| key.1)
    }

    /// True if a request has had CQEs and lives on: a multishot request.
    pub fn is_multishot(&self, key: Key) -> bool {
        self.known.get(&key).is_some_and(|known| known.is_multishot)
    }

    /// The keys of those that were submitted before this number and have had no CQE; multishot requests that have had some are left out.
    pub fn without_cqe(&self, before: u64) -> Vec<Key> {
        let is_meant = |(key, known): &(&Key, &Known)| key.1 < before && !known.is_multishot;
        self.known.iter().filter(is_meant).map(|(key, _)| *key).collect()
    }

    /// Forgets one of them, of which nothing more will be seen; its number.
    pub fn forget(&mut self, key: Key) -> Option<u64> {
        let known = self.known.remove(&key)?;
        if drains(&known.sqe) {
            self.draining = self.draining.saturating_sub(1);
        }
        Some(key.1)
    }

    /// The one that a CQE is about.
    pub fn find(&self, cqe: &Cqe) -> Option<Key> {
        let (newer, older) = (self.doubtful.saturating_add(1)..=u64::MAX, 0..=self.doubtful);
        self.find_within(cqe, newer).or_else(|| self.find_within(cqe, older))
    }

    /// The one that a CQE is about, among those with these numbers.
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
        // A request that tells of failures only is the less likely one.
        first(&|known| !known.owes_notification && !skips(&known.sqe))
            .or_else(|| first(&|known| !known.owes_notification))
    }

    /// Finds what a CQE is about that belongs to the request with this key. A request that is done with it is forgotten.
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
        // The second fails, and owes nothing.
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
        // The newest are known.
        assert!(requests.has(&cqe(3 * MOST as u64 - 1, 0, 0)));
    }
}
