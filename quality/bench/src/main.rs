//! `anyring-bench`: what anyring costs, beside what it is compared to, measured in the same run.
//!
//! A *benchmark* compares *sides*: programs on the kernel's io_uring, the same programs under anyring,
//! and what one would use without a ring. The *harness* runs every side as a process of its own, in
//! interleaved rounds; the *workloads* are those programs; the *report* says what came out.

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
