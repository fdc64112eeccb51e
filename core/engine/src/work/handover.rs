//! The handover of work to threads: what is queued, which threads there are and with which credentials, which threads sleep and are woken.
//!
//! Locks, futexes and threads are traits here, and nothing here knows of rings. So the model checker runs this very code
//! (`core/engine/tests/models/handover.rs`).

use alloc::vec::Vec;
use core::ops::DerefMut;

use crate::abi::Errno;
use crate::os::sync::atomic::{AtomicU32, Ordering};
use crate::os::sync::{Guard, Mutex};
use crate::os::{self, CpuSet};
pub use crate::process::credentials::Credentials;
use crate::work::backlog::Backlog;

/// The maximum number of threads of a group for work that ends soon, unless the program sets one.
const BOUNDED: u32 = 8;
/// The maximum length of the queue, for work that ends soon. Other work is bounded by the number of requests.
const QUEUE: usize = 1 << 16;
/// How long an idle worker stays; also how long a worker stays that is one more than needed.
const IDLE_NS: u64 = 5_000_000_000;
/// The time between two attempts of a cloner to start a worker, while none can be had.
const RETRY_NS: u64 = 4_000_000;

/// Wakes all threads that sleep.
const EVERYBODY: u32 = i32::MAX as u32;

/// A piece of work, as far as its handover is concerned.
pub trait Job {
    /// The name of a piece. No two pieces that are queued or in progress have the same.
    type Name: Copy + Eq;
    /// The slot through which the piece's worker can be interrupted.
    type InterruptSlot: Clone;

    /// Returns the name of this piece.
    fn name(&self) -> Self::Name;
    /// Returns the credentials that a worker needs to do the piece.
    fn credentials(&self) -> Credentials;
    /// Returns the class: 0 for work that ends soon, 1 for work that may take for ever.
    fn class(&self) -> usize;
    /// Returns the hash. Work with the same hash is done one piece after the other; 0 stands for none.
    fn hash(&self) -> u64;
    /// Notes that a worker is about to do the piece, which can be interrupted by this slot.
    fn begin_interruptible(&mut self, slot: Self::InterruptSlot);
    /// Notes that the piece is done. Returns true if it could be interrupted.
    fn end_interruptible(&mut self) -> bool;
}

/// A lock.
pub trait Lock<T> {
    /// The right to use the data that the lock guards.
    type Guard<'a>: DerefMut<Target = T>
    where
        Self: 'a;
    /// Locks the lock.
    fn lock(&self) -> Self::Guard<'_>;
}

/// A word on which threads sleep.
pub trait Futex {
    /// Loads the word, as an atomic integer does.
    fn load(&self, order: Ordering) -> u32;
    /// Adds to the word, as an atomic integer does.
    fn fetch_add(&self, value: u32, order: Ordering) -> u32;
    /// Sleeps if the word still is `seen`. Returns true if nobody woke the thread in that time.
    fn wait(&self, seen: u32, timeout_ns: Option<u64>) -> bool;
    /// Wakes so many of the threads that sleep.
    fn wake(&self, count: u32);
}

/// The process, as far as the handover needs it.
pub trait System: Sized {
    /// The work that is handed over.
    type Job: Job;
    /// The lock of the pool.
    type Lock: Lock<Pool<Self::Job>>;
    /// The word on which workers sleep.
    type Futex: Futex;

    /// Starts a thread that runs [`Handover::work`]. The calling thread must have these credentials.
    fn start_worker(&self, credentials: Credentials, class: usize) -> bool;
    /// Starts a thread that runs [`Handover::clone_workers`]. The calling thread must have these credentials.
    fn start_cloner(&self, credentials: Credentials) -> bool;
    /// Notes that the calling thread has nothing left to do but to return.
    fn thread_ends(&self);
    /// Returns the credentials that the process's threads share.
    fn common(&self) -> Credentials;
    /// True if [`System::ask_reactor`] will have workers with these credentials started. Called with the lock held.
    fn reactor_has(&self, credentials: Credentials) -> bool;
    /// Has the reactor call [`Handover::recruit`], until that succeeds.
    fn ask_reactor(&self);
    /// Returns a slot for the calling thread's next piece of work, in the place of the slot before.
    fn take_slot(&self, before: Option<SlotOf<Self>>) -> SlotOf<Self>;
    /// Interrupts the system call in which the worker with this slot is.
    fn interrupt(&self, slot: &SlotOf<Self>);
    /// Binds the calling thread to these processors.
    fn bind(&self, cpus: &CpuSet);
    /// Returns the maximum number of threads for work that may take for ever.
    fn most_threads(&self) -> u32;
    /// Returns the time of a clock that never goes back.
    fn now_ns(&self) -> u64;
    /// Does a piece of work.
    fn perform(&self, job: &mut Self::Job);
    /// Gives a piece of work back to the ring that it is for.
    fn finish(&self, job: Self::Job);
}

type SlotOf<S> = <<S as System>::Job as Job>::InterruptSlot;
type NameOf<S> = <<S as System>::Job as Job>::Name;

/// Workers that were idle all the time. A futex wakes the worker that has slept longest, so a few pieces of work now and then keep all
/// workers of a group from sleeping for [`IDLE_NS`]: therefore the workers that were not needed are counted.
#[derive(Clone, Copy)]
struct Spare {
    /// The smallest number that was idle at the same time.
    least: u32,
    /// The time at which the count began.
    since_ns: u64,
}

/// The threads with the same credentials.
struct CredentialGroup {
    credentials: Credentials,
    /// Threads by class.
    threads: [u32; 2],
    /// Workers without work, by class.
    idle: [u32; 2],
    /// Workers that were not needed, by class.
    spare: [Spare; 2],
    /// True while there is a cloner: a thread that stands by to clone workers.
    cloner: bool,
    /// The number of personalities that need the cloner.
    personalities: u32,
    /// The number of rings with requests of submitters that need the cloner.
    submitters: u32,
}

impl CredentialGroup {
    /// Counts the calling worker, which has found no work, as idle. Returns false if it is one more than needed for a while: then it has to
    /// leave.
    fn rest(&mut self, system: &impl System, class: usize) -> bool {
        // The last worker that works is needed: it need not ask for the time.
        if self.idle[class] > 0 {
            let now_ns = system.now_ns();
            let spare = &mut self.spare[class];
            if now_ns.saturating_sub(spare.since_ns) >= IDLE_NS {
                if spare.least > 0 {
                    spare.least -= 1;
                    return false;
                }
                *spare = Spare { least: self.idle[class], since_ns: now_ns };
            }
        }
        self.idle[class] += 1;
        true
    }

    /// Counts the calling worker as awake again.
    fn rise(&mut self, class: usize) {
        self.idle[class] -= 1;
        self.spare[class].least = self.spare[class].least.min(self.idle[class]);
    }
}

/// Work that may take for ever, and the worker that does it.
struct Running<J: Job> {
    name: J::Name,
    slot: J::InterruptSlot,
}

/// The processors on which workers run, and how often the program has set them. Before the first time no worker is bound.
struct Binding {
    cpus: CpuSet,
    times: u32,
}

/// Work and threads, guarded by the lock.
pub struct Pool<J: Job> {
    queue: Backlog<J>,
    running: Vec<Running<J>>,
    /// Hashes of work in progress.
    hashes: Vec<u64>,
    groups: Vec<CredentialGroup>,
    /// The maximum number of threads that the program has set, by class; 0 if it has set none.
    limits: [u32; 2],
    binding: Binding,
}

impl<J: Job> Pool<J> {
    /// Makes a pool without work and threads.
    pub const fn new() -> Pool<J> {
        Pool {
            queue: Backlog::new(),
            running: Vec::new(),
            hashes: Vec::new(),
            groups: Vec::new(),
            limits: [0; 2],
            binding: Binding { cpus: [u64::MAX; 16], times: 0 },
        }
    }

    fn group(&mut self, credentials: Credentials) -> Option<&mut CredentialGroup> {
        self.groups.iter_mut().find(|group| group.credentials == credentials)
    }

    fn group_or_new(&mut self, credentials: Credentials) -> Option<&mut CredentialGroup> {
        let index = match self.groups.iter().position(|group| group.credentials == credentials) {
            Some(index) => index,
            None => {
                self.groups.try_reserve(1).ok()?;
                self.groups.push(CredentialGroup {
                    credentials,
                    threads: [0; 2],
                    idle: [0; 2],
                    spare: [Spare { least: 0, since_ns: 0 }; 2],
                    cloner: false,
                    personalities: 0,
                    submitters: 0,
                });
                self.groups.len() - 1
            }
        };
        self.groups.get_mut(index)
    }

    /// Removes groups without threads.
    fn sweep(&mut self) {
        self.groups.retain(|group| group.cloner || group.threads != [0; 2]);
    }

    /// Returns how many sleeping threads have to be woken for one piece of work. If there are several groups, any thread may have its
    /// credentials.
    fn sleepers_to_wake(&self) -> u32 {
        if self.groups.len() == 1 { 1 } else { EVERYBODY }
    }

    /// Returns the number of pieces that wait for workers of a group.
    fn waiting(&self, credentials: Credentials, class: usize) -> u32 {
        self.queue.waiting(credentials, class)
    }

    /// True if one more worker would have something to do, with `more` more pieces queued, and may be started.
    fn needs_worker(
        &mut self,
        system: &impl System<Job = J>,
        credentials: Credentials,
        class: usize,
        more: u32,
    ) -> bool {
        let waiting = self.waiting(credentials, class) + more;
        let Some(&mut CredentialGroup { idle, threads, .. }) = self.group(credentials) else { return false };
        // Work that may take for ever never waits for other such work. The program's limit does not apply to it: the kernel does much of it
        // without threads.
        idle[class] < waiting
            && threads[class] < if class == 0 { self.bounded() } else { system.most_threads() }
    }

    /// Returns the maximum number of threads for work that ends soon.
    fn bounded(&self) -> u32 {
        if self.limits[0] == 0 { BOUNDED } else { self.limits[0] }
    }

    /// Starts a worker. The calling thread must have these credentials.
    fn start(&mut self, system: &impl System<Job = J>, credentials: Credentials, class: usize) -> bool {
        let started = system.start_worker(credentials, class);
        if let Some(group) = self.group(credentials) {
            group.threads[class] += u32::from(started);
        }
        started
    }

    /// Starts the workers for which queued work waits. Returns false if some could not be started.
    fn recruit(&mut self, system: &impl System<Job = J>, credentials: Credentials) -> bool {
        for class in 0..2 {
            for _ in 0..self.waiting(credentials, class) {
                if !self.needs_worker(system, credentials, class, 0) {
                    break;
                }
                if !self.start(system, credentials, class) {
                    return false;
                }
            }
        }
        true
    }

    /// Takes the next piece for a worker, and marks its hash as busy.
    fn next(&mut self, credentials: Credentials, class: usize, slot: Option<&J::InterruptSlot>) -> Option<J> {
        let hashes = &self.hashes;
        let mut job = self.queue.take(|job| {
            job.credentials() == credentials
                && job.class() == class
                && (job.hash() == 0 || !hashes.contains(&job.hash()))
        })?;
        if job.hash() != 0 {
            self.hashes.push(job.hash());
        }
        if let Some(slot) = slot
            && self.running.try_reserve(1).is_ok()
        {
            self.running.push(Running { name: job.name(), slot: slot.clone() });
            job.begin_interruptible(slot.clone());
        }
        Some(job)
    }

    /// Ends the calling worker if the program has set a lower limit meanwhile. Returns whether it did.
    fn lets_go_of_surplus(&mut self, system: &impl System<Job = J>, credentials: Credentials) -> bool {
        let most = self.bounded();
        let Some(group) = self.group(credentials) else { return false };
        let surplus = group.threads[0] > most;
        if surplus {
            system.thread_ends();
            group.threads[0] -= 1;
        }
        surplus
    }

    /// True if there is no work, and no thread.
    pub fn is_at_rest(&self) -> bool {
        self.queue.is_empty() && self.running.is_empty() && self.hashes.is_empty() && self.groups.is_empty()
    }

    /// Resets the pool in a child after `fork`: the parent's workers do not exist here.
    pub fn forked(&mut self) {
        *self = Pool::new();
    }
}

impl<J: Job> Default for Pool<J> {
    fn default() -> Pool<J> {
        Pool::new()
    }
}

/// A pool, and the words on which its threads sleep.
pub struct Handover<S: System> {
    pool: S::Lock,
    /// Changes whenever work is queued. Idle workers of a class sleep on the word of their class.
    work: [S::Futex; 2],
    /// Changes whenever a cloner has something to do.
    cloners: S::Futex,
    system: S,
}

impl<S: System> Handover<S> {
    /// Makes a handover of parts that nobody uses yet.
    pub const fn new(pool: S::Lock, work: [S::Futex; 2], cloners: S::Futex, system: S) -> Handover<S> {
        Handover { pool, work, cloners, system }
    }

    /// Returns the pool with its lock.
    pub fn pool(&self) -> &S::Lock {
        &self.pool
    }

    /// Returns the process.
    pub fn system(&self) -> &S {
        &self.system
    }

    /// Queues a piece of work, and makes sure that a thread will do it. `acting` are the calling thread's credentials. Returns the work if
    /// no thread can do it.
    ///
    /// # Errors
    /// The work itself.
    pub fn push(&self, job: S::Job, acting: Credentials) -> Result<(), S::Job> {
        let (class, credentials) = (job.class(), job.credentials());
        let mine = credentials == acting;
        let mut pool = self.pool.lock();
        // With the lock held: a reactor that ends looks at the queue afterwards.
        let by_reactor = !mine && self.system.reactor_has(credentials);
        let full = class == 0 && pool.queue.len() >= QUEUE;
        if full || !pool.queue.reserve() || pool.group_or_new(credentials).is_none() {
            return Err(job);
        }
        let needed = pool.needs_worker(&self.system, credentials, class, 1);
        let wanting = needed && mine && !pool.start(&self.system, credentials, class);
        let Some(group) = pool.group(credentials) else { return Err(job) };
        let by_keeper = needed && !mine && group.cloner;
        if group.threads[class] == 0 && !by_keeper && !by_reactor {
            pool.sweep();
            return Err(job);
        }
        pool.queue.push(job);
        let sleepers = pool.sleepers_to_wake();
        drop(pool);
        self.call_workers(class, sleepers);
        if by_keeper {
            self.call_cloners();
        } else if needed && by_reactor || wanting {
            // A thread may be had later, even if none of this pool ends.
            self.system.ask_reactor();
        }
        Ok(())
    }

    fn call_workers(&self, class: usize, count: u32) {
        // Release pairs with the acquire load before a worker looks into the queue for the last time.
        self.work[class].fetch_add(1, Ordering::Release);
        self.work[class].wake(count);
    }

    fn call_cloners(&self) {
        // Release pairs with the acquire load before a cloner looks at its group for the last time.
        self.cloners.fetch_add(1, Ordering::Release);
        self.cloners.wake(EVERYBODY);
    }

    /// Starts the workers for which queued work waits. The calling thread must have these credentials. Returns false if some could not be
    /// started.
    pub fn recruit(&self, credentials: Credentials) -> bool {
        self.pool.lock().recruit(&self.system, credentials)
    }

    /// Sets the maximum number of threads of each class (`IORING_REGISTER_IOWQ_MAX_WORKERS`), unless it is 0. Returns the limits before.
    pub fn limit(&self, limits: [u32; 2]) -> [u32; 2] {
        let most = self.system.most_threads();
        let mut pool = self.pool.lock();
        let said = pool.limits[1];
        let before = [pool.bounded(), if said == 0 { most } else { said }];
        for (limit, new) in pool.limits.iter_mut().zip(limits) {
            if new != 0 {
                *limit = new.min(most).max(1);
            }
        }
        before
    }

    /// Sets the processors on which workers run from their next piece of work on (`IORING_REGISTER_IOWQ_AFF`).
    pub fn bind(&self, cpus: CpuSet) {
        let mut pool = self.pool.lock();
        let times = pool.binding.times.wrapping_add(1);
        pool.binding = Binding { cpus, times };
    }

    /// Takes a request's work out of the queue, if no worker has begun it.
    pub fn withdraw(&self, name: NameOf<S>) -> Option<S::Job> {
        self.pool.lock().queue.take(|job| job.name() == name)
    }

    /// Interrupts the worker that does a request, if it can be interrupted.
    pub fn interrupt(&self, name: NameOf<S>) {
        let pool = self.pool.lock();
        if let Some(running) = pool.running.iter().find(|running| running.name == name) {
            self.system.interrupt(&running.slot);
        }
    }

    /// Takes any queued work that `fits`, for a caller with the `acting` credentials that waits anyway. Never takes work that may take for
    /// ever, or that has a hash.
    pub fn steal(&self, acting: Credentials, fits: impl Fn(&S::Job) -> bool) -> Option<S::Job> {
        self.pool
            .lock()
            .queue
            .take(|job| job.credentials() == acting && job.class() == 0 && job.hash() == 0 && fits(job))
    }

    /// Runs a worker, until there is nothing to do for long, or the process has other credentials than when the worker began. `is_common`:
    /// when the worker was started, the process had these credentials. It may have changed them since.
    pub fn work(&self, credentials: Credentials, is_common: bool, class: usize) {
        let common = if is_common { credentials } else { self.system.common() };
        let (mut timed_out, mut bound) = (false, 0);
        let mut slot = None;
        loop {
            if class == 1 {
                // Work that ends soon is not worth interrupting.
                slot = Some(self.system.take_slot(slot));
            }
            // Acquire pairs with the release in `call_workers`: work queued before is seen below, and so
            // are new credentials.
            let seen = self.work[class].load(Ordering::Acquire);
            let mut pool = self.pool.lock();
            if class == 0 && pool.lets_go_of_surplus(&self.system, credentials) {
                // Another worker does the work for which this one was woken.
                drop(pool);
                return self.call_workers(0, EVERYBODY);
            }
            if let Some(job) = pool.next(credentials, class, slot.as_ref()) {
                let cpus = (pool.binding.times != bound).then_some(pool.binding.cpus);
                bound = pool.binding.times;
                drop(pool);
                if let Some(cpus) = cpus {
                    self.system.bind(&cpus);
                }
                self.perform(job);
                timed_out = false;
                continue;
            }
            // If any of its work is left, that waits for workers that are busy with the same file.
            let waits = pool.waiting(credentials, class) > 0;
            let Some(group) = pool.group(credentials) else { return self.system.thread_ends() };
            let outdated = common != self.system.common()
                || group.personalities == 0 && credentials < self.system.common();
            if !waits && (timed_out || outdated) || !group.rest(&self.system, class) {
                self.system.thread_ends();
                group.threads[class] -= 1;
                return pool.sweep();
            }
            drop(pool);
            timed_out = self.work[class].wait(seen, Some(IDLE_NS));
            if let Some(group) = self.pool.lock().group(credentials) {
                group.rise(class);
            }
        }
    }

    fn perform(&self, mut job: S::Job) {
        self.system.perform(&mut job);
        if job.end_interruptible() {
            let name = job.name();
            self.pool.lock().running.retain(|running| running.name != name);
        }
        if job.hash() != 0 {
            self.pass_turn(job.hash());
        }
        self.system.finish(job);
    }

    /// Notes that work with this hash is done: the next piece with the hash may be done.
    fn pass_turn(&self, hash: u64) {
        let mut pool = self.pool.lock();
        if let Some(index) = pool.hashes.iter().position(|&busy| busy == hash) {
            pool.hashes.swap_remove(index);
        }
        let blocked = pool.queue.has_hash(hash);
        let sleepers = pool.sleepers_to_wake();
        drop(pool);
        if blocked {
            self.call_workers(0, sleepers);
        }
    }

    /// Makes sure that workers with the calling thread's credentials, which are `own`, can be started as long as a personality names them.
    /// Returns false if no thread can be had.
    pub fn keep_personality(&self, own: Credentials) -> bool {
        self.keep(own, |group| &mut group.personalities)
    }

    /// Does the same as [`Handover::keep_personality`], for requests of the calling thread.
    pub fn keep_submitter(&self, own: Credentials) -> bool {
        self.keep(own, |group| &mut group.submitters)
    }

    fn keep(&self, own: Credentials, count: fn(&mut CredentialGroup) -> &mut u32) -> bool {
        let mut pool = self.pool.lock();
        let Some(group) = pool.group_or_new(own) else { return false };
        group.cloner = group.cloner || self.system.start_cloner(own);
        if !group.cloner {
            pool.sweep();
            return false;
        }
        *count(group) += 1;
        true
    }

    /// Notes that a personality with these credentials is gone.
    pub fn release_personality(&self, credentials: Credentials) {
        self.release(credentials, |group| &mut group.personalities);
    }

    /// Notes that a ring has no more requests of submitters with these credentials.
    pub fn release_submitter(&self, credentials: Credentials) {
        self.release(credentials, |group| &mut group.submitters);
    }

    fn release(&self, credentials: Credentials, count: fn(&mut CredentialGroup) -> &mut u32) {
        if let Some(group) = self.pool.lock().group(credentials) {
            let count = count(group);
            // In a child after `fork`, and after a change of credentials, the count no longer includes this one.
            *count = count.saturating_sub(1);
        }
        self.call_cloners();
        // Workers that nobody else needs leave.
        (0..2).for_each(|class| self.call_workers(class, EVERYBODY));
    }

    /// Runs a cloner: it starts workers for other threads, as long as they may need some.
    pub fn clone_workers(&self, credentials: Credentials) {
        loop {
            // Acquire pairs with the release in `call_cloners`.
            let seen = self.cloners.load(Ordering::Acquire);
            let mut pool = self.pool.lock();
            let all = pool.recruit(&self.system, credentials);
            let Some(group) = pool.group(credentials) else { return self.system.thread_ends() };
            if all && group.personalities == 0 && group.submitters == 0 {
                self.system.thread_ends();
                group.cloner = false;
                return pool.sweep();
            }
            drop(pool);
            // No other thread retries for work whose worker could not be started.
            self.cloners.wait(seen, (!all).then_some(RETRY_NS));
        }
    }

    /// Has workers that have done their work leave, and the cloners of submitters' credentials, because the process has other credentials.
    pub fn dismiss(&self) {
        for group in &mut self.pool.lock().groups {
            group.submitters = 0;
        }
        self.call_cloners();
        (0..2).for_each(|class| self.call_workers(class, EVERYBODY));
    }

    /// True if all threads that had to leave, and were not busy, have left.
    pub fn are_dismissed(&self) -> bool {
        let common = self.system.common();
        let pool = self.pool.lock();
        let mut outdated = pool.groups.iter().filter(|group| group.credentials < common);
        outdated.all(|group| group.idle == [0; 2] && (!group.cloner || group.personalities > 0))
    }
}

impl<T: Send> Lock<T> for Mutex<T> {
    type Guard<'a>
        = Guard<'a, T>
    where
        T: 'a;

    fn lock(&self) -> Guard<'_, T> {
        self.lock()
    }
}

impl Futex for AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_add(value, order)
    }

    fn wait(&self, seen: u32, timeout_ns: Option<u64>) -> bool {
        os::futex_wait(self, seen, timeout_ns) == Err(Errno::ETIMEDOUT)
    }

    fn wake(&self, count: u32) {
        os::futex_wake(self, count);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::thread::{sleep, spawn, yield_now};
    use std::time::{Duration, Instant};

    use super::{AtomicU32, Credentials, Handover, IDLE_NS, Job, Mutex, Ordering, Pool, System};
    use crate::os::CpuSet;
    use crate::os::sync::atomic::AtomicU64;

    /// A piece of work that lasts until `Process::left` says that all pieces queued with it have begun.
    struct Piece;

    impl Job for Piece {
        type Name = ();
        type InterruptSlot = ();

        fn name(&self) {}

        fn credentials(&self) -> Credentials {
            own()
        }

        fn class(&self) -> usize {
            1
        }

        fn hash(&self) -> u64 {
            0
        }

        fn begin_interruptible(&mut self, (): ()) {}

        fn end_interruptible(&mut self) -> bool {
            false
        }
    }

    fn own() -> Credentials {
        Credentials::from_number(1)
    }

    struct Process {
        now_ns: AtomicU64,
        /// The pieces that have not begun.
        left: AtomicU32,
    }

    static POOL: Handover<Process> = Handover::new(
        Mutex::new(Pool::new()),
        [AtomicU32::new(0), AtomicU32::new(0)],
        AtomicU32::new(0),
        Process { now_ns: AtomicU64::new(IDLE_NS), left: AtomicU32::new(0) },
    );

    impl System for Process {
        type Job = Piece;
        type Lock = Mutex<Pool<Piece>>;
        type Futex = AtomicU32;

        fn start_worker(&self, credentials: Credentials, class: usize) -> bool {
            spawn(move || POOL.work(credentials, true, class));
            true
        }

        fn start_cloner(&self, _: Credentials) -> bool {
            false
        }

        fn thread_ends(&self) {}

        fn common(&self) -> Credentials {
            own()
        }

        fn reactor_has(&self, _: Credentials) -> bool {
            false
        }

        fn ask_reactor(&self) {}

        fn take_slot(&self, _: Option<()>) {}

        fn interrupt(&self, (): &()) {}

        fn bind(&self, _: &CpuSet) {}

        fn most_threads(&self) -> u32 {
            64
        }

        fn now_ns(&self) -> u64 {
            self.now_ns.load(Ordering::Relaxed)
        }

        fn perform(&self, _: &mut Piece) {
            self.left.fetch_sub(1, Ordering::Relaxed);
            while self.left.load(Ordering::Relaxed) != 0 {
                yield_now();
            }
        }

        fn finish(&self, _: Piece) {}
    }

    /// Waits until no worker has anything to do, and counts them.
    fn workers_at_rest() -> u32 {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let mut pool = POOL.pool().lock();
            let rests = pool.queue.is_empty();
            let group = pool.group(own()).expect("workers");
            if rests && group.idle == group.threads {
                return group.threads[1];
            }
            drop(pool);
            assert!(Instant::now() < deadline, "workers come to rest");
            sleep(Duration::from_micros(100));
        }
    }

    /// Has `count` pieces of work done at the same time. Returns the number of workers afterwards.
    fn do_pieces(count: u32) -> u32 {
        POOL.system().left.store(count, Ordering::Relaxed);
        for _ in 0..count {
            assert!(POOL.push(Piece, own()).is_ok());
        }
        workers_at_rest()
    }

    #[test]
    fn workers_that_were_too_many_leave_though_each_works_now_and_then() {
        assert_eq!(do_pieces(8), 8);
        let pass = |ns| POOL.system().now_ns.fetch_add(ns, Ordering::Relaxed);
        pass(IDLE_NS / 2);
        assert_eq!(do_pieces(1), 8, "too early to say");
        // The first period begins while some workers are still at work.
        for _ in 0..2 {
            pass(IDLE_NS);
            (0..8).for_each(|_| _ = do_pieces(1));
        }
        assert_eq!(workers_at_rest(), 1);
        // Workers that work at the same time now and then stay.
        assert_eq!(do_pieces(4), 4);
        for _ in 0..4 {
            pass(IDLE_NS);
            do_pieces(1);
            assert_eq!(do_pieces(4), 4);
        }
    }
}
