//! The process's worker threads: one pool for all rings.
//!
//! Work that ends soon shares a few threads; a piece that may take for ever gets a thread of its own. A worker that found nothing to do for
//! some seconds leaves, and so does a worker that is one more than needed in that time. Work with the same hash (buffered writes to one
//! file) is done one piece after the other, in order.
//!
//! Workers with the same credentials are a group, and do work for those credentials only. A thread that queues work may start a worker if
//! it has the work's credentials itself; otherwise it asks a thread that has them: the group's cloner, or the reactor.
//! [`crate::work::handover`] decides which thread is woken, and when.

use alloc::sync::Arc;
use core::ffi::c_void;

use linux_raw_sys::general::RLIMIT_NPROC;

use crate::os;
use crate::os::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::os::sync::{AcrossFork, Mutex};
use crate::os::{CpuSet, user};
use crate::process::credentials::{self, Credentials};
use crate::process::threads;
use crate::request::RequestId;
use crate::ring::drive::reactor;
use crate::work::Piece;
use crate::work::handover::{Handover, Job, Pool, System};
use crate::work::interrupt::{self, InterruptSlot};

static POOL: Handover<Process> = Handover::new(
    Mutex::new(Pool::new()),
    [AtomicU32::new(0), AtomicU32::new(0)],
    AtomicU32::new(0),
    Process,
);

/// The program has limited the number of workers.
static IS_LIMITED: AtomicBool = AtomicBool::new(false);

/// True if the program has limited the number of workers. Then no other threads do their work.
pub fn is_limited() -> bool {
    IS_LIMITED.load(Ordering::Relaxed)
}

/// Returns the lock of the pool, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    POOL.pool()
}

/// Names the request of a piece of work: by the serial number of the ring, which no two rings share, and by the request there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name(u64, RequestId);

impl Name {
    fn new(serial: u64, id: RequestId) -> Name {
        Name(serial, id)
    }
}

impl Job for Piece {
    type Name = Name;
    type InterruptSlot = Arc<InterruptSlot>;

    fn name(&self) -> Name {
        Name::new(self.serial, self.id)
    }

    fn credentials(&self) -> Credentials {
        self.credentials
    }

    fn class(&self) -> usize {
        usize::from(self.long)
    }

    fn hash(&self) -> u64 {
        self.hash
    }

    fn begin_interruptible(&mut self, slot: Arc<InterruptSlot>) {
        self.slot = Some(slot);
    }

    fn end_interruptible(&mut self) -> bool {
        self.slot.take().is_some()
    }
}

/// This process, for the handover.
struct Process;

impl System for Process {
    type Job = Piece;
    type Lock = Mutex<Pool<Piece>>;
    type Futex = AtomicU32;

    fn start_worker(&self, credentials: Credentials, class: usize) -> bool {
        let is_common = credentials == credentials::common();
        let argument = credentials.number() << 2 | usize::from(is_common) << 1 | class;
        threads::spawn(c"iou-wrk", worker, argument as *mut c_void).is_ok()
    }

    fn start_cloner(&self, credentials: Credentials) -> bool {
        threads::spawn(c"iou-cloner", cloner, credentials.number() as *mut c_void).is_ok()
    }

    fn thread_ends(&self) {
        threads::end();
    }

    fn common(&self) -> Credentials {
        credentials::common()
    }

    fn reactor_has(&self, credentials: Credentials) -> bool {
        reactor::has(credentials)
    }

    fn ask_reactor(&self) {
        reactor::recruit();
    }

    fn take_slot(&self, before: Option<Arc<InterruptSlot>>) -> Arc<InterruptSlot> {
        match before {
            Some(slot) => interrupt::renew(slot),
            None => Arc::new(InterruptSlot::of_this_thread()),
        }
    }

    fn interrupt(&self, slot: &Arc<InterruptSlot>) {
        slot.interrupt();
    }

    fn bind(&self, cpus: &CpuSet) {
        // A set of processors that are not the program's binds nothing.
        let _ = os::run_on(cpus);
    }

    /// Returns the limit that the kernel uses, too.
    fn most_threads(&self) -> u32 {
        let processes = os::limit(RLIMIT_NPROC, None).map_or(u64::MAX, |limit| limit.rlim_cur);
        u32::try_from(processes).unwrap_or(u32::MAX)
    }

    fn now_ns(&self) -> u64 {
        os::monotonic_ns()
    }

    fn perform(&self, work: &mut Piece) {
        user::take_tags();
        if work.step.is_none() {
            work.run();
        }
    }

    fn finish(&self, work: Piece) {
        work.owner.take_work_back(work);
    }
}

/// Queues a piece of work, and makes sure that a thread will do it. Returns the work if no thread can do it.
#[expect(clippy::result_large_err, reason = "the work itself is what comes back")]
pub fn push(work: Piece) -> Result<(), Piece> {
    POOL.push(work, credentials::acting())
}

/// Starts the workers for which queued work waits. The calling thread must have these credentials. Returns false if some could not be
/// started.
pub fn recruit(credentials: Credentials) -> bool {
    POOL.recruit(credentials)
}

/// Sets the maximum number of threads of each class (`IORING_REGISTER_IOWQ_MAX_WORKERS`), unless it is 0. Returns the limits before.
pub fn limit_workers(limits: [u32; 2]) -> [u32; 2] {
    if limits != [0, 0] {
        // Relaxed: work that was queued before is not concerned.
        IS_LIMITED.store(true, Ordering::Relaxed);
    }
    POOL.limit(limits)
}

/// Sets the processors on which workers run from their next piece of work on (`IORING_REGISTER_IOWQ_AFF`).
pub fn bind_workers(cpus: CpuSet) {
    POOL.bind(cpus);
}

/// Takes a request's work out of the queue, if no worker has begun it.
pub fn withdraw(serial: u64, id: RequestId) -> Option<Piece> {
    POOL.withdraw(Name::new(serial, id))
}

/// Interrupts the worker that does a request, if it can be interrupted.
pub fn interrupt(serial: u64, id: RequestId) {
    POOL.interrupt(Name::new(serial, id));
}

/// Takes any queued work of a ring, for a caller that waits anyway. Never takes work that may take for ever.
pub fn steal(serial: u64) -> Option<Piece> {
    let fits = |work: &Piece| work.serial == serial && work.step.is_none();
    POOL.steal(credentials::acting(), fits)
}

extern "C" fn worker(argument: *mut c_void) {
    let argument = argument as usize;
    let (credentials, is_common, class) =
        (Credentials::from_number(argument >> 2), argument & 2 != 0, argument & 1);
    threads::begin(credentials);
    POOL.work(credentials, is_common, class);
}

extern "C" fn cloner(argument: *mut c_void) {
    let credentials = Credentials::from_number(argument as usize);
    threads::begin(credentials);
    POOL.clone_workers(credentials);
}

/// Makes sure that workers with the calling thread's credentials, which are `own`, can be started as long as a personality names them.
/// Returns false if no thread can be had.
pub fn keep_personality(own: Credentials) -> bool {
    POOL.keep_personality(own)
}

/// Does the same as [`keep_personality`], for requests of the calling thread.
pub fn keep_submitter(own: Credentials) -> bool {
    POOL.keep_submitter(own)
}

/// Notes that a personality with these credentials is gone.
pub fn release_personality(credentials: Credentials) {
    POOL.release_personality(credentials);
}

/// Notes that a ring has no more requests of submitters with these credentials.
pub fn release_submitter(credentials: Credentials) {
    POOL.release_submitter(credentials);
}

/// Has workers that have done their work leave, and the cloners of submitters' credentials, because the process has other credentials.
pub fn dismiss() {
    POOL.dismiss();
}

/// True if all threads that had to leave, and were not busy, have left.
pub fn are_dismissed() -> bool {
    POOL.are_dismissed()
}

/// Resets the pool in a child after `fork`: the parent's workers do not exist here.
///
/// # Safety
/// No other thread of this process may use the pool.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe {
        POOL.pool().reset();
        interrupt::forked();
    }
    POOL.pool().lock().forked();
}
