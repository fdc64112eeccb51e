//! Provided buffers: groups that operations take a buffer from when they need one
//! (`IOSQE_BUFFER_SELECT`; the group's number is in the SQE's `buf_index`).
//!
//! A group is a list, filled by PROVIDE_BUFFERS, or a ring that the program fills and only it writes
//! the tail of. How an operation takes part:
//!
//! - [`Core::select_buffer`] names the next buffer for one attempt made under the ring's lock. It
//!   must be followed, before the lock is given up, by one of
//!   - [`Core::use_buffer`]: so many bytes of it were used; returns the `IORING_CQE_F_*` that say so,
//!     for [`Core::post_more`] or to be added to the request's `cqe_flags`,
//!   - [`Core::keep_buffer`]: the request goes on with it (a transfer retried for its rest),
//!   - [`Core::detach_buffer`]: the attempt is made without the lock after all,
//!   - [`Core::return_buffer`]: nothing came of it, the next request gets it.
//! - [`Core::select_buffers`] names as many as there are, for a bundle; [`Core::use_buffers`] follows.
//! - [`Core::take_buffer`] is for an attempt made without the lock (a worker's), or on a file that
//!   cannot be polled: the buffer is the request's own at once, as in the kernel, whatever comes.
//! - [`Core::settle_buffer`] runs at every completion and does for a buffer still held what its
//!   result suggests: a positive count uses it, anything else returns it; one that was taken or kept
//!   is reported in any case. An operation that wants otherwise (a read that reached the
//!   end of a file reports its buffer) calls [`Core::use_buffer`] itself first.
//!
//! The program owns ring memory and may unmap or scribble over it at any time: it is read by copies
//! that can fail, and nothing in it is believed but as the program's own addresses and lengths.

use crate::os::sync::atomic::{AtomicU16, Ordering, fence};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use linux_raw_sys::io_uring::{
    IORING_CQE_BUFFER_SHIFT, IORING_CQE_F_BUF_MORE, IORING_CQE_F_BUFFER, IORING_OFF_PBUF_SHIFT,
    io_uring_buf_reg, io_uring_buf_status, io_uring_register_pbuf_ring_flags as RingFlags,
};

use crate::abi::Errno;
use crate::abi::layout::PBUF_OFFSET;
use crate::os::user::{self, IoVector};
use crate::os::{self, Fd};
use crate::request::RequestId;
use crate::ring::Core;

/// What one system call transfers at most (`MAX_RW_COUNT`).
pub const MAX_TRANSFER: usize = 0x7fff_f000;

/// Buffers of one bundle.
const MOST_BUNDLED: u16 = 256;

/// Bytes of one entry of a buffer ring.
const ENTRY: u64 = 16;
/// Where the tail lies in the ring: it overlays a field of the first entry that is not used.
const TAIL: u64 = 14;
/// Entries of a ring stay below this: head and tail have 16 bits.
const MAX_RING: u32 = 1 << 16;
/// Buffers of one list.
const MAX_LIST: usize = u16::MAX as usize;
const PAGE: u64 = 4096;

/// A ring's buffer groups.
#[derive(Default)]
pub struct BufferGroups {
    groups: BTreeMap<u16, Group>,
}

enum Group {
    List(VecDeque<Buffer>),
    Ring(BufferRing),
}

/// A buffer of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Where it begins.
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
    /// Of a list, out of it.
    Listed(Buffer),
    /// At the head of a ring, and still there.
    AtHead,
    /// The request's for good; `more` where the program will see it used again.
    Kept { more: bool },
}

/// Memory that an attempt may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Where it begins.
    pub address: u64,
    /// Its length in bytes.
    pub length: usize,
}

struct BufferRing {
    memory: Memory,
    mask: u16,
    head: u16,
    /// The program's tail when it was last looked at.
    tail: u16,
    /// Buffers are used up bit by bit (`IOU_PBUF_RING_INC`).
    incremental: bool,
    /// One of which less than this is left, in bytes, is used up; at least 1.
    min_left: u32,
}

enum Memory {
    /// The program's, at this address.
    Program(u64),
    /// A part of the ring's own memory, which the program maps (`IOU_PBUF_RING_MMAP`).
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
        // SAFETY: mapped by `map_ring` with this length; only this group points into it.
        unsafe { os::unmap(self.start, self.length) };
    }
}

impl BufferRing {
    fn entry_offset(&self, position: u16) -> u64 {
        u64::from(position & self.mask) * ENTRY
    }

    /// The entry at a position. Its last two bytes may be the tail.
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

    /// Up to `count` entries from the head on.
    fn entries(&self, count: u16) -> Result<Vec<Buffer>, Errno> {
        let Memory::Program(start) = &self.memory else {
            return (0..count).map(|step| self.entry(self.head.wrapping_add(step))).collect();
        };
        // Two copies at most, where the ring wraps.
        let until_end = self.mask - (self.head & self.mask) + 1;
        let first = count.min(until_end);
        let mut raw: Vec<[u64; 2]> =
            user::read_many(start + self.entry_offset(self.head), usize::from(first))?;
        raw.extend(user::read_many::<[u64; 2]>(*start, usize::from(count - first))?);
        let buffer =
            |&[address, rest]: &[u64; 2]| Buffer { address, length: rest as u32, id: (rest >> 32) as u16 };
        Ok(raw.iter().map(buffer).collect())
    }

    /// Rewrites address and length of the entry at a position.
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

    /// How many buffers the program has put in, looking at its tail only if need be.
    fn available(&mut self) -> Result<u16, Errno> {
        if self.tail == self.head {
            self.tail = self.read_tail()?;
        }
        Ok(self.tail.wrapping_sub(self.head))
    }

    fn read_tail(&self) -> Result<u16, Errno> {
        match &self.memory {
            Memory::Program(address) => {
                // A copy is not atomic: only two equal ones in a row tell what the program stored.
                let mut seen = user::read::<u16>(address + TAIL)?;
                loop {
                    let again = user::read::<u16>(address + TAIL)?;
                    if again == seen {
                        break;
                    }
                    seen = again;
                }
                // Pairs with the program's release store of the tail after it wrote entries.
                fence(Ordering::Acquire);
                Ok(seen)
            }
            Memory::Shared(mapping) => {
                let tail = mapping.start.wrapping_add(TAIL as usize).cast::<u16>();
                // Acquire pairs with the program's release store of the tail after it wrote entries.
                // SAFETY: within the mapping, aligned.
                Ok(unsafe { AtomicU16::from_ptr(tail) }.load(Ordering::Acquire))
            }
        }
    }

    /// `used` bytes of `count` buffers from the head on are the program's now. Returns whether it
    /// will see the last of them used again.
    fn commit(&mut self, used: usize, count: u16) -> bool {
        if !self.incremental {
            self.head = self.head.wrapping_add(count);
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
            // One that is used up keeps its address.
            let (step, rest) = if stays { (u64::from(part), rest) } else { (0, 0) };
            let written = self.set_entry(self.head, entry.address.wrapping_add(step), rest);
            if stays || written.is_err() {
                return true;
            }
            self.head = self.head.wrapping_add(1);
            left -= u64::from(part);
        }
        false
    }
}

/// The `min_left` of a registration, in the first four bytes of what was reserved before Linux 7.1.
///
/// # Errors
/// `EINVAL` where anything of the rest is set.
fn min_left(request: &io_uring_buf_reg) -> Result<u32, Errno> {
    match request.resv {
        [first, 0, 0] => u32::try_from(first).map_err(|_| Errno::EINVAL),
        _ => Err(Errno::EINVAL),
    }
}

/// The `IORING_CQE_F_*` that name a buffer.
fn report(id: u16, more: bool) -> u32 {
    let more = if more { IORING_CQE_F_BUF_MORE } else { 0 };
    IORING_CQE_F_BUFFER | more | (u32::from(id) << IORING_CQE_BUFFER_SHIFT)
}

impl Core {
    /// Names the next buffer of the request's group for an attempt under the lock; of `wanted` bytes
    /// at most, where that is not 0.
    ///
    /// # Errors
    /// `ENOBUFS` where there is none, `EFAULT` where the program's ring is gone.
    pub fn select_buffer(&mut self, id: RequestId, wanted: usize) -> Result<Span, Errno> {
        debug_assert!(self.requests[id].buffer.is_none(), "one buffer at a time");
        let number = self.requests[id].sqe.buf_index;
        let (buffer, state) = match self.groups.groups.get_mut(&number) {
            Some(Group::List(list)) => {
                // One at address 0 is none to the kernel.
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
        self.requests[id].buffer = Some(Selected { group: number, id: buffer.id, state });
        let whole = buffer.length as usize;
        let length = if wanted == 0 { whole } else { wanted.min(whole) };
        Ok(Span { address: buffer.address, length: length.min(MAX_TRANSFER) })
    }

    /// The next buffer of a group, where that is a ring whose buffers are used as a whole. [`Core::use_next`] or
    /// [`Core::hold_next`] follows, or nothing was done.
    #[inline]
    pub fn next_of_ring(&mut self, group: u16) -> Option<Buffer> {
        let Some(Group::Ring(ring)) = self.groups.groups.get_mut(&group) else { return None };
        let there = !ring.incremental && ring.available().is_ok_and(|available| available > 0);
        if there { ring.entry(ring.head).ok() } else { None }
    }

    /// Such a buffer was used, by an attempt of a request that holds none: how its CQE says so.
    #[inline]
    pub fn use_next(&mut self, group: u16, buffer: &Buffer) -> u32 {
        report(buffer.id, self.commit_ring(group, 0, 1))
    }

    /// A request holds such a buffer, as if [`Core::select_buffer`] had named it.
    pub fn hold_next(&mut self, id: RequestId, buffer: &Buffer) {
        let group = self.requests[id].sqe.buf_index;
        self.requests[id].buffer = Some(Selected { group, id: buffer.id, state: State::AtHead });
    }

    /// Takes the next buffer of the request's group for good, for an attempt without the lock.
    ///
    /// # Errors
    /// As [`Core::select_buffer`].
    pub fn take_buffer(&mut self, id: RequestId, wanted: usize) -> Result<Span, Errno> {
        let span = self.select_buffer(id, wanted)?;
        self.keep_buffer(id, span.length);
        Ok(span)
    }

    /// Names the next buffers of the request's group, as many as there are, of `wanted` bytes in all
    /// at most, where that is not 0. A list gives one.
    ///
    /// # Errors
    /// As [`Core::select_buffer`].
    pub fn select_buffers(&mut self, id: RequestId, wanted: usize) -> Result<Vec<IoVector>, Errno> {
        let number = self.requests[id].sqe.buf_index;
        let Some(Group::Ring(ring)) = self.groups.groups.get_mut(&number) else {
            let span = self.select_buffer(id, wanted)?;
            return Ok(alloc::vec![IoVector { base: span.address, length: span.length as u64 }]);
        };
        ring.tail = ring.read_tail()?;
        // A tail that makes no sense must not make entries that the ring does not have.
        let count = ring.available()?.min(ring.mask.saturating_add(1)).min(MOST_BUNDLED);
        let incremental = ring.incremental;
        let buffers = ring.entries(count)?;
        let first = buffers.first().ok_or(Errno::ENOBUFS)?;
        self.requests[id].buffer = Some(Selected { group: number, id: first.id, state: State::AtHead });
        let mut left = if wanted == 0 { MAX_TRANSFER } else { wanted.min(MAX_TRANSFER) } as u64;
        let mut vectors = Vec::new();
        for buffer in &buffers {
            let length = left.min(u64::from(buffer.length));
            // A whole buffer goes with each part: none for the end of what is wanted.
            if length < u64::from(buffer.length) && !incremental && !vectors.is_empty() {
                break;
            }
            vectors.push(IoVector { base: buffer.address, length });
            left -= length;
            if left == 0 {
                break;
            }
        }
        Ok(vectors)
    }

    /// Has the request's group given all that it had when it was last looked at?
    pub fn is_group_empty(&self, id: RequestId) -> bool {
        match self.groups.groups.get(&self.requests[id].sqe.buf_index) {
            Some(Group::List(list)) => list.is_empty(),
            Some(Group::Ring(ring)) => ring.head == ring.tail,
            None => true,
        }
    }

    /// Is there a buffer in the request's group?
    ///
    /// # Errors
    /// `ENOBUFS` where there is none, `EFAULT` where the program's ring is gone.
    pub fn expect_buffer(&mut self, id: RequestId) -> Result<(), Errno> {
        let there = match self.groups.groups.get_mut(&self.requests[id].sqe.buf_index) {
            Some(Group::List(list)) => list.front().is_some_and(|buffer| buffer.address != 0),
            Some(Group::Ring(ring)) => ring.available()? > 0,
            None => false,
        };
        if there { Ok(()) } else { Err(Errno::ENOBUFS) }
    }

    /// Does the request's group exist?
    pub fn has_buffer_group(&self, id: RequestId) -> bool {
        self.groups.groups.contains_key(&self.requests[id].sqe.buf_index)
    }

    /// Is the request's group a list?
    pub fn has_buffer_list(&self, id: RequestId) -> bool {
        let group = self.groups.groups.get(&self.requests[id].sqe.buf_index);
        matches!(group, Some(Group::List(_)))
    }

    /// Are the buffers of the request's group used up bit by bit?
    pub fn uses_buffers_up(&self, id: RequestId) -> bool {
        let group = self.groups.groups.get(&self.requests[id].sqe.buf_index);
        matches!(group, Some(Group::Ring(ring)) if ring.incremental)
    }

    /// The request has used `used` bytes of the buffer it holds: how its CQE says so. 0 where it
    /// holds none.
    pub fn use_buffer(&mut self, id: RequestId, used: usize) -> u32 {
        self.use_buffers(id, used, 1)
    }

    /// As [`Core::use_buffer`], of `count` buffers named by [`Core::select_buffers`].
    pub fn use_buffers(&mut self, id: RequestId, used: usize, count: u16) -> u32 {
        let Some(selected) = self.requests[id].buffer.take() else { return 0 };
        let more = match selected.state {
            State::Listed(_) => false,
            State::Kept { more } => more,
            State::AtHead => self.commit_ring(selected.group, used, count),
        };
        report(selected.id, more)
    }

    /// The request goes on with the buffer it holds, of which `used` bytes are spoken for.
    pub fn keep_buffer(&mut self, id: RequestId, used: usize) {
        self.keep_buffers(id, used, 1);
    }

    /// As [`Core::keep_buffer`], of `count` buffers.
    pub fn keep_buffers(&mut self, id: RequestId, used: usize, count: u16) {
        let Some(mut selected) = self.requests[id].buffer else { return };
        let more = match selected.state {
            State::Kept { .. } => return,
            State::Listed(_) => false,
            State::AtHead => self.commit_ring(selected.group, used, count),
        };
        selected.state = State::Kept { more };
        self.requests[id].buffer = Some(selected);
    }

    /// The lock is about to be given up: nobody else may get the buffer meanwhile. One of a list can
    /// still be returned afterwards.
    pub fn detach_buffer(&mut self, id: RequestId, used: usize) {
        if self.requests[id].buffer.is_some_and(|selected| selected.state == State::AtHead) {
            self.keep_buffer(id, used);
        }
    }

    fn commit_ring(&mut self, group: u16, used: usize, count: u16) -> bool {
        match self.groups.groups.get_mut(&group) {
            Some(Group::Ring(ring)) => ring.commit(used, count),
            _ => false,
        }
    }

    /// Nothing came of the attempt: the buffer is the next one to be had again. One that was taken or
    /// kept cannot be put back, and stays with the request.
    pub fn return_buffer(&mut self, id: RequestId) {
        let Some(selected) = self.requests[id].buffer else { return };
        match selected.state {
            State::AtHead => {}
            State::Kept { .. } => return,
            State::Listed(buffer) => {
                if let Some(Group::List(list)) = self.groups.groups.get_mut(&selected.group) {
                    list.push_front(buffer);
                }
            }
        }
        self.requests[id].buffer = None;
    }

    /// A request with a provided buffer ends: report the buffer in its CQE if it was used, give it
    /// back if not.
    pub fn settle_buffer(&mut self, id: RequestId, result: i32) {
        if self.requests[id].buffer.is_none() {
            return;
        }
        if result <= 0 {
            self.return_buffer(id);
        }
        let flags = self.use_buffer(id, result.max(0) as usize);
        self.requests[id].cqe_flags |= flags;
    }
}

/// What PROVIDE_BUFFERS adds.
#[derive(Clone, Copy, Debug)]
pub struct Provision {
    /// The group.
    pub group: u16,
    /// Where the first buffer begins; the others follow.
    pub address: u64,
    /// The length of each.
    pub length: u32,
    /// The number of the first.
    pub first: u16,
    /// How many.
    pub count: u32,
}

impl Core {
    /// Adds buffers to a list.
    ///
    /// # Errors
    /// `EINVAL` where the group is a ring, `EOVERFLOW` where the list is full.
    pub fn provide_buffers(&mut self, provision: &Provision) -> Result<usize, Errno> {
        let group = self.groups.groups.entry(provision.group).or_insert_with(|| Group::List(VecDeque::new()));
        let Group::List(list) = group else { return Err(Errno::EINVAL) };
        let count = (provision.count as usize).min(MAX_LIST.saturating_sub(list.len()));
        if count == 0 {
            return Err(Errno::EOVERFLOW);
        }
        list.try_reserve(count).map_err(|_| Errno::ENOMEM)?;
        let length = provision.length.min(MAX_TRANSFER as u32);
        list.extend((0..count as u64).map(|index| Buffer {
            address: provision.address.wrapping_add(index * u64::from(provision.length)),
            length,
            id: provision.first.wrapping_add(index as u16),
        }));
        Ok(0)
    }

    /// Takes up to `count` buffers out of a list; returns how many.
    ///
    /// # Errors
    /// `ENOENT` where there is no such group, `EINVAL` where it is a ring.
    pub fn remove_buffers(&mut self, group: u16, count: u32) -> Result<usize, Errno> {
        match self.groups.groups.get_mut(&group) {
            None => Err(Errno::ENOENT),
            Some(Group::Ring(_)) => Err(Errno::EINVAL),
            Some(Group::List(list)) => {
                let count = list.len().min(count as usize);
                list.drain(..count);
                Ok(count)
            }
        }
    }

    /// `IORING_REGISTER_PBUF_RING`. `fd` is the program's descriptor of this ring.
    ///
    /// # Errors
    /// As the kernel's: `EINVAL`, `EFAULT`, `EEXIST`, `ENOMEM`; the last also where a ring in the
    /// ring's own memory would run into its neighbour's, which a file cannot tell apart.
    pub fn register_buffer_ring(&mut self, fd: Fd, argument: u64) -> Result<usize, Errno> {
        let request: io_uring_buf_reg = user::read(argument)?;
        let flags = u32::from(request.flags);
        let (mmap, incremental) = (RingFlags::IOU_PBUF_RING_MMAP as u32, RingFlags::IOU_PBUF_RING_INC as u32);
        let min_left = min_left(&request)?;
        if flags & !(mmap | incremental) != 0 || min_left != 0 && flags & incremental == 0 {
            return Err(Errno::EINVAL);
        }
        if !request.ring_entries.is_power_of_two() || request.ring_entries >= MAX_RING {
            return Err(Errno::EINVAL);
        }
        match self.groups.groups.get(&request.bgid) {
            Some(Group::List(list)) if list.is_empty() => {}
            Some(_) => return Err(Errno::EEXIST),
            None => {}
        }
        if flags & mmap == 0 {
            if request.ring_addr == 0 {
                return Err(Errno::EFAULT);
            }
            if request.ring_addr % PAGE != 0 {
                return Err(Errno::EINVAL);
            }
        }
        let length = request.ring_entries as usize * ENTRY as usize;
        let memory = if flags & mmap != 0 {
            Memory::Shared(self.map_ring(fd, request.bgid, length)?)
        } else {
            os::populate(request.ring_addr, length)?;
            Memory::Program(request.ring_addr)
        };
        let ring = BufferRing {
            memory,
            mask: (request.ring_entries - 1) as u16,
            head: 0,
            tail: 0,
            incremental: flags & incremental != 0,
            min_left: min_left.max(1),
        };
        self.groups.groups.insert(request.bgid, Group::Ring(ring));
        Ok(0)
    }

    /// Memory for a buffer ring in the memfd behind `fd`, at the offset that the program maps.
    fn map_ring(&self, fd: Fd, number: u16, length: usize) -> Result<Mapping, Errno> {
        let length = length.next_multiple_of(PAGE as usize);
        let start = |number: u16| u64::from(number) << IORING_OFF_PBUF_SHIFT;
        let end = start(number) + length as u64;
        for (&other, group) in &self.groups.groups {
            if let Group::Ring(BufferRing { memory: Memory::Shared(mapping), .. }) = group
                && start(other) < end
                && start(number) < start(other) + mapping.length as u64
            {
                return Err(Errno::ENOMEM);
            }
        }
        let offset = PBUF_OFFSET + start(number);
        os::grow_memfd(fd, offset + length as u64)?;
        let mapping = Mapping { start: os::map_shared(fd, offset, length)?, length };
        // SAFETY: just mapped, writable; what an earlier ring left here must not be seen.
        unsafe { mapping.start.write_bytes(0, length) };
        Ok(mapping)
    }

    /// `IORING_UNREGISTER_PBUF_RING`.
    ///
    /// # Errors
    /// `ENOENT` where there is no such group, `EINVAL` where it is no ring.
    pub fn unregister_buffer_ring(&mut self, argument: u64) -> Result<usize, Errno> {
        let request: io_uring_buf_reg = user::read(argument)?;
        min_left(&request)?;
        if request.flags != 0 {
            return Err(Errno::EINVAL);
        }
        match self.groups.groups.get(&request.bgid) {
            None => Err(Errno::ENOENT),
            Some(Group::List(_)) => Err(Errno::EINVAL),
            Some(Group::Ring(_)) => {
                self.groups.groups.remove(&request.bgid);
                Ok(0)
            }
        }
    }

    /// `IORING_REGISTER_PBUF_STATUS`: how far the head of a ring is.
    ///
    /// # Errors
    /// As [`Core::unregister_buffer_ring`].
    pub fn buffer_ring_status(&self, argument: u64) -> Result<usize, Errno> {
        let mut status: io_uring_buf_status = user::read(argument)?;
        if status.resv != [0; 8] {
            return Err(Errno::EINVAL);
        }
        let group = u16::try_from(status.buf_group).ok().and_then(|group| self.groups.groups.get(&group));
        match group {
            None => Err(Errno::ENOENT),
            Some(Group::List(_)) => Err(Errno::EINVAL),
            Some(Group::Ring(ring)) => {
                status.head = u32::from(ring.head);
                user::write(argument, &status)?;
                Ok(0)
            }
        }
    }
}
