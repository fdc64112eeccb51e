//! Blocking attempts, and who may make them.
//!
//! A cross-core wake-up costs 40 us, a cached `statx` 0.8 us. So the caller runs its queued work
//! itself, and hands the rest to workers as soon as it proves slow, or may take for ever.
//!
//! While somebody works on a request, everything the attempt needs is in its [`Work`], the
//! operation's data included; the request itself stays under the ring's lock for others to look at.

pub mod aio;
mod backlog;
mod closes;
mod closing;
pub mod handover;
pub mod in_flight;
pub mod interrupt;
mod on_files;
pub mod pool;
mod queue;
pub mod renewal;
mod run;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::any::Any;
use core::ops::{Deref, DerefMut};

use anyring_trace::event;

use crate::abi::{Errno, Sqe};
use crate::assets::notes::Interest;
use crate::observe::trace;
use crate::os::{self, Fd};
use crate::process::credentials::{Credentials, Whose};
use crate::request::data::OpData;
use crate::request::{Request, RequestId};
use crate::wait::loan::Loan;
use crate::work::aio::command::Command;
use crate::work::interrupt::InterruptSlot;

pub use queue::WorkQueue;
pub use run::{await_return, run_by_caller};

/// The time that makes an attempt slow, in microseconds. One alone may have been preempted; two in a row
/// prove that the work is.
const SLOW_US: u64 = 20;

/// The time that proves an attempt slow by itself.
const VERY_SLOW_US: u64 = 200;

/// A step of a request that a thread with other credentials has to take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The first attempt, with what comes before it.
    Start,
    /// An attempt.
    Issue,
}

/// The ring that work comes back to: done by a worker, or to take its next step in the worker's thread.
pub trait Owner: Any + Sync {
    /// Takes work back.
    fn take_work_back(&'static self, work: Piece);
}

/// One blocking attempt.
pub struct Work {
    /// The ring that the request belongs to.
    owner: &'static dyn Owner,
    /// The serial number of that ring, to tell it from a later ring in the same place.
    pub serial: u64,
    /// The request that the attempt is made for.
    pub id: RequestId,
    /// Its SQE.
    pub sqe: Sqe,
    /// Its file, if it has one.
    pub fd: Fd,
    /// The descriptor by which the program names that file.
    named: Fd,
    /// The work went to a worker, who may have given it back.
    handed_over: bool,
    /// The data that its operation keeps.
    pub data: OpData,
    /// The attempt may take for ever.
    pub long: bool,
    /// With whose credentials it is done.
    whose: Whose,
    /// The credentials that a worker must have to do it, once it was handed over.
    pub credentials: Credentials,
    /// Not a blocking attempt: a step of the request that a thread with the right credentials takes.
    pub step: Option<Step>,
    /// The program's descriptor that it was given, which must not be closed under it.
    exposed: Option<Interest>,
    /// The call that submits it may do it, as long as it is exposed.
    lendable: bool,
    /// Nothing but its own attempt has to be minded: it needs no file of the program, no order, no
    /// other thread.
    light: bool,
    /// Its file system asks other machines or processes.
    far: bool,
    /// A read that the device has had since before: how long it takes says how fast the device is.
    is_fetched: bool,
    /// A write into the page cache: the system holds writers up that write more than the device takes.
    is_cached_write: bool,
    /// How long the attempt took, in microseconds, where that says something.
    took_us: Option<u64>,
    /// An O_DIRECT transfer, which the kernel can do while nobody waits.
    pub direct: Option<Command>,
    /// An eventfd tells of the end of the direct transfer.
    is_told: bool,
    /// The call that has submitted the transfer goes on: its file still has the descriptor.
    is_fresh: bool,
    /// The attempt takes as long as a device: a caller that does not wait is not held up by it.
    is_slow: bool,
    /// Work with the same non-zero hash is done one after the other.
    pub hash: u64,
    /// Of the worker that does it and that can be interrupted.
    pub slot: Option<Arc<InterruptSlot>>,
    /// How the attempt is made, for a tracer.
    by: event::Step,
    /// The worker's thread, for a tracer.
    thread: u32,
    run: fn(&mut Work) -> Result<usize, Errno>,
    result: Result<usize, Errno>,
}

impl Work {
    /// True if another thread must do it than the one that acts with `own` credentials.
    fn is_foreign(&self, own: Credentials) -> bool {
        self.whose.credentials() != own
    }

    /// True if the work uses a descriptor of the program's.
    fn is_exposed(&self) -> bool {
        self.exposed.is_some()
    }

    /// True if a caller with `own` credentials can do it together with others.
    fn is_light_for(&self, own: Credentials) -> bool {
        self.light && !self.is_foreign(own)
    }

    fn attempt(&mut self) {
        let run = self.run;
        self.result = run(self);
    }

    /// Makes the attempt, and notes how long it took.
    fn attempt_timed(&mut self) {
        let started = os::ticks();
        self.attempt();
        self.note_ticks(os::ticks().wrapping_sub(started));
    }

    fn note_ticks(&mut self, ticks: u64) {
        self.took_us = Some(ticks / os::ticks_per_us());
    }

    /// Makes the attempt fail, for this reason.
    fn refuse(&mut self, errno: Errno) {
        self.result = Err(errno);
        self.run = |work| work.result;
        self.covered();
    }

    /// Its file is held by somebody else now.
    pub fn covered(&mut self) {
        self.exposed = None;
    }

    /// Linux AIO has done it.
    pub fn conclude(&mut self, result: Result<usize, Errno>) {
        self.by = event::Step::ByAio;
        self.result = result;
    }

    /// A system call of the attempt that may sleep for ever: a cancellation ends it with `EINTR`, where a worker makes it.
    ///
    /// # Safety
    /// As for the system call itself.
    pub unsafe fn call(&self, number: u32, arguments: [usize; 6]) -> Result<usize, Errno> {
        // SAFETY: passed on to the caller.
        unsafe {
            match &self.slot {
                Some(slot) => slot.call(number, arguments),
                None => os::call(number, arguments),
            }
        }
    }
}

/// Work that has left the queue, and is done without the ring's lock. Its file stays the one that it is for, whatever
/// the program does to its descriptor.
pub struct Piece(Work);

impl Piece {
    /// Work that has the program's descriptor no more, or never had one.
    fn held(work: Work) -> Piece {
        assert!(!work.is_exposed(), "work is done without the lock only with its file");
        Piece(work)
    }

    /// Does it, in a worker.
    pub fn run(&mut self) {
        if trace::is_on() {
            self.0.thread = os::gettid() as u32;
        }
        let says_something = self.0.is_fetched || self.0.is_cached_write;
        if says_something { self.0.attempt_timed() } else { self.0.attempt() }
    }

    /// Does it, in a caller that it was given back to.
    pub fn run_by_caller(&mut self) {
        self.0.by = event::Step::ByCaller;
        self.0.attempt();
    }
}

/// Work that has left the queue for a caller, which does one piece after the other.
pub struct Batch(VecDeque<Work>);

impl Batch {
    /// Work that has the program's descriptors no more, or never had any.
    fn held(work: VecDeque<Work>) -> Batch {
        assert!(
            work.iter().all(|work| !work.is_exposed()),
            "work is done without the lock only with its file"
        );
        Batch(work)
    }

    /// Work that is lent to the thread that submitted it.
    fn lent(work: VecDeque<Work>, loan: &Loan) -> Batch {
        assert!(loan.is_out(), "only a loan lets work be done on the program's descriptor");
        Batch(work)
    }

    /// Does one piece after the other, until one proves that the work is slow. Returns how many it did,
    /// and whether it stopped.
    fn run(&mut self, slow_before: &mut bool) -> (usize, bool) {
        let mut started = os::ticks();
        for (index, work) in self.0.iter_mut().enumerate() {
            work.attempt();
            let ended = os::ticks();
            let took = ended.wrapping_sub(started);
            started = ended;
            if work.is_cached_write {
                work.note_ticks(took);
            }
            let slow = took > SLOW_US * os::ticks_per_us();
            let proven = slow && (*slow_before || took > VERY_SLOW_US * os::ticks_per_us());
            *slow_before = slow;
            if proven {
                return (index + 1, true);
            }
        }
        (self.0.len(), false)
    }
}

impl Deref for Piece {
    type Target = Work;
    fn deref(&self) -> &Work {
        &self.0
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut Work {
        &mut self.0
    }
}

/// Whoever works elsewhere holds the file by a duplicate: the program may close its descriptor.
fn own_file(request: &mut Request, work: &mut Work) -> Result<(), Errno> {
    request.hold_file()?;
    work.fd = request.file.fd();
    work.covered();
    Ok(())
}
