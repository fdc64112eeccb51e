//! Concurrent programs: random programs with several threads, rings and sometimes processes, judged by conditions that
//! must hold on any engine. They run on the user engine and on the kernel's io_uring: the latter validates the judge.
//!
//! ```text
//!  seed ──generate──► Program ──run──► threads push, wait, cancel, close ──finish──► empty or closed rings
//!                                         │ each completion                            │
//!                                         ▼                                            ▼
//!                                      complete: is the result permitted?            judge: nothing lost, nothing left
//!  child: many programs in a process; the parent watches its progress, and reports a process without progress
//! ```
//!
//! Conditions:
//! - A request completes exactly once; a multishot has one completion without `F_MORE`, its last; a zero-copy send has
//!   exactly one notification, after its result, if the result says so, and none otherwise.
//! - The operation can have the result; a request is cancelled only if a cancellation may have found it.
//! - The bytes of a stream arrive once and in order; those of a file are that file's, even if its number was reused.
//! - Memory of a completed request is not written to. A provided buffer is held by one completion at a time.
//! - A request linked after a failed one is cancelled, and completes later; a drain completes last.
//! - A message arrives exactly once, at its target only. Connections are accepted once.
//! - A wait for a request that is sure to complete ends. Nothing hangs. No descriptor, thread, child or mapping of a ring remains.
//! - Timeouts do not expire early. Threads and memory do not grow from program to program.
//!
//! A wait without a limit is made only for requests that complete whatever other requests do. If several threads wait on one
//! ring, a thread that reaps completions pushes a NOP for those that still wait, as a program would have to.
//!
//! Features with open faults of the user engine are listed in `open.txt`, and are not generated for it. With the
//! feature `pauses` the engine pauses at its locks and hand-overs, by the program's seed.

mod child;
mod children;
mod complete;
mod finish;
pub mod generate;
mod judge;
pub mod memory;
mod own;
pub mod plan;
mod prepare;
mod ring;
mod run;
mod unread;
mod watch;
mod world;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use crate::harness::{self, Programs, lanes, listed};
use crate::ring::{Engine, kernel_available};
use crate::rng::program_seed;
use child::{Failure, Job, Seeds, run_job};
use generate::Features;
use memory::Shared;

/// The default number of programs per child, after which it checks its resources.
const BATCH: u64 = 200;

/// The number of failures of one kind that are printed.
const SHOWN: u64 = 2;

/// The options of `concurrent`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The programs.
    #[command(flatten)]
    pub run: Programs,
    /// Run the one program of this seed, as a report printed it
    #[arg(long, value_name = "HEX", value_parser = crate::rng::seed)]
    pub one: Option<u64>,
    /// With --one: how often to run it, as runs of threads differ
    #[arg(long, default_value_t = 200)]
    pub times: u64,
    /// The engine. `kernel` makes system calls, which a front end answers under `anyring run`
    #[arg(long, value_enum, default_value_t = Which::Both)]
    pub engine: Which,
    /// Programs per process: with many, slow growth is noticed, too
    #[arg(long, value_name = "PROGRAMS", default_value_t = BATCH)]
    pub batch: u64,
    /// Concurrent children [default: one for each processor]
    #[arg(long)]
    pub jobs: Option<usize>,
    /// Run programs without this feature, by a name that a failed program prints
    #[arg(long, value_name = "FEATURE", value_delimiter = ',')]
    pub without: Vec<String>,
    /// Seconds without progress after which a program counts as hanging
    #[arg(long, value_name = "SECONDS", default_value_t = 8)]
    pub patience: u64,
    /// On the user engine, do not omit features with open faults
    #[arg(long)]
    pub all: bool,
    /// Print the program and do not run it
    #[arg(long, requires = "one")]
    pub list: bool,
}

/// Engines to run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Which {
    /// The user engine.
    User,
    /// The kernel engine.
    Kernel,
    /// First the user engine, then the kernel engine.
    Both,
}

/// The results of a run on one engine.
#[derive(Clone, Default, Debug)]
pub struct Summary {
    /// The number of programs.
    pub programs: u64,
    /// The number of their requests.
    pub requests: u64,
    /// The number of failures by signature.
    pub failures: BTreeMap<String, u64>,
}

/// Features in which the user engine has open faults.
const OPEN: &str = include_str!("open.txt");

impl Options {
    /// Returns the features of programs for an engine.
    ///
    /// # Errors
    /// Returns a name that is not a feature.
    pub fn features(&self, engine: Engine) -> Result<Features, String> {
        let open = listed(OPEN).map(str::to_owned).filter(|_| engine == Engine::User && !self.all);
        Features::without(&open.chain(self.without.iter().cloned()).collect::<Vec<_>>())
    }
}

/// The command `concurrent`.
pub fn command(options: &Options) -> ExitCode {
    let mut good = true;
    for engine in engines(options) {
        let features = match options.features(engine) {
            Ok(features) => features,
            Err(error) => {
                eprintln!("anyring-conformance: {error}");
                return ExitCode::from(2);
            }
        };
        if options.list {
            print!("{}", generate::program(options.one.unwrap_or(0), features));
            continue;
        }
        good &= run_and_tell(options, engine, features);
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs programs on an engine and prints the results. Returns true if all succeeded.
fn run_and_tell(options: &Options, engine: Engine, features: Features) -> bool {
    let begun = Instant::now();
    let summary = run_many(options, engine, features);
    let seconds = begun.elapsed().as_secs_f64();
    for (signature, count) in &summary.failures {
        println!("{count:>7}  {signature}");
    }
    let failed: u64 = summary.failures.values().sum();
    println!(
        "{engine:?}: {} programs with {} requests from {} on in {seconds:.1} s ({:.0} a second): {failed} failed in {} \
         ways",
        summary.programs,
        summary.requests,
        options.run.first,
        summary.programs as f64 / seconds,
        summary.failures.len()
    );
    failed == 0
}

/// Returns the engines of a run, without the kernel engine if it is not available.
fn engines(options: &Options) -> Vec<Engine> {
    let mut engines = vec![];
    if options.engine != Which::Kernel {
        engines.push(Engine::User);
    }
    if options.engine != Which::User {
        if kernel_available() {
            engines.push(Engine::Kernel);
        } else {
            println!("skipped: this kernel gives no io_uring");
        }
    }
    engines
}

/// Runs programs on an engine, in several concurrent children.
pub fn run_many(options: &Options, engine: Engine, features: Features) -> Summary {
    let pages = harness::pages(options.jobs, 1, Shared::map);
    let (first, end) = match options.one {
        Some(_) => (0, options.times),
        None => (options.run.first, options.run.end()),
    };
    let (begun, next, failures) = (Instant::now(), AtomicU64::new(first), Mutex::new(BTreeMap::new()));
    let sum =
        |count: fn(&Shared) -> &AtomicU64| pages.iter().map(|page| count(page).load(Ordering::Relaxed)).sum();
    let tell = || {
        let behind = pages.iter().map(|page| page.program.load(Ordering::Relaxed)).min().unwrap_or(0);
        let behind = behind.min(next.load(Ordering::Relaxed));
        eprintln!("{engine:?}: {}", options.run.progress(sum(|page| &page.done), begun, behind));
    };
    let lane = |_, page: &'static Shared| {
        loop {
            let first = next.fetch_add(options.batch, Ordering::Relaxed);
            if first >= end {
                return;
            }
            let last = end.min(first + options.batch);
            let seeds = match options.one {
                Some(seed) => Seeds::One(seed, last - first),
                None => Seeds::Range(options.run.seed, first, last),
            };
            let patience = Duration::from_secs(options.patience);
            let job = Job { engine, seeds, features, patience };
            run_job(&job, page, |failure| note(&job, &failure, options, &failures));
        }
    };
    harness::telling(options.run.progress, tell, || lanes(&pages, lane));
    Summary {
        programs: sum(|page| &page.done),
        requests: sum(|page| &page.requests),
        failures: failures.into_inner().unwrap(),
    }
}

/// Counts a failure, and prints the first ones of each kind.
fn note(job: &Job, failure: &Failure, options: &Options, failures: &Mutex<BTreeMap<String, u64>>) {
    let mut failures = failures.lock().unwrap();
    let count = failures.entry(failure.signature()).or_default();
    *count += 1;
    if *count > SHOWN {
        return;
    }
    let seed = match options.one {
        Some(seed) => seed,
        None => program_seed(options.run.seed, failure.index),
    };
    let engine = format!("{:?}", job.engine).to_lowercase();
    let mut without = options.without.iter().map(|name| format!(" --without {name}")).collect::<String>();
    if options.all {
        without += " --all";
    }
    println!("{}", generate::program(seed, job.features));
    println!("{engine} engine, program {}:", failure.index);
    failure.lines.iter().for_each(|line| println!("  {line}"));
    println!("again: anyring-conformance concurrent --engine {engine} --one {seed:#x}{without}\n");
}
