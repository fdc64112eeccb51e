//! Finds out what has happened in the queues of a ring since the last look.
//!
//! Entries stay in the memory of a queue after they are taken, until others replace them. So a look sees the entries that were taken
//! and posted since the last look, as far as the queue reaches back; heads and tails give the number of the older ones.
//!
//! An entry may be overwritten shortly before the tail shows it: a program fills several places of the submission queue before it
//! moves the tail, and so does the kernel in the completion queue. So the oldest quarter of a queue is not used, except in the
//! smallest queues: there, an entry may be taken for that of a later request.

use anyring_engine::abi::{IORING_CQE_F_32, IORING_CQE_F_SKIP, Sqe};
use anyring_engine::ops;
use anyring_engine::queue::Cqe;

use crate::geometry::{Counters, Memory};

/// All entries of a queue with fewer than this number are used.
const SMALLEST: u32 = 4;

/// A request that was taken from the submission queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The position in the queue, which counts entries from 0 and wraps.
    pub position: u32,
    /// The request's SQE.
    pub sqe: Sqe,
}

/// A completion that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The position in the queue, which counts entries from 0 and wraps.
    pub position: u32,
    /// The CQE.
    pub cqe: Cqe,
    /// The number of CQEs that wait to be reaped, up to this one; 0 if the program has reaped it.
    pub ready: u32,
}

/// The changes that a look has found.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// The state of the queues.
    pub counters: Counters,
    /// At the first look, the requests that were taken before, in order, as far as the queue reaches back.
    pub earlier: Vec<Taken>,
    /// Requests that were taken from the submission queue since the last look, in order.
    pub taken: Vec<Taken>,
    /// Requests that wait to be taken. They may have been taken already, if the head was not moved yet.
    pub waiting: Vec<Taken>,
    /// Completions, in order.
    pub posted: Vec<Posted>,
    /// The queue has CQEs that take two places, or CQEs that only fill a place.
    pub has_large_cqes: bool,
    /// The number of SQEs that were taken.
    pub submissions: u32,
    /// The number of CQEs that were posted.
    pub completions: u32,
    /// The number of submissions that no look saw.
    pub missed_submissions: u32,
    /// The number of completions that no look saw.
    pub missed_completions: u32,
}

/// The positions of a ring's queues at the last look.
#[derive(Clone, Debug)]
pub struct Follower {
    taken: u32,
    found: u32,
}

impl Follower {
    /// Makes a follower that has seen everything before these counts.
    pub fn from(counters: &Counters) -> Follower {
        Follower { taken: counters.sq_head, found: counters.cq_tail }
    }

    /// Makes a follower for a ring that was made a moment ago, so that all of its events are new.
    pub fn from_beginning() -> Follower {
        Follower { taken: 0, found: 0 }
    }

    /// Looks at counters only, so that all requests and completions count as missed.
    pub fn count(&mut self, counters: Counters) -> Changes {
        let (submissions, completions) = self.advance(&counters);
        Changes {
            counters,
            submissions,
            completions,
            missed_submissions: submissions,
            missed_completions: completions,
            ..Changes::default()
        }
    }

    /// Looks at the queues.
    pub fn look(&mut self, memory: &Memory) -> Changes {
        let counters = memory.counters();
        let (submissions, completions) = self.advance(&counters);
        let mut changes = Changes { counters, submissions, completions, ..Changes::default() };
        let taken = copy_taken(memory, &counters, submissions);
        let waiting = copy_entries(memory, counters.sq_tail, counters.sq_ready());
        let posted = copy_posted(memory, &counters, completions);
        // The counters are read again: the copied entries may have been overwritten meanwhile.
        let after = memory.counters();
        let reach = intact(counters.sq_entries);
        changes.taken =
            taken.into_iter().filter(|taken| after.sq_tail.wrapping_sub(taken.position) <= reach).collect();
        let seen = changes.taken.first().map_or(0, |first| counters.sq_head.wrapping_sub(first.position));
        changes.missed_submissions = submissions - seen;
        let is_there = |taken: &Taken| after.sq_tail.wrapping_sub(taken.position) <= after.sq_entries;
        changes.waiting = waiting.into_iter().filter(is_there).collect();
        let reach = intact(counters.cq_entries);
        let is_intact = |position: u32| {
            after.cq_tail.wrapping_sub(position) <= reach || !is_before(position, after.cq_head)
        };
        let first = posted.iter().position(|(position, _)| is_intact(*position)).unwrap_or(posted.len());
        let before = counters.cq_tail.wrapping_sub(completions);
        changes.missed_completions =
            posted.get(first).map_or(completions, |(position, _)| position.wrapping_sub(before));
        let is_large =
            |posted: &Option<Posted>| posted.is_none_or(|posted| posted.cqe.flags & IORING_CQE_F_32 != 0);
        changes.has_large_cqes = posted.iter().any(|(_, posted)| is_large(posted));
        changes.posted = posted.into_iter().skip(first).filter_map(|(_, posted)| posted).collect();
        changes
    }

    /// Advances to these counters. Returns the numbers of entries that were taken and posted; 0 for a counter that
    /// moved backwards, because the kernel and the engine never do that.
    fn advance(&mut self, counters: &Counters) -> (u32, u32) {
        let forward =
            |from: u32, to: u32| Some(to.wrapping_sub(from)).filter(|&count| count <= i32::MAX as u32);
        let submissions = forward(self.taken, counters.sq_head).unwrap_or(0);
        let completions = forward(self.found, counters.cq_tail).unwrap_or(0);
        (self.taken, self.found) = (counters.sq_head, counters.cq_tail);
        (submissions, completions)
    }
}

/// Returns the requests that were taken so far, as far as the queue reaches back.
pub fn earlier(memory: &Memory) -> Vec<Taken> {
    let counters = memory.counters();
    copy_taken(memory, &counters, counters.sq_head.min(counters.sq_entries))
}

/// Returns the number of entries before the tail that have not been overwritten.
fn intact(entries: u32) -> u32 {
    if entries < SMALLEST { entries } else { entries - entries / 4 }
}

fn is_before(position: u32, other: u32) -> bool {
    other.wrapping_sub(position).wrapping_sub(1) < i32::MAX as u32
}

/// Returns the newest `submissions` requests that were taken, as far as the queue reaches back and later requests have not
/// used their entries.
fn copy_taken(memory: &Memory, counters: &Counters, submissions: u32) -> Vec<Taken> {
    let waiting = counters.sq_tail.wrapping_sub(counters.sq_head);
    let wanted = submissions.min(intact(counters.sq_entries).saturating_sub(waiting));
    copy_entries(memory, counters.sq_head, own_entries(memory, counters, wanted))
}

/// Returns the requests in the `left` positions before `end`.
fn copy_entries(memory: &Memory, end: u32, mut left: u32) -> Vec<Taken> {
    let mut copied = Vec::with_capacity(left as usize);
    while left > 0 {
        let position = end.wrapping_sub(left);
        let sqe = memory.sqe(position).map(Sqe::from_words);
        // If entries have two sizes, some operations take two places.
        let places = sqe.as_ref().map_or(1, |sqe| ops::lookup(sqe.opcode).places(true, left > 1));
        copied.extend(sqe.map(|sqe| Taken { position, sqe }));
        left -= places;
    }
    copied
}

/// Returns how many of the newest `wanted` positions, counted from the end, name entries that no later position names. Programs may
/// use an entry again as soon as it was taken, in any place of the queue (as fio does).
fn own_entries(memory: &Memory, counters: &Counters, wanted: u32) -> u32 {
    if !memory.geometry().has_array() {
        return wanted;
    }
    let waiting = counters.sq_tail.wrapping_sub(counters.sq_head).min(counters.sq_entries);
    let mut named = vec![false; counters.sq_entries as usize];
    let newest_first = (1..=waiting + wanted).map(|back| memory.index(counters.sq_tail.wrapping_sub(back)));
    let own = newest_first
        .take_while(|index| index.is_none_or(|index| !std::mem::replace(&mut named[index as usize], true)));
    (own.count() as u32).saturating_sub(waiting)
}

/// Returns the newest `completions` completions with their positions; `None` for CQEs that only fill a place.
fn copy_posted(memory: &Memory, counters: &Counters, completions: u32) -> Vec<(u32, Option<Posted>)> {
    let mut left = completions.min(counters.cq_entries);
    let mut copied = Vec::with_capacity(left as usize);
    while left > 0 {
        let position = counters.cq_tail.wrapping_sub(left);
        let [user_data, result] = memory.cqe(position);
        let (res, flags) = (result as i32, (result >> 32) as u32);
        let waiting = position.wrapping_sub(counters.cq_head);
        let ready = if waiting < counters.cq_entries { waiting + 1 } else { 0 };
        let is_filler = flags & IORING_CQE_F_SKIP != 0;
        let cqe = Cqe { user_data, res, flags, big: [0; 2] };
        copied.push((position, (!is_filler).then_some(Posted { position, cqe, ready })));
        left -= if flags & IORING_CQE_F_32 != 0 { left.min(2) } else { 1 };
    }
    copied
}
