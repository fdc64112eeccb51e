//! `anyring-bench`: `anyring bench` as a program of its own, for profilers and for machines without the command.

use std::process::ExitCode;

use anyring_bench::{Arguments, Invocation};
use clap::Parser;

#[derive(Parser)]
#[command(name = "anyring-bench", version, max_term_width = 100, args_conflicts_with_subcommands = true)]
struct Program {
    #[command(flatten)]
    arguments: Arguments,
}

fn main() -> ExitCode {
    let invocation = Invocation { name: "anyring-bench", words: &[] };
    anyring_bench::run(&Program::parse().arguments, &invocation)
}
