//! Blocking attempts, and the threads that may make them.
//!
//! A wake-up across cores costs 40 us, a cached `statx` 0.8 us. So the caller does its queued work itself, and hands the rest to workers as
//! soon as the work proves slow, or may take for ever.
//!
//! While a thread works on a request, all that the attempt needs is in its [`Work`], including the operation's data. The request itself
//! stays under the ring's lock, where other threads can look at it.

pub mod aio;
mod backlog;
mod closing;
pub mod handover;
pub mod in_flight;
pub mod interrupt;
mod on_files;
pub mod pool;
mod queue;
pub mod reporter;
mod run;

use alloc::sync::Arc;
use alloc::vec::Vec;
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
use crate::work::aio::{Command, Told};
use crate::work::interrupt::InterruptSlot;

pub use queue::WorkQueue;
pub use run::{Recalled, await_return, run_by_caller};

/// The time that makes an attempt slow, in microseconds. A single attempt may have been preempted; two in a row prove that the work is
/// slow.
const SLOW_US: u64 = 20;

/// The time that proves work slow by a single attempt, in microseconds.
const VERY_SLOW_US: u64 = 200;

/// A step of a request that a thread with other credentials has to take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The first attempt, with all steps before it.
    Start,
    /// An attempt that does not block.
    Issue,
}

/// The ring to which work comes back: a worker has done it, or its next step is for the worker's thread.
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
    /// The request for which the attempt is made.
    pub id: RequestId,
    /// The request's SQE.
    pub sqe: Sqe,
    /// The request's file, if it has one.
    pub fd: Fd,
    /// The descriptor by which the program names that file.
    named: Fd,
    /// The work went to a worker, which may have given it back.
    handed_over: bool,
    /// The operation's data.
    pub data: OpData,
    /// The attempt may take for ever.
    pub long: bool,
    /// The credentials with which the work is done.
    whose: Whose,
    /// The credentials that a worker needs to do the work, once it was handed over.
    pub credentials: Credentials,
    /// Not a blocking attempt, but a step of the request for a thread with the right credentials.
    pub step: Option<Step>,
    /// The interest in the program's descriptor by which the work has its file. The descriptor must not be closed during the work.
    exposed: Option<Interest>,
    /// The call that submits the work may do it on the program's descriptor.
    lendable: bool,
    /// The work needs no file of the program, no order and no other thread, so that a caller can do several such pieces at once.
    light: bool,
    /// The work's file system asks other machines or processes.
    far: bool,
    /// A read that the device has had for a while: its duration shows how fast the device is.
    is_fetched: bool,
    /// A write into the page cache: the system blocks writers that write more than the device takes.
    is_cached_write: bool,
    /// The duration of the attempt in microseconds, if it was measured.
    took_us: Option<u64>,
    /// The command of an O_DIRECT transfer, which the kernel can do while no thread waits.
    pub direct: Option<Command>,
    /// The threads that are told of the end of the direct transfer.
    told: Told,
    /// The call that has submitted the transfer goes on: the descriptor still is the file's.
    is_fresh: bool,
    /// The attempt takes as long as a device does. It must not block a caller that does not wait.
    is_slow: bool,
    /// Work with the same hash, unless 0, is done one piece after the other.
    pub hash: u64,
    /// The slot of the worker that does the work, if it can be interrupted.
    pub slot: Option<Arc<InterruptSlot>>,
    /// How the attempt is made, for a tracer.
    by: event::Step,
    /// The worker's thread, for a tracer.
    thread: u32,
    run: fn(&mut Work) -> Result<usize, Errno>,
    result: Result<usize, Errno>,
}

impl Work {
    /// True if another thread must do the work than one that acts with the credentials `own`.
    fn is_foreign(&self, own: Credentials) -> bool {
        self.whose.credentials() != own
    }

    /// True if the work uses a descriptor of the program.
    fn is_exposed(&self) -> bool {
        self.exposed.is_some()
    }

    /// True if a caller with the credentials `own` can do the work together with other work.
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

    /// Makes the attempt fail with `errno`.
    fn refuse(&mut self, errno: Errno) {
        self.result = Err(errno);
        self.run = |work| work.result;
        self.covered();
    }

    /// Notes that something else than the program's descriptor holds the file now.
    pub fn covered(&mut self) {
        self.exposed = None;
    }

    /// Notes the result of Linux AIO, which has done the work.
    pub fn conclude(&mut self, result: Result<usize, Errno>) {
        self.by = event::Step::ByAio;
        self.result = result;
    }

    /// Makes a system call of the attempt that may sleep for ever. If a worker makes it, a cancellation ends it with `EINTR`.
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

/// Work that has left the queue, and is done without the ring's lock. Its file stays the same, whatever the program does to its descriptor.
pub struct Piece(Work);

impl Piece {
    /// Wraps work that does not use the program's descriptor, or no longer does.
    fn held(work: Work) -> Piece {
        assert!(!work.is_exposed(), "work is done without the lock only with its file");
        Piece(work)
    }

    /// Does the work in a worker.
    pub fn run(&mut self) {
        if trace::is_on() {
            self.0.thread = trace::thread_number();
        }
        let says_something = self.0.is_fetched || self.0.is_cached_write;
        if says_something { self.0.attempt_timed() } else { self.0.attempt() }
    }

    /// Does the work in a caller that has it back.
    pub fn run_by_caller(&mut self) {
        self.0.by = event::Step::ByCaller;
        self.0.attempt();
    }
}

/// Work that has left the queue for a caller, which does one piece after the other.
pub struct Batch(Vec<Work>);

impl Batch {
    /// Wraps work that does not use the program's descriptors, or no longer does.
    fn held(work: Vec<Work>) -> Batch {
        debug_assert!(!work.iter().any(Work::is_exposed), "work is done without the lock only with its file");
        Batch(work)
    }

    /// Wraps work that is lent to the thread that submitted it.
    fn lent(work: Vec<Work>, loan: &Loan) -> Batch {
        assert!(loan.is_out(), "only a loan lets work be done on the program's descriptor");
        Batch(work)
    }

    /// Does one piece after the other, until one proves that the work is slow. Returns the number of pieces done, and whether it stopped.
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

/// Has work hold its file by a duplicate, for another thread: the program may close its descriptor.
fn own_file(request: &mut Request, work: &mut Work) -> Result<(), Errno> {
    request.hold_file()?;
    work.fd = request.file.fd();
    work.covered();
    Ok(())
}
