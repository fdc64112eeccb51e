//! The engine on a simulated system: its own code, every interleaving reproducible from a seed.
//!
//! ```text
//!   program.rs  a seed determines a program: threads, rings, files, the acts of each thread
//!      |
//!   run.rs      the threads run it and reap all completions; the judge compares their results
//!      |        with the data that the system moved                    ring.rs: setup, enter, register, ring memory
//!      v
//!   engine/     the engine's sources, built with cfg(anyring_simulation): every system call goes to
//!      |        os::System, and before every atomic access another thread may run (sync::atomic)
//!      v
//!   calls.rs    the calls by the kernel's numbers: which sleep, what faults are injected
//!      |
//!   kernel.rs   descriptors, descriptions, epoll, eventfds, pipes, connections, files, memfds, inotify
//!      |
//!   world.rs    threads (coroutines), the scheduler, the clock, the end of sleeps
//! ```
//!
//! **The running thread** is chosen in `world.rs` at every atomic access, lock and system call, by the seed: any
//! thread, mostly the same, or the one of the highest priority with some changes of priority (PCT). Threads are
//! coroutines: a process has one thread, and several processes share the seeds (`--jobs`).
//!
//! **Time** advances when every thread sleeps, up to the next deadline; a little with each call; and, by the seed,
//! up to a deadline while threads could run, as on a busy machine.
//!
//! **Faults of the system**, by the seed: `EINTR` in the program's threads; failures to create threads and descriptors; a limit of
//! descriptors that is reached, which the process may or may not raise; a call that the system lacks or a sandbox refuses (`world.rs`,
//! `DENIED`); transfers of storage that are short, would block or take long; pipes and sockets with little room. The next file gets
//! the number of a closed one. A file may have two descriptors, either of which is closed first.
//!
//! **The judge**: every request completes exactly once, multishot requests end once, messages arrive exactly once; a completion reports
//! what the system moved to or from the request's memory, in a file that the request may reach; a poll reports a file that was ready; no
//! request that could continue rests (checked when all threads sleep); nothing sleeps or runs forever; at the end no ring, thread,
//! descriptor or mapping of the engine is left, and no assertion has failed.
//!
//! Calls that are not simulated panic with the call's name. Every access is sequentially consistent here; loom checks
//! what a weaker memory order allows (`core/engine/tests/models/token.rs`).
//!
//! The engine is a separate package here (`simulation/engine`, of the same sources), because a feature would
//! affect every build of the workspace that also builds this crate.

mod aio;
mod calls;
mod failure;
mod kernel;
mod program;
mod random;
mod ring;
mod run;
mod trace;
mod world;

use std::ops::Range;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use anyring_engine::Host;
use anyring_engine::os::System;
use clap::Parser;
use corosensei::stack::DefaultStack;

use program::{Family, Program};

/// Runs random programs on the engine over a simulated system, under schedules that a seed decides.
#[derive(Parser)]
#[command(name = "anyring-simulation", version)]
struct Arguments {
    /// Number of schedules.
    #[arg(long, default_value_t = 10_000)]
    schedules: u64,
    /// Seed of the first schedule; each further schedule has the next seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The subject of programs.
    #[arg(long, value_enum, default_value = "any")]
    program: Family,
    /// Number of processes that share the schedules [default: one for each processor].
    #[arg(long)]
    jobs: Option<u64>,
    /// Runs only the schedule of this seed, and prints its result.
    #[arg(long)]
    replay: Option<u64>,
    /// Prints every call and completion of that schedule.
    #[arg(long, requires = "replay")]
    trace: bool,
    /// Runs this number of schedules before that one, in the same process.
    #[arg(long, requires = "replay", default_value_t = 0)]
    behind: u64,
    /// Runs the schedules in order and in reverse order, and checks that each has equal results: no schedule depends on those before
    /// it.
    #[arg(long, conflicts_with = "replay")]
    compare: bool,
}

static SYSTEM: &dyn System = &calls::Simulated;
static HOST: &dyn Host = &run::SimulatedHost;

fn main() -> ExitCode {
    let Arguments { schedules, seed, program: family, jobs, replay, trace, behind, compare } =
        Arguments::parse();
    if let Some(seed) = replay {
        println!("{}", Program::of_seed(seed, family));
        let mut simulation = Simulation::begin(family);
        (seed.saturating_sub(behind)..seed).for_each(|before| _ = simulation.run(before));
        trace::set(trace);
        let hash = simulation.run(seed);
        println!("{} steps; it comes to {hash:#018x}", world::world(|world| world.steps()));
        return ExitCode::SUCCESS;
    }
    if compare {
        return compare_orders(seed..seed + schedules, family);
    }
    let jobs =
        jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |count| count.get() as u64));
    let started = Instant::now();
    if jobs > 1 {
        return share(seed, schedules, family, jobs);
    }
    let mut simulation = Simulation::begin(family);
    let (mut steps, mut hash) = (0, 0);
    for seed in seed..seed + schedules {
        hash = simulation.run(seed);
        steps += world::world(|world| world.steps());
    }
    println!(
        "{schedules} schedules from seed {seed} on without a fault, {:.0} a second, {} steps each; the last comes to {hash:#018x}",
        schedules as f64 / started.elapsed().as_secs_f64(),
        steps / schedules.max(1)
    );
    ExitCode::SUCCESS
}

/// Runs schedules in order and in reverse order, and names those whose results differ.
fn compare_orders(seeds: Range<u64>, family: Family) -> ExitCode {
    let mut simulation = Simulation::begin(family);
    let forwards: Vec<(u64, u64)> = seeds.map(|seed| (seed, simulation.run(seed))).collect();
    let mut differ = 0;
    for (seed, before) in forwards.into_iter().rev() {
        let hash = simulation.run(seed);
        if hash != before {
            eprintln!(
                "seed {seed} comes to {before:#018x} behind lower ones, to {hash:#018x} behind higher ones"
            );
            differ += 1;
        }
    }
    println!("{differ} schedules depend on those before them");
    if differ == 0 { ExitCode::SUCCESS } else { ExitCode::from(failure::FAULT as u8) }
}

/// Distributes the schedules over processes, some at a time, up to a fault: a process has one engine.
fn share(seed: u64, schedules: u64, family: Family, jobs: u64) -> ExitCode {
    const SOME: u64 = 5_000;
    let started = Instant::now();
    let this = std::env::current_exe().expect("the executable has a path");
    let family = format!("{family:?}").to_lowercase();
    let (next, faulty) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        while !faulty.load(Relaxed) {
            let from = next.fetch_add(SOME, Relaxed);
            if from >= schedules {
                break;
            }
            let count = SOME.min(schedules - from).to_string();
            let arguments = [
                "--jobs",
                "1",
                "--program",
                &family,
                "--seed",
                &(seed + from).to_string(),
                "--schedules",
                &count,
            ];
            let ended = Command::new(&this).args(arguments).stdout(Stdio::null()).status();
            if !ended.is_ok_and(|status| status.success()) {
                faulty.store(true, Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(work);
        }
    });
    if faulty.into_inner() {
        return ExitCode::from(failure::FAULT as u8);
    }
    println!(
        "{schedules} schedules without a fault, {:.0} a second",
        schedules as f64 / started.elapsed().as_secs_f64()
    );
    ExitCode::SUCCESS
}

/// The process's engine over a simulated system, for consecutive schedules.
struct Simulation {
    family: Family,
    stacks: Vec<DefaultStack>,
    /// The number of schedules that were run.
    runs: u64,
}

impl Simulation {
    /// Creates the simulation of this process.
    fn begin(family: Family) -> Simulation {
        failure::hear_panics();
        anyring_engine::os::install_system(&SYSTEM);
        anyring_engine::install(&HOST);
        world::prepare(anyring_engine::simulation::prepare);
        Simulation { family, stacks: Vec::new(), runs: 0 }
    }

    /// Runs the schedule of a seed; returns the hash of its results.
    fn run(&mut self, seed: u64) -> u64 {
        let family = self.family;
        failure::runs(seed, family, self.runs);
        self.runs += 1;
        anyring_engine::simulation::forget();
        world::run(seed, &mut self.stacks, move || run::execute(Program::of_seed(seed, family)));
        world::world(|world| world.hash())
    }
}
