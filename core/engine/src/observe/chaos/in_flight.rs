//! The program's memory that late requests use, from their submission to their completion.
//!
//! A request whose completion comes late ([`Fault::Late`](anyring_chaos_plan::Fault::Late)) finds its memory as if it were worked on for
//! all that time:
//!
//! - Memory that it fills holds rubbish from its first attempt to its completion, and the rubbish changes. Reads and receives fill memory
//!   of the engine instead, which is copied to the program's just before the CQE; what they do not fill is restored. Other memory
//!   (provided and registered buffers, structures, addresses) is filled when the request is done; then the engine takes the data away,
//!   and brings them back before the CQE.
//! - Memory that it reads is copied before its first attempt, which is delayed, and compared when the request completes.
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
/// The number of bytes that are written or compared at a time.
const PIECE: usize = 512;

/// The memory of a ring's late requests, by their serial numbers.
#[derive(Default)]
pub(super) struct InFlight(BTreeMap<u64, Memory>);

impl Drop for InFlight {
    /// Leaks stand-ins of requests that have not completed: a thread may still be filling them.
    fn drop(&mut self) {
        let memories = self.0.values_mut();
        memories.for_each(|memory| core::mem::forget(core::mem::take(&mut memory.stand_ins)));
    }
}

impl InFlight {
    pub fn get_mut(&mut self, serial: u64) -> Option<&mut Memory> {
        self.0.get_mut(&serial)
    }

    pub fn insert(&mut self, serial: u64, memory: Memory) {
        self.0.insert(serial, memory);
    }

    pub fn remove(&mut self, serial: u64) -> Option<Memory> {
        self.0.remove(&serial)
    }

    /// Returns how many bytes more may be copied for one request.
    pub fn room(&self) -> usize {
        let copied: usize = self.0.values().map(Memory::copied).sum();
        MOST_OF_RING.saturating_sub(copied).min(MOST_BYTES)
    }

    /// Iterates over the memory of all requests.
    pub fn all(&mut self) -> impl Iterator<Item = &mut Memory> {
        self.0.values_mut()
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
    before: Vec<Copy>,
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
    /// The injected fault is in the plan's log: the request was held back before its first attempt, for this time.
    pub held_ns: Option<u64>,
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
            stand_ins: Vec::new(),
            data: Vec::new(),
            updates: Vec::new(),
            rounds: 0,
            rounds_left: 0,
            round_ns: 0,
            held_ns: None,
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
        let copies = self.submitted.iter().chain(&self.data).chain(&self.before);
        let stand_ins: usize = self.stand_ins.iter().map(|one| one.memory.len()).sum();
        stand_ins + copies.map(|copy| copy.bytes.len()).sum::<usize>()
    }

    /// Copies the memory that the request reads, up to `room` bytes.
    pub fn copy_read(&mut self, mut room: usize) {
        self.submitted = self.read.iter().filter_map(|piece| Copy::of(piece, &mut room)).collect();
    }

    /// Returns the harm to the memory of a request that is done.
    pub fn harm(&self) -> Option<Harm> {
        let used = self.read.iter().copied().chain(self.data.iter().map(Copy::place));
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
        let all = lengths.sum::<Option<usize>>().filter(|&all| 0 < all && all <= room / 2)?;
        let copy = |piece: &IoVector| Copy::of(piece, &mut { all });
        let before: Vec<Copy> = filled.iter().map(copy).collect::<Option<_>>()?;
        let stand_ins: Vec<StandIn> = filled.iter().map(StandIn::of).collect::<Option<_>>()?;
        if !before.iter().all(|copy| copy.put_from(0)) {
            return None;
        }
        let places = stand_ins.iter().map(StandIn::place).collect();
        (self.filled, self.before, self.stand_ins) = (filled, before, stand_ins);
        self.spoil_before();
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

    /// Writes other rubbish over the memory that the request is to fill.
    pub fn spoil_before(&mut self) {
        let seed = self.next_round();
        self.before.iter().for_each(|copy| copy.spoil(seed));
    }

    /// Collects the data of a request that is done with this result from the stand-ins, and restores the memory behind them.
    pub fn end_stand_in(&mut self, result: u64) {
        let mut left = result;
        let stand_ins = core::mem::take(&mut self.stand_ins);
        for ((piece, before), stand_in) in self.filled.drain(..).zip(self.before.drain(..)).zip(stand_ins) {
            let filled = piece.length.min(left) as usize;
            left -= filled as u64;
            before.put_from(filled);
            if filled > 0 {
                self.data.push(Copy { base: piece.base, bytes: stand_in.bytes()[..filled].to_vec() });
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

    fn place(&self) -> IoVector {
        IoVector { base: self.bytes().as_ptr() as u64, length: self.length as u64 }
    }
}

/// A copy of memory of the program.
struct Copy {
    base: u64,
    bytes: Vec<u8>,
}

impl Copy {
    /// Copies memory, up to `room` bytes, which are fewer then. `None` if nothing is copied: there is no room, or no memory.
    fn of(place: &IoVector, room: &mut usize) -> Option<Copy> {
        let length = place.length.min(*room as u64) as usize;
        let bytes = user::read_many::<u8>(place.base, length).ok().filter(|bytes| !bytes.is_empty())?;
        *room -= length;
        Some(Copy { base: place.base, bytes })
    }

    fn place(&self) -> IoVector {
        IoVector { base: self.base, length: self.bytes.len() as u64 }
    }

    /// Writes the bytes from `first` on to their place. False if the memory is not there any more.
    fn put_from(&self, first: usize) -> bool {
        let Some(bytes) = self.bytes.get(first..) else { return true };
        user::write_bytes(self.base + first as u64, bytes).is_ok()
    }

    /// Writes rubbish to the place of the copy, up to memory that is not there any more.
    fn spoil(&self, seed: u64) {
        let mut rubbish = [0; PIECE];
        for at in (0..self.bytes.len()).step_by(PIECE) {
            for (word, chunk) in rubbish.chunks_exact_mut(size_of::<u64>()).enumerate() {
                chunk.copy_from_slice(&child(seed, (at + word) as u64).to_ne_bytes());
            }
            let length = PIECE.min(self.bytes.len() - at);
            if user::write_bytes(self.base + at as u64, &rubbish[..length]).is_err() {
                return;
            }
        }
    }

    /// Returns the difference of the memory from the copy, if there is one.
    fn harm(&self) -> Option<Harm> {
        let mut now = [0; PIECE];
        for (index, copied) in self.bytes.chunks(PIECE).enumerate() {
            let now = &mut now[..copied.len()];
            if user::read_bytes(self.base + (index * PIECE) as u64, now).is_err() {
                return Some(Harm::Unmapped);
            }
            if now != copied {
                return Some(Harm::Changed);
            }
        }
        None
    }
}
