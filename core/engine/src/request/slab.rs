//! The memory of a ring's requests: a growing array with a free list. Indices are stable but
//! addresses are not, so no pointer into it may outlive the holding of the ring's lock.

use alloc::vec::Vec;

use crate::abi::{Errno, Sqe};
use crate::os::user::Path;
use crate::os::{self, Fd};
use crate::process::credentials::Whose;
use crate::request::by_file::{ByFile, Look};
use crate::request::data::{OpData, Open};
use crate::request::index::Index;
use crate::request::op::Op;
use crate::request::{FileHold, Flags, Phase, Request, RequestId};

/// Maximum number of live requests in one ring; the kernel's limit is memory.
const MAX_REQUESTS: usize = 1 << 20;

/// Maximum number of paths whose memory is kept.
const MOST_PATHS: usize = 64;

/// A ring's requests.
#[derive(Default)]
pub struct Slab {
    slots: Vec<Request>,
    free: Vec<u32>,
    /// Paths of ended requests, whose memory the next paths take.
    paths: Vec<Path>,
    /// The identity of the submitting thread, or 0: the [`Request::thread`] of new requests.
    thread: usize,
    /// Number of notifications that have no slot, but count as live requests.
    beside: usize,
    index: Index,
    by_file: ByFile,
    /// `index` or `by_file` is in use. Checked for every request, therefore a single flag.
    indexed: bool,
}

impl Slab {
    /// Sets the submitting thread, or 0 for none.
    #[inline]
    pub fn set_thread(&mut self, thread: usize) {
        self.thread = thread;
    }

    /// Counts a notification that has no slot.
    #[inline]
    pub fn count_beside(&mut self) {
        self.beside += 1;
    }

    /// Uncounts notifications without slots that were posted or have become requests.
    #[inline]
    pub fn end_beside(&mut self, count: usize) {
        self.beside -= count;
    }

    /// Resets the indexes in a child after `fork`, since another thread may have been changing them. They are rebuilt when needed.
    pub fn forked(&mut self) {
        (self.index, self.by_file, self.indexed) = (Index::default(), ByFile::default(), false);
    }

    /// Returns the number of live requests.
    pub fn live(&self) -> usize {
        self.slots.len() - self.free.len() + self.beside
    }

    /// Makes a new request, not prepared yet. `sqe` reads the SQE from the program's memory: it is copied
    /// once, to its final place. `operation` finds the operation of its opcode.
    #[inline(always)]
    pub fn insert(
        &mut self,
        sqe: impl FnOnce() -> Sqe,
        operation: impl FnOnce(u8) -> &'static Op,
    ) -> Result<RequestId, Errno> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow()?,
        };
        let request = &mut self.slots[index as usize];
        debug_assert!(!request.live, "free slots hold no request");
        request.live = true;
        request.sqe = sqe();
        request.op = operation(request.sqe.opcode);
        request.flags = Flags::of_sqe(request.sqe.flags);
        request.phase = Phase::Prepared;
        request.whose = Whose::Common;
        request.thread = self.thread;
        request.result = 0;
        request.events = 0;
        let id = RequestId { index, generation: request.generation };
        if self.indexed {
            self.index_new(index);
        }
        Ok(id)
    }

    #[inline(never)]
    fn index_new(&mut self, index: u32) {
        if self.index.in_use() {
            self.index.add(index, self.slots[index as usize].sqe.user_data);
        }
        if self.by_file.in_use() {
            self.by_file.add(index);
        }
    }

    #[inline(never)]
    fn index_ended(&mut self, index: u32) {
        if self.index.in_use() {
            self.index.remove(index);
        }
        if self.by_file.in_use() {
            self.by_file.remove(index);
        }
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
        self.slots.push(Request::vacant());
        Ok(index)
    }

    /// Ends a request, whose file and buffer must be released already.
    #[inline(always)]
    pub fn remove(&mut self, id: RequestId) {
        let request = &mut self.slots[id.index as usize];
        debug_assert!(request.live && request.generation == id.generation, "removed once");
        debug_assert!(request.file == FileHold::None, "its file was let go of");
        request.live = false;
        request.generation = request.generation.wrapping_add(1);
        if request.flags.has(Flags::UNPREPARED) {
            debug_assert!(request.is_clean(), "there was nothing to be kept of it");
        } else {
            request.clean();
            if !matches!(request.data, OpData::None) {
                self.free_data(id.index);
            }
        }
        self.free.push(id.index);
        if self.indexed {
            self.index_ended(id.index);
        }
    }

    #[inline(never)]
    fn free_data(&mut self, index: u32) {
        let data = &mut self.slots[index as usize].data;
        if let OpData::Path(path) | OpData::Open(Open { path, .. }) = data
            && self.paths.len() < MOST_PATHS
            && path.is_short()
        {
            self.paths.push(core::mem::take(path));
            // Nothing is left that needs to be dropped.
            core::mem::forget(core::mem::take(data));
        } else {
            *data = OpData::None;
        }
    }

    /// Returns a path that is no longer needed, for its memory.
    pub fn take_path(&mut self) -> Path {
        self.paths.pop().unwrap_or_default()
    }

    /// Changes a request's user data.
    pub fn rename(&mut self, id: RequestId, user_data: u64) {
        self[id].sqe.user_data = user_data;
        if self.index.in_use() {
            self.index.remove(id.index);
            self.index.add(id.index, user_data);
        }
    }

    /// Returns the live requests with this user data, newest first.
    pub fn named(&mut self, user_data: u64) -> Vec<RequestId> {
        let Slab { slots, index, indexed, .. } = self;
        *indexed = true;
        let id = |at: u32| RequestId { index: at, generation: slots[at as usize].generation };
        let live = slots.iter().enumerate().filter(|(_, request)| request.live);
        let live = live.map(|(at, request)| (at as u32, request.sqe.user_data));
        if index.in_use() || index.build(live.clone()) {
            index.find(user_data).map(id).collect()
        } else {
            live.filter(|&(_, of)| of == user_data).map(|(at, _)| id(at)).collect()
        }
    }

    /// Returns the live requests that may have this file, in the order of their slots; `takes_file`: the operation uses a file.
    pub fn on_file(&mut self, file: Fd, takes_file: impl Fn(&Request) -> bool) -> Vec<RequestId> {
        let Slab { slots, by_file, indexed, .. } = self;
        *indexed = true;
        let look = |at: u32| match &slots[at as usize] {
            request if !request.live || !takes_file(request) => Look::Nothing,
            request if request.file == FileHold::None => Look::Later,
            request => Look::Has(request.file.fd()),
        };
        let in_use = by_file.in_use() || by_file.build(slots.len() as u32);
        let found = if in_use { by_file.find(file, look) } else { None };
        let Some(found) = found else { return self.ids().collect() };
        let id = |at: u32| RequestId { index: at, generation: slots[at as usize].generation };
        found.into_iter().map(id).collect()
    }

    /// Prefetches the request's first cache lines, because it will be accessed soon.
    #[inline]
    pub fn expect(&self, id: RequestId) {
        let Some(request) = self.slots.get(id.index as usize) else { return };
        os::prefetch(&raw const *request);
        os::prefetch(&raw const request.file);
    }

    /// Returns the request, if it lives.
    pub fn get(&self, id: RequestId) -> Option<&Request> {
        // A free slot's generation is in no ID yet.
        let request = self.slots.get(id.index as usize)?;
        (request.generation == id.generation).then_some(request)
    }

    /// Returns the request for changes, if it lives.
    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        let request = self.slots.get_mut(id.index as usize)?;
        (request.generation == id.generation).then_some(request)
    }

    /// Returns all live requests.
    pub fn ids(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, request)| request.live)
            .map(|(index, request)| RequestId { index: index as u32, generation: request.generation })
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
    /// Resets the fields of an ended request that insertion does not set to those of [`Request::vacant`].
    fn clean(&mut self) {
        debug_assert!(self.buffer.is_none(), "its buffer was let go of");
        self.cqe_flags = 0;
        self.link = None;
        self.partner = None;
        self.notification = None;
        self.big_cqe = [0; 2];
    }

    fn is_clean(&self) -> bool {
        matches!(self.data, OpData::None)
            && (self.cqe_flags, self.link, self.partner) == (0, None, None)
            && (self.notification, self.big_cqe) == (None, [0; 2])
            && self.registered_buffer.is_none()
            && self.buffer.is_none()
    }

    fn vacant() -> Request {
        Request {
            sqe: Sqe::default(),
            op: &const { Op::unknown() },
            whose: Whose::Common,
            thread: 0,
            file: FileHold::None,
            flags: Flags::default(),
            events: 0,
            result: 0,
            generation: 0,
            phase: Phase::Prepared,
            live: false,
            cqe_flags: 0,
            data: OpData::None,
            link: None,
            partner: None,
            notification: None,
            registered_buffer: None,
            buffer: None,
            big_cqe: [0; 2],
            serial: 0,
        }
    }
}
