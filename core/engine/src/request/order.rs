//! The requests whose turn has not come, by what they wait for: a chain, a drain, their attempt, or a train.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;

use linux_raw_sys::io_uring::{IORING_RECVSEND_FIXED_BUF, IORING_SEND_ZC_REPORT_USAGE};

use crate::assets::notes::Interest;
use crate::os::Fd;
use crate::os::user::IoVector;
use crate::request::{Flags, Request, RequestId};

/// The requests whose turn has not come, by what they wait for.
#[derive(Default)]
pub struct Order {
    /// The chain that the current submission is assembling.
    pub assembly: Assembly,
    /// Chains that drains hold back.
    pub drain: Drain,
    /// Requests to be issued, in order.
    pub ready: ReadyQueue,
    /// Requests that are to leave together.
    pub train: Train,
}

/// The chain that a submission is assembling: from the first SQE with LINK to the first without.
#[derive(Default)]
pub struct Assembly(Option<Chain>);

struct Chain {
    head: RequestId,
    last: RequestId,
}

/// The position of a request in the assembly.
pub enum Place {
    /// In no chain.
    Alone,
    /// At the head of a new chain.
    Head,
    /// Behind `before`; if the chain is complete now, `complete` is its head.
    Behind {
        /// The previous request of the chain.
        before: RequestId,
        /// The head of the chain, if this request is the last one.
        complete: Option<RequestId>,
    },
}

impl Assembly {
    /// Returns the first request of the chain under assembly, if any.
    #[inline]
    pub fn head(&self) -> Option<RequestId> {
        self.0.as_ref().map(|chain| chain.head)
    }

    /// Returns the last request of the chain so far.
    pub fn last(&self) -> Option<RequestId> {
        self.0.as_ref().map(|chain| chain.last)
    }

    /// Adds the next request of the submission; `links`: its SQE has LINK or HARDLINK.
    pub fn add(&mut self, id: RequestId, links: bool) -> Place {
        match (&mut self.0, links) {
            (None, false) => Place::Alone,
            (chain @ None, true) => {
                *chain = Some(Chain { head: id, last: id });
                Place::Head
            }
            (Some(chain), _) => {
                let before = core::mem::replace(&mut chain.last, id);
                Place::Behind { before, complete: if links { None } else { self.take() } }
            }
        }
    }

    /// Ends the chain at its last request so far. Returns its head.
    pub fn take(&mut self) -> Option<RequestId> {
        self.0.take().map(|chain| chain.head)
    }
}

/// The requests that drains of a ring (`IOSQE_IO_DRAIN`) hold back: a drain starts after all earlier requests have completed, and before any
/// later one starts.
///
/// As in the kernel (`io_drain_req`, `io_queue_deferred` since 6.16): while a drain is in force, chains are queued. The first one starts
/// when all live requests are queued here; so does every later chain from a draining one on.
#[derive(Default)]
pub struct Drain {
    /// Heads of chains that are held back, in order.
    pub(super) held: VecDeque<RequestId>,
    /// Number of requests in these chains.
    pub(super) held_requests: usize,
    /// A drain is in force.
    pub(super) active: bool,
    /// The request after the chain under assembly drains, too.
    after_chain: bool,
    /// A request with CQE_SKIP was submitted: drains are refused from then on, as by the kernel.
    refused: bool,
}

impl Drain {
    /// True if no chain is held back.
    #[inline]
    pub fn holds_nothing(&self) -> bool {
        self.held.is_empty()
    }

    /// True if no drain is in force or about to be, and no chain is held back.
    #[inline]
    pub fn is_idle(&self) -> bool {
        debug_assert!(self.active || self.held.is_empty(), "only a drain in force holds chains back");
        !(self.active || self.after_chain)
    }

    /// True if newly submitted chains must be queued.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Makes the ring refuse drains from now on.
    pub fn refuse(&mut self) {
        self.refused = true;
    }

    /// True if the ring refuses drains.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Begins a drain. If it is `in_chain`, the request after the chain drains, too.
    pub(super) fn begin(&mut self, in_chain: bool) {
        self.active = true;
        self.after_chain |= in_chain;
    }

    /// True, once, if a drain in the previous chain applies to this request, the first one behind the chain.
    pub fn continues(&mut self) -> bool {
        if !self.after_chain {
            return false;
        }
        self.after_chain = false;
        self.active = true;
        true
    }

    /// Holds back a chain of `length` requests.
    pub(super) fn hold(&mut self, head: RequestId, length: usize) {
        self.held_requests += length;
        self.held.push_back(head);
    }

    /// Removes the first chain, which has `length` requests.
    pub(super) fn let_go(&mut self, length: usize) {
        self.held.pop_front();
        self.held_requests -= length;
    }

    /// Removes all chains, and returns their heads.
    pub fn clear(&mut self) -> VecDeque<RequestId> {
        self.held_requests = 0;
        core::mem::take(&mut self.held)
    }
}

/// The requests to be issued, or issued again, in the order in which they are.
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

/// Maximum number of requests in a train: the limit of the oldest kernels.
const MOST: usize = 64;

/// Maximum number of bytes in a train: what one packet may hold without IP headers and options. A stream
/// that got slightly more in one call was slower than with single sends.
pub const ROOM: u32 = 65_000;

/// Flags in `ioprio` that a SEND_ZC may have; no SEND that gets here has any.
pub(super) const NO_MATTER: u16 = (IORING_SEND_ZC_REPORT_USAGE | IORING_RECVSEND_FIXED_BUF) as u16;

/// A *train*: sends of one submission, one behind the other on one socket, that are held back to leave together by one system call. How
/// they are sent is defined by their operation ([`Depart`](crate::ring::row::Depart)). All other actions of the ring happen after them.
#[derive(Default)]
pub struct Train {
    pub(super) held: Vec<RequestId>,
    fd: Fd,
    /// The requests are bytes of a stream, of any length. Otherwise they are datagrams of one length, of
    /// which only the last may be shorter.
    stream: bool,
    length: u32,
    /// Sum of their lengths in bytes.
    total: u32,
    /// The last datagram was shorter, so no other may follow.
    complete: bool,
    /// Memory that is reused for the next train.
    vectors: Vec<IoVector>,
}

impl Train {
    /// True if no request is held back.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns the socket of the held requests, or of the last ones.
    pub fn fd(&self) -> Fd {
        self.fd
    }

    /// True if the held requests are bytes of a stream.
    pub fn is_stream(&self) -> bool {
        self.stream
    }

    /// Returns the length of each datagram; only the last may be shorter.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Prepares a train for this socket; `length` is that of its datagrams.
    pub fn prepare(&mut self, fd: Fd, stream: bool, length: u32) {
        debug_assert!(self.is_empty(), "one at a time");
        (self.fd, self.stream, self.length, self.total) = (fd, stream, length, 0);
    }

    /// Holds back a request of this length. False if memory is short.
    pub fn hold(&mut self, id: RequestId, length: u32) -> bool {
        if self.held.try_reserve(1).is_err() {
            return false;
        }
        self.complete = length < self.length;
        self.total += length;
        self.held.push(id);
        true
    }

    /// Returns empty memory for the vectors of the system call.
    pub fn take_vectors(&mut self) -> Vec<IoVector> {
        let mut vectors = mem::take(&mut self.vectors);
        vectors.clear();
        vectors
    }

    /// Keeps the memory for the next train.
    pub fn keep_vectors(&mut self, vectors: Vec<IoVector>) {
        self.vectors = vectors;
    }

    pub(super) fn takes(&self, length: u32) -> bool {
        self.held.len() < MOST
            && length <= ROOM - self.total
            && (self.stream || !self.complete && length <= self.length)
    }
}
