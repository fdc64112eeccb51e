//! Where a ring's requests live: a growing array with a free list. Indices are stable, addresses
//! are not, so nothing outside the ring's lock may point into it.

use alloc::vec::Vec;

use super::index::Index;
use super::{FileHold, Flags, Phase, Request, RequestId};
use crate::credentials::Whose;
use crate::errno::Errno;
use crate::memory::Sqe;
use crate::ops;

/// As many requests may be alive in one ring; the kernel's bound is memory.
const MAX_REQUESTS: usize = 1 << 20;

/// A ring's requests.
#[derive(Default)]
pub struct Slab {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The thread that submits, or 0: [`Request::thread`] of what comes.
    pub thread: usize,
    index: Index,
}

struct Slot {
    live: bool,
    request: Request,
}

impl Slab {
    /// How many live.
    pub fn live(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// A new request, not prepared yet. `sqe` is its SQE, so far in memory of the program: copied once, to
    /// where it stays.
    pub fn insert(&mut self, sqe: impl FnOnce() -> Sqe) -> Result<RequestId, Errno> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow()?,
        };
        let slot = &mut self.slots[index as usize];
        debug_assert!(!slot.live, "free slots hold no request");
        slot.live = true;
        let request = &mut slot.request;
        request.sqe = sqe();
        request.op = ops::lookup(request.sqe.opcode);
        request.flags = Flags::of_sqe(request.sqe.flags);
        request.phase = Phase::Prepared;
        request.whose = Whose::Common;
        request.thread = self.thread;
        request.result = 0;
        request.cqe_flags = 0;
        request.big_cqe = [0; 2];
        request.events = 0;
        let id = RequestId { index, generation: request.generation };
        if self.index.in_use() {
            self.index.add(index, self.slots[index as usize].request.sqe.user_data);
        }
        Ok(id)
    }

    #[cold]
    fn grow(&mut self) -> Result<u32, Errno> {
        if self.slots.len() >= MAX_REQUESTS
            || self.slots.try_reserve(1).is_err()
            || self.free.try_reserve(self.slots.capacity()).is_err()
        {
            return Err(Errno::EAGAIN);
        }
        let index = self.slots.len() as u32;
        self.slots.push(Slot { live: false, request: Request::vacant() });
        Ok(index)
    }

    /// Ends a request. Its file and its buffer must have been let go of.
    pub fn remove(&mut self, id: RequestId) {
        let slot = &mut self.slots[id.index as usize];
        debug_assert!(slot.live && slot.request.generation == id.generation, "removed once");
        let request = &mut slot.request;
        debug_assert!(request.file == FileHold::None && request.buffer.is_none(), "holds were given back");
        slot.live = false;
        request.generation = request.generation.wrapping_add(1);
        request.link = None;
        request.partner = None;
        request.notification = None;
        if !matches!(request.data, ops::OpData::None) {
            request.data = ops::OpData::None;
        }
        self.free.push(id.index);
        if self.index.in_use() {
            self.index.remove(id.index);
        }
    }

    /// Gives a request another user data.
    pub fn rename(&mut self, id: RequestId, user_data: u64) {
        self[id].sqe.user_data = user_data;
        if self.index.in_use() {
            self.index.remove(id.index);
            self.index.add(id.index, user_data);
        }
    }

    /// All that live and have this user data, newest first.
    pub fn named(&mut self, user_data: u64) -> Vec<RequestId> {
        let Slab { slots, index, .. } = self;
        let id = |at: u32| RequestId { index: at, generation: slots[at as usize].request.generation };
        let live = slots.iter().enumerate().filter(|(_, slot)| slot.live);
        let live = live.map(|(at, slot)| (at as u32, slot.request.sqe.user_data));
        if index.in_use() || index.build(live.clone()) {
            index.find(user_data).map(id).collect()
        } else {
            live.filter(|&(_, of)| of == user_data).map(|(at, _)| id(at)).collect()
        }
    }

    /// The request, if it still lives.
    pub fn get(&self, id: RequestId) -> Option<&Request> {
        // A free slot has a generation that no id was given yet.
        let request = &self.slots.get(id.index as usize)?.request;
        (request.generation == id.generation).then_some(request)
    }

    /// The request, if it still lives.
    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        let request = &mut self.slots.get_mut(id.index as usize)?.request;
        (request.generation == id.generation).then_some(request)
    }

    /// All that live.
    pub fn ids(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.live)
            .map(|(index, slot)| RequestId { index: index as u32, generation: slot.request.generation })
    }
}

impl core::ops::Index<RequestId> for Slab {
    type Output = Request;
    fn index(&self, id: RequestId) -> &Request {
        self.get(id).expect("the request lives")
    }
}

impl core::ops::IndexMut<RequestId> for Slab {
    fn index_mut(&mut self, id: RequestId) -> &mut Request {
        self.get_mut(id).expect("the request lives")
    }
}

impl Request {
    fn vacant() -> Request {
        Request {
            sqe: Sqe::default(),
            op: ops::lookup(0),
            flags: Flags::default(),
            phase: Phase::Prepared,
            whose: Whose::Common,
            file: FileHold::None,
            link: None,
            partner: None,
            result: 0,
            cqe_flags: 0,
            big_cqe: [0; 2],
            events: 0,
            registered_buffer: None,
            buffer: None,
            notification: None,
            thread: 0,
            data: ops::OpData::None,
            generation: 0,
        }
    }
}
