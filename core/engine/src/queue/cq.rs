//! The engine's side of the completion ring: CQEs that were posted, that found no room, or that are held back.

use linux_raw_sys::io_uring::{IORING_SETUP_CQE32, IORING_SQ_CQ_OVERFLOW};

use crate::abi::layout::Word;
use crate::abi::{Errno, IORING_CQE_F_32, IORING_CQE_F_SKIP, IORING_SETUP_CQE_MIXED};
use crate::process::page::Page;
use crate::queue::waiting::Waiting;
use crate::queue::{Cqe, Queues};

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
    kept: Waiting,
    /// CQEs that other rings sent, held back until they may be posted.
    messages: Waiting,
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
        let (kept, messages) = (Waiting::default(), Waiting::default());
        Cq { tail: 0, sizes, dropped: false, news: 0, uncounted: 0, kept, messages }
    }

    /// Returns the number of entries posted, modulo 2^32.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// True if all CQEs are of the ordinary size.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.sizes == Sizes::Small
    }

    /// Returns the number of kept CQEs.
    #[inline]
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// True if a CQE could not even be kept, since the last call.
    pub fn take_dropped(&mut self) -> bool {
        core::mem::take(&mut self.dropped)
    }

    /// Holds back a CQE that another ring sent. Returns false if there is no room.
    pub fn hold_back(&mut self, cqe: Cqe) -> bool {
        self.messages.push(cqe)
    }

    /// Takes the first CQE that was held back.
    #[inline]
    pub fn next_message(&mut self) -> Option<Cqe> {
        let message = self.messages.first();
        if message.is_some() {
            self.messages.remove_first();
        }
        message
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

    /// Makes a page for the processes that share the ring, and moves waiting CQEs to it: messages if the ring holds them back, else those that
    /// found it full. Only the thread that fetches messages fills such a ring.
    ///
    /// # Errors
    /// The errors of mappings.
    pub fn share(&mut self, holds_messages_back: bool) -> Result<&'static Page, Errno> {
        let waiting = if holds_messages_back { &mut self.messages } else { &mut self.kept };
        let (page, places) = Page::create(waiting.len())?;
        waiting.share(page, places);
        Ok(page)
    }

    /// Forgets the page, in which no CQE waits.
    pub fn unshare(&mut self) {
        self.kept.unshare();
        self.messages.unshare();
    }

    /// Reads which CQEs wait in the page. Returns whether other processes have kept some, and whether they have held some back.
    pub fn resync_waiting(&mut self) -> (bool, bool) {
        (self.kept.resync(), self.messages.resync())
    }

    /// Drops CQEs that wait in the parent's own memory, in a child after `fork`: the parent posts them.
    pub fn forked(&mut self) {
        self.kept.forked();
        self.messages.forked();
    }
}

impl Queues {
    /// Returns the number of entries that the program has not reaped.
    #[inline]
    pub fn cq_ready(&self) -> u32 {
        // Acquire pairs with the program's release store of its head after it read CQEs.
        // If the ring's memory is gone, the CQ counts as full, so that no thread waits for more.
        let full = self.cq.tail.wrapping_sub(self.memory.layout().cq_entries);
        self.cq.tail.wrapping_sub(self.memory.load(Word::CqHead, full))
    }

    /// True if the ring has room for `count` CQEs of the ordinary size.
    #[inline]
    pub fn has_room_for(&self, count: u32) -> bool {
        self.cq.kept.is_empty() && self.cq_ready().saturating_add(count) <= self.memory.layout().cq_entries
    }

    /// Returns the number of big CQEs that the ring has room for.
    pub fn room_for_big(&self) -> u32 {
        if !self.cq.kept.is_empty() {
            return 0;
        }
        let entries = self.memory.layout().cq_entries;
        let free = entries.saturating_sub(self.cq_ready());
        let until_end = (entries - (self.cq.tail & (entries - 1))).min(free);
        match self.cq.sizes {
            Sizes::Small => 0,
            Sizes::Big => free,
            // No CQE wraps around the end of the ring.
            Sizes::Mixed => until_end / 2 + (free - until_end) / 2,
        }
    }

    /// Posts a CQE, or keeps it if the ring is full or other CQEs are kept already.
    #[inline(always)]
    pub fn post(&mut self, cqe: &Cqe) {
        if !self.post_at_once(cqe) {
            self.keep(*cqe);
        }
    }

    /// Posts a CQE if the ring has room and no earlier CQE is kept. True if posted.
    #[inline(always)]
    pub fn post_at_once(&mut self, cqe: &Cqe) -> bool {
        let posted = self.cq.kept.is_empty() && self.store(cqe);
        self.cq.uncounted += u64::from(posted);
        posted
    }

    /// True if another CQE would be posted or kept.
    pub fn may_post(&self) -> bool {
        self.cq.kept.has_room() || self.has_room_for(1)
    }

    /// Keeps a CQE, even if the ring has room.
    #[cold]
    pub fn keep(&mut self, cqe: Cqe) {
        self.cq.uncounted += 1;
        if self.cq.kept.is_empty() {
            // The flag tells the program to call `enter`, which moves the kept CQEs into the ring.
            self.memory.change_sq_flags(IORING_SQ_CQ_OVERFLOW, 0);
        }
        if !self.cq.kept.push(cqe) {
            self.cq.dropped = true;
            self.memory.count(Word::CqOverflow);
        }
        self.cq.news += 1;
    }

    #[inline(always)]
    fn store(&mut self, cqe: &Cqe) -> bool {
        if self.cq.sizes != Sizes::Small {
            return self.store_of_either_size(*cqe);
        }
        if self.cq_ready() >= self.memory.layout().cq_entries {
            return false;
        }
        self.publish_cqe(cqe, 1, false);
        self.cq.news += 1;
        true
    }

    #[inline(never)]
    fn store_of_either_size(&mut self, cqe: Cqe) -> bool {
        // A big CQE spans two entries on a ring of mixed sizes, one entry on a ring of big CQEs.
        let spans = cqe.flags & IORING_CQE_F_32 != 0 && self.cq.sizes == Sizes::Mixed;
        let entries = self.memory.layout().cq_entries;
        if spans && self.cq.tail & (entries - 1) == entries - 1 && self.cq_ready() < entries {
            // A big CQE does not wrap around the end: a filler, which the program skips, fills the last entry.
            let filler = Cqe { flags: IORING_CQE_F_SKIP, ..Cqe::default() };
            self.publish_cqe(&filler, 1, false);
        }
        let needed = if spans { 2 } else { 1 };
        if self.cq_ready() > entries - needed {
            return false;
        }
        self.publish_cqe(&cqe, needed, needed > 1 || self.cq.sizes == Sizes::Big);
        self.cq.news += 1;
        true
    }

    #[inline]
    fn publish_cqe(&mut self, cqe: &Cqe, entries: u32, big: bool) {
        self.memory.store_cqe(self.cq.tail, cqe, big);
        self.cq.tail = self.cq.tail.wrapping_add(entries);
        // Release pairs with the program's acquire load of the tail before it reads CQEs.
        self.memory.store(Word::CqTail, self.cq.tail);
    }

    /// Moves kept CQEs into the ring while it has room. True if there were kept CQEs and all have moved.
    pub fn flush_kept(&mut self) -> bool {
        let kept = !self.cq.kept.is_empty();
        while let Some(cqe) = self.cq.kept.first() {
            if !self.store(&cqe) {
                return false;
            }
            self.cq.kept.remove_first();
        }
        kept
    }

    /// Reads the SQ head and the CQ tail, which another process may have moved. True if the tail has moved.
    pub fn resync(&mut self) -> bool {
        self.sq.resync(&self.memory);
        let tail = self.memory.load(Word::CqTail, self.cq.tail);
        core::mem::replace(&mut self.cq.tail, tail) != tail
    }
}
