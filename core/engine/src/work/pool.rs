//! The process's worker threads: one pool for all rings.
//!
//! Work that ends soon shares a few threads; work that may take for ever gets one each. A worker
//! that found nothing to do for some seconds leaves. Work with the same hash (buffered writes to one
//! file) is done one after the other, in order.
//!
//! Workers with the same credentials are a `Squad`, and do work for those credentials only. Whoever
//! queues work may start a worker for it if it has the same credentials itself; else a thread that has
//! them is asked to: the squad's keeper, or the reactor.

use crate::os::sync::atomic::{AtomicU32, Ordering};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::c_void;

use linux_raw_sys::general::RLIMIT_NPROC;

use crate::abi::Errno;
use crate::os;
use crate::os::CpuSet;
use crate::os::sync::{AcrossFork, Mutex};
use crate::process::credentials::{self, Credentials};
use crate::process::threads;
use crate::request::RequestId;
use crate::ring::drive::{caller, reactor};
use crate::ring::{Ring, lifetime, live};
use crate::work::Piece;
use crate::work::interrupt::{self, Seat};
use crate::work::queue::take;

/// Threads of a squad for work that ends soon, unless the program says how many.
const BOUNDED: u32 = 8;
/// Work that ends soon and may wait for a worker. The rest is bounded by the requests that there can be.
const QUEUE: usize = 1 << 16;
/// How long an idle worker stays.
const IDLE_NS: u64 = 5_000_000_000;

/// The threads with the same credentials.
struct Squad {
    credentials: Credentials,
    /// Threads by class: `[bounded, unbounded]`.
    threads: [u32; 2],
    /// Those that look for work, by class.
    idle: [u32; 2],
    /// A thread stands by to clone others.
    keeper: bool,
    /// Personalities that need the keeper.
    personalities: u32,
    /// Rings with requests of submitters that need it.
    submitters: u32,
}

/// Work that may take for ever, and who is at it.
struct Running {
    ring: &'static Ring,
    serial: u64,
    id: RequestId,
    seat: Arc<Seat>,
}

struct Pool {
    queue: VecDeque<Piece>,
    running: Vec<Running>,
    /// Hashes of work being done.
    hashes: Vec<u64>,
    squads: Vec<Squad>,
    /// How many threads the program wants at most, by class; 0 where it has not said.
    limits: [u32; 2],
    /// The processors that the program wants them to run on.
    cpus: CpuSet,
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    queue: VecDeque::new(),
    running: Vec::new(),
    hashes: Vec::new(),
    squads: Vec::new(),
    limits: [0; 2],
    cpus: [u64::MAX; 16],
});

/// How many threads there may be for work that may take for ever, as in the kernel.
fn unbounded() -> u32 {
    let processes = os::limit(RLIMIT_NPROC, None).map_or(u64::MAX, |limit| limit.rlim_cur);
    u32::try_from(processes).unwrap_or(u32::MAX)
}

/// How often the program said where workers run; none of them is bound before the first time.
static BINDINGS: AtomicU32 = AtomicU32::new(0);

/// Changes whenever work is queued; idle workers of a class sleep on theirs.
static WORK: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

/// The lock of the pool, for a `fork`.
pub fn lock() -> &'static dyn AcrossFork {
    &POOL
}

/// Changes whenever a keeper has something to do.
static KEEPERS: AtomicU32 = AtomicU32::new(0);

impl Pool {
    fn squad(&mut self, credentials: Credentials) -> Option<&mut Squad> {
        self.squads.iter_mut().find(|squad| squad.credentials == credentials)
    }

    fn squad_or_new(&mut self, credentials: Credentials) -> Option<&mut Squad> {
        let index = match self.squads.iter().position(|squad| squad.credentials == credentials) {
            Some(index) => index,
            None => {
                self.squads.try_reserve(1).ok()?;
                self.squads.push(Squad {
                    credentials,
                    threads: [0; 2],
                    idle: [0; 2],
                    keeper: false,
                    personalities: 0,
                    submitters: 0,
                });
                self.squads.len() - 1
            }
        };
        self.squads.get_mut(index)
    }

    /// Forgets squads of nobody.
    fn sweep(&mut self) {
        self.squads.retain(|squad| squad.keeper || squad.threads != [0; 2]);
    }

    /// Work that waits for workers of a class.
    fn waiting(&self, credentials: Credentials, class: usize) -> u32 {
        let fits = |work: &&Piece| work.credentials == credentials && usize::from(work.long) == class;
        self.queue.iter().filter(fits).count() as u32
    }

    /// Would one more worker have something to do, if `more` pieces were queued, and may there be one?
    fn needs_worker(&mut self, credentials: Credentials, class: usize, more: u32) -> bool {
        let waiting = self.waiting(credentials, class) + more;
        let Some(&mut Squad { idle, threads, .. }) = self.squad(credentials) else { return false };
        // Work that may take for ever waits for no other such. The program's limit does not count for it: much of
        // it the kernel does without threads.
        idle[class] < waiting && threads[class] < if class == 0 { self.bounded() } else { unbounded() }
    }

    /// How many threads there may be for work that ends soon.
    fn bounded(&self) -> u32 {
        if self.limits[0] == 0 { BOUNDED } else { self.limits[0] }
    }

    /// The calling worker ends if the program has set a lower limit since.
    fn lets_go_of_surplus(&mut self, credentials: Credentials) -> bool {
        let most = self.bounded();
        let Some(squad) = self.squad(credentials) else { return false };
        let surplus = squad.threads[0] > most;
        if surplus {
            threads::end();
            squad.threads[0] -= 1;
        }
        surplus
    }

    /// Starts a worker. The calling thread must have these credentials.
    fn start(&mut self, credentials: Credentials, class: usize) -> bool {
        let argument = credentials.number() << 1 | class;
        let started = threads::spawn(c"iou-wrk", worker, argument as *mut c_void).is_ok();
        if let Some(squad) = self.squad(credentials) {
            squad.threads[class] += u32::from(started);
        }
        started
    }
}

/// Queues a piece of work and sees to it that somebody does it. Gives it back where nobody can.
#[expect(clippy::result_large_err, reason = "the work itself is what comes back")]
pub fn push(work: Piece) -> Result<(), Piece> {
    let (class, credentials) = (usize::from(work.long), work.credentials);
    let mine = credentials == credentials::acting();
    let by_reactor = !mine && reactor::has(credentials);
    let mut pool = POOL.lock();
    let full = class == 0 && pool.queue.len() >= QUEUE;
    if full || pool.queue.try_reserve(1).is_err() || pool.squad_or_new(credentials).is_none() {
        return Err(work);
    }
    let needed = pool.needs_worker(credentials, class, 1);
    let wanting = needed && mine && !pool.start(credentials, class);
    let Some(squad) = pool.squad(credentials) else { return Err(work) };
    let by_keeper = needed && !mine && squad.keeper;
    if squad.threads[class] == 0 && !by_keeper && !by_reactor {
        pool.sweep();
        return Err(work);
    }
    let alone = pool.squads.len() == 1;
    pool.queue.push_back(work);
    drop(pool);
    call_workers(class, if alone { 1 } else { EVERYBODY });
    if by_keeper {
        call_keepers();
    } else if needed && by_reactor || wanting {
        // A thread may be to be had later, though none of ours ends.
        reactor::recruit();
    }
    Ok(())
}

const EVERYBODY: u32 = i32::MAX as u32;

fn call_workers(class: usize, count: u32) {
    // Release pairs with the acquire load before a worker looks into the queue for the last time.
    WORK[class].fetch_add(1, Ordering::Release);
    os::futex_wake(&WORK[class], count);
}

fn call_keepers() {
    // Release pairs with the acquire load before a keeper looks at its squad for the last time.
    KEEPERS.fetch_add(1, Ordering::Release);
    os::futex_wake(&KEEPERS, EVERYBODY);
}

/// Starts the workers that queued work waits for. The calling thread must have these credentials. False where some
/// could not be started.
pub fn recruit(credentials: Credentials) -> bool {
    POOL.lock().recruit(credentials)
}

impl Pool {
    fn recruit(&mut self, credentials: Credentials) -> bool {
        let mut all = true;
        for class in 0..2 {
            for _ in 0..self.waiting(credentials, class) {
                if !self.needs_worker(credentials, class, 0) {
                    break;
                }
                if !self.start(credentials, class) {
                    all = false;
                    break;
                }
            }
        }
        all
    }
}

/// Limits the threads of each class (`IORING_REGISTER_IOWQ_MAX_WORKERS`), where it is not 0. Returns
/// the limits so far.
pub fn limit_workers(limits: [u32; 2]) -> [u32; 2] {
    let most = unbounded();
    let mut pool = POOL.lock();
    let said = pool.limits[1];
    let before = [pool.bounded(), if said == 0 { most } else { said }];
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

/// Takes a request's work back before anybody starts it.
pub fn withdraw(ring: &'static Ring, serial: u64, id: RequestId) -> Option<Piece> {
    let mut pool = POOL.lock();
    take(&mut pool.queue, |work| core::ptr::eq(work.ring, ring) && work.serial == serial && work.id == id)
}

/// Has the worker that is at a request come back, if it can be interrupted.
pub fn interrupt(ring: &'static Ring, serial: u64, id: RequestId) {
    let pool = POOL.lock();
    let its = |r: &&Running| core::ptr::eq(r.ring, ring) && r.serial == serial && r.id == id;
    if let Some(running) = pool.running.iter().find(its) {
        running.seat.interrupt();
    }
}

/// Takes any work of a ring, for a caller that waits anyway; never one that may take for ever.
pub fn steal(ring: &'static Ring, serial: u64) -> Option<Piece> {
    let own = credentials::acting();
    let mut pool = POOL.lock();
    let Pool { queue, hashes, .. } = &mut *pool;
    take(queue, |work| {
        core::ptr::eq(work.ring, ring)
            && work.serial == serial
            && work.credentials == own
            && work.step.is_none()
            && !work.long
            && work.hash == 0
            && !hashes.contains(&work.hash)
    })
}

/// The next piece for a worker, its hash marked as busy.
fn next(pool: &mut Pool, credentials: Credentials, class: usize, seat: Option<&Arc<Seat>>) -> Option<Piece> {
    let Pool { queue, hashes, running, .. } = pool;
    let mut work = take(queue, |work| {
        work.credentials == credentials
            && usize::from(work.long) == class
            && (work.hash == 0 || !hashes.contains(&work.hash))
    })?;
    if work.hash != 0 {
        hashes.push(work.hash);
    }
    if let Some(seat) = seat
        && running.try_reserve(1).is_ok()
    {
        running.push(Running { ring: work.ring, serial: work.serial, id: work.id, seat: Arc::clone(seat) });
        work.seat = Some(Arc::clone(seat));
    }
    Some(work)
}

extern "C" fn worker(argument: *mut c_void) {
    let (credentials, class) = (Credentials::from_number(argument as usize >> 1), argument as usize & 1);
    threads::begin(credentials);
    work_on(credentials, class, credentials::common());
}

/// Works until there is nothing to do for long, or the process has other credentials than when it
/// had those that are `common`.
fn work_on(credentials: Credentials, class: usize, common: Credentials) {
    let (mut timed_out, mut bound) = (false, 0);
    // What ends soon is not worth interrupting.
    let mut seat = (class == 1).then(|| Arc::new(Seat::of_this_thread()));
    loop {
        if let Some(seat) = &mut seat {
            interrupt::renew(seat);
        }
        // Acquire pairs with the release in `call_workers`: work queued before is seen below, and so
        // are new credentials.
        let seen = WORK[class].load(Ordering::Acquire);
        let mut pool = POOL.lock();
        if class == 0 && pool.lets_go_of_surplus(credentials) {
            // Another one does what this one was woken for.
            drop(pool);
            return call_workers(0, EVERYBODY);
        }
        if let Some(work) = next(&mut pool, credentials, class, seat.as_ref()) {
            let cpus = pool.cpus;
            drop(pool);
            let bindings = BINDINGS.load(Ordering::Acquire);
            if bindings != bound {
                // A set of processors that are not the program's binds nothing.
                let _ = os::run_on(&cpus);
                bound = bindings;
            }
            perform(work);
            timed_out = false;
            continue;
        }
        // What is left of its work waits for others that are at the same file.
        let waits = pool.waiting(credentials, class) > 0;
        let Some(squad) = pool.squad(credentials) else { return threads::end() };
        let outdated = common != credentials::common()
            || squad.personalities == 0 && credentials < credentials::common();
        if !waits && (timed_out || outdated) {
            threads::end();
            squad.threads[class] -= 1;
            pool.sweep();
            return;
        }
        squad.idle[class] += 1;
        drop(pool);
        timed_out = os::futex_wait(&WORK[class], seen, Some(IDLE_NS)) == Err(Errno::ETIMEDOUT);
        if let Some(squad) = POOL.lock().squad(credentials) {
            squad.idle[class] -= 1;
        }
    }
}

fn perform(mut work: Piece) {
    if work.step.is_none() {
        work.run();
    }
    if let Some(seat) = work.seat.take() {
        POOL.lock().running.retain(|running| !Arc::ptr_eq(&running.seat, &seat));
    }
    let (ring, serial, hash) = (work.ring, work.serial, work.hash);
    if hash != 0 {
        let mut pool = POOL.lock();
        if let Some(index) = pool.hashes.iter().position(|&busy| busy == hash) {
            pool.hashes.swap_remove(index);
        }
        let blocked = pool.queue.iter().any(|work| work.hash == hash);
        let alone = pool.squads.len() == 1;
        drop(pool);
        if blocked {
            call_workers(0, if alone { 1 } else { EVERYBODY });
        }
    }
    let mut guard = ring.lock();
    if let Some(core) = live(&mut guard, serial) {
        core.observers_mut().posts_later();
        match work.step.take() {
            Some(step) => core.take_step(work, step),
            None => core.finish(work),
        }
        if !core.defers() {
            core.advance();
        }
        // What is linked behind it may wait for readiness now, and nobody may be inside to drive.
        caller::leave(core);
        if core.life().is_closing() {
            lifetime::dispose_if_done(guard, serial);
        }
    }
}

/// Sees to it that workers with the calling thread's credentials, which are `own`, can be had as long
/// as a personality names them. False where there is no thread to be had.
pub fn keep_personality(own: Credentials) -> bool {
    keep(own, |squad| &mut squad.personalities)
}

/// As [`keep_personality`], for requests of the calling thread.
pub fn keep_submitter(own: Credentials) -> bool {
    keep(own, |squad| &mut squad.submitters)
}

fn keep(own: Credentials, count: fn(&mut Squad) -> &mut u32) -> bool {
    let mut pool = POOL.lock();
    let Some(squad) = pool.squad_or_new(own) else { return false };
    if !squad.keeper {
        let argument = own.number() as *mut c_void;
        squad.keeper = threads::spawn(c"iou-keeper", keeper, argument).is_ok();
    }
    if !squad.keeper {
        pool.sweep();
        return false;
    }
    *count(squad) += 1;
    true
}

/// A personality with these credentials is gone.
pub fn release_personality(credentials: Credentials) {
    release(credentials, |squad| &mut squad.personalities);
}

/// A ring has no more requests of submitters with these credentials.
pub fn release_submitter(credentials: Credentials) {
    release(credentials, |squad| &mut squad.submitters);
}

fn release(credentials: Credentials, count: fn(&mut Squad) -> &mut u32) {
    if let Some(squad) = POOL.lock().squad(credentials) {
        let count = count(squad);
        // In a child after `fork`, and after a change of credentials, it stands for nothing any more.
        *count = count.saturating_sub(1);
    }
    call_keepers();
    // Those that nobody else has use for leave.
    (0..2).for_each(|class| call_workers(class, EVERYBODY));
}

extern "C" fn keeper(argument: *mut c_void) {
    let credentials = Credentials::from_number(argument as usize);
    threads::begin(credentials);
    loop {
        // Acquire pairs with the release in `call_keepers`.
        let seen = KEEPERS.load(Ordering::Acquire);
        let mut pool = POOL.lock();
        pool.recruit(credentials);
        let Some(squad) = pool.squad(credentials) else { return threads::end() };
        if squad.personalities == 0 && squad.submitters == 0 {
            threads::end();
            squad.keeper = false;
            pool.sweep();
            return;
        }
        drop(pool);
        let _ = os::futex_wait(&KEEPERS, seen, None);
    }
}

/// The process has other credentials: workers that have done their work leave, and so do the keepers
/// of submitters' credentials.
pub fn dismiss() {
    for squad in &mut POOL.lock().squads {
        squad.submitters = 0;
    }
    call_keepers();
    (0..2).for_each(|class| call_workers(class, EVERYBODY));
}

/// Has everybody left who was to leave and not busy?
pub fn are_dismissed() -> bool {
    let common = credentials::common();
    POOL.lock()
        .squads
        .iter()
        .filter(|squad| squad.credentials < common)
        .all(|squad| squad.idle == [0; 2] && (!squad.keeper || squad.personalities > 0))
}

/// In a child after `fork`: the parent's workers are not here.
///
/// # Safety
/// No other thread of this process may use the pool.
pub unsafe fn forked() {
    // SAFETY: passed on to the caller.
    unsafe {
        POOL.reset();
        interrupt::forked();
    }
    let mut pool = POOL.lock();
    pool.queue.clear();
    pool.running.clear();
    pool.hashes.clear();
    pool.squads.clear();
    pool.limits = [0; 2];
    // Nobody reads it meanwhile.
    BINDINGS.store(0, Ordering::Relaxed);
}
