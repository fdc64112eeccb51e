//! The queue of requests to be issued, or issued again.

use alloc::collections::VecDeque;

use crate::assets::notes::Interest;
use crate::request::{Flags, Request, RequestId};

/// The requests, in the order in which they are issued.
#[derive(Default)]
pub struct ReadyQueue {
    queue: VecDeque<Queued>,
    /// Number of queued requests that use a descriptor of the program, which may be about to close it.
    on_descriptors: usize,
}

struct Queued {
    id: RequestId,
    on_descriptor: bool,
    /// Reports the close of the descriptor, if the request may stay queued while the ring is unlocked.
    _in_its_end: Option<Interest>,
    /// The request was issued before.
    woken: bool,
}

impl Queued {
    fn new(id: RequestId, request: &Request, deferred_in: Option<u32>) -> Queued {
        let descriptor = request.file.plain();
        Queued {
            id,
            on_descriptor: descriptor.is_some(),
            _in_its_end: descriptor.zip(deferred_in).map(|(fd, place)| Interest::new(fd, place)),
            woken: request.flags.has(Flags::WOKEN),
        }
    }
}

impl ReadyQueue {
    /// Adds a request. A ring that defers passes its number in the registry as `deferred_in`.
    #[inline]
    pub fn push(&mut self, id: RequestId, request: &Request, deferred_in: Option<u32>) {
        let queued = Queued::new(id, request, deferred_in);
        self.on_descriptors += usize::from(queued.on_descriptor);
        self.queue.push_back(queued);
    }

    /// Adds a request to be issued again before those that were not issued yet.
    #[cold]
    pub fn push_before_links(&mut self, id: RequestId, request: &Request, deferred_in: Option<u32>) {
        let queued = Queued::new(id, request, deferred_in);
        self.on_descriptors += usize::from(queued.on_descriptor);
        let place = self.queue.iter().position(|other| !other.woken).unwrap_or(self.queue.len());
        self.queue.insert(place, queued);
    }

    /// Removes and returns the oldest request.
    #[inline]
    pub fn pop(&mut self) -> Option<RequestId> {
        let Queued { id, on_descriptor, .. } = self.queue.pop_front()?;
        self.on_descriptors -= usize::from(on_descriptor);
        Some(id)
    }

    /// True if no request is ready.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Removes all requests.
    pub fn clear(&mut self) {
        self.queue.clear();
        self.on_descriptors = 0;
    }

    /// Returns all ready requests.
    pub fn iter(&self) -> impl Iterator<Item = RequestId> {
        self.queue.iter().map(|queued| queued.id)
    }

    /// Returns the requests that used a descriptor of the program when added. Fast if there are none, since each of many closes calls it.
    #[inline]
    pub fn on_descriptors(&self) -> impl Iterator<Item = RequestId> {
        let some = if self.on_descriptors > 0 { self.queue.len() } else { 0 };
        self.queue.iter().take(some).filter(|queued| queued.on_descriptor).map(|queued| queued.id)
    }
}
