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
    /// The operation, at rest: what its entry names belongs to it.
    pub(crate) operation: Kept,
    pub(crate) opens: bool,
    pub(crate) notifies: bool,
    /// The request ends with one completion, which somebody waits for, and takes no buffer of a group.
    pub(crate) plain: bool,
    /// Nobody waits for its completion.
    pub(crate) silent: bool,
    /// The result of one that notifies, while the notification is to come.
    pub(crate) early: Option<i32>,
}

impl Request {
    #[inline]
    pub(crate) fn new(operation: Kept) -> Request {
        Request { operation, opens: false, notifies: false, plain: false, silent: false, early: None }
    }
}

/// The descriptor that a request with this result opened.
#[inline]
fn opened(opens: bool, result: i32) -> Option<OwnedFd> {
    // SAFETY: a new descriptor, which nobody else knows of.
    (opens && result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) })
}

struct Place {
    /// Of the request here, or of the next one.
    generation: u32,
    request: Option<Request>,
    /// Of the request here.
    source: Source,
}

impl Place {
    /// The buffer that the request here took.
    fn buffer(&self, cqe: Cqe, result: i32) -> Option<ProvidedBuffer> {
        let source = self.source.as_ref()?;
        // SAFETY: the engine says so, of a request that takes its buffers from this group.
        cqe.buffer_id().map(|id| unsafe { ProvidedBuffer::new(source.clone(), id, result.max(0) as usize) })
    }
}

/// A place where no request is, to be given back or used.
pub(crate) struct Vacancy {
    pub(crate) index: u32,
    /// Of the operation that was here last.
    pub(crate) room: Option<Box<Room>>,
}

/// All of them, by number.
#[derive(Default)]
pub(crate) struct Requests {
    places: Vec<Place>,
    free: Vec<Vacancy>,
    /// How many are not silent, and how many are.
    loud: usize,
    silent: usize,
}

impl Requests {
    /// Where the next request goes.
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

    /// Takes a request out that has ended.
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

    /// How many there are that somebody waits for.
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

    /// True if the operation is one of this type, and the request ends with one completion and takes no buffer of a group.
    #[inline(always)]
    pub(crate) fn is_plain<O: Operation>(&self, id: Id) -> bool {
        let place = self.places.get(id.0 as u32 as usize);
        place.is_some_and(|place| {
            place.generation == (id.0 >> 32) as u32
                && place.request.as_ref().is_some_and(|request| request.plain && request.operation.is::<O>())
        })
    }

    /// Takes a request out that [`is_plain`](Requests::is_plain), and that has ended: the operation, and the
    /// descriptor that it has opened.
    ///
    /// # Safety
    /// It must be so.
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

    /// The completion that the program gets for the engine's, if any.
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

    /// Ends a request whose entry the engine has never taken.
    pub(crate) fn withdraw(&mut self, id: Id) {
        if let Some(mut request) = self.remove(id) {
            request.operation.settle(-libc::ECANCELED);
        }
    }

    /// Gives up all of them without freeing what they hold.
    pub(crate) fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.places));
        self.free = Vec::new();
        (self.loud, self.silent) = (0, 0);
    }
}
