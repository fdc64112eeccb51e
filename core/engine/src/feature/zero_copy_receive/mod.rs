//! The queues of zero-copy receives (`IORING_REGISTER_ZCRX_IFQ`): an *area* of the program's memory, divided into pages that
//! receive data, and a *refill ring*, in which the program returns pages that it has read.
//!
//! A network card would put packets into the area. If a packet is not in the area, the kernel copies its data; the engine always copies.
//!
//! Area and ring are memory of the program and may hold anything, or be unmapped: the engine accesses both by guarded copies
//! or system calls, and checks entries of the ring against the pages that it has lent to the program.

pub mod exported;
pub mod ops;
pub(crate) mod register;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::offset_of;

use linux_raw_sys::io_uring::{io_uring_zcrx_offsets, io_uring_zcrx_rqe};

use crate::abi::Errno;
use crate::abi::layout::{PBUF_OFFSET, RECEIVE_QUEUE_SHIFT, RECEIVE_QUEUES_OFFSET};
use crate::os::pages;
use crate::os::region::Region;
use crate::os::sync::Mutex;

/// The maximal number of entries of a refill ring.
pub const MAX_ENTRIES: u32 = 32768;

/// Offsets of head, tail and entries in a refill ring's memory, as in the kernel.
const HEAD: usize = 0;
const TAIL: usize = 4;
const ENTRIES: usize = 64;
/// The ring header's size in bytes, and its alignment.
pub const HEADER: (u32, u32) = (8, 64);
const ENTRY: usize = size_of::<io_uring_zcrx_rqe>();

/// In an offset into an area, the area's number is in the bits from this one up.
const AREA_SHIFT: u32 = 48;
/// The number of entries that a flush reads between two stores of the head.
const BATCH: u32 = 32;
/// The number of entries that are read when pages are needed, as for a page pool of the kernel
/// (`PP_ALLOC_CACHE_REFILL` in `io_zcrx_ring_refill`).
const REFILL: u32 = 64;

/// The limit of the ids of a ring's queues: each queue has its part of the ring's file.
const IDS: u32 = ((PBUF_OFFSET - RECEIVE_QUEUES_OFFSET) >> RECEIVE_QUEUE_SHIFT) as u32;

/// An event that can be reported to the program (`ZCRX_EVENT_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// No page was free for data that an interface received.
    NoPage = 0,
    /// Data was copied.
    Copied = 1,
}

impl Event {
    /// The number of events.
    pub const COUNT: u32 = 2;
    /// The bits of all events.
    pub const ALL: u32 = (1 << Event::COUNT) - 1;

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// An event to report, and the ring that must report it, by the ring's serial number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The event that has happened.
    pub event: Event,
    /// The ring that registered the queue.
    pub ring: u64,
}

/// The events that a program asked to be reported, and how.
#[derive(Clone, Copy, Debug)]
pub struct Events {
    /// The user data of CQEs that report events.
    pub user_data: u64,
    /// Bits of the events that the program asked for.
    pub wanted: u32,
    /// The offset of the counters of copied data in the refill ring's memory, if the program wants counters.
    pub counters: Option<usize>,
}

/// A queue to be created.
pub struct New {
    /// The memory of the refill ring.
    pub ring: Region,
    /// The number of its entries: a power of two.
    pub entries: u32,
    /// The address of the area.
    pub area: u64,
    /// The number of its pages.
    pub pages: usize,
    /// The queue represents one of an interface, whose driver reads the refill ring without a flush.
    pub refills_itself: bool,
    /// The events that the program asked for.
    pub events: Events,
    /// The serial number of the ring that registers the queue.
    pub registrant: u64,
}

/// A queue of zero-copy receives.
pub struct ReceiveQueue {
    ring: Region,
    entries: u32,
    /// The number of entries read from the refill ring.
    head: u32,
    area: u64,
    /// The free pages; the last one is used first.
    free: Vec<u32>,
    /// True for each page that the program has.
    lent: Vec<bool>,
    refills_itself: bool,
    events: Events,
    /// Events that were reported, and that the program has not armed again.
    told: u32,
    /// The ring that registered the queue, as long as it reports events.
    registrant: Option<u64>,
    /// The number of rings and exported descriptors that refer to the queue.
    users: u32,
}

/// A queue, as rings share it. Its lock is taken inside a ring's lock, or inside that of [`exported`].
pub type Shared = Arc<Mutex<ReceiveQueue>>;

impl ReceiveQueue {
    /// Returns the size of a refill ring in bytes.
    pub const fn ring_bytes(entries: u32) -> u64 {
        (ENTRIES + entries as usize * ENTRY) as u64
    }

    /// Writes the offsets of the refill ring's parts.
    pub fn describe(offsets: &mut io_uring_zcrx_offsets) {
        offsets.head = HEAD as u32;
        offsets.tail = TAIL as u32;
        offsets.rqes = ENTRIES as u32;
    }

    /// Creates a queue whose pages are all free.
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

    /// Returns the address of a page.
    pub fn address(&self, page: u32) -> u64 {
        self.area + offset(page)
    }

    /// Takes free pages for data to be received; returns how many of `pages` it filled in. Even if that is 0, entries that
    /// are not read yet may return pages ([`ReceiveQueue::may_refill`]).
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

    /// True if there are unread entries that return pages without a flush.
    pub fn may_refill(&self) -> bool {
        self.refills_itself && self.pending() > 0
    }

    /// Puts unused pages back; `pages` are in the order in which they were taken.
    pub fn put_back(&mut self, pages: &[u32]) {
        self.free.extend(pages.iter().rev());
    }

    /// Lends pages, with `bytes` bytes of data copied into them, to the program until it returns them. Returns the event
    /// to report, if any.
    pub fn lend(&mut self, pages: &[u32], bytes: usize) -> Option<Notice> {
        pages.iter().for_each(|&page| self.lent[page as usize] = true);
        if let Some(counters) = self.events.counters {
            let [count, sum] = self.ring.try_value::<[u64; 2]>(counters).unwrap_or_default();
            let sums = [count.wrapping_add(pages.len() as u64), sum.wrapping_add(bytes as u64)];
            self.ring.store_words(counters, sums);
        }
        self.notice(Event::Copied)
    }

    /// Returns the event to report when no page is free for data, if any: only an interface's driver reports
    /// it.
    pub fn notice_of_exhaustion(&self) -> Option<Notice> {
        if self.refills_itself { self.notice(Event::NoPage) } else { None }
    }

    fn notice(&self, event: Event) -> Option<Notice> {
        let due = self.events.wanted & !self.told & event.bit() != 0;
        let ring = self.registrant.filter(|_| due)?;
        Some(Notice { event, ring })
    }

    /// Marks an event as reported, and returns the user data of the CQE that the notice's ring must post; `None` if the event
    /// was reported meanwhile.
    pub fn claim(&mut self, notice: Notice) -> Option<u64> {
        if self.notice(notice.event) != Some(notice) {
            return None;
        }
        self.told |= notice.event.bit();
        Some(self.events.user_data)
    }

    /// Arms an event, given by its number, again.
    ///
    /// # Errors
    /// `EINVAL` if the event has not been reported.
    pub fn tell_again(&mut self, event: u32) -> Result<(), Errno> {
        let bit = 1 << event;
        if self.told & bit == 0 {
            return Err(Errno::EINVAL);
        }
        self.told &= !bit;
        Ok(())
    }

    /// Returns the number of unread entries in the refill ring, limited to the ring's size.
    fn pending(&self) -> u32 {
        self.ring.load(TAIL, self.head).wrapping_sub(self.head).min(self.entries)
    }

    /// Reads the next entry of the refill ring; returns the page that it names, if any.
    fn next_entry(&mut self) -> Option<u32> {
        let place = ENTRIES + (self.head & (self.entries - 1)) as usize * ENTRY;
        self.head = self.head.wrapping_add(1);
        let [offset, rest] = self.ring.try_value::<[u64; 2]>(place)?;
        let (area, padding) = (offset >> AREA_SHIFT, rest >> 32);
        let page = offset / pages::page_bytes() as u64;
        (area == 0 && padding == 0 && page < self.lent.len() as u64).then_some(page as u32)
    }

    /// Frees a page, if the program has it.
    fn give_back(&mut self, page: u32) {
        if core::mem::take(&mut self.lent[page as usize]) {
            self.free.push(page);
        }
    }

    /// Reads a batch of entries of the refill ring, as a driver does.
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

    /// Reads all entries of the refill ring, on the program's request. An entry that names no page ends this.
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

    /// Counts one more ring or descriptor that refers to the queue.
    fn join(&mut self) {
        self.users += 1;
    }

    /// Ends the use of the queue by a ring, named by its serial number, or by a descriptor. When no user is
    /// left, the program's pages become free.
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

/// Returns the offset of a page in its area.
pub fn offset(page: u32) -> u64 {
    u64::from(page) * pages::page_bytes() as u64
}

const _: () = assert!(offset_of!(io_uring_zcrx_rqe, len) == 8 && HEADER.0 as usize <= ENTRIES);

/// The queues of a ring; a queue stays for as long as the ring lives.
#[derive(Default)]
pub struct ReceiveQueues {
    /// Sorted by id.
    queues: Vec<(u32, Shared)>,
    /// The next id.
    next: u32,
}

impl ReceiveQueues {
    /// Returns the queue with an id.
    pub fn get(&self, id: u32) -> Option<&Shared> {
        let place = self.queues.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        Some(&self.queues[place].1)
    }

    /// Returns the next id, and the offset of the next queue's refill ring in the ring's file.
    /// # Errors
    /// `ENOMEM` if no id is left.
    pub fn next(&self) -> Result<(u32, u64), Errno> {
        if self.next >= IDS {
            return Err(Errno::ENOMEM);
        }
        Ok((self.next, RECEIVE_QUEUES_OFFSET + (u64::from(self.next) << RECEIVE_QUEUE_SHIFT)))
    }

    /// Adds a queue under the next id. The queue's refill ring occupies `bytes` bytes of the ring's file.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&mut self, queue: Shared, bytes: u64) -> Result<(), Errno> {
        self.queues.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        self.queues.push((self.next, queue));
        // The kernel would map each queue by its id alone. In a file the refill rings follow each other, so long ones use up several ids.
        self.next += bytes.div_ceil(1 << RECEIVE_QUEUE_SHIFT).max(1) as u32;
        Ok(())
    }

    /// Returns the next id, for the other processes of the ring.
    pub fn next_id(&self) -> u32 {
        self.next
    }

    /// Skips ids that other processes of the ring have used.
    pub fn skip_to(&mut self, id: u32) {
        self.next = self.next.max(id);
    }

    /// Forgets the parent's queues in a child after `fork`. Their ids stay used, because each has its part of the file.
    pub fn forked(&mut self) {
        self.queues = Vec::new();
    }

    /// Releases all queues, because the ring with this serial number ends.
    pub fn leave(&mut self, ring: u64) {
        let queues = core::mem::take(&mut self.queues);
        if !queues.is_empty() {
            queues.into_iter().for_each(|(_, queue)| queue.lock().leave(Some(ring)));
            exported::drop_unreferenced();
        }
    }
}
