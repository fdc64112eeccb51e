//! `anyring-soak`: random real work for as long as wanted, with io_uring denied, over the user engine.
//!
//! ```text
//!  anyring-soak ──► worker processes (anyring-deny anyring run --engine user -- anyring-soak worker)
//!              │      epochs: threads do random episodes (scenario/) on rings of their own, then all is quiet
//!              │      and descriptors, threads and memory are counted (usage.rs)
//!              └──► fio, unmodified, with random options and verified data, one run after the other (fio.rs)
//! ```
//!
//! An episode fails when a request completes never, twice or unasked, or when data differ. A worker fails when
//! an episode does, when descriptors are left over, or when threads or memory grow from epoch to epoch.

mod fio;
mod ring;
mod scenario;
mod supervise;
mod tasks;
mod usage;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Soak the user engine in random real work and count what is lost or left over
///
/// Needs fio, and anyring and anyring-deny beside this program. Exit status: 0 if nothing was lost and nothing grew.
#[derive(Parser)]
#[command(name = "anyring-soak", version)]
struct Cli {
    #[command(subcommand)]
    task: Option<Task>,
    #[command(flatten)]
    run: Run,
}

/// The whole soak.
#[derive(clap::Args)]
struct Run {
    /// How long to go on, in seconds
    #[arg(long, default_value_t = 30 * 60)]
    seconds: u64,
    /// Random work of this seed [default: from the clock, and printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Worker processes beside fio
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Threads that do random work in each of them
    #[arg(long, default_value_t = 3)]
    threads: u64,
    /// Only one kind of work, without fio
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(scenario::names()))]
    only: Option<String>,
    /// Connections open at a time, where there is nothing but connections
    #[arg(long, default_value_t = 500)]
    connections: usize,
    /// Where files are made [default: a new directory here]
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Among these faults, as `anyring chaos --faults` takes them: those that the work minds not
    #[arg(long, value_name = "FAULTS", conflicts_with = "native")]
    chaos: Option<String>,
    /// Run on the kernel's own io_uring, to prove the soak itself
    #[arg(long)]
    native: bool,
}

#[derive(Subcommand)]
enum Task {
    /// One worker process: what the soak starts under anyring
    #[command(hide = true)]
    Worker(worker::Options),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.task {
        Some(Task::Worker(options)) => worker::run(&options),
        None => supervise::run(&cli.run),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("anyring-soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}
