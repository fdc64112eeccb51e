//! `anyring-deny [--enosys] CMD...`: runs a program with io_uring denied, as in a container.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Parser;

/// Run a program with the three io_uring system calls answered EPERM, as a container's seccomp profile does.
#[derive(Parser)]
#[command(name = "anyring-deny", version)]
struct Args {
    /// Answer ENOSYS instead, as a kernel without io_uring does
    #[arg(long)]
    enosys: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let errno = if args.enosys { libc::ENOSYS } else { libc::EPERM };
    if let Err(error) = anyring_conformance::deny::deny_io_uring(errno) {
        eprintln!("anyring-deny: cannot install the seccomp filter: {error}");
        eprintln!(
            "  The kernel must have CONFIG_SECCOMP_FILTER, and a sandbox around this must allow seccomp."
        );
        return ExitCode::from(126);
    }
    let error = Command::new(&args.command[0]).args(&args.command[1..]).exec();
    eprintln!("anyring-deny: cannot run {}: {error}", args.command[0].to_string_lossy());
    ExitCode::from(127)
}
