//! The command line.

use anyring_engine::request::version::Version;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::num::NonZero;
use std::path::PathBuf;

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
    Trace(Trace),
    Chaos(Chaos),
    Doctor(Doctor),
    Find(Find),
    Du(Box<anyring_du::arguments::Arguments>),
    Bench(Box<anyring_bench::Arguments>),
    /// Write the libraries that this command carries into a directory
    ///
    /// They are the two that `anyring run` brings into programs and, in the one file, liburing.so.2 and liburing-ffi.so.2.
    /// A command that was installed with its libraries beside it carries none.
    Unpack {
        directory: PathBuf,
    },
    #[command(hide = true)]
    Exec(Exec),
    /// Print what the user engine has of io_uring, as docs/support.md has it
    #[command(hide = true)]
    Support,
    /// Write manual pages into a directory
    // Who has the one file alone has no directory for them.
    #[cfg(not(feature = "one-file"))]
    #[command(hide = true)]
    Man {
        directory: PathBuf,
    },
    /// Print what completes the words of this command in a shell
    ///
    /// bash: anyring completions bash > ~/.local/share/bash-completion/completions/anyring; zsh: to a file _anyring in a
    /// directory of $fpath; fish: to ~/.config/fish/completions/anyring.fish. make install does all of it.
    #[cfg(not(feature = "one-file"))]
    Completions {
        shell: clap_complete::Shell,
    },
}

/// Run a program with io_uring that works, whatever the machine allows
///
/// The program is executed in place of anyring, so its exit status, its signals and its process id are its own. It
/// needs no change and may be linked dynamically or statically; it must not be set-user-ID. The programs that it starts
/// are covered, too. Into a static program the engine is brought by ptrace, which the sandbox must allow.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  anyring run -- fio --ioengine=io_uring --name=job --rw=randread --size=64m --filename=/tmp/file
  anyring run --engine user -- qemu-img convert -m 4 disk.raw disk.qcow2
  UV_USE_IO_URING=1 anyring run --log info -- node server.js
  anyring run --abi 6.1 -- ./server                     as on that kernel: what it lacks is refused
  anyring run --engine user --stats -- ./server

Environment (what the options set, and what programs started by the program inherit):
  ANYRING_ENGINE   auto, kernel or user
  ANYRING_ABI      6.1, 6.12, 6.18 or 7.2
  ANYRING_LOG      off, info, debug; followed by a comma and a path from the root, or fd=N, for where to
  ANYRING_STATS    text or json
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
    /// auto: the kernel's io_uring where it works, else anyring's own; a ring whose setup asks for a memory layout that this
    /// kernel does not know (`IORING_SETUP_SQE_MIXED`) gets anyring's own, too (docs/engines.md). kernel: the kernel's,
    /// whatever it answers. user: anyring's own, even where the kernel's works.
    #[arg(long, value_enum)]
    pub engine: Option<Engine>,

    /// Which kernel's io_uring anyring's own engine plays: 6.1, 6.12, 6.18, 7.2 [default: ANYRING_ABI, or 7.2]
    ///
    /// The program finds that kernel's features, operations, flags and refusals, whatever kernel runs below.
    #[arg(long, value_name = "VERSION", value_parser = abi)]
    pub abi: Option<Version>,

    /// Say what was done: off, info (a line per process), debug; with ",PATH" or ",fd=N" for where to
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<OsString>,

    /// Tell at its end what each process did with io_uring: rings, operations, errors, what was refused
    ///
    /// As text, or as one line of JSON, to where --log goes (standard error). Only anyring's own engine counts.
    #[arg(long, value_enum, value_name = "FORMAT", num_args = 0..=1, default_missing_value = "text", require_equals = true)]
    pub stats: Option<Stats>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,

    /// The buffer of `anyring trace`
    #[arg(skip)]
    pub trace: Option<OsString>,

    /// All calls trap: a call site that is patched does not show who calls it
    #[arg(skip)]
    pub callers: bool,

    /// The plan of `anyring chaos`
    #[arg(long, hide = true, value_name = "PATH")]
    pub chaos_plan: Option<OsString>,

    /// The library is known to load into the program
    #[arg(long, hide = true)]
    pub loads: bool,
}

/// A version that the engine plays.
fn abi(text: &str) -> Result<Version, String> {
    Version::parse(text.as_bytes()).ok_or_else(|| {
        let played = Version::PLAYED.map(|version| version.to_string());
        format!("anyring's engine plays {}", played.join(", "))
    })
}

/// Run a program and show what becomes of each of its io_uring requests
///
/// One line per request, when it is done, in strace's grammar: what was asked for, what came of it, how long it took and
/// how it was done. Programs that the program starts are shown too. It needs no privileges.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  anyring trace -- fio --ioengine=io_uring --name=job --rw=randread --size=1m --filename=/tmp/file
  UV_USE_IO_URING=1 anyring trace -o trace.txt -- node server.js
  anyring trace -c -- cp-with-io-uring from to
  anyring trace -e accept,recv -e 'slow>1ms' -- ./server
  anyring trace -e errors --summary -- ./program
  anyring trace -k -e 'slow>1ms' -- ./program
  anyring trace --json -o trace.jsonl -- ./program

Expressions (-e): operations by name (read,write), op=NAME, file=GLOB, ring=N, errors, slow>TIME, slow<TIME (1ms, 20us);
with ! in front the other way around. All that are given must hold.

Exit status: the program's own, or 128 and the number of the signal that ended it; 125 where anyring itself fails.")]
pub struct Trace {
    /// Which engine does the work [default: ANYRING_ENGINE, or user]
    #[arg(long, value_enum)]
    pub engine: Option<Engine>,

    /// Show only what this holds for; may be given several times
    #[arg(short = 'e', value_name = "EXPRESSION")]
    pub expressions: Vec<String>,

    /// Show at most so many bytes of data, and entries of a list
    #[arg(short = 's', value_name = "SIZE", default_value_t = 32, value_parser = clap::value_parser!(u16).range(..=1024))]
    pub sample: u16,

    /// Write to a file, not to standard error
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// A table of operations at the end: counts, errors, latencies, bytes; and no lines
    #[arg(short = 'c')]
    pub counts: bool,

    /// The table of -c, after the lines
    #[arg(short = 'C', conflicts_with = "counts")]
    pub counts_too: bool,

    /// A line of JSON for each request (docs/trace-json.md describes them)
    #[arg(long)]
    pub json: bool,

    /// Also write a trace that opens in the Perfetto UI (ui.perfetto.dev)
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,

    /// What looks unhealthy, at the end: overflows, short transfers, batches of one, requests that never end
    #[arg(long)]
    pub summary: bool,

    /// The findings of --summary, and no lines
    #[arg(long, conflicts_with_all = ["summary", "json"])]
    pub summary_only: bool,

    /// Show calls of io_uring_enter, too
    #[arg(long)]
    pub enters: bool,

    /// Drop events where the program would have to wait, and count them
    #[arg(long)]
    pub lossy: bool,

    /// Show below each request which code of the program submitted it: functions and lines, the innermost first
    ///
    /// The stack is copied at each call of io_uring_enter, up to 16 KiB of it.
    #[arg(short = 'k', long)]
    pub callers: bool,

    /// Programs that the program starts are shown, too; they always are (for who is used to strace)
    #[arg(short = 'f')]
    pub follow: bool,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

impl Trace {
    /// How the program is run that tells of itself in the buffer at `path`.
    pub fn run(&self, path: OsString) -> Run {
        let chosen = std::env::var_os("ANYRING_ENGINE").is_some();
        let engine = self.engine.or((!chosen).then_some(Engine::User));
        Run {
            engine,
            abi: None,
            log: None,
            stats: None,
            program: self.program.clone(),
            trace: Some(path),
            callers: self.callers,
            chaos_plan: None,
            loads: false,
        }
    }
}

/// Run a program among faults that io_uring allows, to find what it does not expect
///
/// Short transfers, interrupted calls, completions late and in another order, multishots that end, CQEs overwritten once
/// they are reaped: all of that is rare, and the ABI allows it. A correct program passes any seed. Which faults it
/// meets follows from the seed and what its rings do, never from time; the same seed gives the same faults.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  anyring chaos -- ./program                            one run, with a random seed, which is printed
  anyring chaos --seed 7 --rate 0.1 -- ./program        this seed, and each fault one time in ten
  anyring chaos --runs 1000 --jobs 4 -- ./test          a thousand seeds, until one fails
  anyring chaos --runs 100 --compare -- ./cat file      where another standard output is a failure, too
  anyring chaos --runs 100 --expect 'corrupt' -- ./job  a run fails where its output matches
  anyring chaos --faults short,eintr --runs 100 -- ./program
  anyring chaos --faults '!late,!overflow' -- ./program
  anyring chaos --seed 7 --shrink --record few.json -- ./program
                                                        which few of the faults make it fail
  anyring chaos --replay few.json                       the program, with these faults and no others

What is a failure: a run without faults comes first (but for a single run). A run fails where it ends otherwise than that one
(exit status, signal), where it does not end in time, or as --compare and --expect say.

Exit status: with a single run the program's own, or 128 and the number of the signal that ended it, or 124 where it did
not end in time. With --runs or --shrink, 0 where all runs pass and 1 where one fails. 125 where anyring itself fails, 130
where it was interrupted.")]
pub struct Chaos {
    /// The seed, or the first one [default: a random one]
    #[arg(long, value_name = "N", conflicts_with = "replay")]
    pub seed: Option<u64>,

    /// Go through so many seeds, from --seed on
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "replay")]
    pub runs: Option<u64>,

    /// So many runs at a time
    #[arg(long, short = 'j', value_name = "J", default_value = "1", requires = "runs")]
    pub jobs: NonZero<usize>,

    /// Do not stop at the first seed that fails
    #[arg(long, short = 'k', requires = "runs", conflicts_with = "shrink")]
    pub keep_going: bool,

    /// How probable each fault is, where it can be [default: 0.02]
    #[arg(long, value_name = "P", conflicts_with = "replay")]
    pub rate: Option<f64>,

    /// Which faults: names, all, ordinary, failure, strict; with ! all but these [default: ordinary]
    ///
    /// ordinary: a correct program goes on as if nothing had happened. failure: a resource is short, and a correct program may
    /// give up. strict: the ABI allows it, but no kernel does it today.
    #[arg(long, value_name = "LIST", conflicts_with = "replay")]
    pub faults: Option<String>,

    /// Print each fault, what it does and what allows it
    #[arg(long, exclusive = true)]
    pub list_faults: bool,

    /// A run that takes longer counts as a hang, and is killed [default: none for a single run, else 60]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<f64>,

    /// A run fails where its output, standard or error, matches this, and only there
    #[arg(long, value_name = "REGEX")]
    pub expect: Option<String>,

    /// A run fails where its standard output is not that without faults, too
    #[arg(long, conflicts_with = "expect")]
    pub compare: bool,

    /// Write what was injected to a file: in the single run, or in the first that fails
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Inject what a file says that --record has written, and nothing else
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,

    /// Find the few faults with which the program still fails in the same way
    #[arg(long)]
    pub shrink: bool,

    /// To shrink, run each candidate up to so many times (programs with threads do not always do the same)
    #[arg(long, value_name = "K", default_value = "3", requires = "shrink")]
    pub tries: NonZero<u32>,

    /// The program and its arguments; with --replay, those in the file if there are none here
    #[arg(
        required_unless_present_any = ["replay", "list_faults"],
        trailing_var_arg = true,
        value_name = "PROGRAM",
        value_hint = ValueHint::CommandWithArguments
    )]
    pub program: Vec<OsString>,
}

/// Find what is in directory trees, as GNU find
///
/// Its words are find's: paths, and an expression of tests and actions.
#[derive(Debug, Args)]
#[command(disable_help_flag = true, after_long_help = anyring_find::HELP)]
pub struct Find {
    /// Paths and an expression
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORD", value_hint = ValueHint::AnyPath)]
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
pub enum Stats {
    Text,
    Json,
}

impl Stats {
    /// The word for `ANYRING_STATS`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
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
  anyring doctor -- fio job.fio                         whether that program will work, and the command to run it
  anyring doctor --json -- fio | jq .program

Exit status: 0 where anyring can run programs, or the program that is named; 1 where it cannot.")]
pub struct Doctor {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// A program, with its arguments: how it is linked, which way the engine gets into it, whether it will work here
    #[arg(trailing_var_arg = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

/// What completes the words of this command in a shell.
#[cfg(not(feature = "one-file"))]
pub fn completions(shell: clap_complete::Shell) -> String {
    let mut text = Vec::new();
    let mut command = <Arguments as clap::CommandFactory>::command();
    clap_complete::generate(shell, &mut command, "anyring", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Writes one manual page per command.
#[cfg(not(feature = "one-file"))]
pub fn write_manuals(directory: &std::path::Path) -> std::io::Result<()> {
    clap_mangen::generate_to(<Arguments as clap::CommandFactory>::command(), directory)
}
