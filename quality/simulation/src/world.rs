//! The simulated machine: its threads, the choice of the running one, its clock, and its [`Kernel`].
//!
//! Threads are coroutines, whose stacks are reused by consecutive schedules. The running thread is chosen at every
//! [`point`], except if only the current one can run, or if the strategy has already chosen it: until the next step with
//! a real choice, a point costs a few comparisons ([`World::count_step`]).

use std::cell::{Cell, RefCell};
use std::fmt::Write;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use linux_raw_sys::errno as raw;
use linux_raw_sys::general as nr;

use crate::aio;
use crate::calls::Answer;
use crate::kernel::Kernel;
use crate::random::Random;

/// The maximum number of steps: a schedule with more is in a loop.
const MOST_STEPS: u64 = 300_000;
/// The maximum simulated time: a schedule that takes longer has a thread that waits in vain.
const MOST_TIME_NS: u64 = 400_000_000_000;
/// The longest time for which other load keeps the machine busy while threads could run.
const LONGEST_JUMP_NS: u64 = 20_000_000;
/// The time that a system call takes.
const CALL_NS: u64 = 300;
/// The number of contested steps among which the priorities change.
const PRIORITY_SPAN: usize = 700;
/// The size of a thread's stack in bytes.
const STACK: usize = 256 << 10;

/// A call that a system or a sandbox refuses, with its second argument if that matters, and its errno.
type Denied = (Option<u32>, Option<u32>, u32);

const NOT_DENIED: Denied = (None, None, 0);

/// The calls without which the engine must behave the same.
const DENIED: &[Denied] = &[
    (Some(nr::__NR_kcmp), None, raw::EPERM),
    // Before Linux 6.10.
    (Some(nr::__NR_fcntl), Some(nr::F_DUPFD_QUERY), raw::EINVAL),
    // gVisor.
    (Some(nr::__NR_fcntl), Some(nr::F_SETSIG), raw::EINVAL),
    (Some(nr::__NR_fcntl), Some(nr::F_GETSIG), raw::EPERM),
    (Some(nr::__NR_prlimit64), None, raw::EPERM),
    (Some(nr::__NR_readlinkat), None, raw::EACCES),
    (Some(nr::__NR_sched_getaffinity), None, raw::EPERM),
    (Some(nr::__NR_statx), None, raw::ENOSYS),
    (Some(nr::__NR_epoll_pwait2), None, raw::ENOSYS),
    (Some(nr::__NR_madvise), None, raw::EPERM),
];

/// The condition on which a thread sleeps.
#[derive(Clone, Debug, PartialEq)]
pub enum Wait {
    /// The clock alone.
    Time,
    /// A wake of the word at this address.
    Futex(usize),
    /// One of these events of a description.
    Events(usize, u32),
    /// A counter of the program that reaches this value.
    Counter(usize, u64),
    /// This number of events of an AIO context.
    Aio(usize, usize),
    /// The end of all transfers of an AIO context.
    Idle(usize),
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Woken {
    /// The condition is met.
    Ready,
    /// The deadline has passed.
    TimedOut,
    /// A signal arrived.
    Interrupted,
}

/// A sleep of a thread.
struct Sleep {
    wait: Wait,
    deadline_ns: u64,
    signal_ns: u64,
}

impl Sleep {
    /// Returns the latest time at which the sleep ends.
    fn end_ns(&self) -> u64 {
        self.deadline_ns.min(self.signal_ns)
    }
}

/// A set of threads, by number.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Set(u128);

impl Set {
    fn of(thread: usize) -> Set {
        Set(1 << thread)
    }

    fn has(self, thread: usize) -> bool {
        self.0 & 1 << thread != 0
    }

    fn with(self, thread: usize) -> Set {
        Set(self.0 | 1 << thread)
    }

    fn without(self, thread: usize) -> Set {
        Set(self.0 & !(1 << thread))
    }

    fn len(self) -> usize {
        self.0.count_ones() as usize
    }
}

impl Iterator for Set {
    type Item = usize;
    fn next(&mut self) -> Option<usize> {
        let first = self.0.trailing_zeros() as usize;
        self.0 &= self.0.wrapping_sub(1);
        (first < 128).then_some(first)
    }
}

/// The function that a thread runs.
type Body = Box<dyn FnOnce()>;

/// A thread.
struct Thread {
    name: &'static str,
    /// The function, until the thread has begun.
    body: Option<Body>,
    /// The thread's last sleep.
    sleep: Sleep,
    woken: Woken,
    priority: u64,
    /// True if signals reach the thread.
    interruptible: bool,
    /// True if a signal arrived while the thread ran.
    signalled: bool,
    /// The thread's last call.
    call: &'static str,
    /// The descriptor with `O_NONBLOCK`, if the thread's last query of flags found one.
    looked_at: Option<i32>,
}

/// How the next running thread is chosen.
#[derive(Clone, Debug)]
enum Strategy {
    /// Any thread, with equal probability.
    Uniform,
    /// The running thread, except once in this many times.
    Sticky(usize),
    /// The thread with the highest priority; at these steps, which are in descending order, the running thread gets the lowest (PCT).
    Priorities(Vec<u64>),
}

/// The machine.
pub struct World {
    /// The random numbers for faults of the system.
    pub random: Random,
    /// The simulated kernel.
    pub kernel: Kernel,
    /// Counters of the program.
    pub counters: Vec<u64>,
    choices: Random,
    strategy: Strategy,
    threads: Vec<Thread>,
    /// The threads that can run.
    ready: Set,
    asleep: Set,
    /// The earliest end of a sleep.
    next_end_ns: u64,
    current: usize,
    /// The clock jumps to the next deadline once in this many steps, though a thread can run.
    jumps: usize,
    /// A sleep is interrupted once in this many times.
    signals: usize,
    /// The creation of a thread fails once in this many times.
    threadless: usize,
    /// The creation of a file fails once in this many times.
    fileless: usize,
    /// The call that the system refuses.
    denied: Denied,
    lowest: u64,
    /// The number of points so far.
    steps: u64,
    /// The number of points at which more than one thread could run, up to `decided_step`.
    contested: u64,
    /// The step of the last decision.
    decided_step: u64,
    /// True if more than one thread can run since the last decision.
    is_contested: bool,
    /// The running thread continues up to this step, unless a sleep ends or the kernel changes.
    calm_until_step: u64,
    /// The version of the kernel for which sleepers were last checked.
    seen: u64,
    /// The step at which the clock jumps.
    next_jump_step: u64,
    /// With [`Strategy::Sticky`], the next contested step at which any thread may run.
    next_switch: u64,
    hash: u64,
}

thread_local! {
    /// Created by [`prepare`], and never freed, so that access is cheap.
    static WORLD: Cell<Option<&'static RefCell<World>>> = const { Cell::new(None) };
    /// True while a schedule runs and has not failed, so that threads are switched.
    static RUNS: Cell<bool> = const { Cell::new(false) };
    /// The means by which the running thread yields to another.
    static YIELDER: Cell<*const Yielder<(), ()>> = const { Cell::new(std::ptr::null()) };
}

/// Calls `body` with the machine.
pub fn world<R>(body: impl FnOnce(&mut World) -> R) -> R {
    body(&mut WORLD.get().expect("there is a machine").borrow_mut())
}

impl World {
    fn new(seed: u64) -> World {
        let mut choices = Random::new(seed, 1);
        let strategy = match choices.below(4) {
            0 => Strategy::Uniform,
            1 => Strategy::Sticky(4 << choices.below(5)),
            _ => {
                let changes = 0..choices.below(8);
                let mut changes: Vec<u64> = changes.map(|_| choices.below(PRIORITY_SPAN) as u64).collect();
                changes.sort_unstable_by(|a, b| b.cmp(a));
                Strategy::Priorities(changes)
            }
        };
        let jumps = choices.of(&[0, 0, 30, 200, 1000]);
        let signals = choices.of(&[0, 0, 8, 50]);
        let threadless = choices.of(&[0, 0, 0, 5]);
        let fileless = choices.of(&[0, 0, 0, 20]);
        let denied = if choices.once_in(3) { choices.of(DENIED) } else { NOT_DENIED };
        let limit = choices.of(&[None, None, Some([46, 128]), Some([52, 128]), Some([56, 56])]);
        let mut random = Random::new(seed, 2);
        let next_jump_step = if jumps == 0 { u64::MAX } else { choices.next_of(0, jumps) };
        let mut kernel = Kernel::new(&mut random);
        kernel.limit = limit.unwrap_or(kernel.limit);
        World {
            kernel,
            random,
            counters: Vec::new(),
            choices,
            strategy,
            threads: Vec::with_capacity(16),
            ready: Set(0),
            asleep: Set(0),
            next_end_ns: u64::MAX,
            current: 0,
            jumps,
            signals,
            threadless,
            fileless,
            denied,
            lowest: u64::MAX / 2,
            steps: 0,
            contested: 0,
            decided_step: 0,
            is_contested: false,
            calm_until_step: 0,
            seen: 0,
            next_jump_step,
            next_switch: 0,
            hash: seed,
        }
    }

    /// Returns the hash of all decisions so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the number of points so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the running thread.
    pub fn current(&self) -> usize {
        self.current
    }

    /// True if the running thread is one that the engine has for attempts that may block.
    pub fn is_worker(&self) -> bool {
        self.threads[self.current].name == "iou-wrk"
    }

    /// Returns the simulated time.
    pub fn now_ns(&self) -> u64 {
        self.kernel.now_ns
    }

    /// Records a call of the running thread, and the time it takes.
    pub fn calls(&mut self, name: &'static str) {
        self.kernel.now_ns += CALL_NS;
        let current = self.current;
        self.threads[current].call = name;
    }

    /// Records the result of a call.
    pub fn answers(&mut self, number: u32, answer: &Answer) {
        let answer = answer.map_or_else(|errno| -i64::from(errno), |value| value as i64);
        self.mix(u64::from(number) << 40 ^ answer as u64);
    }

    /// Records the running thread's query of flags: the descriptor, if it has `O_NONBLOCK`.
    pub fn looks_at(&mut self, nonblocking: Option<i32>) {
        self.threads[self.current].looked_at = nonblocking;
    }

    /// Returns the descriptor with `O_NONBLOCK`, if the running thread's last query of flags found one.
    pub fn looked_at(&self) -> Option<i32> {
        self.threads[self.current].looked_at
    }

    /// Adds a value to the hash that must be the same in a replay.
    pub fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value).wrapping_mul(0x100_0000_01b3).rotate_left(23);
    }

    /// True if the creation of a descriptor fails now.
    pub fn refuses_file(&mut self) -> bool {
        self.random.once_in(self.fileless)
    }

    /// True if the creation of a descriptor never fails.
    pub fn grants_files(&self) -> bool {
        self.fileless == 0 && self.kernel.limit[1] == 128
    }

    /// Returns the errno, if the system refuses this call.
    pub fn refuses(&self, number: u32, second: usize) -> Option<u32> {
        let (of, only, errno) = self.denied;
        let is_it = of == Some(number) && only.is_none_or(|only| only as usize == second);
        is_it.then_some(errno)
    }

    /// True if a thread has ended.
    pub fn is_gone(&self, thread: usize) -> bool {
        !self.ready.has(thread) && !self.asleep.has(thread)
    }

    /// Wakes up to `count` threads that sleep on a word.
    pub fn wake_futex(&mut self, address: usize, count: usize) -> usize {
        let of_word = |&thread: &usize| self.threads[thread].sleep.wait == Wait::Futex(address);
        let woken = self.asleep.filter(of_word).take(count).fold(Set(0), Set::with);
        woken.for_each(|thread| self.wake(thread, Woken::Ready));
        woken.len()
    }

    /// Moves up to `count` threads that sleep on a word to another word; returns their number.
    pub fn requeue_futex(&mut self, from: usize, to: usize, count: usize) -> usize {
        let of_word = |&thread: &usize| self.threads[thread].sleep.wait == Wait::Futex(from);
        let moved = self.asleep.filter(of_word).take(count).fold(Set(0), Set::with);
        moved.for_each(|thread| self.threads[thread].sleep.wait = Wait::Futex(to));
        moved.len()
    }

    /// Sends a signal to a thread with a handler.
    pub fn signal(&mut self, thread: usize) {
        if self.asleep.has(thread) {
            self.wake(thread, Woken::Interrupted);
        } else {
            self.threads[thread].signalled = true;
        }
    }

    /// Takes the signal that arrived since the running thread's last call, if there is one.
    pub fn take_signal(&mut self) -> bool {
        std::mem::take(&mut self.threads[self.current].signalled)
    }

    fn wake(&mut self, thread: usize, how: Woken) {
        self.threads[thread].woken = how;
        self.asleep = self.asleep.without(thread);
        self.ready = self.ready.with(thread);
        self.calm_until_step = 0;
    }

    fn is_met(&self, wait: &Wait) -> bool {
        match *wait {
            Wait::Time | Wait::Futex(_) => false,
            Wait::Events(description, events) => self.kernel.ready(description) & events != 0,
            Wait::Counter(counter, least) => self.counters[counter] >= least,
            Wait::Aio(context, least) => aio::is_met(&self.kernel, context, least),
            Wait::Idle(context) => aio::is_idle(&self.kernel, context),
        }
    }

    /// Wakes threads whose condition is met or whose deadline has passed.
    fn wake_sleepers(&mut self) {
        let (now, changed) = (self.kernel.now_ns, self.kernel.version != self.seen);
        if !changed && now < self.next_end_ns {
            return;
        }
        self.seen = self.kernel.version;
        self.next_end_ns = u64::MAX;
        for thread in self.asleep {
            let sleep = &self.threads[thread].sleep;
            if changed && self.is_met(&sleep.wait) {
                self.wake(thread, Woken::Ready);
            } else if sleep.deadline_ns <= now {
                self.wake(thread, Woken::TimedOut);
            } else if sleep.signal_ns <= now {
                self.wake(thread, Woken::Interrupted);
            } else {
                self.next_end_ns = self.next_end_ns.min(sleep.end_ns());
            }
        }
    }

    /// Advances the clock to the end of a sleep; returns false if there is none within `most_ns`.
    fn pass_time(&mut self, most_ns: u64) -> bool {
        let next = self.asleep.map(|thread| self.threads[thread].sleep.end_ns()).min().unwrap_or(u64::MAX);
        let passes = next != u64::MAX && next.saturating_sub(self.kernel.now_ns) <= most_ns;
        if passes {
            self.kernel.now_ns = self.kernel.now_ns.max(next);
        }
        passes
    }

    /// Counts a step. Returns true if the running thread continues without a decision.
    fn count_step(&mut self) -> bool {
        self.steps += 1;
        self.steps < self.calm_until_step
            && self.kernel.now_ns < self.next_end_ns
            && self.kernel.version == self.seen
    }

    /// Returns the thread that runs next. `yields`: the running thread lets others run first.
    fn decide(&mut self, yields: bool) -> Result<usize, String> {
        if self.is_contested {
            self.contested += self.steps - self.decided_step;
        }
        self.decided_step = self.steps;
        if self.steps > MOST_STEPS {
            return Err("livelock: threads run, and nothing comes to an end".into());
        }
        if self.kernel.now_ns > MOST_TIME_NS {
            return Err("hang: nothing comes to an end, though time passes".into());
        }
        if self.steps >= self.next_jump_step {
            self.next_jump_step = self.choices.next_of(self.steps, self.jumps);
            self.pass_time(LONGEST_JUMP_NS);
        }
        self.wake_sleepers();
        while self.ready == Set(0) {
            if !self.pass_time(u64::MAX) {
                return Err("deadlock: every thread sleeps, and nothing wakes any".into());
            }
            self.wake_sleepers();
        }
        let (current, ready, contested) = (self.current, self.ready, self.contested);
        let stays = ready.has(current) && !yields;
        let is_time = |&step: &u64| step <= contested;
        // The number of contested steps up to the strategy's next decision.
        let mut left = u64::MAX;
        let chosen = match &mut self.strategy {
            _ if ready == Set::of(current) => current,
            Strategy::Sticky(_) if stays && !is_time(&self.next_switch) => {
                left = self.next_switch - contested;
                current
            }
            Strategy::Priorities(changes) => {
                if yields || changes.pop_if(|step| is_time(step)).is_some() {
                    self.lowest -= 1;
                    self.threads[current].priority = self.lowest;
                }
                left = changes.last().map_or(u64::MAX, |next| next.saturating_sub(contested));
                ready.max_by_key(|&thread| self.threads[thread].priority).unwrap_or(current)
            }
            strategy => {
                left = 0;
                if let Strategy::Sticky(times) = *strategy {
                    self.next_switch = self.choices.next_of(contested, times);
                    left = self.next_switch - contested;
                }
                let mut among = if yields { ready.without(current) } else { ready };
                among.nth(self.choices.below(among.len())).unwrap_or(current)
            }
        };
        self.is_contested = ready.len() > 1;
        let left = if self.is_contested { left } else { u64::MAX };
        self.calm_until_step = self.steps.saturating_add(left).min(self.next_jump_step).min(MOST_STEPS);
        if chosen != current {
            self.mix(self.steps << 8 | chosen as u64);
        }
        Ok(chosen)
    }

    fn add_thread(&mut self, name: &'static str, interruptible: bool, body: Body) {
        let priority = u64::MAX / 2 + 1 + self.choices.below(1 << 30) as u64;
        let sleep = Sleep { wait: Wait::Time, deadline_ns: 0, signal_ns: 0 };
        let (body, woken, signalled, call, looked_at) = (Some(body), Woken::Ready, false, "-", None);
        self.ready = self.ready.with(self.threads.len());
        let thread = Thread { name, body, sleep, woken, priority, interruptible, signalled, call, looked_at };
        self.threads.push(thread);
        assert!(self.threads.len() <= 128, "there are few threads in a schedule");
        self.calm_until_step = 0;
    }

    /// Returns the threads' states as text.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for index in self.ready.chain(self.asleep) {
            let Thread { name, sleep: Sleep { wait, deadline_ns, .. }, call, .. } = &self.threads[index];
            let state = match *deadline_ns {
                _ if index == self.current => "runs".into(),
                _ if self.ready.has(index) => "could run".into(),
                u64::MAX => format!("sleeps for {wait:?}"),
                deadline_ns => format!("sleeps for {wait:?} until {deadline_ns}"),
            };
            let _ = writeln!(text, "  thread {index}, {name}: {state}; last call {call}");
        }
        for (fd, what) in self.kernel.open_descriptors() {
            let _ = writeln!(text, "  descriptor {fd}: {what}");
        }
        let _ =
            writeln!(text, "  {} steps by {:?}, time {} ns", self.steps, self.strategy, self.kernel.now_ns);
        text
    }
}

/// Calls `body` before any schedule runs: its effects are the same for every schedule.
pub fn prepare(body: impl FnOnce()) {
    WORLD.set(Some(Box::leak(Box::new(RefCell::new(World::new(0))))));
    world(|world| world.add_thread("main", false, Box::new(|| ())));
    body();
}

/// Runs a schedule from its first thread, on these stacks and further ones if needed.
pub fn run(seed: u64, stacks: &mut Vec<DefaultStack>, main: impl FnOnce() + 'static) {
    world(|world| {
        *world = World::new(seed);
        world.add_thread("main", false, Box::new(main));
    });
    RUNS.set(true);
    let mut coroutines = Vec::with_capacity(16);
    while RUNS.get() {
        resume(&mut coroutines, world(|world| world.current), stacks);
    }
    // Threads that the schedule counts as ended still have to return.
    for index in 0..coroutines.len() {
        resume(&mut coroutines, index, stacks);
    }
    debug_assert!(coroutines.iter().all(Option::is_none), "every thread has ended");
}

type Coroutines = Vec<Option<Coroutine<(), (), ()>>>;

/// Resumes a thread, or starts it.
fn resume(coroutines: &mut Coroutines, index: usize, stacks: &mut Vec<DefaultStack>) {
    if coroutines.get(index).is_none_or(Option::is_none)
        && let Some(body) = world(|world| world.threads[index].body.take())
    {
        let stack =
            stacks.pop().unwrap_or_else(|| DefaultStack::new(STACK).expect("there is memory for stacks"));
        coroutines.resize_with(coroutines.len().max(index + 1), || None);
        coroutines[index] = Some(Coroutine::with_stack(stack, |yielder, ()| {
            YIELDER.set(yielder);
            body();
            end();
        }));
    }
    let Some(Some(coroutine)) = coroutines.get_mut(index) else { return };
    if let CoroutineResult::Return(()) = coroutine.resume(()) {
        stacks.extend(coroutines[index].take().map(Coroutine::into_stack));
    }
}

/// Ends the running thread.
fn end() {
    world(|world| {
        world.ready = world.ready.without(world.current);
        world.kernel.version += 1;
    });
    if RUNS.get() {
        choose(false);
    }
}

/// Ends the schedule.
pub fn stop() {
    RUNS.set(false);
}

/// Chooses the thread that runs next; returns true if it is another thread.
fn choose(yields: bool) -> bool {
    let decided = world(|world| {
        let next = world.decide(yields)?;
        Ok(std::mem::replace(&mut world.current, next) != next)
    });
    decided.unwrap_or_else(|fault: String| crate::failure::fail(&fault))
}

fn switch(yields: bool) {
    if choose(yields) {
        let yielder = YIELDER.get();
        // SAFETY: the yielder is that of the running coroutine, which is on its own stack.
        unsafe { &*yielder }.suspend(());
        YIELDER.set(yielder);
    }
}

/// Marks a point at which another thread may run.
pub fn point() {
    if RUNS.get() && !world(World::count_step) {
        switch(false);
    }
}

/// Lets another thread run, if one can.
pub fn give_way() {
    world(|world| world.steps += 1);
    switch(true);
}

/// Puts the calling thread to sleep.
pub fn sleep(wait: Wait, deadline_ns: u64) -> Woken {
    world(|world| {
        let signals = world.threads[world.current].interruptible && wait != Wait::Time;
        let signalled = signals && world.random.once_in(world.signals);
        let after = world.random.below(3_000_000) as u64;
        let signal_ns = if signalled { world.kernel.now_ns + after } else { u64::MAX };
        let current = world.current;
        world.steps += 1;
        world.threads[current].woken = Woken::Ready;
        if !world.is_met(&wait) {
            let sleep = Sleep { wait, deadline_ns, signal_ns };
            world.next_end_ns = world.next_end_ns.min(sleep.end_ns());
            world.threads[current].sleep = sleep;
            world.ready = world.ready.without(current);
            world.asleep = world.asleep.with(current);
        }
    });
    switch(false);
    world(|world| world.threads[world.current].woken)
}

/// Lets simulated time pass.
pub fn sleep_for(time_ns: u64) {
    let until = world(|world| world.kernel.now_ns + time_ns);
    sleep(Wait::Time, until);
}

/// Lets simulated time pass until every other thread sleeps, at least `time_ns`.
pub fn rest(time_ns: u64) {
    // Odd times, so as not to coincide with periodic polling.
    for odd in 1.. {
        sleep_for(time_ns + 77 + odd * 1_234_567);
        if world(|world| world.ready == Set::of(world.current)) {
            return;
        }
    }
}

/// Starts a thread; returns false if the creation fails.
pub fn spawn(name: &'static str, of_program: bool, body: impl FnOnce() + 'static) -> bool {
    point();
    let started = world(|world| {
        // Without the reactor, the requests of a program that makes no call never complete.
        let refused = !of_program && name != "anyring-reactor" && world.random.once_in(world.threadless);
        if !refused {
            world.add_thread(name, of_program, Box::new(body));
        }
        !refused
    });
    point();
    started
}

/// Starts a system thread.
pub fn add(name: &'static str, body: impl FnOnce() + 'static) {
    world(|world| world.add_thread(name, false, Box::new(body)));
}

/// True while the schedule runs.
pub fn runs() -> bool {
    RUNS.get()
}

/// True if the caller is within a call of [`world`].
pub fn is_borrowed() -> bool {
    WORLD.get().is_none_or(|world| world.try_borrow_mut().is_err())
}
