//! A ring of the kernel that is followed, with what was seen of its queues.
//!
//! Positions of queues count entries and wrap at 32 bits, as in ring memory.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use anyring_engine::abi::{Errno, IORING_SETUP_SQ_REWIND, IOSQE_IO_HARDLINK, IOSQE_IO_LINK};
use anyring_engine::observe::trace::outside::{self, Seen};
use anyring_engine::observe::trace::{Lent, Moment, Samples, tell};
use anyring_engine::ops::TABLE;
use anyring_engine::os::{self, Fd, FileIdentity};
use anyring_engine::queue::Cqe;
use anyring_trace::event::{FOUND, Kind, RingEnded, UNSEEN_REAPED, UNSEEN_SQ_THREAD, Unseen};
use linux_raw_sys::io_uring::{
    IORING_CQE_BUFFER_SHIFT, IORING_CQE_F_BUFFER, IORING_SETUP_SQPOLL, io_uring_params,
};

use crate::buffers::Buffers;
use crate::files::Files;
use crate::memory::Memory;
use crate::requests::{Requests, skips};

/// The time of a look at a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// A call that may have posted the CQEs has returned at this moment.
    AfterCall(Moment),
    /// At an unknown time after the CQEs were posted.
    Later,
}

impl When {
    fn moment(self) -> Moment {
        match self {
            When::AfterCall(moment) => moment,
            When::Later => Moment::now(),
        }
    }

    /// Returns the moment to report for a completion whose request's submission was reported for `submitted`. It is not before
    /// `submitted`, because a call of another thread may have submitted the request after this call returned.
    fn of_completion(self, submitted: Option<Moment>) -> Moment {
        submitted.map_or(self.moment(), |submitted| self.moment().not_before(submitted))
    }
}

/// The entry at a position of the submission queue.
struct Queued {
    position: u32,
    /// The number of positions that the entry takes.
    places: u32,
    /// `None` if the position names no SQE.
    seen: Option<Seen>,
}

/// A ring of the kernel.
pub struct Ring {
    /// The ring's number in this process.
    pub number: u32,
    /// The identity of the ring's file; `None` for a ring without a descriptor.
    pub identity: Option<FileIdentity>,
    /// The descriptor by which the ring was last named.
    pub fd: Fd,
    params: io_uring_params,
    /// `None` once this process has given up the ring.
    memory: Option<Memory>,
    /// SQEs before this position were reported, or cannot be.
    taken: u32,
    /// The entries that a call is about to submit, in order, from `taken` on.
    queued: VecDeque<Queued>,
    /// The number of SQEs that running calls may take.
    promised: u32,
    /// With `SQ_REWIND`, where each submission begins at the first SQE: how many SQEs the last call took. The queue does not say.
    rewound: u32,
    /// The position up to which CQEs have shown that SQEs were taken, before the kernel has moved the head.
    foretold: Option<u32>,
    /// CQEs before this position were reported, or cannot be.
    found: u32,
    /// The last request's number.
    serial: u64,
    /// True if the next request is linked to the last one.
    chain: bool,
    requests: Requests,
    files: Files,
    buffers: Buffers,
    /// True if other processes may have the ring, because of a fork.
    shared: bool,
    /// The moment when the ring was made.
    made: Moment,
    /// The last moment at which newly taken SQEs were found, and the position before them.
    moved: (Moment, u32),
    /// True if the ring is older than this process.
    inherited: bool,
    /// True if this process has submitted to the ring.
    submitted: bool,
}

impl Ring {
    /// Follows a ring that was just made.
    ///
    /// # Errors
    /// The errors of `mmap`.
    pub fn new(
        number: u32,
        fd: Fd,
        identity: Option<FileIdentity>,
        params: &io_uring_params,
    ) -> Result<Ring, Errno> {
        let made = Moment::now();
        Ok(Ring {
            number,
            identity,
            fd,
            params: *params,
            memory: Some(Memory::of(fd, params)?),
            taken: 0,
            queued: VecDeque::new(),
            promised: 0,
            rewound: 0,
            foretold: None,
            found: 0,
            serial: 0,
            chain: false,
            requests: Requests::new(),
            files: Files::new(),
            buffers: Buffers::new(),
            shared: false,
            made,
            moved: (made, 0),
            inherited: false,
            submitted: false,
        })
    }

    /// True if a mapping of this crate keeps the ring alive.
    pub fn is_held(&self) -> bool {
        self.memory.as_ref().is_some_and(Memory::holds_ring)
    }

    /// True if the ring is still looked at.
    pub fn is_followed(&self) -> bool {
        self.memory.is_some()
    }

    /// True if this process made the ring, or has submitted to it.
    pub fn is_used(&self) -> bool {
        !self.inherited || self.submitted
    }

    /// True if `fd` is a descriptor of the ring.
    pub fn is_at(&self, fd: Fd) -> bool {
        self.identity.is_some() && os::identity(fd).ok() == self.identity
    }

    /// Notes that the ring is used by this descriptor. If the ring was taken for ended, it is followed again.
    pub fn used_by(&mut self, fd: Fd) {
        self.fd = fd;
        if self.memory.is_none() {
            self.memory = Memory::of(fd, &self.params).ok();
        }
    }

    /// Notes that the queues were replaced, with these parameters. Their entries are in the new queues, at the same positions.
    pub fn resized(&mut self, params: &io_uring_params) {
        // The call gets only the flags for sizes.
        let (flags, features) = (self.params.flags, self.params.features);
        self.params = *params;
        self.params.flags |= flags;
        self.params.features |= features;
        self.memory = Memory::of(self.fd, &self.params).ok();
    }

    /// Notes a registration with the ring.
    pub fn registered(&mut self, opcode: u32, argument: u64, count: u32) {
        self.files.registered(self.number, opcode, argument, count);
        self.buffers.registered(self.fd, opcode, argument);
    }

    /// Reports that this process has given the ring up, or is about to.
    pub fn end(&mut self) {
        // The program may have reused memory of its own for something else.
        let is_there = self.is_held() || self.is_at(self.fd);
        if is_there {
            self.look(When::Later);
        }
        let cq_ready = if is_there { self.cq_ready() } else { 0 };
        self.buffers = Buffers::new();
        if self.memory.take().is_some() {
            let in_flight = self.requests.due() as u64;
            let body = RingEnded { in_flight, cq_ready, reserved: 0 };
            tell(self.number, Kind::RingEnded, &body, &Samples::NONE);
            self.queued.clear();
        }
    }

    /// Notes a fork; `is_child` is true in the child.
    pub fn forked(&mut self, is_child: bool) {
        self.shared = true;
        if is_child {
            (self.inherited, self.submitted) = (true, false);
            self.promised = 0;
            self.queued.clear();
            self.requests.clear();
        }
    }

    fn is_polled(&self) -> bool {
        self.params.flags & IORING_SETUP_SQPOLL != 0
    }

    fn rewinds(&self) -> bool {
        self.params.flags & IORING_SETUP_SQ_REWIND != 0
    }

    /// The number of SQEs that the kernel has not taken.
    pub fn sq_ready(&self) -> u32 {
        let count = |memory: &Memory| {
            Some(memory.sq_tail()?.wrapping_sub(memory.sq_head()?).min(memory.sq_entries()))
        };
        self.memory.as_ref().and_then(count).unwrap_or_default()
    }

    /// The number of CQEs that are not reaped.
    pub fn cq_ready(&self) -> u32 {
        let count = |memory: &Memory| {
            Some(memory.cq_tail()?.wrapping_sub(memory.cq_head()?).min(memory.cq_entries()))
        };
        self.memory.as_ref().and_then(count).unwrap_or_default()
    }

    /// True if a call moves the head by its result, which holds if no other thread can be submitting at this moment.
    fn moves_by_calls(&self) -> bool {
        self.promised == 0 && !self.is_polled() && !self.rewinds() && !self.shared
    }

    /// Returns the current head, if it will show whether a call that submits `to_submit` entries was for this ring. It will show that
    /// if entries are queued, because the kernel moves the head.
    pub fn shows_calls(&self, to_submit: u32) -> Option<u32> {
        let moves = to_submit > 0 && self.moves_by_calls();
        let memory = self.memory.as_ref().filter(|_| moves)?;
        let head = memory.sq_head()?;
        (memory.sq_tail()? != head).then_some(head)
    }

    /// The position up to which the kernel has taken SQEs, by its own head; for a ring that has ended, as it was at the end.
    pub fn sq_head(&self) -> Option<u32> {
        self.memory.as_ref().map_or(Some(self.taken), Memory::sq_head)
    }

    /// True if the kernel has moved the head as a call does that began at this moment and returned `result`. No other call on the ring
    /// may be running.
    pub fn has_taken_since(&self, began: Moment, result: isize) -> bool {
        let before = if self.made.is_before(began) { self.taken_before(began) } else { None };
        let moved = |(head, before): (u32, u32)| head.wrapping_sub(before) as isize;
        self.moves_by_calls() && self.sq_head().zip(before).map(moved) == Some(result)
    }

    /// Returns the position up to which SQEs were taken when the ring was last looked at before a moment, if known.
    fn taken_before(&self, moment: Moment) -> Option<u32> {
        let (found, before) = self.moved;
        Some(if found.is_before(moment) { self.taken } else { before })
    }

    /// Notes an unexpected call on the ring: its CQEs may be older than the call.
    pub fn was_called(&mut self) {
        self.submitted = true;
        self.look(When::Later);
    }

    /// Notes that a call is about to submit `to_submit` entries. Returns the moment of the submission. The data that the entries name is
    /// copied, because the program may change it as soon as the kernel has the entries.
    pub fn call_begins(&mut self, to_submit: u32) -> Moment {
        let before = self.queue(to_submit);
        let moment = Moment::now();
        self.queued
            .range_mut(before..)
            .filter_map(|queued| queued.seen.as_mut())
            .for_each(|seen| seen.at(moment));
        moment
    }

    /// Copies the entries that a call is about to submit. Returns how many entries were queued before.
    fn queue(&mut self, to_submit: u32) -> usize {
        if self.promised == 0 {
            // The program may have changed entries that an earlier call did not take.
            self.queued.clear();
        }
        self.submitted |= to_submit > 0;
        self.promised = self.promised.saturating_add(to_submit);
        let before = self.queued.len();
        let Some(memory) = &self.memory else { return before };
        let waiting = if self.rewinds() {
            to_submit.min(memory.sq_entries())
        } else {
            let Some(tail) = memory.sq_tail() else { return before };
            tail.wrapping_sub(self.taken)
        };
        if waiting > memory.sq_entries() {
            return before;
        }
        let wanted = if self.is_polled() { waiting } else { waiting.min(self.promised) };
        let mut offset = self.queued.iter().map(|queued| queued.places).sum::<u32>();
        while offset < wanted {
            let position = self.taken.wrapping_add(offset);
            let (sqe, places) = memory.sqe(position, wanted - offset);
            let named = |slot| self.files.get(slot);
            let seen = sqe.and_then(|sqe| Seen::before(self.number, TABLE.lookup(sqe.opcode), sqe, named));
            self.queued.push_back(Queued { position, places, seen });
            offset += places;
        }
        before
    }

    /// Notes that the call has returned `result`, at this moment.
    pub fn call_ends(&mut self, to_submit: u32, result: isize, moment: Moment) {
        if self.rewinds() {
            self.rewound = u32::try_from(result).unwrap_or(0).min(to_submit);
        }
        self.look(When::AfterCall(moment));
        if self.rewinds() {
            (self.taken, self.rewound) = (0, 0);
            self.queued.clear();
        }
        self.promised = self.promised.saturating_sub(to_submit);
        if self.promised == 0 && !self.is_polled() {
            // The kernel ends a chain at the end of a batch.
            self.chain = false;
        }
    }

    /// Reports the SQEs that the kernel took and the CQEs that it posted since the last look.
    pub fn look(&mut self, when: When) {
        let Some(memory) = &self.memory else { return };
        // The CQ tail is read first: SQEs of the posted CQEs were taken before.
        let Some(posted) = memory.cq_tail() else { return };
        let Some(taken) =
            (if self.rewinds() { Some(self.rewound.max(self.taken)) } else { memory.sq_head() })
        else {
            return;
        };
        self.tell_taken(taken, when);
        self.tell_posted(posted, when);
    }

    /// Reports the SQEs before a position.
    fn tell_taken(&mut self, until: u32, when: When) {
        // A head that moves backwards was not written by the kernel.
        if until.wrapping_sub(self.taken) > i32::MAX as u32 {
            if self.foretold == Some(self.taken) && self.is_submitting() {
                return;
            }
            self.taken = until;
            self.queued.clear();
        }
        self.foretold = None;
        if self.taken != until {
            self.moved = (when.moment(), self.taken);
        }
        while self.taken != until {
            match self.queued.front() {
                Some(queued) if queued.position == self.taken => {
                    // If the second half of a long entry was not submitted with it, the kernel takes only the first half.
                    let places = queued.places.min(until.wrapping_sub(self.taken));
                    if let Some(Queued { seen: Some(seen), .. }) = self.queued.pop_front() {
                        self.tell_submission(seen);
                    }
                    self.taken = self.taken.wrapping_add(places);
                }
                _ => self.tell_late(until),
            }
        }
    }

    /// Reports the next SQEs if they were not seen before the kernel took them.
    fn tell_late(&mut self, until: u32) {
        let Some(memory) = &self.memory else { return };
        let left = until.wrapping_sub(self.taken);
        let (sqe, places) = memory.sqe(self.taken, left);
        // The tail is read after the entry. The entry is intact until the program fills its place again, which it does shortly before it
        // moves the tail.
        let queued = memory.sq_tail().map_or(u32::MAX, |tail| tail.wrapping_sub(self.taken));
        let gone = queued.saturating_sub(memory.sq_entries()).min(left);
        let by_others = self.shared && !self.is_polled();
        if by_others || gone > 0 {
            let skipped = if by_others { left } else { gone };
            self.taken = self.taken.wrapping_add(skipped);
            self.queued.retain(|queued| queued.position.wrapping_sub(self.taken) <= i32::MAX as u32);
            if !by_others {
                self.tell_unseen(skipped, UNSEEN_SQ_THREAD);
            }
            return;
        }
        self.taken = self.taken.wrapping_add(places);
        if let Some(sqe) = sqe {
            self.tell_submission(Seen::after(sqe));
        }
    }

    fn tell_submission(&mut self, seen: Seen) {
        let behind = if self.chain { self.serial } else { 0 };
        self.serial += 1;
        self.chain = u32::from(seen.sqe().flags) & (IOSQE_IO_LINK | IOSQE_IO_HARDLINK) != 0;
        self.files.submitted(seen.sqe());
        seen.tell(self.number, self.serial, behind);
        let (sqe, moment) = (*seen.sqe(), seen.moment());
        let mut lent = seen.into_lent();
        if let Some(lent) = &mut lent
            && (behind != 0 || self.requests.may_hold_back(&sqe))
        {
            lent.may_change();
        }
        self.requests.add(self.serial, &sqe, lent, moment);
    }

    fn tell_unseen(&self, count: u32, why: u64) {
        tell(self.number, Kind::Unseen, &Unseen { count: count.into(), why }, &Samples::NONE);
    }

    /// Reports the CQEs before a position.
    fn tell_posted(&mut self, until: u32, when: When) {
        if until.wrapping_sub(self.found) > i32::MAX as u32 {
            self.found = until;
        }
        while self.found != until && until.wrapping_sub(self.found) <= i32::MAX as u32 {
            let Some(memory) = &self.memory else { return };
            let (cqe, places) = memory.cqe(self.found);
            // The tail is read again: the kernel may have overwritten the CQE meanwhile.
            let (Some(tail), Some(head)) = (memory.cq_tail(), memory.cq_head()) else { return };
            let posted = tail.wrapping_sub(self.found);
            let waiting = self.found.wrapping_sub(head);
            let is_reaped = waiting > i32::MAX as u32;
            // The kernel writes the CQEs of a batch before it posts them, and no word says how many. The SQ thread may be doing so
            // now: usually as many as it takes SQEs at a time, or as multishot requests post. Other threads are rarely in a call then.
            let batch = memory.sq_entries() << u32::from(memory.is_mixed());
            let unposted = if is_reaped && self.is_polled() { batch.min(memory.cq_entries() / 2) } else { 0 };
            let intact = memory.cq_entries() - unposted;
            if posted > intact {
                // If CQEs have two sizes, only the program's head is known to be the beginning of a CQE.
                let first = if memory.is_mixed() { head } else { tail.wrapping_sub(intact) };
                let most = if is_reaped { head.wrapping_sub(self.found) } else { posted };
                let lost = first.wrapping_sub(self.found).clamp(1, most);
                self.found = self.found.wrapping_add(lost);
                self.requests.lost();
                self.tell_unseen(lost, UNSEEN_REAPED);
                continue;
            }
            let ready = if is_reaped { 0 } else { waiting + 1 };
            self.found = self.found.wrapping_add(places);
            if let Some(cqe) = cqe {
                self.tell_completion(&cqe, ready, when);
            }
        }
    }

    /// Reports a CQE; `ready` is the number of CQEs that wait to be reaped, including this one, or 0 if the program has reaped it.
    fn tell_completion(&mut self, cqe: &Cqe, ready: u32, when: When) {
        let mut key = self.requests.find(cqe);
        if !key.is_some_and(|key| self.requests.expects(key)) {
            self.take_word_of(cqe, when);
            key = self.requests.find(cqe);
        }
        let mut about = self.requests.complete(key, cqe);
        if let Some((sqe, lent)) = &mut about.request {
            self.files.completed(sqe, cqe.res);
            self.buffers.completed(sqe, cqe.res);
            if cqe.flags & IORING_CQE_F_BUFFER != 0 {
                let number = (cqe.flags >> IORING_CQE_BUFFER_SHIFT) as u16;
                let buffer = self.buffers.find(sqe.buf_index, number).unwrap_or(0);
                lent.get_or_insert_with(|| Box::new(Lent::NONE)).takes(buffer);
            }
        }
        // Other processes report the completions of their own requests. The process that made the ring reports those without a request.
        if about.serial == 0 && self.inherited {
            return;
        }
        // Once the program has reaped the CQE, it may use the memory for something else.
        let request = about.request.as_ref().filter(|_| ready > 0);
        let lent = request.map(|(sqe, lent)| (sqe, lent.as_deref().unwrap_or(&Lent::NONE)));
        let moment = when.of_completion(about.submitted);
        let when_found = match when {
            When::Later => FOUND,
            // The CQE was not there before the call, so the program had no reason to change the memory.
            When::AfterCall(_) => lent.map_or(0, |(_, lent)| lent.marks()),
        };
        let filled = lent.map(|(sqe, lent)| (&TABLE.lookup(sqe.opcode).op, sqe, lent));
        let marks = about.marks | when_found;
        outside::tell_completion(moment, self.number, about.serial, cqe, marks, ready, filled);
    }

    /// Handles a CQE without a known request. It may belong to an SQE that the kernel is taking at this moment, because the kernel moves
    /// the head only at the end of a batch.
    fn take_word_of(&mut self, cqe: &Cqe, when: When) {
        if !self.is_submitting() {
            return;
        }
        let bears = |seen: &Seen| seen.sqe().user_data == cqe.user_data;
        // An SQE whose CQE is skipped on success is the less likely one.
        let succeeds = |seen: &Seen| bears(seen) && !skips(seen.sqe());
        let first = |is_meant: &dyn Fn(&Seen) -> bool| {
            self.queued.iter().find(|queued| queued.seen.as_ref().is_some_and(is_meant))
        };
        let fails = || if self.requests.has(cqe) { None } else { first(&bears) };
        if let Some(queued) = first(&succeeds).or_else(fails) {
            let end = queued.position.wrapping_add(queued.places);
            self.tell_taken(end, when);
            self.foretold = Some(end);
        }
    }

    /// True if the kernel may be taking SQEs at this moment.
    fn is_submitting(&self) -> bool {
        self.promised > 0 || self.is_polled()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use alloc::boxed::Box;
    use alloc::vec::Vec;
    use anyring_engine::abi::{
        IORING_OP_NOP128, IORING_SETUP_CQE_MIXED, IORING_SETUP_SQE_MIXED, IOSQE_CQE_SKIP_SUCCESS, Sqe,
    };
    use anyring_engine::observe::trace;
    use anyring_mapping::SharedFile;
    use anyring_trace::buffer::{self, Buffer};
    use anyring_trace::event::ENGINE_KERNEL;
    use core::sync::atomic::{AtomicU32, Ordering};
    use linux_raw_sys::io_uring::{
        IORING_SETUP_NO_MMAP, IORING_SETUP_NO_SQARRAY, io_uring_op, io_uring_params,
    };
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::sync::Once;

    const ENTRIES: usize = 4;
    /// The indexes of the words in the queues' memory.
    const SQ_HEAD: usize = 0;
    const SQ_TAIL: usize = 1;
    const CQ_HEAD: usize = 2;
    const CQ_TAIL: usize = 3;
    const CQES: usize = 4;

    /// Lets requests be reported: otherwise the ring is not looked at.
    fn tell_all() {
        static ATTACHED: Once = Once::new();
        ATTACHED.call_once(|| {
            const SLOTS: usize = 1 << 12;
            let file = SharedFile::new(c"followed", buffer::bytes(SLOTS)).unwrap();
            // SAFETY: the memory is fresh.
            let _buffer = unsafe { Buffer::create(file.address(), SLOTS) };
            let opened = File::options().read(true).write(true).open(file.path()).unwrap();
            trace::attach(opened.as_raw_fd(), ENGINE_KERNEL, b"", b"").unwrap();
        });
    }

    /// The memory of a simulated ring.
    struct Queues {
        words: Box<[AtomicU32; CQES + 8 * ENTRIES]>,
        sqes: Box<[Sqe; ENTRIES]>,
    }

    impl Queues {
        /// Makes queues with SQEs of these operations and user data, from the first place on.
        fn new(sqes: &[(u8, u64)]) -> Queues {
            let mut all = [Sqe::EMPTY; ENTRIES];
            for (place, &(opcode, user_data)) in all.iter_mut().zip(sqes) {
                *place = Sqe { opcode, user_data, ..Sqe::EMPTY };
            }
            Queues { words: Box::new([const { AtomicU32::new(0) }; _]), sqes: Box::new(all) }
        }

        /// Returns a followed ring with this memory.
        fn ring(&self, flags: u32) -> Ring {
            tell_all();
            // SAFETY: a structure of integers.
            let mut params: io_uring_params = unsafe { core::mem::zeroed() };
            params.flags = flags | IORING_SETUP_SQE_MIXED | IORING_SETUP_NO_MMAP | IORING_SETUP_NO_SQARRAY;
            (params.sq_entries, params.cq_entries) = (ENTRIES as u32, 2 * ENTRIES as u32);
            let offset = |word: usize| 4 * word as u32;
            (params.sq_off.head, params.sq_off.tail) = (offset(SQ_HEAD), offset(SQ_TAIL));
            (params.cq_off.head, params.cq_off.tail) = (offset(CQ_HEAD), offset(CQ_TAIL));
            params.cq_off.cqes = offset(CQES);
            params.sq_off.user_addr = self.sqes.as_ptr().expose_provenance() as u64;
            params.cq_off.user_addr = self.words.as_ptr().expose_provenance() as u64;
            Ring::new(1, -1, None, &params).unwrap()
        }

        fn set(&self, word: usize, value: u32) {
            self.words[word].store(value, Ordering::Relaxed);
        }
    }

    /// Returns which of these user data belong to requests in flight.
    fn known(ring: &Ring, user_data: core::ops::Range<u64>) -> Vec<u64> {
        let is = |&user_data: &u64| ring.requests.has(&Cqe { user_data, res: 0, flags: 0, big: [0; 2] });
        user_data.filter(is).collect()
    }

    const NOP: u8 = io_uring_op::IORING_OP_NOP as u8;
    const LONG: u8 = IORING_OP_NOP128;

    /// The second half of a long SQE is no entry of its own.
    #[test]
    fn entries_of_two_sizes() {
        let queues = Queues::new(&[(NOP, 1), (LONG, 2), (NOP, 3), (NOP, 4)]);
        let mut ring = queues.ring(0);
        queues.set(SQ_TAIL, 4);
        ring.call_begins(4);
        queues.set(SQ_HEAD, 4);
        ring.call_ends(4, 4, Moment::now());
        assert_eq!((ring.serial, known(&ring, 0..10)), (3, [1, 2, 4].into()));
    }

    /// The entries are not seen before the kernel has taken them.
    #[test]
    fn entries_of_two_sizes_that_are_seen_late() {
        let queues = Queues::new(&[(LONG, 1), (NOP, 2), (LONG, 3), (NOP, 4)]);
        let mut ring = queues.ring(IORING_SETUP_SQPOLL);
        queues.set(SQ_TAIL, 4);
        queues.set(SQ_HEAD, 4);
        ring.look(When::Later);
        assert_eq!((ring.serial, known(&ring, 0..10)), (2, [1, 3].into()));
    }

    /// A long entry that is submitted without its second half fails, and takes one place; the next one is an SQE of its own.
    #[test]
    fn half_an_entry() {
        let queues = Queues::new(&[(NOP, 1), (LONG, 2), (NOP, 3)]);
        let mut ring = queues.ring(0);
        queues.set(SQ_TAIL, 3);
        for (count, head) in [(2, 2), (1, 3)] {
            ring.call_begins(count);
            queues.set(SQ_HEAD, head);
            ring.call_ends(count, count as isize, Moment::now());
        }
        assert_eq!((ring.serial, known(&ring, 0..10)), (3, [1, 2, 3].into()));
        // A long entry at the end of the queue fails, too, because its second half would be at the queue's beginning.
        let queues = Queues::new(&[(NOP, 4), (NOP, 1), (NOP, 2), (LONG, 3)]);
        let mut ring = queues.ring(0);
        queues.set(SQ_HEAD, 1);
        ring.taken = 1;
        queues.set(SQ_TAIL, 5);
        ring.call_begins(4);
        queues.set(SQ_HEAD, 5);
        ring.call_ends(4, 4, Moment::now());
        assert_eq!((ring.serial, known(&ring, 0..10)), (4, [1, 2, 3, 4].into()));
    }

    /// CQEs are posted while a batch is being taken; the kernel moves the SQ head only at the batch's end.
    #[test]
    fn completions_before_the_end_of_a_batch() {
        for looks in 1..3 {
            let mut queues = Queues::new(&[(NOP, 7), (NOP, 7), (NOP, 7), (NOP, 8)]);
            for place in 0..2 {
                queues.sqes[place].flags = IOSQE_CQE_SKIP_SUCCESS as u8;
            }
            let mut ring = queues.ring(0);
            queues.set(SQ_TAIL, 4);
            ring.call_begins(1);
            queues.set(SQ_HEAD, 1);
            ring.call_ends(1, 1, Moment::now());
            ring.call_begins(3);
            queues.set(CQES, 7);
            queues.set(CQ_TAIL, 1);
            for _ in 0..looks {
                ring.look(When::Later);
            }
            assert_eq!((ring.serial, ring.requests.due()), (3, 0));
            queues.set(SQ_HEAD, 4);
            ring.call_ends(3, 3, Moment::now());
            assert_eq!((ring.serial, ring.requests.due()), (4, 1));
            // The program moves the kernel's SQ head back.
            queues.set(SQ_HEAD, 2);
            ring.look(When::Later);
            assert_eq!(ring.taken, 2);
        }
    }

    /// An SQ thread writes a CQE over one that the program has reaped, and posts the new one later.
    #[test]
    fn completions_that_are_written_over() {
        for (flags, left) in [(IORING_SETUP_SQPOLL, Vec::from([1])), (0, Vec::new())] {
            let queues = Queues::new(&[(NOP, 1)]);
            let mut ring = queues.ring(flags);
            queues.set(SQ_TAIL, 1);
            ring.call_begins(1);
            queues.set(SQ_HEAD, 1);
            ring.look(When::Later);
            assert_eq!(known(&ring, 0..10), [1]);
            queues.set(CQES, 1);
            (1..6).for_each(|place| queues.set(CQES + 4 * place, 9));
            queues.set(CQ_TAIL, 6);
            queues.set(CQ_HEAD, 6);
            ring.look(When::Later);
            assert_eq!((ring.found, known(&ring, 0..9)), (6, left));
        }
    }

    /// The program writes a CQ tail that no kernel writes.
    #[test]
    fn a_tail_that_makes_no_sense() {
        let queues = Queues::new(&[]);
        let mut ring = queues.ring(IORING_SETUP_CQE_MIXED);
        queues.set(CQ_TAIL, 1000);
        ring.look(When::Later);
        assert_eq!(ring.found, 1000);
    }

    /// A call returns, and another thread submits before the completions that the call found are reported.
    #[test]
    fn completions_are_not_told_before_submissions() {
        let queues = Queues::new(&[(NOP, 1)]);
        let mut ring = queues.ring(0);
        let ended = Moment::now();
        queues.set(SQ_TAIL, 1);
        let submitted = core::iter::repeat_with(|| ring.call_begins(0)).find(|&now| ended.is_before(now));
        ring.call_begins(1);
        queues.set(SQ_HEAD, 1);
        ring.look(When::Later);
        let cqe = Cqe { user_data: 1, res: 0, flags: 0, big: [0; 2] };
        let about = ring.requests.complete(ring.requests.find(&cqe), &cqe);
        let told = When::AfterCall(ended).of_completion(about.submitted);
        assert!(submitted.is_some_and(|submitted| !told.is_before(submitted)));
    }

    /// Each submission begins at the first place; only the call's result says how many entries were taken.
    #[test]
    fn submissions_that_begin_anew() {
        let mut queues = Queues::new(&[(NOP, 1), (LONG, 2), (NOP, 3), (NOP, 4)]);
        let mut ring = queues.ring(IORING_SETUP_SQ_REWIND);
        ring.call_begins(4);
        ring.call_ends(4, 3, Moment::now());
        assert_eq!((ring.serial, known(&ring, 0..10)), (2, [1, 2].into()));
        queues.sqes[0].user_data = 5;
        ring.call_begins(1);
        ring.look(When::Later);
        assert_eq!(ring.serial, 2);
        ring.call_ends(1, 1, Moment::now());
        assert_eq!((ring.serial, known(&ring, 0..10)), (3, [1, 2, 5].into()));
        ring.call_begins(1);
        ring.call_ends(1, -9, Moment::now());
        assert_eq!(ring.serial, 3);
    }
}
