//! The command line, and the way from it to the results.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyring_say::{say, say_error};
use clap::{Parser, Subcommand};

use crate::benchmarks::Benchmark;
use crate::failure::{Doing, Failure, Result};
use crate::harness::launch::Context;
use crate::harness::machine::Machine;
use crate::harness::rounds::{Plan, measure};
use crate::report::Results;
use crate::workload::Workload;
use crate::{benchmarks, count, report, workload};

/// Measure anyring, and the kernel's io_uring, epoll and plain calls for comparison, in the same run
///
/// A benchmark compares several sides (for example: kernel, anyring, epoll). Each side runs in a process of its own, in
/// interleaved rounds. Figures are medians; ratios are computed within each round, and shown with the lowest and the highest.
#[derive(Debug, Parser)]
#[command(name = NAME, version, max_term_width = 100, args_conflicts_with_subcommands = true, after_long_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    internal: Option<Internal>,
    /// Benchmarks to run, all by default; --list names them.
    benchmarks: Vec<String>,
    /// List the benchmarks and the sides that they compare.
    #[arg(long)]
    list: bool,
    /// Few and short rounds, for a rough impression. On a busy machine, only warn.
    #[arg(long)]
    quick: bool,
    /// Run this side only; may be repeated. --list names the sides.
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
    /// Files in each of the directory trees [default: 100000, 10000 with --quick].
    #[arg(long, value_name = "FILES")]
    entries: Option<usize>,
    /// Print everything as JSON, including each round.
    #[arg(long)]
    json: bool,
    /// Write records, pages and charts to this directory, for instance docs/benchmarks. Files of benchmarks that were
    /// not run stay unchanged.
    #[arg(long, value_name = "DIRECTORY")]
    write: Option<PathBuf>,
    /// Measure nothing: make the pages and charts in this directory again, from its records.
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["write", "svg", "json", "list"])]
    redraw: Option<PathBuf>,
    /// Measure even if other programs keep the machine busy.
    #[arg(long)]
    busy: bool,
    /// Leave out the sides that run on anyring.
    #[arg(long)]
    native_only: bool,
    /// Do not count system calls.
    #[arg(long)]
    no_syscalls: bool,
    /// Draw a chart for each benchmark, as an SVG file in this directory.
    #[arg(long, value_name = "DIRECTORY")]
    svg: Option<PathBuf>,
    /// A directory for files, on the file system to be measured.
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
    /// The directory of `anyring`, `anyring-deny` and the preload library [default: that of this program].
    #[arg(long, value_name = "DIRECTORY")]
    tools: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Internal {
    /// Count system calls and instructions per operation, and compare them with the committed page (`make count`).
    #[command(hide = true)]
    Count(count::Args),
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

/// The name of this command in messages and on the pages.
const NAME: &str = "anyring-bench";

const EXAMPLES: &str = "\
Examples:
  anyring-bench --list                     the benchmarks, and what they compare
  anyring-bench --quick                    all benchmarks, with few and short rounds
  anyring-bench accept                     10,000 clients: epoll, single-shot and multishot accept
  anyring-bench nop --side kernel --side 'kernel, registered'
  anyring-bench send --case 'veth'         only these cases (veth needs root)
  anyring-bench du --entries 1000000 --case hot
                                           a million files: du, anyring du, plain loops of 1 to 64 threads
  anyring-bench echo --rounds 15 --window-ms 1000 --json > echo.json
  anyring-bench --write docs/benchmarks    all of it, as pages with charts
  anyring-bench --redraw docs/benchmarks   the same pages again, without measuring

How it measures:
  speed  time per operation of the baseline over that of the side: above 1 is faster. The median over
         the rounds of the ratios within each round, with the lowest and the highest.
  CPU    CPU time per operation of the side over that of the baseline: below 1 is cheaper. It is the
         time of the measured process (of the server, where there are clients) with all its threads,
         those that the kernel runs for it included.
  syscalls/op
         system calls of the measured process, counted by the tracepoint raw_syscalls:sys_enter in two
         runs of their own that no time is taken from: what the longer one makes more than the shorter
         one, over the operations that it does more, so that start and end do not count. Where the
         number of operations is fixed (accept, idle), all calls from start to end over all operations.
         Needs root and tracefs (mount -t tracefs none /sys/kernel/tracing); without them it is empty.
         A call that a seccomp filter traps is not seen there, the rt_sigreturn that ends the trap is.
  A side on anyring is the same binary under `anyring run --engine user`, where anyring-deny lies beside
  it also with io_uring denied; a side that turns out to run on another engine than its own fails.

  A machine with a load average above 0.5 is busy: figures from there are refused unless --busy is
  given. After a build the load average takes some minutes to fall.

Exit status: 0 where everything asked for was measured or could not be measured here (the table says
why), 1 where something failed.";

/// Runs the command line.
pub fn run(arguments: &Arguments) -> ExitCode {
    let result = match &arguments.internal {
        Some(Internal::Workload { linked, workload }) => {
            if *linked {
                workload::linked::activate();
            }
            workload.run()
        }
        Some(Internal::Count(args)) => count::run(args),
        None => compare(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say_error!("{NAME}: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn compare(arguments: &Arguments) -> Result<()> {
    if let Some(directory) = &arguments.redraw {
        return report::page::redraw(directory);
    }
    let mut chosen = choose(&arguments.benchmarks)?;
    if arguments.list {
        for benchmark in &chosen {
            list(benchmark.as_ref());
        }
        return Ok(());
    }
    let (rounds, window_ms) = if arguments.quick { (3, 50) } else { (5, 150) };
    let plan = Plan {
        rounds: arguments.rounds.unwrap_or(rounds).max(1),
        quick: arguments.quick,
        syscalls: !arguments.no_syscalls,
        sides: arguments.sides.clone(),
        cases: arguments.cases.clone(),
    };
    let mut context = Context::new(
        arguments.tools.clone(),
        &arguments.dir.clone().unwrap_or_else(std::env::temp_dir),
        Duration::from_millis(arguments.window_ms.unwrap_or(window_ms).max(1)),
        arguments.quick,
        arguments.native_only,
    )?;
    if let Some(entries) = arguments.entries {
        context.entries = entries;
    }
    let machine = Machine::read(&context.scratch);
    if let Some(warning) = machine.warning() {
        if !arguments.busy && !arguments.quick {
            return Err(Failure::new(warning).advice(
                "figures from a busy machine mislead: wait until it is quiet (after a build, some minutes), \
                 or measure all the same with --busy",
            ));
        }
        say_error!("warning: {warning}");
    }
    let mut results = Results { machine, command: command_line(), benchmarks: Vec::new() };
    for benchmark in &mut chosen {
        let outcome = measure(benchmark.as_mut(), &context, &plan)?;
        if arguments.json {
            outcome.failed.iter().for_each(|failed| say_error!("{failed}"));
        } else {
            report::table::print(&outcome);
        }
        results.benchmarks.push(outcome);
    }
    let failed = results.benchmarks.iter().map(|outcome| outcome.failed.len()).sum();
    publish(arguments, results)?;
    match failed {
        0 => Ok(()),
        failed => Err(Failure::new(format!("{failed} measurements failed; they are named above"))),
    }
}

fn publish(arguments: &Arguments, results: Results) -> Result<()> {
    if arguments.json {
        let text = serde_json::to_string_pretty(&results).doing(|| "writing the results as JSON".into())?;
        say!("{text}");
    }
    if let Some(directory) = &arguments.svg {
        for outcome in &results.benchmarks {
            report::chart::write(directory, &results, outcome)?;
        }
        say_error!("charts in {}", directory.display());
    }
    if let Some(directory) = &arguments.write {
        report::page::write(directory, results)?;
        say_error!("written to {}", directory.display());
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
    say!("{:12} {}", about.name, about.title);
    say!("{:12}   sides: {}", "", sides.join("; "));
    say!("{:12}   goal: {}", "", about.goal);
}

/// Returns the command line without the program's directory, as a reader would repeat it.
fn command_line() -> String {
    let arguments = std::env::args().skip(1);
    std::iter::once(NAME.to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}
