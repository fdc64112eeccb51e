//! The simulated machine: its threads, which of them goes on, its clock, and its [`Kernel`].
//!
//! Threads are shuttle's tasks. Which of them goes on is decided here and told to shuttle ([`Picker`]), for a decision
//! depends on what shuttle does not know: which call a thread sleeps in, until when, and what would wake it. So a
//! thread that sleeps in a simulated call is never blocked as far as shuttle is concerned; it is not picked.

use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::time::Duration;

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

use crate::kernel::Kernel;
use crate::random::Random;

/// More decisions than any schedule takes that is not caught in a loop.
const MOST_STEPS: u64 = 300_000;
/// More simulated time than any schedule takes in which nobody waits in vain.
const MOST_TIME_NS: u64 = 400_000_000_000;
/// How long the machine is busy with something else at most, while threads could run.
const LONGEST_JUMP_NS: u64 = 20_000_000;
/// What a system call takes.
const CALL_NS: u64 = 300;
/// Changes of priority among so many decisions.
const PRIORITY_SPAN: usize = 3000;

/// What a thread sleeps for.
#[derive(Clone, Debug, PartialEq)]
pub enum Wait {
    /// The clock alone.
    Time,
    /// Somebody who wakes the word at this address.
    Futex(usize),
    /// A description that shows one of these events.
    Events(usize, u32),
    /// A counter of the program that is at least this.
    Counter(usize, u64),
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Woken {
    /// What was waited for is there.
    Ready,
    /// The time is over.
    TimedOut,
    /// A signal came.
    Interrupted,
}

#[derive(Debug)]
enum State {
    Ready,
    Asleep { wait: Wait, deadline_ns: u64, signal_ns: u64 },
    Done,
}

/// A thread.
#[derive(Debug)]
struct Thread {
    name: String,
    state: State,
    woken: Woken,
    priority: u64,
    /// Signals reach it.
    interruptible: bool,
    /// The call that it made last.
    call: &'static str,
}

/// How the next thread is chosen.
#[derive(Clone, Debug)]
enum Strategy {
    /// Any, with the same probability.
    Uniform,
    /// The same as before, but once in so many times.
    Sticky(usize),
    /// The one with the highest priority; at these decisions the one that runs gets the lowest (PCT).
    Priorities(Vec<u64>),
}

/// The machine.
pub struct World {
    /// What faults of the system are made.
    pub random: Random,
    /// Files and memory.
    pub kernel: Kernel,
    /// Counters of the program.
    pub counters: Vec<u64>,
    choices: Random,
    strategy: Strategy,
    threads: Vec<Thread>,
    current: usize,
    next: Option<usize>,
    /// Nobody else goes on now.
    held: bool,
    /// The clock jumps to the next deadline once in so many decisions, though somebody could go on.
    jumps: usize,
    /// A sleep is interrupted once in so many times.
    signals: usize,
    /// A thread cannot be made once in so many times.
    threadless: usize,
    /// A file cannot be made once in so many times.
    fileless: usize,
    lowest: u64,
    steps: u64,
    seen: u64,
    hash: u64,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new(0));
    /// Threads are switched: a schedule runs, and has not failed.
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

/// Does something with the machine.
pub fn world<R>(body: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with(|world| body(&mut world.borrow_mut()))
}

impl World {
    fn new(seed: u64) -> World {
        let mut choices = Random::new(seed, 1);
        let strategy = match choices.below(4) {
            0 => Strategy::Uniform,
            1 => Strategy::Sticky(4 << choices.below(5)),
            _ => {
                let changes = choices.below(8);
                Strategy::Priorities((0..changes).map(|_| choices.below(PRIORITY_SPAN) as u64).collect())
            }
        };
        let jumps = choices.of(&[0, 0, 30, 200, 1000]);
        let signals = choices.of(&[0, 0, 8, 50]);
        let threadless = choices.of(&[0, 0, 0, 5]);
        let fileless = choices.of(&[0, 0, 0, 20]);
        let mut random = Random::new(seed, 2);
        World {
            kernel: Kernel::new(&mut random),
            random,
            counters: Vec::new(),
            choices,
            strategy,
            threads: Vec::new(),
            current: 0,
            next: None,
            held: false,
            jumps,
            signals,
            threadless,
            fileless,
            lowest: u64::MAX / 2,
            steps: 0,
            seen: 0,
            hash: seed,
        }
    }

    /// What stands for all decisions so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many decisions there were.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The thread that runs.
    pub fn current(&self) -> usize {
        self.current
    }

    /// The simulated time.
    pub fn now_ns(&self) -> u64 {
        self.kernel.now_ns
    }

    /// Notes which call the running thread makes, and what that takes.
    pub fn calls(&mut self, name: &'static str) {
        self.kernel.now_ns += CALL_NS;
        let current = self.current;
        self.threads[current].call = name;
        self.mix(name.len() as u64);
    }

    /// Something that must be the same when the schedule is replayed.
    pub fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value).wrapping_mul(0x100_0000_01b3).rotate_left(23);
    }

    /// Is no further descriptor to be had just now?
    pub fn refuses_file(&mut self) -> bool {
        self.random.once_in(self.fileless)
    }

    /// Are there always descriptors to be had?
    pub fn grants_files(&self) -> bool {
        self.fileless == 0
    }

    /// Is a thread gone?
    pub fn is_gone(&self, thread: usize) -> bool {
        self.threads.get(thread).is_none_or(|thread| matches!(thread.state, State::Done))
    }

    /// Wakes up to `count` of those that sleep for a word.
    pub fn wake_futex(&mut self, address: usize, count: usize) -> usize {
        let mut woken = 0;
        for thread in &mut self.threads {
            if woken < count
                && matches!(&thread.state, State::Asleep { wait: Wait::Futex(word), .. } if *word == address)
            {
                thread.state = State::Ready;
                thread.woken = Woken::Ready;
                woken += 1;
            }
        }
        woken
    }

    fn is_met(&self, wait: &Wait) -> bool {
        match *wait {
            Wait::Time | Wait::Futex(_) => false,
            Wait::Events(description, events) => self.kernel.ready(description) & events != 0,
            Wait::Counter(counter, least) => self.counters[counter] >= least,
        }
    }

    /// Wakes those that have what they wait for, and those whose time is over.
    fn wake(&mut self) {
        let (now, changed) = (self.kernel.now_ns, self.kernel.version != self.seen);
        self.seen = self.kernel.version;
        for index in 0..self.threads.len() {
            let State::Asleep { wait, deadline_ns, signal_ns } = &self.threads[index].state else { continue };
            let woken = if changed && self.is_met(wait) {
                Woken::Ready
            } else if *deadline_ns <= now {
                Woken::TimedOut
            } else if *signal_ns <= now {
                Woken::Interrupted
            } else {
                continue;
            };
            self.threads[index].woken = woken;
            self.threads[index].state = State::Ready;
        }
    }

    /// Lets the clock go on to the next deadline; false where there is none within so much time.
    fn pass_time(&mut self, most_ns: u64) -> bool {
        let times = self.threads.iter().filter_map(|thread| match thread.state {
            State::Asleep { deadline_ns, signal_ns, .. } => Some(deadline_ns.min(signal_ns)),
            _ => None,
        });
        let next = times.min().unwrap_or(u64::MAX);
        let passes = next != u64::MAX && next.saturating_sub(self.kernel.now_ns) <= most_ns;
        if passes {
            self.kernel.now_ns = self.kernel.now_ns.max(next);
        }
        passes
    }

    /// Who goes on. `yields`: the running thread lets others go first.
    fn decide(&mut self, yields: bool) -> Result<usize, String> {
        self.steps += 1;
        if self.held {
            return Ok(self.current);
        }
        if self.steps > MOST_STEPS {
            return Err("livelock: threads run, and nothing comes to an end".into());
        }
        if self.kernel.now_ns > MOST_TIME_NS {
            return Err("hang: nothing comes to an end, though time passes".into());
        }
        if self.choices.once_in(self.jumps) {
            self.pass_time(LONGEST_JUMP_NS);
        }
        self.wake();
        let mut ready: Vec<usize> = Vec::with_capacity(16);
        loop {
            let is_ready = |&index: &usize| matches!(self.threads[index].state, State::Ready);
            ready.extend((0..self.threads.len()).filter(is_ready));
            if !ready.is_empty() {
                break;
            }
            if !self.pass_time(u64::MAX) {
                return Err("deadlock: every thread sleeps, and nothing wakes any".into());
            }
            self.wake();
        }
        let stays = ready.contains(&self.current) && !yields;
        let chosen = match &self.strategy {
            _ if ready.len() == 1 => ready[0],
            Strategy::Sticky(times) if stays && !self.choices.once_in(*times) => self.current,
            Strategy::Uniform | Strategy::Sticky(_) => {
                if yields {
                    ready.retain(|&index| index != self.current);
                }
                self.choices.of(&ready)
            }
            Strategy::Priorities(changes) => {
                if yields || changes.contains(&self.steps) {
                    self.lowest -= 1;
                    self.threads[self.current].priority = self.lowest;
                }
                ready.iter().copied().max_by_key(|&index| self.threads[index].priority).unwrap_or(0)
            }
        };
        self.mix(chosen as u64);
        Ok(chosen)
    }

    fn add_thread(&mut self, name: String, interruptible: bool) {
        let priority = u64::MAX / 2 + 1 + self.choices.below(1 << 30) as u64;
        let (state, woken) = (State::Ready, Woken::Ready);
        self.threads.push(Thread { name, state, woken, priority, interruptible, call: "-" });
    }

    /// What the threads are doing.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (index, thread) in self.threads.iter().enumerate() {
            let state = match &thread.state {
                State::Ready if index == self.current => "runs".into(),
                State::Ready => "could run".into(),
                State::Done => continue,
                State::Asleep { wait, deadline_ns: u64::MAX, .. } => format!("sleeps for {wait:?}"),
                State::Asleep { wait, deadline_ns, .. } => format!("sleeps for {wait:?} until {deadline_ns}"),
            };
            let _ = writeln!(text, "  thread {index} {}: {state}; last call {}", thread.name, thread.call);
        }
        for (fd, what) in self.kernel.open_descriptors() {
            let _ = writeln!(text, "  descriptor {fd}: {what}");
        }
        let _ = writeln!(
            text,
            "  {} decisions by {:?}, time {} ns",
            self.steps, self.strategy, self.kernel.now_ns
        );
        text
    }
}

/// Begins a schedule: the calling task is its first thread.
pub fn begin(seed: u64) {
    world(|world| {
        *world = World::new(seed);
        world.add_thread("main".into(), false);
    });
    RUNS.set(true);
}

/// The schedule is over.
pub fn end() {
    RUNS.set(false);
}

fn pick(yields: bool) -> usize {
    match world(|world| world.decide(yields)) {
        Ok(chosen) => chosen,
        Err(fault) => crate::failure::fail(&fault),
    }
}

fn switch(yields: bool) {
    let chosen = pick(yields);
    let stays = world(|world| {
        let stays = world.current == chosen;
        world.next = (!stays).then_some(chosen);
        stays
    });
    if !stays {
        // As shuttle has it, a context switch and nothing else.
        shuttle::thread::sleep(Duration::ZERO);
    }
}

/// Another thread may go on here.
pub fn point() {
    if RUNS.get() {
        switch(false);
    }
}

/// Another thread goes on here, if one can.
pub fn give_way() {
    switch(true);
}

/// Puts the calling thread to sleep.
pub fn sleep(wait: Wait, deadline_ns: u64) -> Woken {
    world(|world| {
        let signals = world.threads[world.current].interruptible && wait != Wait::Time;
        let signalled = signals && world.random.once_in(world.signals);
        let after = world.random.below(3_000_000) as u64;
        let signal_ns = if signalled { world.kernel.now_ns + after } else { u64::MAX };
        if world.is_met(&wait) {
            return;
        }
        let current = world.current;
        world.threads[current].state = State::Asleep { wait, deadline_ns, signal_ns };
        world.threads[current].woken = Woken::Ready;
    });
    switch(false);
    world(|world| world.threads[world.current].woken)
}

/// Lets simulated time pass.
pub fn sleep_for(time_ns: u64) {
    let until = world(|world| world.kernel.now_ns + time_ns);
    sleep(Wait::Time, until);
}

/// Lets so much time pass, and more until every other thread sleeps.
pub fn rest(time_ns: u64) {
    // Never at the same time as whoever looks at something every few milliseconds.
    for odd in 1.. {
        sleep_for(time_ns + 77 + odd * 1_234_567);
        let rests = world(|world| {
            let mut others = world.threads.iter().enumerate().filter(|&(index, _)| index != world.current);
            !others.any(|(_, thread)| matches!(thread.state, State::Ready))
        });
        if rests {
            return;
        }
    }
}

/// Starts a thread; false where none can be had.
pub fn spawn(name: String, of_program: bool, body: impl FnOnce() + Send + 'static) -> bool {
    point();
    let refused = world(|world| {
        // Without it nobody completes anything for a program that makes no call.
        let refused = !of_program && name != "anyring-reactor" && world.random.once_in(world.threadless);
        if !refused {
            world.add_thread(name, of_program);
            // Shuttle switches before it numbers the thread.
            world.held = true;
            world.next = Some(world.current);
        }
        refused
    });
    if refused {
        return false;
    }
    drop(shuttle::thread::spawn(move || {
        body();
        world(|world| {
            let current = world.current;
            world.threads[current].state = State::Done;
            world.kernel.version += 1;
        });
    }));
    world(|world| world.held = false);
    point();
    true
}

/// Tells shuttle who goes on.
pub struct Picker {
    schedules: u64,
}

impl Picker {
    /// For so many schedules.
    pub fn new(schedules: u64) -> Picker {
        Picker { schedules }
    }
}

impl Scheduler for Picker {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.schedules = self.schedules.checked_sub(1)?;
        Some(Schedule::new(0))
    }

    fn next_task(&mut self, runnable: &[&Task], _: Option<TaskId>, _: bool) -> Option<TaskId> {
        let with = |index: usize| runnable.iter().map(|task| task.id()).find(|&id| usize::from(id) == index);
        if !RUNS.get() {
            // Before the first thread has begun, and after the last has ended.
            return runnable.first().map(|task| task.id());
        }
        // What has ended for us has not for shuttle.
        let gone = |id: &TaskId| world(|world| world.is_gone(usize::from(*id)));
        if let Some(id) = runnable.iter().map(|task| task.id()).find(gone) {
            return Some(id);
        }
        let next = world(|world| world.next.take()).unwrap_or_else(|| pick(false));
        world(|world| world.current = next);
        Some(with(next).unwrap_or_else(|| panic!("thread {next} cannot run as shuttle has it")))
    }

    fn next_u64(&mut self) -> u64 {
        0
    }
}

/// Is the machine being worked on by the caller of this?
pub fn is_borrowed() -> bool {
    WORLD.with(|world| world.try_borrow_mut().is_err())
}
