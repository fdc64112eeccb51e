//! Memory that a program's threads, its children and the watching parent share: the ledger of requests, notes about
//! rings and threads, locks. The memory outlives the program's process, so that the parent can report what was in
//! progress when the program hung.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};

use clap::ValueEnum;

/// Requests that one program can have.
pub const MAX_REQUESTS: usize = 1024;
/// Rings that one program can have.
pub const MAX_RINGS: usize = 4;
/// Threads that one program can have.
pub const MAX_THREADS: usize = 6;

/// A lock between processes, which is held only briefly.
#[derive(Default)]
pub struct Lock(AtomicU32);

impl Lock {
    /// Acquires the lock.
    pub fn lock(&self) -> Held<'_> {
        // Acquire pairs with the release in `Held::drop`.
        while self.0.compare_exchange_weak(0, 1, Acquire, Relaxed).is_err() {
            std::thread::yield_now();
        }
        Held(self)
    }
}

/// A guard of the lock.
pub struct Held<'a>(&'a Lock);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.store(0, Release);
    }
}

/// A value behind a lock. Not the standard library's, because ThreadSanitizer does not see the ordering of a contended one.
#[derive(Default)]
pub struct Guarded<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives one thread at a time access to the value.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    /// Creates an unlocked value.
    pub const fn new(value: T) -> Guarded<T> {
        Guarded { lock: Lock(AtomicU32::new(0)), value: UnsafeCell::new(value) }
    }

    /// Calls `body` with the value.
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let _held = self.lock.lock();
        // SAFETY: the lock excludes other threads.
        body(unsafe { &mut *self.value.get() })
    }
}

/// A barrier. Not the standard library's, because ThreadSanitizer does not see its ordering.
pub struct Meeting {
    size: u32,
    here: AtomicU32,
    round: AtomicU32,
}

impl Meeting {
    /// Creates a barrier for `size` threads.
    pub fn new(size: usize) -> Meeting {
        Meeting { size: size as u32, here: AtomicU32::new(0), round: AtomicU32::new(0) }
    }

    /// Waits until all threads have arrived.
    pub fn wait(&self) {
        let word = self.round.as_ptr();
        // Acquire pairs with the release below: actions of the other threads before the barrier are visible.
        let round = self.round.load(Acquire);
        if self.here.fetch_add(1, AcqRel) + 1 == self.size {
            self.here.store(0, Relaxed);
            self.round.store(round.wrapping_add(1), Release);
            // SAFETY: the word stays mapped.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
            return;
        }
        while self.round.load(Acquire) == round {
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, round, std::ptr::null::<u8>()) };
        }
    }
}

/// The progress of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The entry is not used.
    Free,
    /// The request is in the SQ, or was submitted.
    Pushed,
    /// The result is known, but the notification has not come.
    Notifies,
    /// The last completion was reaped.
    Done,
}

impl State {
    fn of(number: u32) -> State {
        [State::Free, State::Pushed, State::Notifies, State::Done][number as usize % 4]
    }
}

/// The kind of request, which determines the allowed results.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[expect(missing_docs, reason = "the names say it")]
#[repr(u32)]
pub enum Kind {
    Nop,
    Timeout,
    TimeoutMany,
    TimeoutRemove,
    LinkTimeout,
    Poll,
    PollMany,
    ReadFile,
    WriteFile,
    Write,
    SendZc,
    Read,
    ReadMany,
    Accept,
    AcceptMany,
    SendMessage,
    SendFile,
    /// The completion that [`Kind::SendMessage`] or [`Kind::SendFile`] posts in another ring.
    Message,
    Cancel,
    Splice,
    OtherPipe,
    FilesUpdate,
}

/// Properties of requests.
pub mod traits {
    /// The request has completions with `IORING_CQE_F_MORE`.
    pub const MULTI: u32 = 1;
    /// The request waits for all requests before it.
    pub const DRAIN: u32 = 2;
    /// The request before it has `IOSQE_IO_HARDLINK`.
    pub const HARD: u32 = 4;
    /// A link timeout limits the request.
    pub const TIMED: u32 = 8;
    /// The request's place in the arena must not change any more.
    pub const SEALED: u32 = 16;
    /// The request takes a provided buffer.
    pub const SELECTS: u32 = 32;
    /// The completion has 32 bytes.
    pub const BIG: u32 = 64;
}

/// A request, as the ledger records it.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "explained where they are not plain")]
pub struct Request {
    pub kind: Kind,
    pub ring: u32,
    pub traits: u32,
    /// The number of the stream, file, listener...
    pub object: u32,
    pub length: u32,
    pub offset: u64,
    /// One plus the number of the previous request in the chain; 0 for none.
    pub before: u32,
    /// A number that depends on the kind: the message, one plus the target, or the expected result.
    pub other: u32,
}

impl Request {
    /// Creates a request of a kind on a ring.
    pub fn new(kind: Kind, ring: usize) -> Request {
        Request { kind, ring: ring as u32, traits: 0, object: 0, length: 0, offset: 0, before: 0, other: 0 }
    }
}

/// A request in the ledger.
#[derive(Default)]
#[repr(C)]
pub struct Entry {
    state: AtomicU32,
    kind: AtomicU32,
    ring: AtomicU32,
    traits: AtomicU32,
    object: AtomicU32,
    length: AtomicU32,
    offset: AtomicU64,
    before: AtomicU32,
    other: AtomicU32,
    /// The result of the last completion.
    pub result: AtomicI32,
    /// The number of completions so far.
    pub cqes: AtomicU32,
    /// The position of the last completion among those of the ring.
    pub order: AtomicU32,
    /// The position among the ring's submissions.
    pub submitted: AtomicU32,
}

impl Entry {
    /// Returns the progress of the request.
    pub fn state(&self) -> State {
        // Acquire pairs with the release in `set_state`: earlier notes are visible.
        State::of(self.state.load(Acquire))
    }

    /// Sets the progress of the request.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u32, Release);
    }

    /// Returns the request.
    pub fn request(&self) -> Request {
        let kinds = Kind::value_variants();
        Request {
            kind: kinds[self.kind.load(Relaxed) as usize % kinds.len()],
            ring: self.ring.load(Relaxed),
            traits: self.traits.load(Relaxed),
            object: self.object.load(Relaxed),
            length: self.length.load(Relaxed),
            offset: self.offset.load(Relaxed),
            before: self.before.load(Relaxed),
            other: self.other.load(Relaxed),
        }
    }

    /// Adds properties.
    pub fn mark(&self, more: u32) {
        self.traits.fetch_or(more, Relaxed);
    }

    fn set(&self, request: &Request) {
        self.kind.store(request.kind as u32, Relaxed);
        self.ring.store(request.ring, Relaxed);
        self.traits.store(request.traits, Relaxed);
        self.object.store(request.object, Relaxed);
        self.length.store(request.length, Relaxed);
        self.offset.store(request.offset, Relaxed);
        self.before.store(request.before, Relaxed);
        self.other.store(request.other, Relaxed);
        self.result.store(0, Relaxed);
        self.cqes.store(0, Relaxed);
        self.order.store(0, Relaxed);
        self.submitted.store(0, Relaxed);
        self.set_state(State::Pushed);
    }
}

/// Notes about a ring.
#[derive(Default)]
#[repr(C)]
#[expect(missing_docs, reason = "explained where they are not plain")]
pub struct RingNote {
    /// One plus the descriptor; zero if there is none yet, negative if the ring could not be created.
    pub fd: AtomicI32,
    /// The address of the ring's memory, and the offsets of heads, tails, flags and the count of overflows.
    pub base: AtomicU64,
    pub words: [AtomicU32; 6],
    pub setup_flags: AtomicU32,
    /// Guards the SQ.
    pub sq: Lock,
    /// Guards the CQ, and state that completions change.
    pub cq: Lock,
    /// Set when the descriptor is closed.
    pub closed: AtomicU32,
    /// Set when a cancellation that may find any request was pushed.
    pub cancels: AtomicU32,
    /// The number of reaped completions.
    pub reaped: AtomicU32,
    /// The number of callers that wait without a limit.
    pub waiters: AtomicU32,
    /// The numbers of NOPs pushed for these callers, and of their completions.
    pub batons: AtomicU32,
    pub batons_seen: AtomicU32,
    /// Set when the ring has had a TIMEOUT, which ends waits.
    pub timed: AtomicU32,
}

/// Notes about a thread.
#[derive(Default)]
#[repr(C)]
#[expect(missing_docs, reason = "plain")]
pub struct ThreadNote {
    pub tid: AtomicI32,
    /// One plus the index of the current act.
    pub act: AtomicU32,
}

/// The shared memory.
#[repr(C)]
pub struct Shared {
    /// The index of the running program.
    pub program: AtomicU64,
    /// A counter of acts and completions; a program that does not advance it makes no progress.
    pub progress: AtomicU64,
    /// The number of completed programs.
    pub done: AtomicU64,
    /// The number of requests of all programs.
    pub requests: AtomicU64,
    /// Notes about rings.
    pub rings: [RingNote; MAX_RINGS],
    /// Notes about threads.
    pub threads: [ThreadNote; MAX_THREADS],
    next: AtomicU32,
    entries: [Entry; MAX_REQUESTS],
}

impl Shared {
    /// Maps memory that children share.
    pub fn map() -> &'static Shared {
        // SAFETY: zeroes are a value of every field.
        unsafe { crate::harness::map_shared() }
    }

    /// Begins a program with an empty ledger.
    pub fn begin(&self) {
        for entry in self.entries() {
            entry.set_state(State::Free);
        }
        self.next.store(0, Relaxed);
        for ring in &self.rings {
            let RingNote { fd, base, words, setup_flags, sq, cq, .. } = ring;
            fd.store(0, Relaxed);
            base.store(0, Relaxed);
            words.iter().for_each(|word| word.store(0, Relaxed));
            setup_flags.store(0, Relaxed);
            sq.0.store(0, Relaxed);
            cq.0.store(0, Relaxed);
            let RingNote { closed, cancels, reaped, waiters, batons, batons_seen, timed, .. } = ring;
            for word in [closed, cancels, reaped, waiters, batons, batons_seen, timed] {
                word.store(0, Relaxed);
            }
        }
        for thread in &self.threads {
            thread.tid.store(0, Relaxed);
            thread.act.store(0, Relaxed);
        }
    }

    /// Counts progress.
    pub fn step(&self) {
        self.progress.fetch_add(1, Relaxed);
    }

    /// Records a request; returns `None` if the ledger is full.
    pub fn open(&self, request: &Request) -> Option<u32> {
        let id = self.next.fetch_add(1, Relaxed);
        if id as usize >= MAX_REQUESTS {
            self.next.store(MAX_REQUESTS as u32, Relaxed);
            return None;
        }
        self.entries[id as usize].set(request);
        Some(id)
    }

    /// Returns a request's entry.
    pub fn entry(&self, id: u32) -> &Entry {
        &self.entries[id as usize]
    }

    /// Returns all entries in use.
    pub fn entries(&self) -> &[Entry] {
        &self.entries[..self.used() as usize]
    }

    /// Returns the number of entries in use.
    pub fn used(&self) -> u32 {
        self.next.load(Relaxed).min(MAX_REQUESTS as u32)
    }

    /// Returns a ring's requests in flight, without messages, which depend on other requests.
    pub fn outstanding(&self, ring: usize) -> impl Iterator<Item = u32> {
        self.entries().iter().enumerate().filter_map(move |(id, entry)| {
            let over = matches!(entry.state(), State::Free | State::Done);
            let request = entry.request();
            (!over && request.ring as usize == ring && request.kind != Kind::Message).then_some(id as u32)
        })
    }
}
