//! Provided buffers: groups from which operations select a buffer when they need one (`IOSQE_BUFFER_SELECT`;
//! the group's number is in the SQE's `buf_index`).
//!
//! A group is either a list, filled by PROVIDE_BUFFERS, or a ring that the program fills; only the program
//! writes the ring's tail. `feature/provided_buffers/ring.rs` describes how operations use groups.
//!
//! The program owns ring memory and may unmap or overwrite it at any time: the engine reads it by copies that
//! can fail, and uses its contents only as addresses and lengths of the program.

pub mod ops;
pub(crate) mod register;
pub mod ring;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use linux_raw_sys::io_uring::{
    IORING_CQE_BUFFER_SHIFT, IORING_CQE_F_BUF_MORE, IORING_CQE_F_BUFFER, IORING_OFF_PBUF_SHIFT,
};

use crate::abi::Errno;
use crate::abi::layout::PBUF_OFFSET;
use crate::os::sync::atomic::{AtomicU16, Ordering, fence};
use crate::os::user::{self, IoVector};
use crate::os::{self, Fd, pages};

/// The maximal number of buffers of a bundle.
const MOST_BUNDLED: u16 = 256;

/// Bytes of one entry of a buffer ring.
const ENTRY: u64 = 16;
/// The offset of the tail in the ring: it overlays an unused field of the first entry.
const TAIL: u64 = 14;

/// A ring's buffer groups.
#[derive(Default)]
pub struct BufferGroups {
    groups: BTreeMap<u16, Group>,
    /// The number of rings that were registered so far.
    rings: u32,
}

enum Group {
    List(VecDeque<Buffer>),
    Ring(BufferRing),
}

/// A buffer of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// The buffer's address.
    pub address: u64,
    /// Its length in bytes.
    pub length: u32,
    /// Its number in the group.
    pub id: u16,
}

/// A buffer that a request holds and has not reported yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Selected {
    group: u16,
    id: u16,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// From a list, and removed from it.
    Listed(Buffer),
    /// At the head of a ring, and not removed.
    AtHead,
    /// Removed from the ring with this number, which had given away `given` buffers before, for an attempt without the ring's lock.
    /// The unused rest goes back.
    Lent { ring: u32, given: u64 },
    /// Removed for good; `more` if the program will see the buffer used again (`IORING_CQE_F_BUF_MORE`).
    Kept { more: bool },
}

/// Memory that an attempt may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The address of the memory.
    pub address: u64,
    /// Its length in bytes.
    pub length: usize,
}

struct BufferRing {
    memory: Memory,
    /// Distinguishes this ring from earlier ones of its group.
    number: u32,
    mask: u16,
    head: u16,
    /// The number of buffers given away since registration.
    given: u64,
    /// The program's tail when it was read last.
    tail: u16,
    /// Buffers are used up bit by bit (`IOU_PBUF_RING_INC`).
    incremental: bool,
    /// A buffer with fewer bytes left than this is used up; at least 1.
    min_left: u32,
}

enum Memory {
    /// Memory of the program, at this address.
    Program(u64),
    /// Also mapped by the engine: a part of the ring's own memory, which the program maps (`IOU_PBUF_RING_MMAP`), or anonymous
    /// shared pages of the program.
    Shared(Mapping),
}

struct Mapping {
    start: *mut u8,
    length: usize,
}

// SAFETY: the mapping belongs to the process; every access through it is atomic or a copy.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length; only this group points into it.
        unsafe { os::unmap(self.start, self.length) };
    }
}

impl BufferRing {
    fn entry_offset(&self, position: u16) -> u64 {
        u64::from(position & self.mask) * ENTRY
    }

    /// Returns the entry at a position. Its last two bytes may be the tail.
    fn entry(&self, position: u16) -> Result<Buffer, Errno> {
        let offset = self.entry_offset(position);
        let [address, rest] = match &self.memory {
            Memory::Program(address) => user::read::<[u64; 2]>(address + offset)?,
            Memory::Shared(mapping) => {
                let entry = mapping.start.wrapping_add(offset as usize).cast::<u64>();
                // SAFETY: within the mapping, aligned; plain integers that the program may be changing.
                unsafe { [entry.read_volatile(), entry.add(1).read_volatile()] }
            }
        };
        Ok(Buffer { address, length: rest as u32, id: (rest >> 32) as u16 })
    }

    /// Returns `count` entries from the head on.
    fn entries(&self, count: u16) -> Result<Vec<Buffer>, Errno> {
        let Memory::Program(start) = &self.memory else {
            return (0..count).map(|step| self.entry(self.head.wrapping_add(step))).collect();
        };
        // At most two copies, because the ring may wrap.
        let until_end = self.mask - (self.head & self.mask) + 1;
        let first = count.min(until_end);
        let mut raw: Vec<[u64; 2]> =
            user::read_many(start + self.entry_offset(self.head), usize::from(first))?;
        raw.extend(user::read_many::<[u64; 2]>(*start, usize::from(count - first))?);
        let buffer =
            |&[address, rest]: &[u64; 2]| Buffer { address, length: rest as u32, id: (rest >> 32) as u16 };
        Ok(raw.iter().map(buffer).collect())
    }

    /// Rewrites the address and length of the entry at a position.
    fn set_entry(&self, position: u16, address: u64, length: u32) -> Result<(), Errno> {
        let offset = self.entry_offset(position);
        match &self.memory {
            Memory::Program(start) => {
                user::write(start + offset, &address)?;
                user::write(start + offset + 8, &length)
            }
            Memory::Shared(mapping) => {
                let entry = mapping.start.wrapping_add(offset as usize);
                // SAFETY: as in `entry`.
                unsafe {
                    entry.cast::<u64>().write_volatile(address);
                    entry.add(8).cast::<u32>().write_volatile(length);
                }
                Ok(())
            }
        }
    }

    /// Returns the number of available buffers; reads the program's tail only if none is known.
    fn available(&mut self) -> Result<u16, Errno> {
        if self.tail == self.head {
            self.tail = self.read_tail()?;
        }
        Ok(self.tail.wrapping_sub(self.head))
    }

    /// Reads the tail, and returns the available buffers, at most as many as a bundle may have.
    fn bundle(&mut self) -> Result<Vec<Buffer>, Errno> {
        self.tail = self.read_tail()?;
        // An invalid tail must not lead to more entries than the ring has.
        let count = self.available()?.min(self.mask.saturating_add(1)).min(MOST_BUNDLED);
        self.entries(count)
    }

    fn read_tail(&self) -> Result<u16, Errno> {
        match &self.memory {
            Memory::Program(address) => {
                let look = || {
                    let tail = user::read::<u16>(address + TAIL);
                    // Pairs with the program's release store of the tail after it wrote entries, and orders the next copy after
                    // this one, byte by byte.
                    fence(Ordering::Acquire);
                    tail
                };
                // A copy is not atomic: two equal copies in a row give a value that the program stored.
                let mut seen = look()?;
                loop {
                    let again = look()?;
                    if again == seen {
                        return Ok(seen);
                    }
                    seen = again;
                }
            }
            Memory::Shared(mapping) => {
                let tail = mapping.start.wrapping_add(TAIL as usize).cast::<u16>();
                // Acquire pairs with the program's release store of the tail after it wrote entries.
                // SAFETY: within the mapping, aligned.
                Ok(unsafe { AtomicU16::from_ptr(tail) }.load(Ordering::Acquire))
            }
        }
    }

    /// Gives `count` buffers from the head on away: no other request gets them.
    fn give(&mut self, count: u16) {
        self.head = self.head.wrapping_add(count);
        self.given += u64::from(count);
    }

    /// Gives `used` bytes of `count` buffers from the head on back to the program. Returns whether the
    /// program will see the last of these buffers used again.
    fn commit(&mut self, used: usize, count: u16) -> bool {
        if !self.incremental {
            self.give(count);
            return false;
        }
        let mut left = used as u64;
        if left == 0 {
            return true;
        }
        while left > 0 {
            let Ok(entry) = self.entry(self.head) else { return false };
            let part = left.min(u64::from(entry.length)) as u32;
            let rest = entry.length - part;
            let stays = rest >= self.min_left || part == 0;
            // The entry of a used-up buffer keeps its address.
            let (step, rest) = if stays { (u64::from(part), rest) } else { (0, 0) };
            let written = self.set_entry(self.head, entry.address.wrapping_add(step), rest);
            if stays || written.is_err() {
                return true;
            }
            self.give(1);
            left -= u64::from(part);
        }
        false
    }
}

/// Returns the `IORING_CQE_F_*` that name a buffer.
fn report(id: u16, more: bool) -> u32 {
    let more = if more { IORING_CQE_F_BUF_MORE } else { 0 };
    IORING_CQE_F_BUFFER | more | (u32::from(id) << IORING_CQE_BUFFER_SHIFT)
}

impl Selected {
    /// Selects the next buffer of a ring, which stays in the ring until it is used.
    pub fn next(group: u16, buffer: &Buffer) -> Selected {
        Selected { group, id: buffer.id, state: State::AtHead }
    }
}

impl BufferGroups {
    /// Selects the next buffer of a group, limited to `wanted` bytes if `wanted` is not 0.
    ///
    /// # Errors
    /// `ENOBUFS` if there is none, `EFAULT` if the program's ring is not mapped.
    #[inline]
    pub fn select(&mut self, group: u16, wanted: usize) -> Result<(Selected, Span), Errno> {
        let (buffer, state) = match self.groups.get_mut(&group) {
            Some(Group::List(list)) => {
                // The kernel takes a buffer at address 0 for none.
                list.front().filter(|buffer| buffer.address != 0).ok_or(Errno::ENOBUFS)?;
                let buffer = list.pop_front().ok_or(Errno::ENOBUFS)?;
                (buffer, State::Listed(buffer))
            }
            Some(Group::Ring(ring)) => {
                if ring.available()? == 0 {
                    return Err(Errno::ENOBUFS);
                }
                (ring.entry(ring.head)?, State::AtHead)
            }
            None => return Err(Errno::ENOBUFS),
        };
        let whole = buffer.length as usize;
        let length = if wanted == 0 { whole } else { wanted.min(whole) };
        let span = Span { address: buffer.address, length: length.min(os::max_transfer_bytes()) };
        Ok((Selected { group, id: buffer.id, state }, span))
    }

    /// Selects all available buffers of a group, limited to `wanted` bytes in all if `wanted` is not 0. A list gives
    /// one buffer.
    ///
    /// # Errors
    /// As [`BufferGroups::select`].
    pub fn select_many(&mut self, group: u16, wanted: usize) -> Result<(Selected, Vec<IoVector>), Errno> {
        let Some(Group::Ring(ring)) = self.groups.get_mut(&group) else {
            let (selected, span) = self.select(group, wanted)?;
            let vector = IoVector { base: span.address, length: span.length as u64 };
            return Ok((selected, alloc::vec![vector]));
        };
        let buffers = ring.bundle()?;
        // With a limit, the kernel refuses an empty first buffer.
        let first = buffers.first().filter(|first| wanted == 0 || first.length > 0).ok_or(Errno::ENOBUFS)?;
        let most = os::max_transfer_bytes();
        let mut left = if wanted == 0 { most } else { wanted.min(most) } as u64;
        let mut vectors = Vec::new();
        for buffer in &buffers {
            let length = left.min(u64::from(buffer.length));
            // Each part uses up a whole buffer, so the end of the wanted bytes is not worth another buffer.
            if length < u64::from(buffer.length) && !ring.incremental && !vectors.is_empty() {
                break;
            }
            vectors.push(IoVector { base: buffer.address, length });
            left -= length;
            if left == 0 {
                break;
            }
        }
        Ok((Selected::next(group, first), vectors))
    }

    /// Returns the next buffer of a group, if it is a ring whose buffers are used as a whole.
    #[inline]
    pub fn next_of_ring(&mut self, group: u16) -> Option<Buffer> {
        let Some(Group::Ring(ring)) = self.groups.get_mut(&group) else { return None };
        let there = !ring.incremental && ring.available().is_ok_and(|available| available > 0);
        if there { ring.entry(ring.head).ok() } else { None }
    }

    /// True if a group had no buffers left when it was last read.
    pub fn is_empty(&self, group: u16) -> bool {
        match self.groups.get(&group) {
            Some(Group::List(list)) => list.is_empty(),
            Some(Group::Ring(ring)) => ring.head == ring.tail,
            None => true,
        }
    }

    /// Checks that a group has a buffer.
    ///
    /// # Errors
    /// `ENOBUFS` if it has none, `EFAULT` if the program's ring is not mapped.
    pub fn expect(&mut self, group: u16) -> Result<(), Errno> {
        let there = match self.groups.get_mut(&group) {
            Some(Group::List(list)) => list.front().is_some_and(|buffer| buffer.address != 0),
            Some(Group::Ring(ring)) => ring.available()? > 0,
            None => false,
        };
        if there { Ok(()) } else { Err(Errno::ENOBUFS) }
    }

    /// True if the group exists.
    pub fn contains(&self, group: u16) -> bool {
        self.groups.contains_key(&group)
    }

    /// True if a group is a list.
    pub fn is_list(&self, group: u16) -> bool {
        matches!(self.groups.get(&group), Some(Group::List(_)))
    }

    /// True if the buffers of a group are used up bit by bit.
    pub fn is_incremental(&self, group: u16) -> bool {
        matches!(self.groups.get(&group), Some(Group::Ring(ring)) if ring.incremental)
    }

    /// Notes that `used` bytes of a buffer and the `count - 1` next ones were used; returns the `IORING_CQE_F_*` that say so.
    #[inline]
    pub fn report(&mut self, selected: &Selected, used: usize, count: u16) -> u32 {
        let more = match selected.state {
            State::Listed(_) => false,
            State::Kept { more } => more,
            State::AtHead => self.commit(selected.group, used, count),
            State::Lent { .. } => self.put_back(selected) && self.commit(selected.group, used, count),
        };
        report(selected.id, more)
    }

    /// As [`BufferGroups::report`], but the request keeps the buffer, so no other request gets it.
    pub fn keep(&mut self, selected: &mut Selected, used: usize, count: u16) {
        let more = match selected.state {
            State::Kept { .. } | State::Lent { .. } => return,
            State::Listed(_) => false,
            State::AtHead => self.commit(selected.group, used, count),
        };
        selected.state = State::Kept { more };
    }

    /// Takes a buffer at the head of a ring out of the ring, for an attempt without the ring's lock: no other request gets the
    /// buffer until it is reported or put back.
    pub fn lend(&mut self, selected: &mut Selected) {
        if selected.state == State::AtHead
            && let Some(Group::Ring(ring)) = self.groups.get_mut(&selected.group)
        {
            selected.state = State::Lent { ring: ring.number, given: ring.given };
            ring.give(1);
        }
    }

    /// True if a buffer may still be used. A lent buffer belongs to the program again if its ring was unregistered.
    pub fn has(&self, selected: &Selected) -> bool {
        let State::Lent { ring: number, .. } = selected.state else { return true };
        matches!(self.groups.get(&selected.group), Some(Group::Ring(ring)) if ring.number == number)
    }

    fn commit(&mut self, group: u16, used: usize, count: u16) -> bool {
        match self.groups.get_mut(&group) {
            Some(Group::Ring(ring)) => ring.commit(used, count),
            _ => false,
        }
    }

    /// Puts a buffer back, to be selected next. False if the buffer is kept, or if it was lent and later buffers were given away
    /// meanwhile.
    pub fn put_back(&mut self, selected: &Selected) -> bool {
        match selected.state {
            State::AtHead => {}
            State::Kept { .. } => return false,
            State::Lent { ring: number, given } => match self.groups.get_mut(&selected.group) {
                Some(Group::Ring(ring)) if ring.number == number && ring.given == given + 1 => {
                    (ring.head, ring.given) = (ring.head.wrapping_sub(1), given);
                }
                _ => return false,
            },
            State::Listed(buffer) => {
                if let Some(Group::List(list)) = self.groups.get_mut(&selected.group) {
                    list.push_front(buffer);
                }
            }
        }
        true
    }
}

/// The buffers that a PROVIDE_BUFFERS adds.
#[derive(Clone, Copy, Debug)]
pub struct Provision {
    /// The group.
    pub group: u16,
    /// The address of the first buffer; the others follow it.
    pub address: u64,
    /// The length of each buffer, in bytes.
    pub length: u32,
    /// The number of the first buffer.
    pub first: u16,
    /// The number of buffers.
    pub count: u32,
    /// The maximal number of buffers in a list.
    pub most: usize,
}

/// The memory of a buffer ring's entries.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// In the program's memory.
    Program {
        /// The address of the first entry.
        address: u64,
        /// The file of a ring's own memory; used to map anonymous shared pages of the program once more.
        memfd: Option<Fd>,
    },
    /// In the memory of the ring with this descriptor.
    Own(Fd),
}

/// A buffer ring to be created.
#[derive(Clone, Copy, Debug)]
pub struct NewRing {
    /// The memory of its entries.
    pub place: Place,
    /// The number of entries: a power of two.
    pub entries: u16,
    /// Buffers are used up bit by bit.
    pub incremental: bool,
    /// A buffer with fewer bytes left than this is used up; at least 1.
    pub min_left: u32,
}

impl BufferGroups {
    /// Adds buffers to a list.
    ///
    /// # Errors
    /// `EINVAL` if the group is a ring, `EOVERFLOW` if the list is full.
    pub fn provide(&mut self, provision: &Provision) -> Result<(), Errno> {
        let group = self.groups.entry(provision.group).or_insert_with(|| Group::List(VecDeque::new()));
        let Group::List(list) = group else { return Err(Errno::EINVAL) };
        let count = (provision.count as usize).min(provision.most.saturating_sub(list.len()));
        if count == 0 {
            return Err(Errno::EOVERFLOW);
        }
        list.try_reserve(count).map_err(|_| Errno::ENOMEM)?;
        let length = provision.length.min(os::max_transfer_bytes() as u32);
        list.extend((0..count as u64).map(|index| Buffer {
            address: provision.address.wrapping_add(index * u64::from(provision.length)),
            length,
            id: provision.first.wrapping_add(index as u16),
        }));
        Ok(())
    }

    /// Removes up to `count` buffers from a list; returns how many.
    ///
    /// # Errors
    /// `ENOENT` if the group does not exist, `EINVAL` if it is a ring.
    pub fn remove(&mut self, group: u16, count: u32) -> Result<usize, Errno> {
        match self.groups.get_mut(&group) {
            None => Err(Errno::ENOENT),
            Some(Group::Ring(_)) => Err(Errno::EINVAL),
            Some(Group::List(list)) => {
                let count = list.len().min(count as usize);
                list.drain(..count);
                Ok(count)
            }
        }
    }

    /// Checks that a ring may be registered as this group.
    ///
    /// # Errors
    /// `EEXIST` if the group has buffers, or is a ring.
    pub fn expect_vacant(&self, group: u16) -> Result<(), Errno> {
        match self.groups.get(&group) {
            Some(Group::List(list)) if list.is_empty() => Ok(()),
            Some(_) => Err(Errno::EEXIST),
            None => Ok(()),
        }
    }

    /// Registers a ring as this group, which has no buffers.
    ///
    /// # Errors
    /// `EFAULT` if the program's memory is not mapped; `ENOMEM`, also if a ring in the ring's own memory would overlap
    /// the next group's, because one file holds them all.
    pub fn add_ring(&mut self, group: u16, new: &NewRing) -> Result<(), Errno> {
        debug_assert!(self.expect_vacant(group).is_ok() && new.min_left > 0, "its maker has looked");
        let length = usize::from(new.entries) * ENTRY as usize;
        let memory = match new.place {
            Place::Own(fd) => Memory::Shared(self.map_ring(fd, group, length)?),
            Place::Program { address, memfd } => {
                os::populate(address, length)?;
                // Whole pages, as in `Region::of_program`.
                let length = pages::whole(length);
                match memfd.and_then(|memfd| pages::map_again(address, length as u64, memfd)) {
                    Some(start) => Memory::Shared(Mapping { start, length }),
                    None => Memory::Program(address),
                }
            }
        };
        self.rings = self.rings.wrapping_add(1);
        let ring = BufferRing {
            memory,
            number: self.rings,
            mask: new.entries - 1,
            head: 0,
            given: 0,
            tail: 0,
            incremental: new.incremental,
            min_left: new.min_left,
        };
        self.groups.insert(group, Group::Ring(ring));
        Ok(())
    }

    /// Maps memory for a buffer ring in the memfd behind `fd`, at the offset at which the program maps it.
    fn map_ring(&self, fd: Fd, number: u16, length: usize) -> Result<Mapping, Errno> {
        let length = pages::whole(length);
        let start = |number: u16| u64::from(number) << IORING_OFF_PBUF_SHIFT;
        let end = start(number) + length as u64;
        for (&other, group) in &self.groups {
            if let Group::Ring(BufferRing { memory: Memory::Shared(mapping), .. }) = group
                && start(other) < end
                && start(number) < start(other) + mapping.length as u64
            {
                return Err(Errno::ENOMEM);
            }
        }
        let offset = PBUF_OFFSET + start(number);
        os::grow_memfd(fd, offset + length as u64)?;
        let mapping =
            Mapping { start: os::by_own_description(fd, |fd| os::map_shared(fd, offset, length))?, length };
        // SAFETY: just mapped, writable. Contents of an earlier ring must not be seen.
        unsafe { mapping.start.write_bytes(0, length) };
        Ok(mapping)
    }

    /// Removes a group that is a ring.
    ///
    /// # Errors
    /// `ENOENT` if the group does not exist, `EINVAL` if it is no ring.
    pub fn remove_ring(&mut self, group: u16) -> Result<(), Errno> {
        self.ring_head(group)?;
        self.groups.remove(&group);
        Ok(())
    }

    /// Returns the position of a ring's head.
    ///
    /// # Errors
    /// As [`BufferGroups::remove_ring`].
    pub fn ring_head(&self, group: u16) -> Result<u16, Errno> {
        match self.groups.get(&group) {
            None => Err(Errno::ENOENT),
            Some(Group::List(_)) => Err(Errno::EINVAL),
            Some(Group::Ring(ring)) => Ok(ring.head),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::{BufferGroups, NewRing, Place, Selected};

    /// Makes a ring in `memory`, with one buffer of the program, and lends that buffer.
    fn lend_first(groups: &mut BufferGroups, memory: &mut [[u16; 8]]) -> Selected {
        let place = Place::Program { address: memory.as_mut_ptr().addr() as u64, memfd: None };
        let entries = memory.len() as u16;
        groups.add_ring(1, &NewRing { place, entries, incremental: false, min_left: 1 }).unwrap();
        memory[0][7] = 1;
        let (mut lent, _) = groups.select(1, 0).unwrap();
        groups.lend(&mut lent);
        lent
    }

    #[test]
    fn a_lent_buffer_goes_back_to_its_own_ring_alone() {
        let mut memory = [[0, 0, 0, 0, 1, 0, 0, 0]; 4];
        let mut groups = BufferGroups::default();
        let lent = lend_first(&mut groups, &mut memory);
        assert!(groups.has(&lent));
        groups.remove_ring(1).unwrap();
        assert!(!groups.has(&lent));
        // The second ring has given as many buffers as the first.
        let other = lend_first(&mut groups, &mut memory);
        assert!(groups.has(&other) && !groups.has(&lent));
        assert!(!groups.put_back(&lent) && groups.put_back(&other));
    }

    /// Positions in a ring repeat after 65,536 buffers.
    #[test]
    fn a_lent_buffer_does_not_go_back_behind_later_ones() {
        let mut memory = [[0, 0, 0, 0, 1, 0, 0, 0]; 4];
        let mut groups = BufferGroups::default();
        let lent = lend_first(&mut groups, &mut memory);
        for _ in 0..1 << 16 {
            memory[0][7] = memory[0][7].wrapping_add(1);
            let (selected, _) = groups.select(1, 0).unwrap();
            groups.report(&selected, 1, 1);
        }
        assert!(!groups.put_back(&lent));
    }
}
