//! The engine's side of the completion ring: CQEs that were posted, that found no room, or that are held back.

use alloc::collections::VecDeque;

use linux_raw_sys::io_uring::{IORING_SETUP_CQE32, IORING_SQ_CQ_OVERFLOW};

use crate::abi::layout::Word;
use crate::abi::{IORING_CQE_F_32, IORING_CQE_F_SKIP, IORING_SETUP_CQE_MIXED};
use crate::queue::{Cqe, RingMemory};

/// Most CQEs that are kept for a program that does not reap; the kernel's limit is memory.
const MAX_KEPT: usize = 1 << 20;

/// Sizes of the CQEs of a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sizes {
    Small,
    /// CQEs of 16 and 32 bytes, each as large as its content needs.
    Mixed,
    Big,
}

/// The engine's side of a completion ring.
pub struct Cq {
    /// The engine's own copy of the CQ tail.
    tail: u32,
    sizes: Sizes,
    /// A CQE could not even be kept; the next wait returns `EBADR`.
    dropped: bool,
    /// CQEs posted or kept since the last [`Cq::take_news`].
    news: u64,
    /// CQEs that the process's counters do not include yet. A kept CQE counts when it is kept.
    uncounted: u64,
    /// CQEs that found the ring full, in order.
    kept: VecDeque<Cqe>,
    /// CQEs that other rings sent, held back until they may be posted.
    messages: VecDeque<Cqe>,
}

impl Cq {
    /// Makes the CQ of a new ring with these `IORING_SETUP_*` flags.
    pub fn new(setup_flags: u32) -> Cq {
        let sizes = if setup_flags & IORING_SETUP_CQE32 != 0 {
            Sizes::Big
        } else if setup_flags & IORING_SETUP_CQE_MIXED != 0 {
            Sizes::Mixed
        } else {
            Sizes::Small
        };
        let (kept, messages) = (VecDeque::new(), VecDeque::new());
        Cq { tail: 0, sizes, dropped: false, news: 0, uncounted: 0, kept, messages }
    }

    /// Returns the number of entries posted, modulo 2^32.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Returns the number of entries that the program has not reaped.
    #[inline]
    pub fn ready(&self, memory: &RingMemory) -> u32 {
        // Acquire pairs with the program's release store of its head after it read CQEs.
        // If the ring's memory is gone, the CQ counts as full, so that no thread waits for more.
        let full = self.tail.wrapping_sub(memory.layout().cq_entries);
        self.tail.wrapping_sub(memory.load(Word::CqHead, full))
    }

    /// True if the ring has room for `count` CQEs of the ordinary size.
    #[inline]
    pub fn has_room_for(&self, memory: &RingMemory, count: u32) -> bool {
        self.kept.is_empty() && self.ready(memory).saturating_add(count) <= memory.layout().cq_entries
    }

    /// Returns the number of big CQEs that the ring has room for.
    pub fn room_for_big(&self, memory: &RingMemory) -> u32 {
        if !self.kept.is_empty() {
            return 0;
        }
        let entries = memory.layout().cq_entries;
        let free = entries.saturating_sub(self.ready(memory));
        let until_end = (entries - (self.tail & (entries - 1))).min(free);
        match self.sizes {
            Sizes::Small => 0,
            Sizes::Big => free,
            // No CQE wraps around the end of the ring.
            Sizes::Mixed => until_end / 2 + (free - until_end) / 2,
        }
    }

    /// True if all CQEs are of the ordinary size.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.sizes == Sizes::Small
    }

    /// Posts a CQE, or keeps it if the ring is full or other CQEs are kept already.
    #[inline(always)]
    pub fn post(&mut self, memory: &RingMemory, cqe: &Cqe) {
        if !self.post_at_once(memory, cqe) {
            self.keep(memory, *cqe);
        }
    }

    /// Posts a CQE if the ring has room and no earlier CQE is kept. True if posted.
    #[inline(always)]
    pub fn post_at_once(&mut self, memory: &RingMemory, cqe: &Cqe) -> bool {
        let posted = self.kept.is_empty() && self.store(memory, cqe);
        self.uncounted += u64::from(posted);
        posted
    }

    /// Keeps a CQE, even if the ring has room.
    #[cold]
    pub fn keep(&mut self, memory: &RingMemory, cqe: Cqe) {
        self.uncounted += 1;
        if self.kept.is_empty() {
            // The flag tells the program to call `enter`, which moves the kept CQEs into the ring.
            memory.change_sq_flags(IORING_SQ_CQ_OVERFLOW, 0);
        }
        if self.kept.len() < MAX_KEPT && self.kept.try_reserve(1).is_ok() {
            self.kept.push_back(cqe);
        } else {
            self.dropped = true;
            memory.count(Word::CqOverflow);
        }
        self.news += 1;
    }

    #[inline(always)]
    fn store(&mut self, memory: &RingMemory, cqe: &Cqe) -> bool {
        if self.sizes != Sizes::Small {
            return self.store_of_either_size(memory, *cqe);
        }
        if self.ready(memory) >= memory.layout().cq_entries {
            return false;
        }
        self.publish(memory, cqe, 1, false);
        self.news += 1;
        true
    }

    #[inline(never)]
    fn store_of_either_size(&mut self, memory: &RingMemory, cqe: Cqe) -> bool {
        // A big CQE spans two entries on a ring of mixed sizes, one entry on a ring of big CQEs.
        let spans = cqe.flags & IORING_CQE_F_32 != 0 && self.sizes == Sizes::Mixed;
        let entries = memory.layout().cq_entries;
        if spans && self.tail & (entries - 1) == entries - 1 && self.ready(memory) < entries {
            // A big CQE does not wrap around the end: a filler, which the program skips, fills the last entry.
            let filler = Cqe { flags: IORING_CQE_F_SKIP, ..Cqe::default() };
            self.publish(memory, &filler, 1, false);
        }
        let needed = if spans { 2 } else { 1 };
        if self.ready(memory) > entries - needed {
            return false;
        }
        self.publish(memory, &cqe, needed, needed > 1 || self.sizes == Sizes::Big);
        self.news += 1;
        true
    }

    #[inline]
    fn publish(&mut self, memory: &RingMemory, cqe: &Cqe, entries: u32, big: bool) {
        memory.store_cqe(self.tail, cqe, big);
        self.tail = self.tail.wrapping_add(entries);
        // Release pairs with the program's acquire load of the tail before it reads CQEs.
        memory.store(Word::CqTail, self.tail);
    }

    /// Returns the number of kept CQEs.
    #[inline]
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Moves kept CQEs into the ring while it has room. True if there were kept CQEs and all have moved.
    pub fn flush(&mut self, memory: &RingMemory) -> bool {
        let kept = !self.kept.is_empty();
        while let Some(&cqe) = self.kept.front() {
            if !self.store(memory, &cqe) {
                return false;
            }
            self.kept.pop_front();
        }
        kept
    }

    /// Gives kept CQEs to `takes` until it returns false for one. False if CQEs are left.
    pub fn leave_kept(&mut self, mut takes: impl FnMut(&Cqe) -> bool) -> bool {
        while let Some(cqe) = self.kept.front() {
            if !takes(cqe) {
                return false;
            }
            self.kept.pop_front();
        }
        true
    }

    /// True if a CQE could not even be kept, since the last call.
    pub fn take_dropped(&mut self) -> bool {
        core::mem::take(&mut self.dropped)
    }

    /// Holds back a CQE that another ring sent.
    pub fn hold_back(&mut self, cqe: Cqe) {
        self.messages.push_back(cqe);
    }

    /// Returns the first CQE that was held back.
    #[inline]
    pub fn next_message(&mut self) -> Option<Cqe> {
        self.messages.pop_front()
    }

    /// Returns the number of CQEs held back.
    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// True if the ring has all CQEs: none is kept, held back or dropped.
    #[inline]
    pub fn is_at_rest(&self) -> bool {
        self.messages.is_empty() && self.kept.is_empty() && !self.dropped
    }

    /// True if a CQE was posted or kept since the last [`Cq::take_news`].
    #[inline]
    pub fn has_news(&self) -> bool {
        self.news > 0
    }

    /// Resets the news, if there is any. Returns the number of CQEs that the process's counters do not include yet.
    #[inline]
    pub fn take_news(&mut self) -> Option<u64> {
        if self.news == 0 {
            return None;
        }
        self.news = 0;
        Some(core::mem::take(&mut self.uncounted))
    }

    /// Reads the CQ tail, which another process may have moved. True if it has moved.
    pub fn resync(&mut self, memory: &RingMemory) -> bool {
        let tail = memory.load(Word::CqTail, self.tail);
        core::mem::replace(&mut self.tail, tail) != tail
    }

    /// Drops kept and held-back CQEs, in a child after `fork`: the parent posts them.
    pub fn forked(&mut self) {
        self.kept.clear();
        self.messages.clear();
    }
}
