//! The program's memory that late requests use, from their submission to their completion.
//!
//! A request whose completion comes late ([`Fault::Late`](anyring_chaos_plan::Fault::Late)) finds its memory as if it were worked on for
//! all that time:
//!
//! - Memory that it fills holds rubbish from its first attempt to its completion, and the rubbish changes. Reads and receives fill memory
//!   of the engine instead, which is copied to the program's just before the CQE; what they do not fill is restored, unless something else
//!   than the rubbish is there by then ([`Spoilt`]). Other memory
//!   (provided and registered buffers, structures, addresses) is filled when the request is done; then the engine takes the data away,
//!   and brings them back before the CQE.
//! - Memory that it reads is copied before its first attempt, which is delayed, and compared when the request completes. The first attempt
//!   is made at the latest when the ring is closed or the process ends.
//!
//! Nothing of this is seen by a program that leaves a request's memory alone. The copies are limited ([`MOST_BYTES`], [`MOST_OF_RING`]):
//! memory beyond these limits is left as it is.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem::offset_of;

use anyring_chaos_plan::{Harm, child};
use linux_raw_sys::net::msghdr;

use crate::abi::Sqe;
use crate::observe::chaos::copies::{Copy, Spoilt};
use crate::os::host;
use crate::os::user::{self, IoVector};
use crate::request::field::Field;
use crate::request::op::Op;
use crate::request::shown::Kind;

/// The maximal number of bytes that are copied for one request.
const MOST_BYTES: usize = 1 << 20;
/// The maximal number of bytes that are copied for all requests of a ring.
const MOST_OF_RING: usize = 16 << 20;
/// The maximal number of vectors of a request, as in the kernel.
const MOST_VECTORS: u64 = 1024;
/// The size of a descriptor in the program's memory, in bytes.
const DESCRIPTOR: u64 = size_of::<i32>() as u64;
/// The maximal number of pieces that one call rewrites.
const MOST_PIECES: usize = 8;

/// The memory of a ring's late requests, by their serial numbers.
#[derive(Default)]
pub(super) struct InFlight {
    memories: BTreeMap<u64, Memory>,
    /// The request whose memory is rewritten next, or the next one with a higher number.
    next: u64,
}

impl Drop for InFlight {
    /// Leaks stand-ins of requests that have not completed: a thread may still be filling them.
    fn drop(&mut self) {
        let memories = self.memories.values_mut();
        memories.for_each(|memory| core::mem::forget(core::mem::take(&mut memory.stand_ins)));
    }
}

impl InFlight {
    pub fn get_mut(&mut self, serial: u64) -> Option<&mut Memory> {
        self.memories.get_mut(&serial)
    }

    pub fn insert(&mut self, serial: u64, memory: Memory) {
        self.memories.insert(serial, memory);
    }

    pub fn remove(&mut self, serial: u64) -> Option<Memory> {
        self.memories.remove(&serial)
    }

    /// Returns how many bytes more may be copied for one request.
    pub fn room(&self) -> usize {
        let copied: usize = self.memories.values().map(Memory::copied).sum();
        MOST_OF_RING.saturating_sub(copied).min(MOST_BYTES)
    }

    /// Writes other rubbish over memory that requests are to fill: a part of it, another one each time.
    pub fn spoil_some(&mut self) {
        let mut left = MOST_PIECES;
        for _ in 0..MOST_PIECES.min(self.memories.len()) {
            let is_spoilt = |(serial, memory): (&u64, &Memory)| memory.has_stand_in().then_some(*serial);
            let after = self.memories.range(self.next..).find_map(is_spoilt);
            let Some(serial) = after.or_else(|| self.memories.iter().find_map(is_spoilt)) else { return };
            let Some(memory) = self.memories.get_mut(&serial) else { return };
            let is_through = memory.spoil_more(&mut left);
            self.next = serial + u64::from(is_through);
            if left == 0 {
                return;
            }
        }
    }

    /// True if one of these pieces is memory that a request fills whose memory holds rubbish.
    pub fn holds_rubbish(&self, pieces: &[IoVector]) -> bool {
        let spoilt = self.memories.values().flat_map(|memory| &memory.before);
        let overlaps = |one: IoVector, other: &IoVector| {
            one.base < other.base.saturating_add(other.length)
                && other.base < one.base.saturating_add(one.length)
        };
        spoilt
            .map(|spoilt| spoilt.before().place())
            .any(|one| pieces.iter().any(|piece| overlaps(one, piece)))
    }

    /// Forgets all requests in a child after `fork`: they are its parent's.
    pub fn forked(&mut self) {
        for memory in self.memories.values_mut() {
            memory.before.iter().for_each(|spoilt| spoilt.restore_from(0));
        }
        *self = InFlight::default();
    }
}

/// The memory of a late request.
pub(super) struct Memory {
    /// The fault's value, from which rubbish and delays are derived.
    value: u64,
    /// The memory that takes the bytes of the result, in order.
    filled: Vec<IoVector>,
    /// The size of one item, if the result counts items.
    item_bytes: u64,
    /// Structures, addresses and control messages that the request fills, whatever its result.
    structures: Vec<IoVector>,
    /// Lengths and flags that the request updates, as they were at submission.
    updated: Vec<Copy>,
    /// The memory that the request reads.
    read: Vec<IoVector>,
    /// The contents of the memory that the request reads, before its first attempt.
    submitted: Vec<Copy>,
    /// The contents of the pieces of `filled`, before they held rubbish.
    before: Vec<Spoilt>,
    /// The piece of `before` that is rewritten next.
    next_piece: usize,
    /// Memory of the engine that is filled instead of the pieces of `filled`.
    stand_ins: Vec<StandIn>,
    /// The data of the request, which is done.
    data: Vec<Copy>,
    /// The lengths and flags of the request, which is done.
    updates: Vec<Copy>,
    /// How often rubbish was written so far.
    rounds: u64,
    /// How often rubbish is still to be written over the data.
    pub rounds_left: u64,
    /// The time between two rounds of rubbish.
    pub round_ns: u64,
    /// How long the request was held back before its first attempt.
    pub held_ns: u64,
    /// The injected fault is in the plan's log.
    pub is_logged: bool,
}

impl Memory {
    /// Collects the memory that a request names.
    pub fn of(op: &Op, sqe: &Sqe, value: u64) -> Memory {
        let mut memory = Memory {
            value,
            filled: Vec::new(),
            item_bytes: 1,
            structures: Vec::new(),
            updated: Vec::new(),
            read: Vec::new(),
            submitted: Vec::new(),
            before: Vec::new(),
            next_piece: 0,
            stand_ins: Vec::new(),
            data: Vec::new(),
            updates: Vec::new(),
            rounds: 0,
            rounds_left: 0,
            round_ns: 0,
            held_ns: 0,
            is_logged: false,
        };
        for argument in op.arguments.iter().filter(|argument| argument.applies(sqe)) {
            memory.add(argument.kind, argument.field.value(sqe), |field| field.value(sqe));
        }
        memory
    }

    fn add(&mut self, kind: Kind, address: u64, value: impl Fn(Field) -> u64) {
        let piece = |length| IoVector { base: address, length };
        match kind {
            Kind::Filled => self.filled.push(piece(value(Field::Length))),
            Kind::VectorsFilled(count) => self.filled = vectors(address, value(count)),
            Kind::MessageFilled => self.add_message_filled(address),
            Kind::StructureFilled(structure) => self.structures.push(piece(structure.bytes.into())),
            Kind::StructuresFilled(structure) => {
                self.item_bytes = structure.bytes.into();
                self.filled.push(piece(u64::MAX));
            }
            Kind::DescriptorsFilled(count) => self.structures.push(piece(DESCRIPTOR * u64::from(count))),
            Kind::SocketAddressFilled(length_at) => self.add_address_filled(address, value(length_at)),
            Kind::Data(length) => self.read.push(piece(value(length))),
            Kind::Vectors(count) => self.read = vectors(address, value(count)),
            Kind::Message => {
                if let Ok(header) = user::read::<msghdr>(address) {
                    self.read = vectors(header.msg_iov as u64, header.msg_iovlen as u64);
                }
            }
            _ => {}
        }
    }

    fn add_address_filled(&mut self, address: u64, length_at: u64) {
        let Ok(length) = user::read::<u32>(length_at) else { return };
        self.structures.push(IoVector { base: address, length: length.into() });
        self.add_updated(length_at, size_of::<u32>());
    }

    fn add_message_filled(&mut self, address: u64) {
        let Ok(header) = user::read::<msghdr>(address) else { return };
        self.filled = vectors(header.msg_iov as u64, header.msg_iovlen as u64);
        let name = IoVector { base: header.msg_name as u64, length: header.msg_namelen.max(0) as u64 };
        let control = IoVector { base: header.msg_control as u64, length: header.msg_controllen as u64 };
        self.structures.extend([name, control]);
        let field = |offset: usize| address.wrapping_add(offset as u64);
        self.add_updated(field(offset_of!(msghdr, msg_namelen)), size_of_val(&header.msg_namelen));
        self.add_updated(field(offset_of!(msghdr, msg_controllen)), size_of_val(&header.msg_controllen));
        self.add_updated(field(offset_of!(msghdr, msg_flags)), size_of_val(&header.msg_flags));
    }

    fn add_updated(&mut self, base: u64, bytes: usize) {
        self.updated.extend(Copy::of(&IoVector { base, length: bytes as u64 }, &mut { bytes }));
    }

    /// Sets the provided buffers that the request fills.
    pub fn fills_selected(&mut self, buffers: &[IoVector]) {
        self.filled = buffers.to_vec();
        self.structures.clear();
        self.updated.clear();
    }

    /// Notes that the request uses no memory that it reads itself: buffers are selected for it.
    pub fn reads_selected(&mut self) {
        self.read.clear();
    }

    /// True if the request neither fills nor reads memory.
    pub fn is_empty(&self) -> bool {
        self.filled.is_empty() && self.structures.is_empty() && self.read.is_empty()
    }

    /// True if the request reads memory.
    pub fn is_read(&self) -> bool {
        !self.read.is_empty()
    }

    fn copied(&self) -> usize {
        let before = self.before.iter().map(Spoilt::before);
        let copies = self.submitted.iter().chain(&self.data).chain(before);
        let stand_ins: usize = self.stand_ins.iter().map(|one| one.memory.len()).sum();
        stand_ins + copies.map(|copy| copy.bytes.len()).sum::<usize>()
    }

    /// Copies the memory that the request reads, up to `room` bytes.
    pub fn copy_read(&mut self, mut room: usize) {
        self.submitted = self.read.iter().filter_map(|piece| Copy::of(piece, &mut room)).collect();
    }

    /// Forgets the memory that the request reads: it is cancelled before it reads any.
    pub fn forget_read(&mut self) {
        self.read.clear();
        self.submitted.clear();
    }

    /// Returns the harm to the memory of a request that is done.
    pub fn harm(&self) -> Option<Harm> {
        // What could not be copied may never have been there: the request fails then.
        let used = self.submitted.iter().chain(&self.data).map(Copy::place);
        let is_poisoned = |piece: IoVector| host::is_poisoned(piece.base as usize, piece.length as usize);
        if used.filter(|piece| piece.length > 0).any(is_poisoned) {
            return Some(Harm::Poisoned);
        }
        self.submitted.iter().find_map(Copy::harm)
    }

    /// Makes stand-ins for memory that the request is to fill, and writes rubbish to the memory itself. Returns the stand-ins' places;
    /// `None` if there is no `room` for them, or the memory cannot be written.
    pub fn stand_in(&mut self, filled: Vec<IoVector>, room: usize) -> Option<Vec<IoVector>> {
        let lengths = filled.iter().map(|piece| usize::try_from(piece.length).ok());
        // Beside each copy stands a stand-in.
        lengths.sum::<Option<usize>>().filter(|&all| 0 < all && all <= room / 2)?;
        let mut stand_ins: Vec<StandIn> = filled.iter().map(StandIn::of).collect::<Option<_>>()?;
        let seed = self.next_round();
        let mut before = Vec::new();
        for piece in &filled {
            if let Some(spoilt) = Spoilt::of(piece, seed) {
                before.push(spoilt);
            } else {
                before.iter().for_each(|spoilt: &Spoilt| spoilt.restore_from(0));
                return None;
            }
        }
        // The kernel may leave bytes that it counts as they are: MSG_TRUNC discards what TCP has received.
        for (stand_in, spoilt) in stand_ins.iter_mut().zip(&before) {
            stand_in.bytes_mut().copy_from_slice(&spoilt.before().bytes);
        }
        let places = stand_ins.iter_mut().map(StandIn::place).collect();
        (self.filled, self.before, self.stand_ins) = (filled, before, stand_ins);
        Some(places)
    }

    /// True if the request fills memory of the engine instead of the program's.
    pub fn has_stand_in(&self) -> bool {
        !self.stand_ins.is_empty()
    }

    /// Returns the address of the first piece of memory that the request fills.
    pub fn first_filled(&self) -> u64 {
        self.filled.first().map_or(0, |piece| piece.base)
    }

    /// Writes other rubbish over up to `left` pieces of the memory that the request is to fill, and counts them. True after the last piece.
    fn spoil_more(&mut self, left: &mut usize) -> bool {
        let seed = self.next_round();
        let mut first = 0;
        for spoilt in &mut self.before {
            let pieces = spoilt.pieces();
            while *left > 0 && (first..first + pieces).contains(&self.next_piece) {
                spoilt.respoil(self.next_piece - first, seed);
                self.next_piece += 1;
                *left -= 1;
            }
            first += pieces;
        }
        let is_through = self.next_piece >= first;
        if is_through {
            self.next_piece = 0;
        }
        is_through
    }

    /// Collects the data of a request that is done with this result from the stand-ins, and restores the memory behind them.
    pub fn end_stand_in(&mut self, result: u64) {
        let mut left = result;
        let stand_ins = core::mem::take(&mut self.stand_ins);
        for ((piece, before), stand_in) in self.filled.drain(..).zip(self.before.drain(..)).zip(stand_ins) {
            let filled = piece.length.min(left) as usize;
            left -= filled as u64;
            before.restore_from(filled);
            let data = &stand_in.bytes()[..filled];
            let mut bytes = Vec::new();
            if bytes.try_reserve_exact(filled).is_ok() {
                bytes.extend_from_slice(data);
                self.data.extend((filled > 0).then_some(Copy { base: piece.base, bytes }));
            } else {
                // Memory is short, and the data come early. If their place is gone, that is as after the completion.
                let _ = user::write_bytes(piece.base, data);
            }
        }
    }

    /// Takes the data of a request that is done with this result, up to `room` bytes, and writes rubbish instead.
    pub fn take_data(&mut self, result: u64, mut room: usize) {
        let mut left = result.saturating_mul(self.item_bytes);
        for piece in &self.filled {
            let length = piece.length.min(left);
            left -= length;
            self.data.extend(Copy::of(&IoVector { length, ..*piece }, &mut room));
        }
        self.data.extend(self.structures.iter().filter_map(|piece| Copy::of(piece, &mut room)));
        for submitted in &self.updated {
            self.updates.extend(Copy::of(&submitted.place(), &mut { submitted.bytes.len() }));
            submitted.put_from(0);
        }
        self.spoil_data();
    }

    /// Writes other rubbish over the data that were taken.
    pub fn spoil_data(&mut self) {
        let seed = self.next_round();
        self.data.iter().for_each(|copy| copy.spoil(seed));
    }

    /// Writes the data that were taken to their places. False if the memory of some is not there any more.
    pub fn put_data(&self) -> bool {
        // All of them, whatever is missing.
        self.data.iter().chain(&self.updates).filter(|copy| !copy.put_from(0)).count() == 0
    }

    fn next_round(&mut self) -> u64 {
        self.rounds += 1;
        child(self.value, self.rounds)
    }

    /// Returns a number that the fault's value determines, another one for each `purpose`.
    pub fn draw(&self, purpose: u64) -> u64 {
        child(!self.value, purpose)
    }
}

/// Returns the vectors of an array, up to the first that cannot be read.
fn vectors(address: u64, count: u64) -> Vec<IoVector> {
    let at = |index| address.wrapping_add(index * size_of::<IoVector>() as u64);
    (0..count.min(MOST_VECTORS)).map_while(|index| user::read(at(index)).ok()).collect()
}

/// Memory of the engine that is filled instead of the program's.
struct StandIn {
    /// The memory, a page larger than is needed.
    memory: Box<[u8]>,
    /// The offset of the stand-in, at which it has the alignment of what it stands for: direct transfers need that.
    offset: usize,
    length: usize,
}

impl StandIn {
    /// Makes a stand-in for a piece of memory; `None` if memory is short.
    fn of(piece: &IoVector) -> Option<StandIn> {
        const PAGE: usize = 4096;
        let length = piece.length as usize;
        let mut memory = Vec::new();
        memory.try_reserve_exact(length + PAGE).ok()?;
        memory.resize(length + PAGE, 0);
        let memory = memory.into_boxed_slice();
        let offset = (piece.base as usize).wrapping_sub(memory.as_ptr() as usize) % PAGE;
        Some(StandIn { memory, offset, length })
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.offset..][..self.length]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.offset..][..self.length]
    }

    /// Returns the place, for a call that fills it.
    fn place(&mut self) -> IoVector {
        IoVector { base: self.bytes_mut().as_mut_ptr() as u64, length: self.length as u64 }
    }
}
