//! `anyring-bench`: what anyring costs, beside what it is compared to, measured in the same run.
//!
//! A *benchmark* compares *sides*: programs on the kernel's io_uring, the same programs under anyring,
//! and what one would use without a ring. The *harness* runs every side as a process of its own, in
//! interleaved rounds; the *workloads* are those programs; the *report* says what came out.

mod benchmarks;
mod failure;
mod harness;
mod report;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use benchmarks::Benchmark;
use failure::{Doing, Failure, Result};
use harness::launch::Context;
use harness::machine::Machine;
use harness::rounds::{Plan, measure};
use report::Results;
use workload::Workload;

/// Measures anyring beside what it is compared to, in the same run.
///
/// Every side of a benchmark runs as a process of its own, in interleaved rounds; the figures are medians.
#[derive(Debug, Parser)]
#[command(name = "anyring-bench", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    internal: Option<Internal>,
    /// Benchmarks to run, all by default; --list names them.
    benchmarks: Vec<String>,
    /// Name the benchmarks and what they compare.
    #[arg(long)]
    list: bool,
    /// Few and short rounds: for a look, not for a figure.
    #[arg(long)]
    quick: bool,
    /// Run this side only; may be repeated. --list names them.
    #[arg(long = "side", value_name = "NAME")]
    sides: Vec<String>,
    /// Run only the cases with this text in their names; may be repeated.
    #[arg(long = "case", value_name = "TEXT")]
    cases: Vec<String>,
    /// Rounds of each case.
    #[arg(long)]
    rounds: Option<usize>,
    /// Milliseconds to measure per side, case and round.
    #[arg(long)]
    window_ms: Option<u64>,
    /// Print everything as JSON, each round included.
    #[arg(long)]
    json: bool,
    /// Write the results into this page, for instance docs/benchmarks.md; sections of benchmarks that were not run stay.
    #[arg(long, value_name = "PAGE")]
    write: Option<PathBuf>,
    /// Leave out the sides that run on anyring.
    #[arg(long)]
    native_only: bool,
    /// Do not count system calls.
    #[arg(long)]
    no_syscalls: bool,
    /// Where to put files, on the file system to be measured.
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
    /// Where `anyring`, `anyring-deny` and the preload library are, by default beside this program.
    #[arg(long, value_name = "DIRECTORY")]
    tools: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Internal {
    /// One of the measured programs, by itself.
    #[command(hide = true)]
    Workload {
        /// Call the engine of this very program instead of the system.
        #[arg(long)]
        linked: bool,
        #[command(subcommand)]
        workload: Workload,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match &arguments.internal {
        Some(Internal::Workload { linked, workload }) => {
            if *linked {
                workload::linked::activate();
            }
            workload.run()
        }
        None => run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("anyring-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let mut chosen = choose(&arguments.benchmarks)?;
    if arguments.list {
        for benchmark in &chosen {
            list(benchmark.as_ref());
        }
        return Ok(());
    }
    let (rounds, window_ms) = if arguments.quick { (3, 100) } else { (9, 500) };
    let plan = Plan {
        rounds: arguments.rounds.unwrap_or(rounds).max(1),
        quick: arguments.quick,
        syscalls: !arguments.no_syscalls,
        sides: arguments.sides.clone(),
        cases: arguments.cases.clone(),
    };
    let context = Context::new(
        arguments.tools.clone(),
        &arguments.dir.clone().unwrap_or_else(std::env::temp_dir),
        Duration::from_millis(arguments.window_ms.unwrap_or(window_ms).max(1)),
        arguments.native_only,
    )?;
    let machine = Machine::read(&context.scratch);
    if let Some(warning) = machine.warning() {
        eprintln!("warning: {warning}");
    }
    let mut results = Results { machine, command: command_line(), benchmarks: Vec::new() };
    for benchmark in &mut chosen {
        let outcome = measure(benchmark.as_mut(), &context, &plan)?;
        if !arguments.json {
            report::table::print(&outcome);
        }
        results.benchmarks.push(outcome);
    }
    publish(arguments, &results)?;
    match results.benchmarks.iter().map(|outcome| outcome.failed.len()).sum() {
        0 => Ok(()),
        failed => Err(Failure::new(format!("{failed} measurements failed; they are named above"))),
    }
}

fn publish(arguments: &Arguments, results: &Results) -> Result<()> {
    if arguments.json {
        let text = serde_json::to_string_pretty(results).doing(|| "writing the results as JSON".into())?;
        println!("{text}");
    }
    if let Some(page) = &arguments.write {
        report::page::write(page, results)?;
        eprintln!("written to {}", page.display());
    }
    Ok(())
}

fn choose(names: &[String]) -> Result<Vec<Box<dyn Benchmark>>> {
    let all = benchmarks::all();
    let known: Vec<&str> = all.iter().map(|one| one.about().name).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(Failure::new(format!("there is no benchmark `{unknown}`"))
            .advice(format!("there are: {}", known.join(", "))));
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|other| other == name);
    Ok(all.into_iter().filter(|one| wanted(one.about().name)).collect())
}

fn list(benchmark: &dyn Benchmark) {
    let about = benchmark.about();
    let sides: Vec<&str> = benchmark.sides().iter().map(|side| side.name).collect();
    println!("{:12} {}", about.name, about.title);
    println!("{:12}   sides: {}", "", sides.join("; "));
    println!("{:12}   goal: {}", "", about.goal);
}

/// The command as a reader would repeat it: the program by its name alone.
fn command_line() -> String {
    std::iter::once("anyring-bench".to_owned()).chain(std::env::args().skip(1)).collect::<Vec<_>>().join(" ")
}
