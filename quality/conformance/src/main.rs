//! The `anyring-conformance` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    anyring_conformance::cli::main()
}
