//! The requests of a safe ring that have not ended.

use crate::completion::Completion;
use crate::error::What;
use crate::kept::{Kept, Rooms};
use crate::low::Cqe;
use crate::operation::{Id, Operation, Source, Yield};
use crate::provided::Provided;
use crate::{Engine, Error};
use std::os::fd::{FromRawFd, OwnedFd};

/// A request that has not ended.
pub(crate) struct Request {
    /// The operation, at rest: what its entry names belongs to it.
    pub(crate) operation: Kept,
    pub(crate) source: Source,
    pub(crate) opens: bool,
    pub(crate) notifies: bool,
    /// Nobody waits for its completion.
    pub(crate) silent: bool,
    /// The result of one that notifies, while the notification is to come.
    pub(crate) early: Option<i32>,
}

impl Request {
    #[inline]
    pub(crate) fn new(operation: Kept) -> Request {
        Request { operation, source: None, opens: false, notifies: false, silent: false, early: None }
    }

    /// The buffer that it took.
    #[inline]
    fn buffer(&self, cqe: Cqe, result: i32) -> Option<Provided> {
        let source = self.source.as_ref()?;
        // SAFETY: the engine says so, of a request that takes its buffers from this group.
        cqe.buffer_id().map(|id| unsafe { Provided::new(source.clone(), id, result.max(0) as usize) })
    }

    /// The descriptor that it opened.
    #[inline]
    fn file(&self, result: i32) -> Option<OwnedFd> {
        // SAFETY: a new descriptor, which nobody else knows of.
        (self.opens && result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) })
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
    /// For operations to come.
    pub(crate) rooms: Rooms,
}

impl Requests {
    #[inline]
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

    #[inline]
    fn place(&mut self, id: u64) -> Option<&mut Place> {
        let place = self.places.get_mut(id as u32 as usize)?;
        (place.generation == (id >> 32) as u32 && place.request.is_some()).then_some(place)
    }

    /// Takes a request back, which was not submitted or has ended.
    #[inline]
    pub(crate) fn remove(&mut self, id: Id) -> Option<Request> {
        let place = self.place(id.0)?;
        place.generation = place.generation.wrapping_add(1);
        let request = place.request.take();
        self.free.push(id.0 as u32);
        self.loud -= usize::from(request.as_ref().is_some_and(|request| !request.silent));
        request
    }

    #[inline]
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

    /// The operation that ends with this completion, and what came of it, where all is as it mostly is: it is one of
    /// this type, and nothing else was to come.
    #[inline]
    pub(crate) fn finish<O: Operation>(&mut self, engine: Engine, cqe: Cqe) -> Option<(O, Yield)> {
        let id = Id(cqe.user_data());
        let request = self.place(id.0)?.request.as_ref()?;
        if request.notifies || cqe.more() || !request.operation.is::<O>() {
            return None;
        }
        let request = self.remove(id)?;
        let result = cqe.result();
        let came = Yield {
            result: Error::check(engine, What::Operation(O::NAME), result),
            flags: cqe.flags(),
            buffer: request.buffer(cqe, result),
            file: request.file(result),
        };
        let mut operation: O = request.operation.take(|room| self.rooms.give_back(room)).ok()?;
        operation.settle(result);
        Some((operation, came))
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
            name: request.operation.name(),
            buffer: request.buffer(cqe, result),
            file: request.file(result),
            operation: None,
        };
        if completion.more() {
            return Some(completion);
        }
        let mut request = self.remove(id)?;
        request.operation.settle(result);
        completion.operation = Some(request.operation);
        (!request.silent).then_some(completion)
    }

    /// Gives up all of them without freeing what they hold.
    pub(crate) fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.places));
        self.free = Vec::new();
    }
}
