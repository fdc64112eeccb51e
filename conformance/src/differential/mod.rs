//! The differential fuzzer: random programs, run on the kernel's io_uring and on the user engine,
//! each in a world of its own, step by step. What the two do must be the same.
//!
//! ```text
//!  seed ──generate──► Program ──run──► the same, or a Difference ──shrink──► a listing
//!                                └─ in forked children: a crash or a hang is a finding too
//! ```
//!
//! What counts as the same is said in [`compare`].

pub mod child;
pub mod compare;
pub mod generate;
pub mod hostile;
pub mod operations;
pub mod program;
pub mod progress;
pub mod ring;
pub mod rng;
pub mod run;
pub mod shrink;
pub mod side;
pub mod world;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Args;

use child::{Finding, decode, run_alone, run_range, scratch_directory};
use program::Program;
use progress::Page;
use rng::program_seed;

/// Programs that one child runs.
const BATCH: u64 = 250;

/// Findings of one kind that are shrunk and printed.
const SHOWN: u64 = 1;

/// What to do.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// How many programs
    #[arg(long, default_value_t = 10_000)]
    pub programs: u64,
    /// Where random numbers begin
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Run the one program of this seed, as a report printed it
    #[arg(long, value_parser = seed)]
    pub program_seed: Option<u64>,
    /// Stop after so many seconds
    #[arg(long, value_name = "SECONDS")]
    pub time: Option<u64>,
    /// User engine only, with ring memory and arguments that try to harm it
    #[arg(long)]
    pub hostile: bool,
    /// Children at once [default: the number of processors]
    #[arg(long)]
    pub jobs: Option<usize>,
    /// Count differences of the list of open ones, too
    #[arg(long)]
    pub all: bool,
    /// Print programs that differed once only, too
    #[arg(long)]
    pub unsteady: bool,
    /// Print programs as they are generated, without making them smaller
    #[arg(long)]
    pub no_shrink: bool,
}

fn seed(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

/// Differences that are known and wait for somebody to look into them: not counted against a run.
const OPEN: &str = include_str!("open.txt");

/// Is a signature in the list?
fn is_open(signature: &str) -> bool {
    OPEN.lines().any(|line| line.split('#').next().unwrap_or("").trim() == signature)
}

/// What came of a run.
#[derive(Clone, Default, Debug)]
pub struct Summary {
    /// The same on both engines.
    pub clean: u64,
    /// Differed once and not again.
    pub unsteady: u64,
    /// Differ in ways that are known and open.
    pub open: u64,
    /// Differ, by signature: how many.
    pub differences: BTreeMap<String, u64>,
}

/// The command `differential`.
pub fn command(options: &Options) -> ExitCode {
    if options.hostile {
        return hostile::command(options);
    }
    if !ring::kernel_available() {
        println!("skipped: this kernel gives no io_uring to compare with");
        return ExitCode::SUCCESS;
    }
    if let Some(seed) = options.program_seed {
        return one(seed, options);
    }
    let begun = Instant::now();
    let summary = run_many(options);
    let seconds = begun.elapsed().as_secs_f64();
    for (signature, count) in &summary.differences {
        println!("{count:>7}  {signature}");
    }
    let different: u64 = summary.differences.values().sum();
    let total = summary.clean + summary.unsteady + summary.open + different;
    println!(
        "{total} programs in {seconds:.1} s ({:.0} a second): {} clean, {} unsteady, {} differ as known, {different} in {} other ways",
        total as f64 / seconds,
        summary.clean,
        summary.unsteady,
        summary.open,
        summary.differences.len()
    );
    if different == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn one(seed: u64, options: &Options) -> ExitCode {
    let program = generate::program(seed);
    let page = progress::new_page();
    let finding = run_alone(page, &program, &scratch_directory(0, 0), true);
    match finding {
        None => {
            println!("{program}\nclean");
            ExitCode::SUCCESS
        }
        Some(finding) => {
            println!("{}", describe(page, &program, &finding, !options.no_shrink));
            ExitCode::FAILURE
        }
    }
}

/// Runs programs in several children at a time.
pub fn run_many(options: &Options) -> Summary {
    let jobs = options.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let pages: Vec<&'static Page> = (0..jobs.max(1)).map(|_| progress::new_page()).collect();
    let deadline = options.time.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let summaries = lanes(&pages, |lane, page| {
        let mut summary = Summary::default();
        let batches = options.programs.div_ceil(BATCH);
        for batch in (lane as u64..batches).step_by(pages.len()) {
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                break;
            }
            let first = batch * BATCH;
            let range = (first, BATCH.min(options.programs - first));
            run_batch(page, options, range, lane, &mut summary);
        }
        summary.clean = page.clean.load(Ordering::Relaxed);
        summary.unsteady = page.unsteady.load(Ordering::Relaxed);
        summary
    });
    summaries.into_iter().fold(Summary::default(), |mut all, one| {
        all.clean += one.clean;
        all.unsteady += one.unsteady;
        all.open += one.open;
        for (signature, count) in one.differences {
            *all.differences.entry(signature).or_default() += count;
        }
        all
    })
}

/// Runs `body` for each page in a thread.
fn lanes<T: Send>(pages: &[&'static Page], body: impl Fn(usize, &'static Page) -> T + Sync) -> Vec<T> {
    let body = &body;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            pages.iter().enumerate().map(|(lane, &page)| scope.spawn(move || body(lane, page))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a lane ends")).collect()
    })
}

fn run_batch(page: &'static Page, options: &Options, range: (u64, u64), lane: usize, summary: &mut Summary) {
    let (mut first, end) = (range.0, range.0 + range.1);
    while first < end {
        let scratch = scratch_directory(lane, first / BATCH);
        let mut child = run_range(page, options.seed, (first, end - first), &scratch);
        loop {
            match child.report() {
                Ok(Some(line)) => {
                    let Some((index, text)) = line.split_once('\t') else { continue };
                    let index = index.parse().expect("a child's report");
                    note(options, index, &decode(text), summary);
                }
                Ok(None) => return,
                Err(how) => {
                    first = page.program.load(Ordering::Relaxed);
                    note(options, first, &Finding::Lost(how), summary);
                    first += 1;
                    break;
                }
            }
        }
    }
}

fn note(options: &Options, index: u64, finding: &Finding, summary: &mut Summary) {
    let program = generate::program(program_seed(options.seed, index));
    if let Finding::Unsteady(difference) = finding {
        if options.unsteady {
            println!(
                "{program}\nunsteady: {}\n  user    {}\n  kernel  {}\n",
                difference.signature, difference.user, difference.kernel
            );
        }
        return;
    }
    if !options.all && is_open(finding.signature()) {
        summary.open += 1;
        return;
    }
    let known = summary.differences.entry(finding.signature().to_owned()).or_default();
    *known += 1;
    if *known <= SHOWN {
        println!("{}\n", describe(progress::new_page(), &program, finding, !options.no_shrink));
    }
}

/// The smallest program that shows a finding, and what the engines did.
fn describe(page: &'static Page, program: &Program, finding: &Finding, smaller: bool) -> String {
    let scratch = scratch_directory(1000 + program.seed as usize % 1000, 0);
    let signature = finding.signature().to_owned();
    let tries = if matches!(finding, Finding::Lost(_)) { 60 } else { 1500 };
    let deadline = Instant::now() + Duration::from_secs(12);
    let small = if smaller {
        shrink::shrink(program, tries, |candidate| {
            Instant::now() < deadline
                && run_alone(page, candidate, &scratch, false)
                    .is_some_and(|found| found.signature() == signature)
        })
    } else {
        program.clone()
    };
    let found = run_alone(page, &small, &scratch, true).unwrap_or_else(|| finding.clone());
    match found {
        Finding::Differs(difference) | Finding::Unsteady(difference) => {
            let place = difference.step.map_or("the end".into(), |step| format!("step {step}"));
            format!(
                "{small}\nat {place}: {}\n  user    {}\n  kernel  {}",
                difference.signature, difference.user, difference.kernel
            )
        }
        Finding::Lost(how) => format!("{small}\nlost: {how}"),
    }
}
