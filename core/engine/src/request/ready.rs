//! The requests that are to be issued, or issued again.

use alloc::collections::VecDeque;

use crate::assets::notes::Interest;
use crate::request::{Flags, Request, RequestId};

/// Them, in their order.
#[derive(Default)]
pub struct ReadyQueue {
    queue: VecDeque<Queued>,
    /// How many of them have a descriptor of the program's, which it may be about to close.
    on_descriptors: usize,
}

struct Queued {
    id: RequestId,
    on_descriptor: bool,
    /// In that descriptor's end, where the request may stay here while the ring is not locked.
    _in_its_end: Option<Interest>,
    /// Whether it has been issued before.
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
    /// Adds one. A ring that defers says in the place of which number it is.
    #[inline]
    pub fn push(&mut self, id: RequestId, request: &Request, deferred_in: Option<u32>) {
        let queued = Queued::new(id, request, deferred_in);
        self.on_descriptors += usize::from(queued.on_descriptor);
        self.queue.push_back(queued);
    }

    /// Adds one that is to be issued again before those that were not issued yet.
    #[cold]
    pub fn push_before_links(&mut self, id: RequestId, request: &Request, deferred_in: Option<u32>) {
        let queued = Queued::new(id, request, deferred_in);
        self.on_descriptors += usize::from(queued.on_descriptor);
        let place = self.queue.iter().position(|other| !other.woken).unwrap_or(self.queue.len());
        self.queue.insert(place, queued);
    }

    /// Takes the oldest.
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

    /// Takes them all away.
    pub fn clear(&mut self) {
        self.queue.clear();
        self.on_descriptors = 0;
    }

    /// All ready requests.
    pub fn iter(&self) -> impl Iterator<Item = RequestId> {
        self.queue.iter().map(|queued| queued.id)
    }

    /// The requests that had a descriptor of the program's when they were added. Where a whole batch is closed, each close asks.
    #[inline]
    pub fn on_descriptors(&self) -> impl Iterator<Item = RequestId> {
        let some = if self.on_descriptors > 0 { self.queue.len() } else { 0 };
        self.queue.iter().take(some).filter(|queued| queued.on_descriptor).map(|queued| queued.id)
    }
}
