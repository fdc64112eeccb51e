//! The requests of a safe ring that have not ended.

use crate::Engine;
use crate::completion::Completion;
use crate::kept::{Kept, Room};
use crate::low::Cqe;
use crate::operation::{Id, Operation, Source};
use crate::provided::ProvidedBuffer;
use std::os::fd::{FromRawFd, OwnedFd};

/// A request that has not ended.
pub(crate) struct Request {
    /// The operation, which does not move; all that its entry names belongs to it.
    pub(crate) operation: Kept,
    pub(crate) opens: bool,
    pub(crate) notifies: bool,
    /// The request ends with one completion, which the program waits for, and takes no buffer of a group.
    pub(crate) plain: bool,
    /// The program does not wait for the completion.
    pub(crate) silent: bool,
    /// The result of a request that notifies, until its notification comes.
    pub(crate) early: Option<i32>,
}

impl Request {
    #[inline]
    pub(crate) fn new(operation: Kept) -> Request {
        Request { operation, opens: false, notifies: false, plain: false, silent: false, early: None }
    }
}

/// Returns the descriptor that a request with this result opened.
#[inline]
fn opened(opens: bool, result: i32) -> Option<OwnedFd> {
    // SAFETY: a new descriptor, which nothing else refers to.
    (opens && result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) })
}

struct Place {
    /// The generation of the request in this place, or of the next request.
    generation: u32,
    request: Option<Request>,
    /// The group of buffers of the request in this place.
    source: Source,
}

impl Place {
    /// Returns the buffer that the request's CQE names.
    fn buffer(&self, cqe: Cqe, result: i32) -> Option<ProvidedBuffer> {
        let source = self.source.as_ref()?;
        // SAFETY: the engine names the buffer, for a request that takes buffers from this group.
        cqe.buffer_id().map(|id| unsafe { ProvidedBuffer::new(source.clone(), id, result.max(0) as usize) })
    }
}

/// A free place, to be used or to be given back.
pub(crate) struct Vacancy {
    pub(crate) index: u32,
    /// The memory of the last operation in this place.
    pub(crate) room: Option<Box<Room>>,
}

/// All requests of a ring, by number.
#[derive(Default)]
pub(crate) struct Requests {
    places: Vec<Place>,
    free: Vec<Vacancy>,
    /// The numbers of requests that are not silent, and that are silent.
    loud: usize,
    silent: usize,
}

impl Requests {
    /// Returns the place of the next request.
    #[inline(always)]
    pub(crate) fn vacancy(&mut self) -> Vacancy {
        self.free.pop().unwrap_or_else(|| self.add_place())
    }

    #[cold]
    fn add_place(&mut self) -> Vacancy {
        self.places.push(Place { generation: 0, request: None, source: None });
        Vacancy { index: (self.places.len() - 1) as u32, room: None }
    }

    #[inline(always)]
    pub(crate) fn insert(&mut self, index: u32, request: Request, source: Source) -> Id {
        if request.silent {
            self.silent += 1;
        } else {
            self.loud += 1;
        }
        let place = &mut self.places[index as usize];
        place.request = Some(request);
        if source.is_some() {
            place.source = source;
        }
        Id(u64::from(place.generation) << 32 | u64::from(index))
    }

    #[inline]
    fn place(&mut self, id: u64) -> Option<&mut Place> {
        let place = self.places.get_mut(id as u32 as usize)?;
        (place.generation == (id >> 32) as u32 && place.request.is_some()).then_some(place)
    }

    /// Removes a request that has ended.
    fn remove(&mut self, id: Id) -> Option<Request> {
        let place = self.place(id.0)?;
        place.generation = place.generation.wrapping_add(1);
        place.source = None;
        let request = place.request.take()?;
        self.free.push(Vacancy { index: id.0 as u32, room: None });
        if request.silent {
            self.silent -= 1;
        } else {
            self.loud -= 1;
        }
        Some(request)
    }

    #[inline]
    pub(crate) fn contains(&self, id: Id) -> bool {
        let place = self.places.get(id.0 as u32 as usize);
        place.is_some_and(|place| place.generation == (id.0 >> 32) as u32 && place.request.is_some())
    }

    /// The number of requests whose completions the program waits for.
    pub(crate) fn waited_for(&self) -> usize {
        self.loud
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.loud + self.silent == 0
    }

    pub(crate) fn ids(&self) -> Vec<Id> {
        let live = self.places.iter().enumerate().filter(|(_, place)| place.request.is_some());
        live.map(|(index, place)| Id(u64::from(place.generation) << 32 | index as u64)).collect()
    }

    /// True if the request's operation has the type `O`, and the request ends with one completion and takes no buffer of a group.
    #[inline(always)]
    pub(crate) fn is_plain<O: Operation>(&self, id: Id) -> bool {
        let place = self.places.get(id.0 as u32 as usize);
        place.is_some_and(|place| {
            place.generation == (id.0 >> 32) as u32
                && place.request.as_ref().is_some_and(|request| request.plain && request.operation.is::<O>())
        })
    }

    /// Removes a request for which [`is_plain`](Requests::is_plain) is true, and which has ended. Returns the operation, and
    /// the descriptor that it opened.
    ///
    /// # Safety
    /// `is_plain` must be true for the request, and the request must have ended.
    #[inline(always)]
    pub(crate) unsafe fn take_plain<O: Operation>(&mut self, id: Id, result: i32) -> (O, Option<OwnedFd>) {
        let index = id.0 as u32;
        let place = &mut self.places[index as usize];
        let Request { mut operation, opens, .. } = place.request.take().expect("it is there");
        place.generation = place.generation.wrapping_add(1);
        self.loud -= 1;
        // SAFETY: the caller's promise.
        let (operation, room) = unsafe {
            operation.get_mut::<O>().settle(result);
            operation.into_inner()
        };
        self.free.push(Vacancy { index, room });
        (operation, opened(opens, result))
    }

    /// Converts a CQE into the completion that the program gets, if it gets one for this CQE.
    pub(crate) fn complete(&mut self, engine: Engine, cqe: Cqe) -> Option<Completion> {
        let id = Id(cqe.user_data());
        let place = self.place(id.0)?;
        let request = place.request.as_mut()?;
        let (mut result, mut flags) = (cqe.result(), cqe.flags());
        if request.notifies {
            if cqe.more() {
                request.early = Some(result);
                return None;
            }
            result = request.early.unwrap_or(result);
            flags = 0;
        }
        let (name, of) = (request.operation.name(), request.operation.type_id());
        let file = opened(request.opens, result);
        let mut completion = Completion {
            id,
            result,
            flags,
            engine,
            name,
            of,
            buffer: place.buffer(cqe, result),
            file,
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

    /// Ends a request whose entry the engine has not taken.
    pub(crate) fn withdraw(&mut self, id: Id) {
        if let Some(mut request) = self.remove(id) {
            request.operation.settle(-libc::ECANCELED);
        }
    }

    /// Forgets all requests without freeing what they own.
    pub(crate) fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.places));
        self.free = Vec::new();
        (self.loud, self.silent) = (0, 0);
    }
}
