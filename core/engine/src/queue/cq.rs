//! The completion ring: what was posted, what found no room, what is not to be seen yet.

use alloc::collections::VecDeque;

use linux_raw_sys::io_uring::{IORING_SETUP_CQE32, IORING_SQ_CQ_OVERFLOW};

use crate::abi::layout::Word;
use crate::abi::{IORING_CQE_F_32, IORING_CQE_F_SKIP, IORING_SETUP_CQE_MIXED};
use crate::queue::{Cqe, RingMemory};

/// CQEs kept for a program that does not reap; the kernel's bound is memory.
const MAX_KEPT: usize = 1 << 20;

/// How big the CQEs of a ring are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sizes {
    Small,
    /// CQEs of two sizes, each as it needs.
    Mixed,
    Big,
}

/// The engine's side of a completion ring.
pub struct Cq {
    /// The engine's own count of entries posted.
    tail: u32,
    sizes: Sizes,
    /// A CQE could not even be kept; the next wait says so (`EBADR`).
    dropped: bool,
    /// CQEs posted or kept since this was last asked for.
    news: u64,
    /// CQEs that the process's counters do not show yet; one that was kept counts when it is kept.
    uncounted: u64,
    /// CQEs that found the ring full, in order.
    kept: VecDeque<Cqe>,
    /// Completions that other rings sent, where they are not to be seen yet.
    messages: VecDeque<Cqe>,
}

impl Cq {
    /// The CQ of a new ring with these `IORING_SETUP_*`.
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

    /// The count of entries posted.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Entries that wait to be reaped.
    #[inline]
    pub fn ready(&self, memory: &RingMemory) -> u32 {
        // Acquire pairs with the program's release store of its head after it read CQEs.
        // Where the ring is gone, it counts as full: nobody waits for more.
        let full = self.tail.wrapping_sub(memory.layout().cq_entries);
        self.tail.wrapping_sub(memory.load(Word::CqHead, full))
    }

    /// True if so many CQEs of the ordinary size would be seen at once.
    #[inline]
    pub fn has_room_for(&self, memory: &RingMemory, count: u32) -> bool {
        self.kept.is_empty() && self.ready(memory).saturating_add(count) <= memory.layout().cq_entries
    }

    /// The number of big CQEs that would be seen at once.
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
            // None goes around the end.
            Sizes::Mixed => until_end / 2 + (free - until_end) / 2,
        }
    }

    /// True if all CQEs are of the ordinary size.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.sizes == Sizes::Small
    }

    /// Posts a CQE, or keeps it where the ring is full or others are kept already.
    #[inline(always)]
    pub fn post(&mut self, memory: &RingMemory, cqe: &Cqe) {
        if !self.post_at_once(memory, cqe) {
            self.keep(memory, *cqe);
        }
    }

    /// Posts a CQE if it can be seen in the ring at once, behind all before it.
    #[inline(always)]
    pub fn post_at_once(&mut self, memory: &RingMemory, cqe: &Cqe) -> bool {
        let posted = self.kept.is_empty() && self.store(memory, cqe);
        self.uncounted += u64::from(posted);
        posted
    }

    /// Keeps a CQE, whether there is room or not.
    #[cold]
    pub fn keep(&mut self, memory: &RingMemory, cqe: Cqe) {
        self.uncounted += 1;
        if self.kept.is_empty() {
            // A hint that the program acts on by entering.
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
        // Of two entries where both sizes are mixed, of one where all are big.
        let spans = cqe.flags & IORING_CQE_F_32 != 0 && self.sizes == Sizes::Mixed;
        let entries = memory.layout().cq_entries;
        if spans && self.tail & (entries - 1) == entries - 1 && self.ready(memory) < entries {
            // A big CQE does not go around the end: the program skips what is left there.
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

    /// How many CQEs are kept that found the ring full.
    #[inline]
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Moves kept CQEs into the ring, as far as there is room. Returns whether that was the last of them.
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

    /// Gives kept CQEs to somebody else, as long as `takes` says that it has taken one. False where some are left.
    pub fn leave_kept(&mut self, mut takes: impl FnMut(&Cqe) -> bool) -> bool {
        while let Some(cqe) = self.kept.front() {
            if !takes(cqe) {
                return false;
            }
            self.kept.pop_front();
        }
        true
    }

    /// True if a CQE could not even be kept, since this was last asked.
    pub fn take_dropped(&mut self) -> bool {
        core::mem::take(&mut self.dropped)
    }

    /// Holds a completion back that another ring sent.
    pub fn hold_back(&mut self, cqe: Cqe) {
        self.messages.push_back(cqe);
    }

    /// Takes the first of those held back.
    #[inline]
    pub fn next_message(&mut self) -> Option<Cqe> {
        self.messages.pop_front()
    }

    /// The number of messages.
    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// True if all that there is to be told is in the ring.
    #[inline]
    pub fn is_at_rest(&self) -> bool {
        self.messages.is_empty() && self.kept.is_empty() && !self.dropped
    }

    /// True if something was posted or kept that [`Cq::take_news`] has not told of.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.news > 0
    }

    /// Where there are news, that they are told now: how many completions the process's counters do not show yet.
    #[inline]
    pub fn take_news(&mut self) -> Option<u64> {
        if self.news == 0 {
            return None;
        }
        self.news = 0;
        Some(core::mem::take(&mut self.uncounted))
    }

    /// Takes over what another process has posted. Returns whether it has posted anything.
    pub fn resync(&mut self, memory: &RingMemory) -> bool {
        let tail = memory.load(Word::CqTail, self.tail);
        core::mem::replace(&mut self.tail, tail) != tail
    }

    /// In a child after `fork`: what is kept is the parent's to post.
    pub fn forked(&mut self) {
        self.kept.clear();
        self.messages.clear();
    }
}
