//! The engine on a simulated system: its own code, every interleaving reproducible from a seed.
//!
//! ```text
//!   program.rs  a seed makes a program up: threads, rings, files, what each thread does
//!      |
//!   run.rs      the threads do it and fetch all completions; the judge compares what they get
//!      |        with what the system moved                      ring.rs: setup, enter, register, ring memory
//!      v
//!   engine/     the engine's sources, built with cfg(anyring_simulation): every system call goes to
//!      |        os::System, and before every atomic access another thread may go on (sync::atomic)
//!      v
//!   calls.rs    the calls by the kernel's numbers: which sleep, what faults are injected
//!      |
//!   kernel.rs   descriptors, descriptions, epoll, eventfds, pipes, connections, files, memfds, inotify
//!      |
//!   world.rs    threads (shuttle's tasks), who goes on, the clock, the end of sleeps
//! ```
//!
//! **Who goes on** is decided in `world.rs` at every atomic access, lock and system call: any thread, mostly the
//! same, or the one of the highest priority with some changes of priority (PCT), as the seed has it. shuttle switches
//! the stacks. It does not know who sleeps in a call, so it is told whom to take ([`world::Picker`]).
//!
//! **Time** passes when every thread sleeps, then up to the next deadline; a little with each call; and, as the seed
//! has it, up to a deadline while threads could run, as on a busy machine.
//!
//! **Faults of the system** as the seed has them: `EINTR` in the program's threads, threads and descriptors that cannot
//! be had, transfers of storage that come short, would block or take long, pipes and sockets with room for few bytes.
//! A number that is closed is given to the next file.
//!
//! **The judge**: every request completes exactly once, multishot ones end once, messages arrive exactly once; what a
//! completion reports is what the system moved to or from the request's memory, and in a file that the request may
//! reach; nothing that could go on rests (looked at when all threads sleep); nothing sleeps or runs for ever; in the
//! end no ring, thread, descriptor or mapping of the engine is left, and no assertion has failed.
//!
//! What is not simulated panics with the call's name. Every access is sequentially consistent here: what a weak memory
//! order allows beyond that is loom's to find (`core/engine/tests/token_model.rs`).
//!
//! The engine is a package of its own here (`simulation/engine`, over the same sources), for a feature would reach
//! every build of the workspace that builds this crate along.

mod calls;
mod failure;
mod kernel;
mod program;
mod random;
mod ring;
mod run;
mod trace;
mod world;

use std::time::Instant;

use anyring_engine::Host;
use anyring_engine::os::System;
use clap::Parser;
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use program::{Family, Program};

/// Runs random programs on the engine over a simulated system, under schedules that a seed decides.
#[derive(Parser)]
#[command(name = "anyring-simulation", version)]
struct Arguments {
    /// How many schedules.
    #[arg(long, default_value_t = 10_000)]
    schedules: u64,
    /// The first one's seed; each further one has the next.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What programs are about.
    #[arg(long, value_enum, default_value = "any")]
    program: Family,
    /// Closes no socket that listens.
    #[arg(long)]
    keep_listeners: bool,
    /// Runs the schedule of this seed alone, and tells of it.
    #[arg(long)]
    replay: Option<u64>,
    /// Tells of every call and completion of that schedule.
    #[arg(long, requires = "replay")]
    trace: bool,
}

static SYSTEM: &dyn System = &calls::Simulated;
static HOST: &dyn Host = &run::SimulatedHost;

fn main() {
    let arguments = Arguments::parse();
    failure::hear_panics();
    trace::set(arguments.trace);
    anyring_engine::os::install_system(&SYSTEM);
    anyring_engine::install(&HOST);
    let (first, count) = match arguments.replay {
        Some(seed) => (seed, 1),
        None => (arguments.seed, arguments.schedules),
    };
    let started = Instant::now();
    let steps = simulate(first, count, &arguments);
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{count} schedules without a fault, {:.0} a second, {:.0} decisions each",
        count as f64 / seconds,
        steps as f64 / count as f64
    );
}

/// Runs schedules; returns the decisions of all.
fn simulate(first: u64, count: u64, arguments: &Arguments) -> u64 {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    let Arguments { program: family, keep_listeners, replay, .. } = *arguments;
    let tells = replay.is_some();
    let mut config = Config::new();
    config.stack_size = 256 << 10;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::None;
    let (next, steps) = (AtomicU64::new(first), Arc::new(AtomicU64::new(0)));
    let total = Arc::clone(&steps);
    let runner = Runner::new(world::Picker::new(count), config);
    runner.run(move || {
        let seed = next.fetch_add(1, Relaxed);
        let program = Program::of_seed(seed, family, keep_listeners);
        if tells {
            println!("{program}");
        }
        let name = format!("{family:?}").to_lowercase();
        if seed == first {
            world::begin(0);
            anyring_engine::simulation::prepare();
        }
        let kept = if keep_listeners { " --keep-listeners" } else { "" };
        failure::runs(program.clone(), format!("anyring-simulation --program {name}{kept} --replay {seed}"));
        world::begin(seed);
        run::execute(program);
        let (taken, hash) = world::world(|world| (world.steps(), world.hash()));
        world::end();
        total.fetch_add(taken, Relaxed);
        if tells {
            println!("{taken} decisions, which come to {hash:#018x}");
        }
    });
    steps.load(Relaxed)
}
