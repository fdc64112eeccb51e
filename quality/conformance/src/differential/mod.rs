//! The differential fuzzer: random programs run on the kernel's io_uring and on the user engine,
//! each in a separate world, step by step. The results must be equal.
//!
//! ```text
//!  seed ──generate──► Program ──run──► the same, or a Difference ──shrink──► a listing
//!                                └─ in forked children: a crash or a hang is a finding too
//! ```
//!
//! [`compare`] defines equality.

pub mod child;
pub mod compare;
pub mod explain;
pub mod generate;
pub mod hostile;
pub mod operations;
pub mod program;
pub mod progress;
pub mod record;
pub mod run;
pub mod shrink;
pub mod side;
pub mod tape;
pub mod timing;
pub mod world;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;

use child::{Finding, Lost, Range, counter_of, decode, run_alone, run_range, scratch_directory};
use explain::EXPLANATIONS;
use program::Program;
use progress::Page;
use run::Difference;

use crate::harness::{self, Programs, lanes, listed};
use crate::ring;
use crate::rng::program_seed;

/// The number of programs per child.
const BATCH: u64 = 250;

/// The number of findings of one kind that are shrunk and printed.
const SHOWN: u64 = 1;

/// The options of `differential`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The programs.
    #[command(flatten)]
    pub run: Programs,
    /// Run the one program of this seed, as a report printed it
    #[arg(long, value_parser = crate::rng::seed)]
    pub program_seed: Option<u64>,
    /// Write the kernel's answers to a file, except programs whose answers vary
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hostile", "program_seed"])]
    pub record: Option<PathBuf>,
    /// Compare the user engine with the answers in a file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hostile", "program_seed", "record"])]
    pub replay: Option<PathBuf>,
    /// With --replay: compare the kernel with the answers
    #[arg(long, requires = "replay")]
    pub kernel: bool,
    /// User engine only, with ring memory and arguments that try to harm it
    #[arg(long)]
    pub hostile: bool,
    /// Concurrent children; they mostly wait [default: sixteen for each processor]
    #[arg(long)]
    pub jobs: Option<usize>,
    /// Count differences in the list of open ones (open.txt), too
    #[arg(long)]
    pub all: bool,
    /// Print programs that differed once only, too, and those for which the kernel differs from itself
    #[arg(long)]
    pub unsteady: bool,
    /// Print programs as they are generated, without making them smaller
    #[arg(long)]
    pub no_shrink: bool,
}

/// Known differences that have not been analysed: they do not count against a run.
const OPEN: &str = include_str!("open.txt");

/// True if a signature is in the list.
fn is_open(signature: &str) -> bool {
    listed(OPEN).any(|name| name == signature)
}

/// The maximum number of programs per thousand with an explanation that no run of the kernel proves.
const MOST_UNPROVED: u64 = 4;

/// The number of programs with an explained difference.
#[derive(Clone, Copy, Default, Debug)]
pub struct Count {
    /// The number of all these programs.
    pub all: u64,
    /// The number of these programs for which no run of the kernel proves the explanation ([`timing::is_proved`]).
    pub unproved: u64,
}

impl Count {
    fn add(&mut self, other: Count) {
        self.all += other.all;
        self.unproved += other.unproved;
    }
}

/// The results of a run.
#[derive(Clone, Default, Debug)]
pub struct Summary {
    /// The number of programs that behave alike on both engines.
    pub clean: u64,
    /// Intended differences, by explanation.
    pub explained: BTreeMap<&'static str, Count>,
    /// The number of programs that differed once and not again, or in which the kernel hung once.
    pub unsteady: u64,
    /// The number of programs for which the kernel differs from itself, or the difference depends on timing.
    pub racy: u64,
    /// The number of programs with known differences.
    pub open: u64,
    /// The number of other differences, by signature.
    pub differences: BTreeMap<String, u64>,
}

impl Summary {
    fn different(&self) -> u64 {
        self.differences.values().sum()
    }

    fn total(&self) -> u64 {
        self.clean + self.explained().all + self.unsteady + self.racy + self.open + self.different()
    }

    fn explained(&self) -> Count {
        let mut sum = Count::default();
        self.explained.values().for_each(|&count| sum.add(count));
        sum
    }

    /// True if too many explained differences are not proved by a run of the kernel.
    pub fn explains_too_much(&self) -> bool {
        self.total() >= 1000 && self.explained().unproved * 1000 > self.total() * MOST_UNPROVED
    }

    fn add(&mut self, other: Summary) {
        self.clean += other.clean;
        self.unsteady += other.unsteady;
        self.racy += other.racy;
        self.open += other.open;
        for (name, count) in other.explained {
            self.explained.entry(name).or_default().add(count);
        }
        for (signature, count) in other.differences {
            *self.differences.entry(signature).or_default() += count;
        }
    }

    /// Adds the counts of a child.
    fn take_counts(&mut self, page: &Page) {
        self.clean = page.clean.load(Ordering::Relaxed);
        self.unsteady = page.unsteady.load(Ordering::Relaxed);
        self.racy = page.racy.load(Ordering::Relaxed);
        for (explanation, (proved, unproved)) in
            EXPLANATIONS.iter().zip(page.proved.iter().zip(&page.unproved))
        {
            let unproved = unproved.load(Ordering::Relaxed);
            let count = Count { all: proved.load(Ordering::Relaxed) + unproved, unproved };
            if count.all > 0 {
                self.explained.entry(explanation.name).or_default().add(count);
            }
        }
    }
}

/// The command `differential`.
pub fn command(options: &Options) -> ExitCode {
    if options.hostile {
        return hostile::command(options);
    }
    if let Some(path) = &options.replay {
        return record::command(path, options);
    }
    if let Some(path) = &options.record {
        return record::record(path, options);
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
    for (name, Count { all, unproved }) in &summary.explained {
        println!("{all:>7}  explained: {name}; {unproved} unproved");
    }
    let (total, different) = (summary.total(), summary.different());
    println!(
        "{total} programs from {} on in {seconds:.1} s ({:.0} a second): {} the same, {} explained ({} unproved), \
         {} unsteady, \
         {} racy on the kernel itself, {} differ as known, {different} differ in {} other ways",
        options.run.first,
        total as f64 / seconds,
        summary.clean,
        summary.explained().all,
        summary.explained().unproved,
        summary.unsteady,
        summary.racy,
        summary.open,
        summary.differences.len()
    );
    if summary.explains_too_much() {
        println!(
            "more than {MOST_UNPROVED} of 1000 programs differ by explanations that no run of the kernel proves"
        );
        return ExitCode::FAILURE;
    }
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

/// Runs programs in several concurrent children.
pub fn run_many(options: &Options) -> Summary {
    let pages = harness::pages(options.jobs, 16, progress::new_page);
    let (begun, next) = (Instant::now(), AtomicU64::new(options.run.first));
    let sum = |summaries: Vec<Summary>| {
        summaries.into_iter().fold(Summary::default(), |mut all, one| {
            all.add(one);
            all
        })
    };
    let counted = |page: &Page| {
        let mut summary = Summary::default();
        summary.take_counts(page);
        summary
    };
    let tell = || {
        let done = sum(pages.iter().map(|page| counted(page)).collect()).total();
        // The oldest program in progress: later batches may be finished before it.
        let behind = pages.iter().map(|page| page.program.load(Ordering::Relaxed)).min().unwrap_or(0);
        eprintln!("{}", options.run.progress(done, begun, behind.min(next.load(Ordering::Relaxed))));
    };
    let summaries = harness::telling(options.run.progress, tell, || {
        lanes(&pages, |lane, page| {
            let mut summary = Summary::default();
            loop {
                let first = next.fetch_add(BATCH, Ordering::Relaxed);
                let Some(left) = options.run.end().checked_sub(first).filter(|&left| left > 0) else { break };
                run_batch(page, options, (first, BATCH.min(left)), lane, &mut summary);
            }
            summary.take_counts(page);
            summary
        })
    });
    sum(summaries)
}

fn run_batch(page: &'static Page, options: &Options, range: Range, lane: usize, summary: &mut Summary) {
    let (mut first, end) = (range.0, range.0 + range.1);
    while first < end {
        let scratch = scratch_directory(lane, first / BATCH);
        let mut child = run_range(page, options.run.seed, (first, end - first), &scratch);
        loop {
            match child.report() {
                Ok(Some(line)) => {
                    let Some((index, text)) = line.split_once('\t') else { continue };
                    let index = index.parse().expect("a child's report");
                    note(options, index, &decode(text), summary);
                }
                Ok(None) => return,
                Err(lost) => {
                    first = page.program.load(Ordering::Relaxed);
                    let finding = judge_lost(page, options, first, lost, &scratch);
                    if let Some(counter) = counter_of(page, &finding) {
                        counter.fetch_add(1, Ordering::Relaxed);
                    }
                    note(options, first, &finding, summary);
                    first += 1;
                    break;
                }
            }
        }
    }
}

/// Returns the finding about a program whose child was lost.
///
/// A child that hung in a call to the kernel's own ring says nothing about the user engine: the kernel was late, or made
/// no progress, which sometimes happens on a slow machine. Such a program runs again, alone.
fn judge_lost(page: &'static Page, options: &Options, index: u64, lost: Lost, scratch: &Path) -> Finding {
    if !lost.by_kernel {
        return Finding::Lost(lost.how);
    }
    let program = generate::program(program_seed(options.run.seed, index));
    run_alone(page, &program, scratch, true).unwrap_or_else(|| {
        let (signature, user) = ("hangs once".to_owned(), String::new());
        Finding::Unsteady(Difference { step: None, signature, user, kernel: lost.how })
    })
}

fn note(options: &Options, index: u64, finding: &Finding, summary: &mut Summary) {
    let program = generate::program(program_seed(options.run.seed, index));
    if let Finding::Unsteady(difference) | Finding::Racy(difference) = finding {
        if options.unsteady {
            let kind = if matches!(finding, Finding::Racy(_)) { "racy" } else { "unsteady" };
            println!(
                "{program}\n{kind}: {}\n  user    {}\n  kernel  {}\n",
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

/// Returns the smallest program that shows a finding, and the results of both engines.
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
        Finding::Differs(difference) | Finding::Unsteady(difference) | Finding::Racy(difference) => {
            let place = difference.step.map_or("the end".into(), |step| format!("step {step}"));
            format!(
                "{small}\nat {place}: {}\n  user    {}\n  kernel  {}",
                difference.signature, difference.user, difference.kernel
            )
        }
        Finding::Lost(how) => format!("{small}\nlost: {how}"),
    }
}
