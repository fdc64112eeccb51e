//! The costs of an operation, counted instead of timed: system calls by the tracepoint that every call passes, instructions in
//! user space by callgrind. Counts are nearly the same on every machine, so a rise is a fault: [`run`] compares them with the
//! committed page.

mod instructions;
mod page;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args as ClapArgs;

use crate::benchmarks::{self, Benchmark, Side};
use crate::failure::{Failure, Result};
use crate::harness::launch::{Context, On};
use crate::harness::process::Process;
use crate::harness::rounds::syscalls_per_op;
use crate::harness::syscalls::Counter;
use page::{Count, Page, Row};

/// Arguments of the command.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// Write the page instead of comparing with it. With `--row`, the other rows stay.
    #[arg(long)]
    write: bool,
    /// The page.
    #[arg(long, default_value = "docs/benchmarks/counts.md", value_name = "FILE")]
    page: PathBuf,
    /// Only rows with this text.
    #[arg(long, default_value = "", value_name = "TEXT")]
    row: String,
    /// Where `anyring`, `anyring-deny` and the preload library are, by default beside this program.
    #[arg(long, value_name = "DIRECTORY")]
    tools: Option<PathBuf>,
}

/// A benchmark and its cases that are counted; an empty list means all cases.
type Counted = (&'static str, &'static [&'static str]);

const COUNTED: &[Counted] = &[
    ("nop", &["1 per enter", "16 per enter"]),
    ("meta", &[]),
    ("fio-read", &[]),
    ("fio-cold", &[]),
    ("fio-direct", &[]),
    ("fio-sync", &[]),
    ("accept", &["1 at once", "100 at once"]),
    ("echo", &["1 connection", "100 connections"]),
    ("send", &["loopback UDP, 200 B, 8 per enter", "loopback TCP, 64 KiB"]),
];

/// Attempts per count. The page has the highest of them; a count has risen if the lowest is above the page.
const ATTEMPTS: usize = 3;

/// The length of the longer of the two runs from which a count is computed.
const WINDOW: Duration = Duration::from_millis(80);

/// Counts, and compares with the page or writes it.
pub fn run(args: &Args) -> Result<()> {
    if Counter::start().is_none() {
        return Err(Failure::new("system calls cannot be counted here").advice(
            "it takes root and the kernel's tracepoints: mount -t tracefs none /sys/kernel/tracing",
        ));
    }
    let scratch = std::env::temp_dir();
    let context = Context::new(args.tools.clone(), &scratch, WINDOW, false, false)?;
    let writes_all = args.write && args.row.is_empty();
    let known = if writes_all { Page::default() } else { Page::read(&args.page)? };
    let mut counting = Counting { args, context: &context, known: &known, counts: Vec::new() };
    counting.benchmarks()?;
    counting.starts()?;
    instructions::count(&mut counting)?;
    let counts = counting.counts;
    match args.write {
        true => known.with(counts).write(&args.page),
        false => known.compare(&counts, &args.row),
    }
}

/// The counts so far.
pub struct Counting<'a> {
    args: &'a Args,
    context: &'a Context,
    known: &'a Page,
    counts: Vec<Count>,
}

impl Counting<'_> {
    fn benchmarks(&mut self) -> Result<()> {
        for mut benchmark in benchmarks::all() {
            let name = benchmark.about().name;
            if let Some((_, cases)) = COUNTED.iter().find(|(counted, _)| *counted == name) {
                self.benchmark(benchmark.as_mut(), cases)?;
            }
        }
        Ok(())
    }

    fn benchmark(&mut self, benchmark: &mut dyn Benchmark, cases: &[&str]) -> Result<()> {
        let name = benchmark.about().name;
        let mut usable = Vec::new();
        for side in 0..benchmark.sides().len() {
            if benchmark.obstacle(self.context, side)?.is_none() {
                usable.push(side);
            }
        }
        benchmark.prepare(self.context, &usable)?;
        for (group, case) in benchmark.groups(false).iter().enumerate() {
            let missing = benchmark.missing(self.context, group).is_some();
            if missing || !cases.is_empty() && !cases.contains(&case.as_str()) {
                continue;
            }
            for &side in &usable {
                let Side { name: side_name, on, .. } = benchmark.sides()[side];
                // These sides are not used in practice.
                if on == On::AnyringTrap || side_name.ends_with("no filter") {
                    continue;
                }
                self.count(Row::new(name, case, side_name), || {
                    syscalls_per_op(benchmark, self.context, group, side)
                })?;
            }
        }
        Ok(())
    }

    /// Counts the system calls of starting and ending a program that does nothing, including those of this process.
    fn starts(&mut self) -> Result<()> {
        for (side, on) in [("plain", On::Denied), ("anyring", On::Anyring)] {
            self.count(Row::new("start", "true", side), || {
                let mut counter = Counter::start();
                let command = self.context.command(on, Path::new("true"));
                Process::start(command, &self.context.scratch, self.context.limit())?.finish()?;
                Ok(counter.as_mut().map(|counter| counter.count() as f64))
            })?;
        }
        Ok(())
    }

    /// Counts a selected row several times: the highest count is for the page, the lowest is compared with the page.
    fn count(&mut self, row: Row, measure: impl Fn() -> Result<Option<f64>>) -> Result<()> {
        let writes = self.args.write;
        if !row.text().contains(&self.args.row) || !writes && !row.is_ours() {
            return Ok(());
        }
        let known = self.known.bound(&row);
        let mut best: Option<f64> = None;
        for _ in 0..ATTEMPTS {
            let Some(count) = measure()? else { return Ok(()) };
            let pick = if writes { f64::max } else { f64::min };
            let so_far = best.map_or(count, |best| pick(best, count));
            best = Some(so_far);
            if !writes && known.is_some_and(|bound| so_far <= bound) {
                break;
            }
        }
        if let Some(value) = best {
            anyring_say::say!("{:64} {value:10.2}", row.text());
            self.counts.push(Count { row, value });
        }
        Ok(())
    }
}
