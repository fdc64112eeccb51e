//! `anyring-bench`: the costs of anyring and of its alternatives, measured in the same run.
//!
//! A *benchmark* compares *sides*: programs on the kernel's io_uring, the same programs under anyring,
//! and alternatives without a ring. The *harness* runs every side as a process of its own, in
//! interleaved rounds; the *workloads* are these programs; the *report* shows the results.

mod benchmarks;
mod command;
mod count;
mod failure;
mod harness;
mod report;
mod workload;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    command::run(&command::Arguments::parse())
}
