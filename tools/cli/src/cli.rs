//! The command line.

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// io_uring that runs anywhere
#[derive(Debug, Parser)]
#[command(name = "anyring", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Run(Run),
    Doctor(Doctor),
    Find(Find),
    Du(Box<anyring_du::arguments::Arguments>),
    Bench(Box<anyring_bench::Arguments>),
    /// Write the libraries that this command carries, if it is the one file, into a directory
    ///
    /// They are liburing.so.2 and liburing-ffi.so.2, and the two that `anyring run` brings into programs.
    Unpack {
        directory: PathBuf,
    },
    #[command(hide = true)]
    Exec(Exec),
    /// Print what the user engine has of io_uring, as docs/support.md has it
    #[command(hide = true)]
    Support,
    /// Write manual pages into a directory
    #[command(hide = true)]
    Man {
        directory: PathBuf,
    },
}

/// Run a program with io_uring that works, whatever the machine allows
///
/// The program is executed in place of anyring, so its exit status, its signals and its process id are its own. It
/// needs no change and may be linked dynamically or statically; it must not be set-user-ID. So do the programs that it
/// starts. Into a static one the engine is brought by ptrace, which the sandbox must allow.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  anyring run -- fio --ioengine=io_uring --name=job --rw=randread --size=64m --filename=/tmp/file
  anyring run --engine user -- qemu-img convert -m 4 disk.raw disk.qcow2
  anyring run --log info -- node server.js

Environment (what the options set, and what programs started by the program inherit):
  ANYRING_ENGINE   auto, kernel or user
  ANYRING_LOG      off, info, debug; followed by a comma and a path from the root, or fd=N, for where to
  ANYRING_PATCH    0: leave every call site to the trap
  ANYRING_PRELOAD  the preload library, if it is not beside anyring or in ../lib/anyring;
                   libanyring_inject.so, for static programs, lies in the same directory
A value that none of them can have is an error.

Without CAP_SYS_ADMIN, anyring's own engine takes no_new_privs: sudo, ping and their like gain no
privileges in what is started so.

Exit status: the program's own; 125 where anyring itself fails, 126 where the program cannot be
executed, 127 where it is not found.")]
pub struct Run {
    /// Which engine does the work [default: ANYRING_ENGINE, or auto]
    ///
    /// auto: the kernel's io_uring where it works, else anyring's own. kernel: the kernel's, whatever it answers. user:
    /// anyring's own, even where the kernel's works.
    #[arg(long, value_enum)]
    pub engine: Option<Engine>,

    /// Say what was done: off, info (a line per process), debug; with ",PATH" or ",fd=N" for where to
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<OsString>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// Find what is in directory trees, as GNU find
///
/// Its words are find's: paths, and an expression of tests and actions.
#[derive(Debug, Args)]
#[command(disable_help_flag = true, after_long_help = anyring_find::HELP)]
pub struct Find {
    /// Paths and an expression
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORD")]
    pub words: Vec<OsString>,
}

/// Execute a static program with the engine in it (for programs that run under anyring)
#[derive(Debug, Args)]
pub struct Exec {
    /// The file
    pub program: OsString,

    /// Its arguments, beginning with its name
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Engine {
    Auto,
    Kernel,
    User,
}

impl Engine {
    /// The word for `ANYRING_ENGINE`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kernel => "kernel",
            Self::User => "user",
        }
    }
}

/// Say what this machine's io_uring allows, why it is denied if it is, and what anyring will do
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  anyring doctor
  docker run --rm -v /usr/local:/usr/local:ro debian anyring doctor
  anyring doctor --json | jq .verdict

Exit status: 0 where anyring can run programs, 1 where it cannot.")]
pub struct Doctor {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Writes one manual page per command.
pub fn write_manuals(directory: &Path) -> std::io::Result<()> {
    clap_mangen::generate_to(Arguments::command(), directory)
}
