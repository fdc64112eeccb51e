//! The queues of zero-copy receives (`IORING_REGISTER_ZCRX_IFQ`): an area of the program's memory, by pages, into which data is
//! received, and a *refill ring*, by which the program gives pages back that it has read.
//!
//! A card would put packets into the area. Where a packet is not in it, the kernel copies; the engine always does.
//!
//! Area and ring are the program's memory and may hold anything, or be gone: both are reached by guarded copies or by system
//! calls, and what the ring says is checked against what the program was lent.

pub mod exported;
pub mod ops;
pub(crate) mod register;
pub mod ring;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::offset_of;

use linux_raw_sys::io_uring::{io_uring_zcrx_offsets, io_uring_zcrx_rqe};

use crate::abi::Errno;
use crate::abi::layout::{PBUF_OFFSET, RECEIVE_QUEUE_SHIFT, RECEIVE_QUEUES_OFFSET};
use crate::os::pages;
use crate::os::region::Region;
use crate::os::sync::Mutex;

/// Entries of a refill ring.
pub const MAX_ENTRIES: u32 = 32768;

/// Where head, tail and entries of a refill ring lie in its memory. The kernel's are at the same places.
const HEAD: usize = 0;
const TAIL: usize = 4;
const ENTRIES: usize = 64;
/// Bytes of the ring's header, and how it is aligned.
pub const HEADER: (u32, u32) = (8, 64);
const ENTRY: usize = size_of::<io_uring_zcrx_rqe>();

/// Of an offset into an area: above this bit stands the area's number.
const AREA_SHIFT: u32 = 48;
/// So many entries are read between two stores of the head.
const BATCH: u32 = 32;
/// So many entries are read when pages are wanted. A page pool of the kernel's has room for as many
/// (`PP_ALLOC_CACHE_REFILL` in `io_zcrx_ring_refill`).
const REFILL: u32 = 64;

/// The ids of a ring's queues stay below this: each has its part of the ring's file.
const IDS: u32 = ((PBUF_OFFSET - RECEIVE_QUEUES_OFFSET) >> RECEIVE_QUEUE_SHIFT) as u32;

/// Something of which a program may be told (`ZCRX_EVENT_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// There was no page for what an interface received.
    NoPage = 0,
    /// Data was copied.
    Copied = 1,
}

impl Event {
    /// The number of events.
    pub const COUNT: u32 = 2;
    /// The bits of all.
    pub const ALL: u32 = (1 << Event::COUNT) - 1;

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// An event that is to be told, and the ring that is to tell it, by its serial number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The event that has happened.
    pub event: Event,
    /// The ring that registered the queue.
    pub ring: u64,
}

/// Of which events a program asked to be told, and how.
#[derive(Clone, Copy, Debug)]
pub struct Events {
    /// The user data of CQEs that tell of events.
    pub user_data: u64,
    /// Bits of the events that the program wants to hear of.
    pub wanted: u32,
    /// Where in the refill ring's memory the counters lie of what was copied, if the program wants any.
    pub counters: Option<usize>,
}

/// A queue that is to be made.
pub struct New {
    /// The memory of the refill ring.
    pub ring: Region,
    /// The number of its entries: a power of two.
    pub entries: u32,
    /// Where the area begins.
    pub area: u64,
    /// The number of its pages.
    pub pages: usize,
    /// The queue stands for one of an interface, whose driver takes entries out of the refill ring by itself.
    pub refills_itself: bool,
    /// The events that the program wants to hear of, and how.
    pub events: Events,
    /// The ring that registers it, by its serial number.
    pub registrant: u64,
}

/// A queue of zero-copy receives.
pub struct ReceiveQueue {
    ring: Region,
    entries: u32,
    /// Entries taken out of the refill ring.
    head: u32,
    area: u64,
    /// Pages that nobody has, the next one last.
    free: Vec<u32>,
    /// A mark for each page that the program has.
    lent: Vec<bool>,
    refills_itself: bool,
    events: Events,
    /// Events of which the program was told, and has not asked to be told again.
    told: u32,
    /// The ring that registered it, while that wants to be told of events.
    registrant: Option<u64>,
    /// Rings and exported descriptors that refer to it.
    users: u32,
}

/// A queue, as rings share it. Its lock is taken inside a ring's own, or inside that of [`exported`].
pub type Shared = Arc<Mutex<ReceiveQueue>>;

impl ReceiveQueue {
    /// Bytes that the refill ring takes up.
    pub const fn ring_bytes(entries: u32) -> u64 {
        (ENTRIES + entries as usize * ENTRY) as u64
    }

    /// Tells where its parts lie.
    pub fn describe(offsets: &mut io_uring_zcrx_offsets) {
        offsets.head = HEAD as u32;
        offsets.tail = TAIL as u32;
        offsets.rqes = ENTRIES as u32;
    }

    /// A queue of which nobody has a page.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(new: New) -> Result<Shared, Errno> {
        let New { ring, entries, area, pages, refills_itself, events, registrant } = new;
        debug_assert!(entries.is_power_of_two() && Self::ring_bytes(entries) <= ring.length() as u64);
        let (mut free, mut lent) = (Vec::new(), Vec::new());
        free.try_reserve_exact(pages).map_err(|_| Errno::ENOMEM)?;
        lent.try_reserve_exact(pages).map_err(|_| Errno::ENOMEM)?;
        free.extend(0..pages as u32);
        lent.resize(pages, false);
        ring.clear(HEADER.0 as usize);
        if let Some(counters) = events.counters {
            ring.store_words(counters, [0; 2]);
        }
        let registrant = (events.wanted != 0).then_some(registrant);
        Ok(Arc::new(Mutex::new(ReceiveQueue {
            ring,
            entries,
            head: 0,
            area,
            free,
            lent,
            refills_itself,
            events,
            told: 0,
            registrant,
            users: 1,
        })))
    }

    /// Where a page lies in memory.
    pub fn address(&self, page: u32) -> u64 {
        self.area + offset(page)
    }

    /// Takes free pages for what is to be received; returns how many of `pages` it filled in. None does not say that there
    /// are none where the queue still has entries to read ([`ReceiveQueue::may_refill`]).
    pub fn take(&mut self, pages: &mut [u32]) -> usize {
        if self.refills_itself {
            self.refill();
        }
        let mut taken = 0;
        while taken < pages.len()
            && let Some(page) = self.free.pop()
        {
            pages[taken] = page;
            taken += 1;
        }
        taken
    }

    /// True if there are entries left that give pages back without a flush.
    pub fn may_refill(&self) -> bool {
        self.refills_itself && self.pending() > 0
    }

    /// Puts pages back into which nothing was received, taken in this order.
    pub fn put_back(&mut self, pages: &[u32]) {
        self.free.extend(pages.iter().rev());
    }

    /// Lends pages to the program, until it gives them back: so many bytes were copied into them. Returns of what it is to
    /// be told.
    pub fn lend(&mut self, pages: &[u32], bytes: usize) -> Option<Notice> {
        pages.iter().for_each(|&page| self.lent[page as usize] = true);
        if let Some(counters) = self.events.counters {
            let [count, sum] = self.ring.try_value::<[u64; 2]>(counters).unwrap_or_default();
            let sums = [count.wrapping_add(pages.len() as u64), sum.wrapping_add(bytes as u64)];
            self.ring.store_words(counters, sums);
        }
        self.notice(Event::Copied)
    }

    /// Notes that there is no page for what waits to be received. Returns of what the program is to be told:
    /// only an interface's driver tells of it.
    pub fn notice_of_exhaustion(&self) -> Option<Notice> {
        if self.refills_itself { self.notice(Event::NoPage) } else { None }
    }

    fn notice(&self, event: Event) -> Option<Notice> {
        let due = self.events.wanted & !self.told & event.bit() != 0;
        let ring = self.registrant.filter(|_| due)?;
        Some(Notice { event, ring })
    }

    /// The ring of a notice tells the program now, with this for user data. The event counts as told from here on; `None` where
    /// that has happened meanwhile.
    pub fn claim(&mut self, notice: Notice) -> Option<u64> {
        if self.notice(notice.event) != Some(notice) {
            return None;
        }
        self.told |= notice.event.bit();
        Some(self.events.user_data)
    }

    /// The program wants to be told once more of an event, by its number.
    ///
    /// # Errors
    /// `EINVAL` where it has not been told of that.
    pub fn tell_again(&mut self, event: u32) -> Result<(), Errno> {
        let bit = 1 << event;
        if self.told & bit == 0 {
            return Err(Errno::EINVAL);
        }
        self.told &= !bit;
        Ok(())
    }

    /// Entries in the refill ring that were not taken yet, as far as they can be.
    fn pending(&self) -> u32 {
        self.ring.load(TAIL, self.head).wrapping_sub(self.head).min(self.entries)
    }

    /// Takes the next entry out of the refill ring: the page that it gives back, if it names one.
    fn next_entry(&mut self) -> Option<u32> {
        let place = ENTRIES + (self.head & (self.entries - 1)) as usize * ENTRY;
        self.head = self.head.wrapping_add(1);
        let [offset, rest] = self.ring.try_value::<[u64; 2]>(place)?;
        let (area, padding) = (offset >> AREA_SHIFT, rest >> 32);
        let page = offset / pages::page_bytes() as u64;
        (area == 0 && padding == 0 && page < self.lent.len() as u64).then_some(page as u32)
    }

    /// A page comes back, if the program has it.
    fn give_back(&mut self, page: u32) {
        if core::mem::take(&mut self.lent[page as usize]) {
            self.free.push(page);
        }
    }

    /// Takes a batch out of the refill ring, as a driver does.
    fn refill(&mut self) {
        let pending = self.pending().min(REFILL);
        if pending == 0 {
            return;
        }
        for _ in 0..pending {
            if let Some(page) = self.next_entry() {
                self.give_back(page);
            }
        }
        self.ring.store(HEAD, self.head);
    }

    /// The program asks for its entries to be taken out of the refill ring. One that names no page ends that.
    pub fn flush(&mut self) {
        let mut total = 0;
        loop {
            let wanted = self.pending().min(BATCH);
            let taken = (0..wanted).take_while(|_| self.take_one()).count() as u32;
            self.ring.store(HEAD, self.head);
            total += taken;
            if taken < BATCH || total >= self.entries {
                return;
            }
        }
    }

    fn take_one(&mut self) -> bool {
        let page = self.next_entry();
        page.map(|page| self.give_back(page)).is_some()
    }

    /// A ring or a descriptor refers to it from now on.
    fn join(&mut self) {
        self.users += 1;
    }

    /// Ends a ring's use of the queue; a ring is named by its serial number. With the last of them what the
    /// program has is free again.
    pub fn leave(&mut self, ring: Option<u64>) {
        if ring.is_some() && self.registrant == ring {
            self.registrant = None;
        }
        self.users -= 1;
        if self.users == 0 {
            for page in 0..self.lent.len() {
                self.give_back(page as u32);
            }
        }
    }
}

/// Where a page lies in its area.
pub fn offset(page: u32) -> u64 {
    u64::from(page) * pages::page_bytes() as u64
}

const _: () = assert!(offset_of!(io_uring_zcrx_rqe, len) == 8 && HEADER.0 as usize <= ENTRIES);

/// The queues that a ring has, for as long as it lives.
#[derive(Default)]
pub struct ReceiveQueues {
    /// By id, which grows.
    queues: Vec<(u32, Shared)>,
    /// The next id.
    next: u32,
}

impl ReceiveQueues {
    /// The queue of that id.
    pub fn get(&self, id: u32) -> Option<&Shared> {
        let place = self.queues.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        Some(&self.queues[place].1)
    }

    /// The id of the next one, and where its refill ring would begin in the file of the ring that has it.
    ///
    /// # Errors
    /// `ENOMEM` where there can be no more.
    pub fn next(&self) -> Result<(u32, u64), Errno> {
        if self.next >= IDS {
            return Err(Errno::ENOMEM);
        }
        Ok((self.next, RECEIVE_QUEUES_OFFSET + (u64::from(self.next) << RECEIVE_QUEUE_SHIFT)))
    }

    /// Adds one under the next id. Its refill ring takes up so many bytes of the ring's file.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&mut self, queue: Shared, bytes: u64) -> Result<(), Errno> {
        self.queues.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        self.queues.push((self.next, queue));
        // The kernel would map each by its id alone. Those in a file lie one behind the other: some ids are left out.
        self.next += bytes.div_ceil(1 << RECEIVE_QUEUE_SHIFT).max(1) as u32;
        Ok(())
    }

    /// The next id, which another process of the ring has to know.
    pub fn next_id(&self) -> u32 {
        self.next
    }

    /// Other processes of the ring have given out ids up to this one.
    pub fn skip_to(&mut self, id: u32) {
        self.next = self.next.max(id);
    }

    /// In a child after `fork`: the queues are its parent's. So are their ids, for each has its part of the file.
    pub fn forked(&mut self) {
        self.queues = Vec::new();
    }

    /// Takes all of them.
    pub fn take(&mut self) -> Vec<(u32, Shared)> {
        core::mem::take(&mut self.queues)
    }
}
