//! The requests of a safe ring that have not ended.

use crate::Engine;
use crate::completion::Completion;
use crate::low::{Cqe, Sqe};
use crate::operation::{Id, Source};
use crate::provided::Provided;
use std::any::Any;
use std::os::fd::{FromRawFd, OwnedFd};

/// An operation at rest, which the engine may have pointers into: a box would claim to be its only user.
pub(crate) struct Kept(*mut (dyn Any + Send));

// SAFETY: as the box that it was.
unsafe impl Send for Kept {}

impl Kept {
    /// An operation, and its entry.
    pub(crate) fn new<O: Any + Send>(operation: O, entry: impl FnOnce(&mut O) -> Sqe) -> (Kept, Sqe) {
        let operation = Box::into_raw(Box::new(operation));
        // SAFETY: a box's content, which nobody else knows of.
        (Kept(operation), entry(unsafe { &mut *operation }))
    }

    fn get_mut(&mut self) -> &mut (dyn Any + Send) {
        // SAFETY: a box's content, which the engine has done with.
        unsafe { &mut *self.0 }
    }

    fn into_box(self) -> Box<dyn Any + Send> {
        let kept = std::mem::ManuallyDrop::new(self);
        // SAFETY: made of a box, which is taken once.
        unsafe { Box::from_raw(kept.0) }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: made of a box, and not taken.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// What is the same for all requests of an operation.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Tells the operation that it has ended.
    pub(crate) settle: fn(&mut dyn Any, i32),
}

/// A request that has not ended.
pub(crate) struct Request {
    /// The operation, at rest: what its entry names belongs to it.
    pub(crate) operation: Kept,
    pub(crate) kind: &'static Kind,
    pub(crate) source: Source,
    pub(crate) opens: bool,
    pub(crate) notifies: bool,
    /// Nobody waits for its completion.
    pub(crate) silent: bool,
    /// The result of one that notifies, while the notification is to come.
    pub(crate) early: Option<i32>,
}

impl Request {
    pub(crate) fn new(operation: Kept, kind: &'static Kind) -> Request {
        Request { operation, kind, source: None, opens: false, notifies: false, silent: false, early: None }
    }
}

struct Place {
    /// Of the next request here.
    generation: u32,
    request: Option<Request>,
}

/// All of them, by number.
#[derive(Default)]
pub(crate) struct Requests {
    places: Vec<Place>,
    free: Vec<u32>,
    /// How many are not silent.
    loud: usize,
}

impl Requests {
    pub(crate) fn insert(&mut self, request: Request) -> Id {
        self.loud += usize::from(!request.silent);
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, request: None });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        place.request = Some(request);
        Id(u64::from(place.generation) << 32 | u64::from(index))
    }

    fn place(&mut self, id: u64) -> Option<&mut Place> {
        let place = self.places.get_mut(id as u32 as usize)?;
        (place.generation == (id >> 32) as u32 && place.request.is_some()).then_some(place)
    }

    /// Takes a request back, which was not submitted or has ended.
    pub(crate) fn remove(&mut self, id: Id) -> Option<Request> {
        let place = self.place(id.0)?;
        place.generation = place.generation.wrapping_add(1);
        let request = place.request.take();
        self.free.push(id.0 as u32);
        self.loud -= usize::from(request.as_ref().is_some_and(|request| !request.silent));
        request
    }

    pub(crate) fn contains(&self, id: Id) -> bool {
        let place = self.places.get(id.0 as u32 as usize);
        place.is_some_and(|place| place.generation == (id.0 >> 32) as u32 && place.request.is_some())
    }

    /// How many there are that somebody waits for.
    pub(crate) fn waited_for(&self) -> usize {
        self.loud
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    pub(crate) fn ids(&self) -> Vec<Id> {
        let live = self.places.iter().enumerate().filter(|(_, place)| place.request.is_some());
        live.map(|(index, place)| Id(u64::from(place.generation) << 32 | index as u64)).collect()
    }

    /// What the engine's completion is to the program, if anything.
    pub(crate) fn complete(&mut self, engine: Engine, cqe: Cqe) -> Option<Completion> {
        let id = Id(cqe.user_data());
        let request = self.place(id.0)?.request.as_mut()?;
        let (mut result, mut flags) = (cqe.result(), cqe.flags());
        if request.notifies {
            if cqe.more() {
                request.early = Some(result);
                return None;
            }
            result = request.early.unwrap_or(result);
            flags = 0;
        }
        let mut completion = Completion {
            id,
            result,
            flags,
            engine,
            name: request.kind.name,
            buffer: request.source.as_ref().zip(cqe.buffer_id()).map(|(group, id)| {
                // SAFETY: the engine says so, of a request that takes its buffers from this group.
                unsafe { Provided::new(group.clone(), id, result.max(0) as usize) }
            }),
            // SAFETY: a new descriptor, which nobody else knows of.
            file: (request.opens && result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) }),
            operation: None,
        };
        if completion.more() {
            return Some(completion);
        }
        let mut request = self.remove(id)?;
        (request.kind.settle)(request.operation.get_mut(), result);
        completion.operation = Some(request.operation.into_box());
        (!request.silent).then_some(completion)
    }

    /// Gives up all of them without freeing what they hold.
    pub(crate) fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.places));
        self.free = Vec::new();
    }
}
