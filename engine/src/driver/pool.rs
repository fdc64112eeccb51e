//! The process's worker threads: one pool for all rings.
//!
//! Work that ends soon shares a few threads; work that may take for ever gets one each. A worker
//! that found nothing to do for some seconds leaves. Work with the same hash (buffered writes to one
//! file) is done one after the other, in order.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general::RLIMIT_NPROC;

use super::work::{Work, take};
use crate::request::RequestId;
use crate::ring::{Ring, live};
use crate::sync::{AcrossFork, Mutex};
use crate::sys::CpuSet;
use crate::{host, lifetime, sys};

/// Threads for work that ends soon, unless the program says how many.
const BOUNDED: u32 = 8;
/// Threads for work that may take for ever.
const UNBOUNDED: u32 = 1024;
/// Work that may wait for a worker.
const QUEUE: usize = 1 << 16;
/// How long an idle worker stays.
const IDLE_NS: u64 = 5_000_000_000;

struct Pool {
    queue: VecDeque<Work>,
    /// Hashes of work being done.
    hashes: Vec<u64>,
    /// Threads by class: `[bounded, unbounded]`.
    threads: [u32; 2],
    /// Those that look for work, by class.
    idle: [u32; 2],
    /// How many threads the program wants at most, by class.
    limits: [u32; 2],
    /// The processors that the program wants them to run on.
    cpus: CpuSet,
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    queue: VecDeque::new(),
    hashes: Vec::new(),
    threads: [0; 2],
    idle: [0; 2],
    limits: [BOUNDED, UNBOUNDED],
    cpus: [u64::MAX; 16],
});

/// How often the program said where workers run; none of them is bound before the first time.
static BINDINGS: AtomicU32 = AtomicU32::new(0);

/// Changes whenever work is queued; idle workers of a class sleep on theirs.
static WORK: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

/// The lock of the pool, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &POOL
}

/// Queues a piece of work and sees to it that somebody does it. Gives it back where nobody can.
#[expect(clippy::result_large_err, reason = "the work itself is what comes back")]
pub fn push(work: Work) -> Result<(), Work> {
    let class = usize::from(work.long);
    let mut pool = POOL.lock();
    if pool.queue.len() >= QUEUE {
        return Err(work);
    }
    let waiting = pool.queue.iter().filter(|queued| queued.long == work.long).count() as u32;
    // Not the program's limit for work that may take for ever: much of it the kernel does without threads.
    let most = [pool.limits[0], UNBOUNDED][class];
    // Work that may take for ever must never wait for another such.
    let starts = pool.idle[class] <= waiting && pool.threads[class] < most;
    if starts && !start(&mut pool, class) && pool.threads[class] == 0 {
        return Err(work);
    }
    pool.queue.push_back(work);
    drop(pool);
    // Release pairs with the acquire load before a worker looks into the queue for the last time.
    WORK[class].fetch_add(1, Ordering::Release);
    sys::futex_wake(&WORK[class], 1);
    Ok(())
}

/// Limits the threads of each class (`IORING_REGISTER_IOWQ_MAX_WORKERS`), where it is not 0. Returns
/// the limits so far.
pub fn limit_workers(limits: [u32; 2]) -> [u32; 2] {
    let processes = sys::limit(RLIMIT_NPROC, None).map_or(u64::MAX, |limit| limit.rlim_cur);
    let most = processes.min(u64::from(UNBOUNDED)) as u32;
    let mut pool = POOL.lock();
    let before = pool.limits;
    for (limit, new) in pool.limits.iter_mut().zip(limits) {
        if new != 0 {
            *limit = new.min(most).max(1);
        }
    }
    before
}

/// Says on which processors workers run from their next piece of work on (`IORING_REGISTER_IOWQ_AFF`).
pub fn bind_workers(cpus: CpuSet) {
    POOL.lock().cpus = cpus;
    // Release pairs with the acquire load of a worker that looks for the set.
    BINDINGS.fetch_add(1, Ordering::Release);
}

fn start(pool: &mut Pool, class: usize) -> bool {
    let Some(host) = host::get() else { return false };
    let started = host.spawn(c"iou-wrk", worker, class as *mut c_void).is_ok();
    pool.threads[class] += u32::from(started);
    started
}

/// Takes a request's work back before anybody starts it.
pub fn withdraw(ring: &'static Ring, serial: u64, id: RequestId) -> Option<Work> {
    let mut pool = POOL.lock();
    take(&mut pool.queue, |work| core::ptr::eq(work.ring, ring) && work.serial == serial && work.id == id)
}

/// Takes any work of a ring, for a caller that waits anyway; never one that may take for ever.
pub fn steal(ring: &'static Ring, serial: u64) -> Option<Work> {
    let mut pool = POOL.lock();
    let Pool { queue, hashes, .. } = &mut *pool;
    take(queue, |work| {
        core::ptr::eq(work.ring, ring)
            && work.serial == serial
            && !work.long
            && work.hash == 0
            && !hashes.contains(&work.hash)
    })
}

/// The next piece for a worker of `class`, its hash marked as busy.
fn next(pool: &mut Pool, class: usize) -> Option<Work> {
    let Pool { queue, hashes, .. } = pool;
    let work = take(queue, |work| {
        usize::from(work.long) == class && (work.hash == 0 || !hashes.contains(&work.hash))
    })?;
    if work.hash != 0 {
        hashes.push(work.hash);
    }
    Some(work)
}

extern "C" fn worker(class: *mut c_void) {
    let class = class as usize;
    let mut bound = 0;
    loop {
        // Acquire pairs with the release in `push`: work queued before is seen below.
        let seen = WORK[class].load(Ordering::Acquire);
        let mut pool = POOL.lock();
        if class == 0 && pool.threads[0] > pool.limits[0] {
            // The program has set a lower limit: another one does what this one was woken for.
            pool.threads[0] -= 1;
            drop(pool);
            sys::futex_wake(&WORK[0], 1);
            return;
        }
        if let Some(work) = next(&mut pool, class) {
            let cpus = pool.cpus;
            drop(pool);
            let bindings = BINDINGS.load(Ordering::Acquire);
            if bindings != bound {
                // A set of processors that are not the program's binds nothing.
                let _ = sys::run_on(&cpus);
                bound = bindings;
            }
            perform(work);
            continue;
        }
        pool.idle[class] += 1;
        drop(pool);
        let woken = sys::futex_wait(&WORK[class], seen, Some(IDLE_NS));
        let mut pool = POOL.lock();
        pool.idle[class] -= 1;
        let leaves = woken == Err(crate::errno::Errno::ETIMEDOUT)
            && !pool.queue.iter().any(|work| usize::from(work.long) == class);
        if leaves {
            pool.threads[class] -= 1;
            return;
        }
    }
}

fn perform(mut work: Work) {
    work.run();
    let (ring, serial, hash) = (work.ring, work.serial, work.hash);
    if hash != 0 {
        let mut pool = POOL.lock();
        if let Some(index) = pool.hashes.iter().position(|&busy| busy == hash) {
            pool.hashes.swap_remove(index);
        }
        let blocked = pool.queue.iter().any(|work| work.hash == hash);
        drop(pool);
        if blocked {
            WORK[0].fetch_add(1, Ordering::Release);
            sys::futex_wake(&WORK[0], 1);
        }
    }
    let mut guard = ring.lock();
    if let Some(core) = live(&mut guard, serial) {
        core.external.inline = false;
        core.finish(work);
        if !core.defers() {
            core.advance();
        }
        core.hand_over();
        core.notify();
        if core.closing {
            lifetime::dispose_if_done(guard, serial);
        }
    }
}

/// In a child after `fork`: the parent's workers are not here.
///
/// # Safety
/// No other thread of this process may use the pool.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe { POOL.reset() };
    let mut pool = POOL.lock();
    pool.queue.clear();
    pool.hashes.clear();
    pool.threads = [0; 2];
    pool.idle = [0; 2];
    pool.limits = [BOUNDED, UNBOUNDED];
    // Nobody reads it meanwhile.
    BINDINGS.store(0, Ordering::Relaxed);
}
