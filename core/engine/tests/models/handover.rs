//! The hand-over of work to the pool's threads, under a model checker: no interleaving loses a piece of work, does one
//! twice, or lets it wait while all threads sleep.
//!
//! The pool is the engine's own code, with its workers and cloners. Around it stand, as loom knows them, its lock, its
//! futexes and its threads. What the model notes for itself it keeps in ordinary locks, which are free between two steps
//! of loom. Work that nobody does shows as a deadlock, which loom reports.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use anyring_both::by;
use anyring_engine::os::CpuSet;
use anyring_engine::work::handover::{Credentials, Futex, Handover, Job, Lock, Pool, System};
use loom::sync::MutexGuard;
use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use loom::thread::{self, ThreadId};

use super::start;

/// The purposes of threads: work that ends soon, work that may take for ever, to start others.
const SHORT: usize = 0;
const LONG: usize = 1;
const CLONER: usize = 2;

/// Credentials, the older first.
const OLD: usize = 1;
const NEW: usize = 2;

const ANYWHERE: CpuSet = [u64::MAX; 16];
const HERE: CpuSet = [1; 16];

loom::thread_local! {
    static ACTING: Cell<usize> = Cell::new(OLD);
    static KIND: Cell<usize> = Cell::new(SHORT);
    static CPUS: Cell<CpuSet> = Cell::new(ANYWHERE);
}

fn acting() -> Credentials {
    Credentials::from_number(ACTING.with(Cell::get))
}

/// Where a worker sits at its piece of work. The word is not 0 where that is to end.
#[derive(Clone)]
struct InterruptSlot(Arc<Word>);

struct Piece {
    name: usize,
    credentials: usize,
    class: usize,
    hash: u64,
    slot: Option<InterruptSlot>,
}

impl Job for Piece {
    type Name = usize;
    type InterruptSlot = InterruptSlot;

    fn name(&self) -> usize {
        self.name
    }

    fn credentials(&self) -> Credentials {
        Credentials::from_number(self.credentials)
    }

    fn class(&self) -> usize {
        self.class
    }

    fn hash(&self) -> u64 {
        self.hash
    }

    fn begin_interruptible(&mut self, slot: InterruptSlot) {
        self.slot = Some(slot);
    }

    fn end_interruptible(&mut self) -> bool {
        self.slot.take().is_some()
    }
}

struct Locked<T>(loom::sync::Mutex<T>);

impl<T> Lock<T> for Locked<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

/// A futex. Whoever changes its value has made the next step of those that look at it; between that and the look of a
/// thread that falls asleep, or the wake-up, nobody else goes on, as under the kernel's lock of such a word.
#[derive(Default)]
struct Word {
    value: AtomicU32,
    sleepers: Mutex<Sleepers>,
}

#[derive(Default)]
struct Sleepers {
    asleep: VecDeque<thread::Thread>,
    timed_out: Vec<ThreadId>,
    /// All the time in the world has passed.
    late: bool,
}

impl Word {
    /// The value that it has now, and no older one.
    fn now(&self) -> u32 {
        self.value.fetch_add(0, Ordering::AcqRel)
    }

    /// The time of those that sleep is over; that of those to come, too, where it is `for_good`.
    fn expire(&self, for_good: bool) {
        self.now();
        let mut sleepers = self.sleepers.lock().unwrap();
        sleepers.late |= for_good;
        let asleep = core::mem::take(&mut sleepers.asleep);
        sleepers.timed_out.extend(asleep.iter().map(thread::Thread::id));
        asleep.iter().for_each(thread::Thread::unpark);
    }

    fn change_and_wake(&self) {
        self.fetch_add(1, Ordering::Release);
        self.wake(u32::MAX);
    }
}

impl Futex for Word {
    fn load(&self, order: Ordering) -> u32 {
        self.value.load(order)
    }

    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.value.fetch_add(value, order)
    }

    fn wait(&self, seen: u32, timeout_ns: Option<u64>) -> bool {
        if self.now() != seen {
            return false;
        }
        let own = thread::current();
        let mut sleepers = self.sleepers.lock().unwrap();
        if timeout_ns.is_some() && sleepers.late {
            return true;
        }
        sleepers.asleep.push_back(own.clone());
        drop(sleepers);
        thread::park();
        let mut sleepers = self.sleepers.lock().unwrap();
        assert!(sleepers.asleep.iter().all(|thread| thread.id() != own.id()), "only who was woken is awake");
        let before = sleepers.timed_out.len();
        sleepers.timed_out.retain(|&thread| thread != own.id());
        sleepers.timed_out.len() < before
    }

    fn wake(&self, count: u32) {
        let mut sleepers = self.sleepers.lock().unwrap();
        let woken = sleepers.asleep.len().min(count as usize);
        sleepers.asleep.drain(..woken).for_each(|thread| thread.unpark());
    }
}

/// The state of a piece of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Queued,
    Begun,
    Done,
    Withdrawn,
}

#[derive(Default)]
struct Ring {
    work: Vec<State>,
    /// Of each hash: has any its turn, and which had it last with which credentials.
    turns: [(bool, [Option<usize>; NEW]); 2],
    /// Interrupted by name.
    interrupted: Vec<usize>,
    /// Ran on these processors.
    cpus: Vec<CpuSet>,
}

#[derive(Default)]
struct Threads {
    /// So many more cannot be started.
    refused: usize,
    /// The threads that have not left, by credentials and kind.
    living: [[u32; 3]; NEW],
    /// How many there may be of each.
    most: u32,
    started: Vec<thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Reactor {
    runs: bool,
    leaves: bool,
    recruits: bool,
}

/// The process as the pool meets it.
struct Process {
    world: Weak<World>,
    ring: Mutex<Ring>,
    /// Changes whenever work comes back.
    returned: Word,
    threads: Mutex<Threads>,
    common: AtomicUsize,
    reactor: Mutex<Reactor>,
    kicked: Word,
    now_s: Mutex<u64>,
}

struct World {
    pool: Handover<Process>,
    words: [Arc<Word>; 3],
}

/// A word that the model can reach, too.
struct Shared(Arc<Word>);

impl Futex for Shared {
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }

    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.0.fetch_add(value, order)
    }

    fn wait(&self, seen: u32, timeout_ns: Option<u64>) -> bool {
        self.0.wait(seen, timeout_ns)
    }

    fn wake(&self, count: u32) {
        self.0.wake(count);
    }
}

impl Process {
    fn start(&self, kind: usize, credentials: Credentials, body: fn(&World, Credentials)) -> bool {
        assert!(acting() == credentials, "threads inherit what their creator has");
        let mut threads = self.threads.lock().unwrap();
        if threads.refused > 0 {
            threads.refused -= 1;
            return false;
        }
        let most = threads.most;
        let living = &mut threads.living[credentials.number() - OLD][kind];
        *living += 1;
        assert!(*living <= most, "no more threads than there may be");
        drop(threads);
        let world = self.world.upgrade().unwrap();
        let started = thread::spawn(move || {
            ACTING.with(|acting| acting.set(credentials.number()));
            KIND.with(|own| own.set(kind));
            body(&world, credentials);
        });
        self.threads.lock().unwrap().started.push(started);
        true
    }
}

impl System for Process {
    type Job = Piece;
    type Lock = Locked<Pool<Piece>>;
    type Futex = Shared;

    fn start_worker(&self, credentials: Credentials, class: usize) -> bool {
        type Body = fn(&World, Credentials);
        let bodies: [[Body; 2]; 2] = [
            [
                |world, credentials| world.pool.work(credentials, false, SHORT),
                |world, credentials| world.pool.work(credentials, true, SHORT),
            ],
            [
                |world, credentials| world.pool.work(credentials, false, LONG),
                |world, credentials| world.pool.work(credentials, true, LONG),
            ],
        ];
        let is_common = credentials == self.common();
        self.start(class, credentials, bodies[class][usize::from(is_common)])
    }

    fn start_cloner(&self, credentials: Credentials) -> bool {
        self.start(CLONER, credentials, |world, credentials| world.pool.clone_workers(credentials))
    }

    fn thread_ends(&self) {
        let own = ACTING.with(Cell::get) - OLD;
        self.threads.lock().unwrap().living[own][KIND.with(Cell::get)] -= 1;
    }

    fn common(&self) -> Credentials {
        Credentials::from_number(self.common.load(Ordering::Acquire))
    }

    fn reactor_has(&self, credentials: Credentials) -> bool {
        // Here others go on.
        self.kicked.now();
        let reactor = self.reactor.lock().unwrap();
        reactor.runs && !reactor.leaves && credentials.number() == OLD
    }

    fn ask_reactor(&self) {
        self.reactor.lock().unwrap().recruits = true;
        self.kicked.change_and_wake();
    }

    fn take_slot(&self, before: Option<InterruptSlot>) -> InterruptSlot {
        let slot = before.unwrap_or_else(|| InterruptSlot(Arc::default()));
        slot.0.value.store(0, Ordering::Relaxed);
        slot
    }

    fn interrupt(&self, slot: &InterruptSlot) {
        slot.0.change_and_wake();
    }

    fn bind(&self, cpus: &CpuSet) {
        CPUS.with(|own| own.set(*cpus));
    }

    fn most_threads(&self) -> u32 {
        self.threads.lock().unwrap().most
    }

    /// Between any two looks at it, time enough passes for a worker to be one too many.
    fn now_ns(&self) -> u64 {
        let mut now_s = self.now_s.lock().unwrap();
        *now_s += 10;
        *now_s * 1_000_000_000
    }

    fn perform(&self, piece: &mut Piece) {
        assert!(acting() == piece.credentials(), "done with the credentials that it is for");
        let mut ring = self.ring.lock().unwrap();
        assert_eq!(ring.work[piece.name], State::Queued, "work is done once");
        ring.work[piece.name] = State::Begun;
        ring.cpus.push(CPUS.with(Cell::get));
        let turn = piece.hash as usize;
        if piece.hash != 0 {
            let (busy, before) = &mut ring.turns[turn];
            assert!(!core::mem::replace(busy, true), "one after the other");
            let before = before[piece.credentials - OLD].replace(piece.name);
            assert!(before < Some(piece.name), "in order, with the same credentials");
        }
        drop(ring);
        if piece.hash != 0 {
            // Here others go on.
            self.returned.now();
            self.ring.lock().unwrap().turns[turn].0 = false;
        }
        if piece.class == LONG {
            // It ends by an interruption alone.
            let InterruptSlot(slot) = piece.slot.as_ref().unwrap();
            while slot.now() == 0 {
                slot.wait(0, None);
            }
            assert!(self.ring.lock().unwrap().interrupted.contains(&piece.name), "nobody else is meant");
        }
    }

    fn finish(&self, piece: Piece) {
        let mut ring = self.ring.lock().unwrap();
        assert_eq!(ring.work[piece.name], State::Begun, "work comes back once");
        ring.work[piece.name] = State::Done;
        drop(ring);
        self.returned.change_and_wake();
    }
}

impl World {
    /// With so many threads at most, of each kind and with the same credentials.
    fn new(most: u32) -> Arc<World> {
        let world = Arc::new_cyclic(|world: &Weak<World>| {
            let process = Process {
                world: world.clone(),
                ring: Mutex::default(),
                returned: Word::default(),
                threads: Mutex::new(Threads { most, ..Threads::default() }),
                common: AtomicUsize::new(OLD),
                reactor: Mutex::default(),
                kicked: Word::default(),
                now_s: Mutex::default(),
            };
            let words: [Arc<Word>; 3] = Default::default();
            let [short, long, cloners] = words.clone().map(Shared);
            let pool =
                Handover::new(Locked(loom::sync::Mutex::new(Pool::new())), [short, long], cloners, process);
            World { pool, words }
        });
        world.pool.limit([most, 0]);
        world
    }

    fn process(&self) -> &Process {
        self.pool.system()
    }

    /// Work that is for the calling thread's credentials.
    fn piece(&self, class: usize, hash: u64) -> Piece {
        let mut ring = self.process().ring.lock().unwrap();
        ring.work.push(State::Queued);
        Piece { name: ring.work.len() - 1, credentials: ACTING.with(Cell::get), class, hash, slot: None }
    }

    fn push(&self, class: usize, hash: u64) -> usize {
        let piece = self.piece(class, hash);
        let name = piece.name;
        self.push_or_do(piece);
        name
    }

    /// As a caller does it: what nobody else can do it does itself, and what it must not do fails.
    fn push_or_do(&self, piece: Piece) {
        if let Err(mut back) = self.pool.push(piece, acting()) {
            if acting() == back.credentials() {
                self.process().perform(&mut back);
            } else {
                self.process().ring.lock().unwrap().work[back.name] = State::Begun;
            }
            self.process().finish(back);
        }
    }

    /// The next thread cannot be started.
    fn refuse_a_thread(&self) {
        self.process().threads.lock().unwrap().refused = 1;
    }

    /// The calling thread's credentials are others from now on.
    fn act_with_new(&self) {
        ACTING.with(|acting| acting.set(NEW));
    }

    /// Work that is for another thread's credentials.
    fn push_foreign(&self) {
        let piece = Piece { credentials: OLD, ..self.piece(SHORT, 0) };
        self.push_or_do(piece);
    }

    /// The whole process has others.
    fn change_credentials(&self) {
        self.process().common.store(NEW, Ordering::Release);
        self.pool.dismiss();
    }

    /// The reactor, as far as it starts workers.
    fn react(&self) {
        let process = self.process();
        loop {
            let seen = process.kicked.now();
            let mut reactor = process.reactor.lock().unwrap();
            let (leaves, wanted) = (reactor.leaves, core::mem::take(&mut reactor.recruits));
            drop(reactor);
            let all = !(leaves || wanted) || self.pool.recruit(acting());
            if !all {
                process.reactor.lock().unwrap().recruits = true;
            } else if leaves {
                process.reactor.lock().unwrap().runs = false;
                return;
            } else {
                process.kicked.wait(seen, None);
            }
        }
    }

    fn start_reactor(self: &Arc<World>) -> thread::JoinHandle<()> {
        self.process().reactor.lock().unwrap().runs = true;
        start(self, World::react)
    }

    fn end_reactor(&self) {
        self.process().reactor.lock().unwrap().leaves = true;
        self.process().kicked.change_and_wake();
    }

    fn withdraw(&self, name: usize) -> bool {
        let withdrawn = self.pool.withdraw(name).is_some();
        if withdrawn {
            let mut ring = self.process().ring.lock().unwrap();
            assert_eq!(ring.work[name], State::Queued, "what is begun is not withdrawn");
            ring.work[name] = State::Withdrawn;
        }
        withdrawn
    }

    /// As a request is ended: its work is taken back, or whoever is at it is.
    fn cancel(&self, name: usize) {
        self.process().ring.lock().unwrap().interrupted.push(name);
        if !self.withdraw(name) {
            self.pool.interrupt(name);
        }
    }

    /// Waits until all work is back.
    fn wait(&self) {
        self.wait_with(|| false);
    }

    /// Waits until all work is back, and does what it finds.
    fn wait_and_help(&self) {
        self.wait_with(|| {
            let Some(mut stolen) = self.pool.steal(acting(), |_| true) else { return false };
            self.process().perform(&mut stolen);
            self.process().finish(stolen);
            true
        });
    }

    fn wait_with(&self, help: impl Fn() -> bool) {
        let is_out = |state: &State| matches!(state, State::Queued | State::Begun);
        loop {
            let seen = self.process().returned.now();
            if help() {
                continue;
            }
            if !self.process().ring.lock().unwrap().work.iter().any(is_out) {
                return;
            }
            self.process().returned.wait(seen, None);
        }
    }

    /// Waits until all threads have left.
    fn wait_for_threads(&self) {
        loop {
            let started = self.process().threads.lock().unwrap().started.pop();
            let Some(thread) = started else { return };
            thread.join().unwrap();
        }
    }

    /// All is done: after some time nothing is left.
    fn end(&self) {
        loom::stop_exploring();
        self.end_in_any_order();
    }

    fn end_in_any_order(&self) {
        self.words.iter().for_each(|word| word.expire(true));
        self.wait_for_threads();
        assert!(self.pool.pool().lock().is_at_rest(), "no thread is counted that has left");
        assert_eq!(self.process().threads.lock().unwrap().living, [[0; 3]; NEW], "who leaves says so");
    }
}

/// A world with so many threads at most.
fn model(most: u32, body: impl Fn(Arc<World>) + Sync + Send + 'static) {
    model_with(2, most, body);
}

fn model_with(preemptions: usize, most: u32, body: impl Fn(Arc<World>) + Sync + Send + 'static) {
    super::model(Some(preemptions), move || World::new(most), body);
}

#[by(model(2))]
fn what_is_pushed_is_done(world: Arc<World>) {
    world.push(SHORT, 0);
    world.push(SHORT, 0);
    world.wait();
    world.end();
}

#[by(model(1))]
fn two_callers_push_at_once(world: Arc<World>) {
    let other = start(&world, |world| {
        world.push(SHORT, 0);
    });
    world.push(SHORT, 0);
    world.wait();
    other.join().unwrap();
    world.wait();
    world.end();
}

#[by(model(2))]
fn workers_leave_when_nothing_is_left(world: Arc<World>) {
    loom::stop_exploring();
    world.push(SHORT, 0);
    world.push(SHORT, 0);
    world.wait();
    loom::explore();
    world.end_in_any_order();
}

/// A worker leaves after some time, and work comes just then.
#[by(model(1))]
fn a_worker_that_leaves_leaves_nothing_behind(world: Arc<World>) {
    world.push(SHORT, 0);
    world.wait();
    let clock = start(&world, |world| world.words[SHORT].expire(false));
    world.push(SHORT, 0);
    world.wait();
    clock.join().unwrap();
    world.end();
}

#[by(model(1))]
fn who_waits_helps(world: Arc<World>) {
    world.push(SHORT, 0);
    world.push(SHORT, 0);
    world.wait_and_help();
    world.end();
}

#[by(model(1))]
fn what_is_withdrawn_is_not_done(world: Arc<World>) {
    world.push(SHORT, 0);
    let last = world.push(SHORT, 0);
    let other = start(&world, move |world| {
        world.withdraw(last);
    });
    world.withdraw(last);
    world.wait();
    other.join().unwrap();
    world.end();
}

/// Whatever is not withdrawn has a worker that is found, and no other is.
#[test]
fn what_may_take_for_ever_is_ended() {
    for most in [1, 2] {
        model_with(1, most, move |world| {
            let both = [world.push(LONG, 0), world.push(LONG, 0)];
            both.into_iter().for_each(|name| world.cancel(name));
            world.wait();
            world.end();
        });
    }
}

#[by(model(2))]
fn work_on_one_file_is_done_in_order(world: Arc<World>) {
    (0..2).for_each(|_| {
        world.push(SHORT, 1);
    });
    world.wait_and_help();
    world.end();
}

/// The worker that was at the file has other credentials than the one that waits for it.
#[by(model(1))]
fn the_turn_passes_to_workers_with_other_credentials(world: Arc<World>) {
    world.push(SHORT, 1);
    world.act_with_new();
    world.push(SHORT, 1);
    world.wait();
    world.end();
}

/// The first of all: the caller has to do the work. A second one: the first does all of it.
#[test]
fn a_thread_that_cannot_be_started_is_not_waited_for() {
    for before in [0, 1] {
        model(2, move |world| {
            (0..before).for_each(|_| {
                world.push(SHORT, 0);
            });
            world.refuse_a_thread();
            world.push(SHORT, 0);
            world.push(SHORT, 0);
            world.wait();
            world.end();
        });
    }
}

#[by(model(1))]
fn a_keeper_starts_workers_for_others(world: Arc<World>) {
    assert!(world.pool.keep_submitter(acting()));
    world.act_with_new();
    world.push_foreign();
    world.wait();
    world.pool.release_submitter(Credentials::from_number(OLD));
    world.end();
}

/// The keeper has to try again, for nobody else comes for the work.
#[by(model(1))]
fn a_keeper_that_cannot_start_a_worker_tries_again(world: Arc<World>) {
    world.words[CLONER].expire(true);
    assert!(world.pool.keep_submitter(acting()));
    world.refuse_a_thread();
    world.act_with_new();
    world.push_foreign();
    world.wait();
    world.pool.release_submitter(Credentials::from_number(OLD));
    world.end();
}

#[by(model(1))]
fn a_keeper_that_is_dismissed_has_its_work_done(world: Arc<World>) {
    world.words[CLONER].expire(true);
    assert!(world.pool.keep_submitter(acting()));
    world.refuse_a_thread();
    world.act_with_new();
    world.push_foreign();
    world.change_credentials();
    world.wait();
    world.wait_for_threads();
    world.end();
}

/// The reactor does what it was asked for before it ends.
#[by(model_with(1, 1))]
fn a_reactor_that_ends_starts_workers_for_others(world: Arc<World>) {
    let reactor = world.start_reactor();
    let other = start(&world, World::end_reactor);
    world.refuse_a_thread();
    world.act_with_new();
    world.push_foreign();
    world.wait();
    other.join().unwrap();
    reactor.join().unwrap();
    world.end();
}

#[by(model(1))]
fn workers_with_credentials_that_were_given_up_leave(world: Arc<World>) {
    world.push(SHORT, 0);
    let other = start(&world, World::change_credentials);
    world.push(SHORT, 0);
    world.wait();
    other.join().unwrap();
    world.wait_for_threads();
    assert!(world.pool.are_dismissed());
    world.end();
}

/// Workers of both credentials sleep on the same word.
#[by(model(1))]
fn work_wakes_a_worker_that_may_do_it(world: Arc<World>) {
    loom::stop_exploring();
    world.push(SHORT, 0);
    world.wait();
    world.act_with_new();
    world.push(SHORT, 0);
    world.wait();
    loom::explore();
    world.push(SHORT, 0);
    world.push_foreign();
    world.wait();
    world.end();
}

/// One of the two leaves: what it was woken for is the other's.
#[by(model(2))]
fn a_lower_limit_loses_no_work(world: Arc<World>) {
    loom::stop_exploring();
    world.push(SHORT, 0);
    world.push(SHORT, 0);
    world.wait();
    loom::explore();
    world.pool.limit([1, 0]);
    world.push(SHORT, 0);
    world.wait();
    world.end();
}

#[by(model(1))]
fn workers_run_where_the_program_says(world: Arc<World>) {
    world.push(SHORT, 0);
    world.pool.bind(HERE);
    world.wait();
    world.push(SHORT, 0);
    world.wait();
    assert_eq!(world.process().ring.lock().unwrap().cpus.last(), Some(&HERE));
    world.end();
}

/// Workers that sleep are to leave, and so is a cloner, but for one that a personality has.
#[test]
fn who_has_not_left_yet_is_known() {
    let of_new = |world: &World| world.process().common.store(NEW, Ordering::Release);
    model(1, move |world| {
        loom::stop_exploring();
        assert!(world.pool.are_dismissed());
        world.push(SHORT, 0);
        world.wait();
        of_new(&world);
        while world.pool.are_dismissed() {
            thread::yield_now();
        }
        world.pool.dismiss();
        world.wait_for_threads();
        assert!(world.pool.are_dismissed());
        // These are the process's own.
        world.act_with_new();
        world.push(SHORT, 0);
        world.wait();
        assert!(world.pool.are_dismissed());
        world.end_in_any_order();
    });
    model(1, move |world| {
        loom::stop_exploring();
        assert!(world.pool.keep_submitter(acting()));
        of_new(&world);
        assert!(!world.pool.are_dismissed());
        world.pool.dismiss();
        world.wait_for_threads();
        assert!(world.pool.are_dismissed());
        world.end_in_any_order();
    });
    model(1, move |world| {
        loom::stop_exploring();
        assert!(world.pool.keep_personality(acting()));
        of_new(&world);
        assert!(world.pool.are_dismissed());
        world.pool.release_personality(Credentials::from_number(OLD));
        world.end_in_any_order();
    });
}

#[by(model(1))]
fn a_keeper_that_cannot_be_started_is_none(world: Arc<World>) {
    loom::stop_exploring();
    world.refuse_a_thread();
    assert!(!world.pool.keep_submitter(acting()));
    world.end_in_any_order();
}
