//! Mutation testing of the engine.
//!
//! cargo-mutants lists the mutants. It would build each of them separately, which takes most of the time. Here one
//! build contains all mutants, and an environment variable selects the active one:
//!
//! ```text
//!   list.rs     the mutants, as `cargo mutants --list` has them
//!   schema.rs   inserts all mutants of a file; each mutated place chooses between the original and its mutants
//!   tree.rs     builds the engine with all mutants, without those that the compiler refuses
//!   judge.rs    for each mutant, runs the tests that reach its place, until one fails
//! ```
//!
//! Mutants of constants have no place in a running program: they are counted, and left to cargo-mutants itself.

mod judge;
mod list;
mod process;
mod schema;
mod tree;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;

use judge::{Habits, Outcome};
use list::Mutant;
use tree::Tree;

/// Changes the engine's sources a little, many times, and counts how often a test fails.
#[derive(Parser)]
struct Arguments {
    /// Only the K-th of N parts of the mutants, as K/N. A mutant's part depends on its name.
    #[arg(long, default_value = "0/1")]
    sample: String,
    /// Only mutants of the lines that a diff changes (as cargo-mutants' --in-diff).
    #[arg(long, value_name = "FILE")]
    in_diff: Option<PathBuf>,
    /// Only mutants of these files (as cargo-mutants' --file).
    #[arg(long)]
    file: Vec<String>,
    /// Only mutants whose name contains this.
    #[arg(long)]
    name: Option<String>,
    /// Only mutants that earlier runs did not catch.
    #[arg(long)]
    again: bool,
    /// Only mutants that no earlier run has tested.
    #[arg(long)]
    rest: bool,
    /// Runs slow tests, the differential fuzzer and the simulation, too.
    #[arg(long)]
    slow: bool,
    /// Only tests whose name begins with this.
    #[arg(long)]
    test: Vec<String>,
    /// Number of tests that run concurrently.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Fails if the tests catch a smaller share, in percent.
    #[arg(long, default_value_t = 0.0)]
    least: f64,
}

/// The longest time of a test that runs without `--slow`.
const SLOW: Duration = Duration::from_secs(5);

/// The known results of mutants by their names, from this run and earlier ones; one line per mutant.
struct Record {
    known: Mutex<HashMap<String, String>>,
    file: Mutex<fs::File>,
}

impl Record {
    fn open(path: &Path) -> Result<Record> {
        let text = fs::read_to_string(path).unwrap_or_default();
        let known = text.lines().filter_map(|line| line.split_once('\t'));
        let known = known.map(|(outcome, name)| (name.to_owned(), outcome.to_owned())).collect();
        let file = fs::File::options().create(true).append(true).open(path)?;
        Ok(Record { known: Mutex::new(known), file: Mutex::new(file) })
    }

    fn note(&self, mutant: &Mutant, outcome: &str) -> Result<()> {
        writeln!(self.file.lock().unwrap(), "{outcome}\t{}", mutant.name)?;
        self.known.lock().unwrap().insert(mutant.name.clone(), outcome.to_owned());
        Ok(())
    }

    fn of(&self, mutant: &Mutant) -> Option<String> {
        self.known.lock().unwrap().get(&mutant.name).cloned()
    }
}

fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Caught(test) => format!("caught by {test}"),
        Outcome::Late(test) => format!("timeout of {test}"),
        Outcome::Missed(tests) => format!("missed by {tests} tests"),
    }
}

/// Judges the mutants of one build.
fn judge_all(
    tree: &Tree,
    mutants: &[Mutant],
    wanted: &[&Mutant],
    record: &Record,
    at: &Path,
    options: &Arguments,
) -> Result<()> {
    let judged = tree.settle(mutants)?;
    for mutant in wanted {
        if judged.unviable.contains(&mutant.number) {
            record.note(mutant, "unviable")?;
        } else if judged.alone.contains(&mutant.number) {
            record.note(mutant, "alone")?;
        }
    }
    let built = tree.build(options.slow)?;
    let mut tests = judge::tests(&built, options.slow)?;
    tests.retain(|test| {
        options.test.is_empty() || options.test.iter().any(|name| test.name.starts_with(name))
    });
    let mut tests = judge::learn(tests, at, mutants.len(), options.jobs)?;
    let times = tests.iter().map(|test| format!("{:>8} ms {}\n", test.took.as_millis(), test.name));
    fs::write(at.join("tests.txt"), times.collect::<String>())?;
    tests.retain(|test| options.slow || !options.test.is_empty() || test.took < SLOW);
    let viable = |mutant: &&&Mutant| {
        !judged.unviable.contains(&mutant.number) && !judged.alone.contains(&mutant.number)
    };
    let mut wanted: Vec<_> = wanted.iter().filter(viable).collect();
    // In pseudo-random order, so that a run that is ended early has judged a sample of all mutants.
    wanted.sort_by_key(|mutant| (mutant.number as u32).wrapping_mul(0x9e37_79b1));
    eprintln!("mutants: {} to judge with {} tests", wanted.len(), tests.len());
    let (habits, started) = (Habits::default(), Instant::now());
    judge::each(options.jobs, wanted.len(), |_, index| {
        let mutant = wanted[index];
        let found = judge::judge(&tests, at, mutant.number, &mutant.function, &habits)?;
        eprintln!(
            "{:>5} of {}, {:>4} s: {}: {}",
            index + 1,
            wanted.len(),
            started.elapsed().as_secs(),
            outcome(&found),
            mutant.name
        );
        record.note(mutant, &outcome(&found))
    })
}

/// Prints the share of caught mutants, by folder; returns the total share.
fn report(mutants: &[&Mutant], record: &Record) -> f64 {
    let mut folders: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for mutant in mutants {
        let found = record.of(mutant).unwrap_or_default();
        let kind = ["caught", "timeout", "missed", "unviable", "alone"]
            .into_iter()
            .find(|kind| found.starts_with(kind));
        for folder in [mutant.folder(), "together"] {
            *folders.entry(folder).or_default().entry(kind.unwrap_or("open")).or_default() += 1;
        }
        if kind == Some("missed") {
            println!("{found}: {}", mutant.name);
        }
    }
    println!(
        "{:<10} {:>7} {:>8} {:>7} {:>9} {:>6} {:>7}",
        "folder", "caught", "timeouts", "missed", "unviable", "alone", "share"
    );
    let mut share = 100.0;
    for (folder, counts) in &folders {
        let count = |kind| counts.get(kind).copied().unwrap_or_default();
        let (caught, late, missed) = (count("caught"), count("timeout"), count("missed"));
        share = 100.0 * (caught + late) as f64 / (caught + late + missed).max(1) as f64;
        println!(
            "{folder:<10} {caught:>7} {late:>8} {missed:>7} {:>9} {:>6} {share:>6.1}%",
            count("unviable"),
            count("alone")
        );
    }
    share
}

fn repository() -> Result<PathBuf> {
    let output = Command::new("git").args(["rev-parse", "--show-toplevel"]).output().context("git starts")?;
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

fn main() -> Result<ExitCode> {
    let options = Arguments::parse();
    let root = repository()?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let at = target.join("mutants");
    fs::create_dir_all(&at)?;
    let mutants = list::mutants(&root, &options.file, options.in_diff.as_deref())?;
    let (part, of) = options.sample.split_once('/').context("a sample is K/N")?;
    let (part, of): (usize, usize) = (part.parse()?, of.parse()?);
    let record = Record::open(&at.join("outcomes.txt"))?;
    let sampled = |mutant: &&Mutant| {
        mutant.part(of) == part % of && options.name.as_ref().is_none_or(|name| mutant.name.contains(name))
    };
    let sample: Vec<&Mutant> = mutants.iter().filter(sampled).collect();
    let wanted = |mutant: &&&Mutant| {
        let before = record.of(mutant).unwrap_or_default();
        if options.rest {
            return before.is_empty();
        }
        !options.again || before.starts_with("missed")
    };
    let open: Vec<&Mutant> = sample.iter().filter(wanted).copied().collect();
    eprintln!("mutants: {} in all, {} in the sample, {} to judge", mutants.len(), sample.len(), open.len());
    let tree = Tree::new(&root, &at, &mutants)?;
    judge_all(&tree, &mutants, &open, &record, &at, &options)?;
    let share = report(&sample, &record);
    Ok(if share >= options.least { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
