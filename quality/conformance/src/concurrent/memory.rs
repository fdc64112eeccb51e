//! Memory that a program's threads, its children and the watching parent share: the ledger of requests, notes about
//! rings and threads, locks. It lies in memory that outlives the program's process, so that the parent can say
//! what was on its way when it hung.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};

use clap::ValueEnum;

/// Requests that one program can have.
pub const MAX_REQUESTS: usize = 1024;
/// Rings that one program can have.
pub const MAX_RINGS: usize = 4;
/// Threads that one program can have.
pub const MAX_THREADS: usize = 6;

/// A lock that works between processes, held for moments only.
#[derive(Default)]
pub struct Lock(AtomicU32);

impl Lock {
    /// Takes it.
    pub fn lock(&self) -> Held<'_> {
        // Acquire pairs with the release in `Held::drop`.
        while self.0.compare_exchange_weak(0, 1, Acquire, Relaxed).is_err() {
            std::thread::yield_now();
        }
        Held(self)
    }
}

/// The lock is held.
pub struct Held<'a>(&'a Lock);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.store(0, Release);
    }
}

/// A value behind a lock. Not the standard library's, for ThreadSanitizer does not see what a contended one orders.
#[derive(Default)]
pub struct Guarded<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the lock lets one thread at a time to the value.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    /// A value that nobody has yet.
    pub const fn new(value: T) -> Guarded<T> {
        Guarded { lock: Lock(AtomicU32::new(0)), value: UnsafeCell::new(value) }
    }

    /// Does something with the value.
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let _held = self.lock.lock();
        // SAFETY: nobody else is here.
        body(unsafe { &mut *self.value.get() })
    }
}

/// Where threads wait for each other. Not the standard library's, for ThreadSanitizer does not see what that orders.
pub struct Meeting {
    size: u32,
    here: AtomicU32,
    round: AtomicU32,
}

impl Meeting {
    /// For so many.
    pub fn new(size: usize) -> Meeting {
        Meeting { size: size as u32, here: AtomicU32::new(0), round: AtomicU32::new(0) }
    }

    /// Waits until all are here.
    pub fn wait(&self) {
        let word = self.round.as_ptr();
        // Acquire pairs with the release below: what the others did before is seen.
        let round = self.round.load(Acquire);
        if self.here.fetch_add(1, AcqRel) + 1 == self.size {
            self.here.store(0, Relaxed);
            self.round.store(round.wrapping_add(1), Release);
            // SAFETY: a word that is there.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
            return;
        }
        while self.round.load(Acquire) == round {
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, round, std::ptr::null::<u8>()) };
        }
    }
}

/// How far a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Not used.
    Free,
    /// In the submission queue, or submitted.
    Pushed,
    /// Its result is known, its notification is not there.
    Notifies,
    /// Its last completion was reaped.
    Done,
}

impl State {
    fn of(number: u32) -> State {
        [State::Free, State::Pushed, State::Notifies, State::Done][number as usize % 4]
    }
}

/// The kind of request: what may come of it is judged by that.
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
    /// The completion that [`Kind::SendMessage`] or [`Kind::SendFile`] makes in another ring.
    Message,
    Cancel,
    Splice,
    OtherPipe,
    FilesUpdate,
}

/// Properties of requests.
pub mod traits {
    /// Has completions with `IORING_CQE_F_MORE`.
    pub const MULTI: u32 = 1;
    /// Waits for all before it.
    pub const DRAIN: u32 = 2;
    /// `IOSQE_IO_HARDLINK` leads to it.
    pub const HARD: u32 = 4;
    /// A link timeout limits it.
    pub const TIMED: u32 = 8;
    /// Its place in the arena must not change any more.
    pub const SEALED: u32 = 16;
    /// Takes a provided buffer.
    pub const SELECTS: u32 = 32;
    /// A completion of 32 bytes.
    pub const BIG: u32 = 64;
}

/// A request, as it is put down in the ledger.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "explained where they are not plain")]
pub struct Request {
    pub kind: Kind,
    pub ring: u32,
    pub traits: u32,
    /// Which stream, file, listener...
    pub object: u32,
    pub length: u32,
    pub offset: u64,
    /// Its predecessor in a chain, and one.
    pub before: u32,
    /// The number that the request is about: its message, its target and one, the result it is to have.
    pub other: u32,
}

impl Request {
    /// One of a kind on a ring.
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
    /// The result of its last completion.
    pub result: AtomicI32,
    /// Completions so far.
    pub cqes: AtomicU32,
    /// Its last completion's place among those of the ring.
    pub order: AtomicU32,
    /// Its place among the ring's submissions.
    pub submitted: AtomicU32,
}

impl Entry {
    /// How far it is.
    pub fn state(&self) -> State {
        // Acquire pairs with the release in `set_state`: what was noted before is seen.
        State::of(self.state.load(Acquire))
    }

    /// Goes on.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u32, Release);
    }

    /// The request.
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

    /// Adds to its properties.
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

/// The notes on a ring.
#[derive(Default)]
#[repr(C)]
#[expect(missing_docs, reason = "explained where they are not plain")]
pub struct RingNote {
    /// One above its descriptor; zero where there is none yet, less where none could be made.
    pub fd: AtomicI32,
    /// Where its memory lies, and where heads, tails, flags and the count of overflows are in it.
    pub base: AtomicU64,
    pub words: [AtomicU32; 6],
    pub setup_flags: AtomicU32,
    /// Guards the submission queue.
    pub sq: Lock,
    /// Guards the completion queue, and what completions change.
    pub cq: Lock,
    /// The descriptor is closed.
    pub closed: AtomicU32,
    /// A cancellation that may have found any request was pushed.
    pub cancels: AtomicU32,
    /// Completions reaped.
    pub reaped: AtomicU32,
    /// Callers that wait without a limit.
    pub waiters: AtomicU32,
    /// NOPs pushed for those, and their completions.
    pub batons: AtomicU32,
    pub batons_seen: AtomicU32,
    /// The ring has had a TIMEOUT, which ends waits.
    pub timed: AtomicU32,
}

/// The notes on a thread.
#[derive(Default)]
#[repr(C)]
#[expect(missing_docs, reason = "plain")]
pub struct ThreadNote {
    pub tid: AtomicI32,
    /// One above the act at which it is.
    pub act: AtomicU32,
}

/// All of it.
#[repr(C)]
pub struct Shared {
    /// The index of the program that runs.
    pub program: AtomicU64,
    /// Counts acts and completions; what does not count stands still.
    pub progress: AtomicU64,
    /// Programs that were done.
    pub done: AtomicU64,
    /// Requests of all of them.
    pub requests: AtomicU64,
    /// Rings.
    pub rings: [RingNote; MAX_RINGS],
    /// Threads.
    pub threads: [ThreadNote; MAX_THREADS],
    next: AtomicU32,
    entries: [Entry; MAX_REQUESTS],
}

impl Shared {
    /// Maps one that children share.
    pub fn map() -> &'static Shared {
        // SAFETY: zeroes are a value of every field.
        unsafe { crate::harness::map_shared() }
    }

    /// Begins a program: nothing is known yet.
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

    /// Something was done.
    pub fn step(&self) {
        self.progress.fetch_add(1, Relaxed);
    }

    /// Puts a request down; `None` where the ledger is full.
    pub fn open(&self, request: &Request) -> Option<u32> {
        let id = self.next.fetch_add(1, Relaxed);
        if id as usize >= MAX_REQUESTS {
            self.next.store(MAX_REQUESTS as u32, Relaxed);
            return None;
        }
        self.entries[id as usize].set(request);
        Some(id)
    }

    /// A request.
    pub fn entry(&self, id: u32) -> &Entry {
        &self.entries[id as usize]
    }

    /// All that were put down.
    pub fn entries(&self) -> &[Entry] {
        &self.entries[..self.used() as usize]
    }

    /// How many were put down.
    pub fn used(&self) -> u32 {
        self.next.load(Relaxed).min(MAX_REQUESTS as u32)
    }

    /// Requests of a ring that are not over, without messages, which depend on others.
    pub fn outstanding(&self, ring: usize) -> impl Iterator<Item = u32> {
        self.entries().iter().enumerate().filter_map(move |(id, entry)| {
            let over = matches!(entry.state(), State::Free | State::Done);
            let request = entry.request();
            (!over && request.ring as usize == ring && request.kind != Kind::Message).then_some(id as u32)
        })
    }
}
