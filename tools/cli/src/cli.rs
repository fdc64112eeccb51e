//! The command line.

use anyring_chaos_plan::journal::LAST_MOMENT;
use anyring_engine::request::version::Version;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::num::NonZero;
use std::path::PathBuf;

/// The width of help on wide terminals.
const MOST_COLUMNS: usize = 100;

/// io_uring that runs anywhere
#[derive(Debug, Parser)]
#[command(name = "anyring", version, max_term_width = MOST_COLUMNS)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Run(Run),
    Trace(Trace),
    Top(Top),
    Chaos(Chaos),
    Doctor(Doctor),
    Find(Find),
    Du(Box<anyring_du::arguments::Arguments>),
    /// Write the libraries that this executable contains to a directory
    ///
    /// These are the two libraries that `anyring run` loads into programs and, in the static one-file anyring, liburing.so.2
    /// and liburing-ffi.so.2. An anyring that was installed with its libraries as separate files contains none.
    Unpack {
        directory: PathBuf,
    },
    #[command(hide = true)]
    Exec(Exec),
    /// Print the operations, flags and registrations of the user engine (the page docs/support.md)
    #[command(hide = true)]
    Support,
    /// Write manual pages into a directory
    // A user who has only the one file has no directory for manual pages.
    #[cfg(not(feature = "one-file"))]
    #[command(hide = true)]
    Man {
        directory: PathBuf,
    },
    /// Print the completions of this command for a shell
    ///
    /// bash: anyring completions bash > ~/.local/share/bash-completion/completions/anyring; zsh: to a file _anyring in a
    /// directory of $fpath; fish: to ~/.config/fish/completions/anyring.fish. make install installs all three.
    #[cfg(not(feature = "one-file"))]
    Completions {
        shell: clap_complete::Shell,
    },
}

/// Run a program with an io_uring that works, even where the kernel's is denied or missing
///
/// The program is executed in place of anyring, so exit status, signals and process id are the program's own. The program
/// need not be changed, and may be linked dynamically or statically; it must not be set-user-ID. Programs that it starts run
/// under anyring, too. Anyring's io_uring is loaded into a static program by ptrace, which the sandbox must allow.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  anyring run -- fio --ioengine=io_uring --name=job --rw=randread --size=64m --filename=/tmp/file
  anyring run --engine user -- qemu-img convert -m 4 disk.raw disk.qcow2
  UV_USE_IO_URING=1 anyring run --log info -- node server.js
  anyring run --abi 6.1 -- ./server                     with the io_uring features of Linux 6.1 only
  anyring run --engine user --stats -- ./server
  anyring run --engine user --stats-file /run/metrics/server.prom -- ./server

Environment (the options set these variables, and programs that the program starts inherit them):
  ANYRING_ENGINE   auto, kernel or user
  ANYRING_ABI      6.1, 6.12, 6.18 or 7.2
  ANYRING_LOG      off, info, debug; to log to a file, add a comma and an absolute path, or fd=N
  ANYRING_STATS    text or json
  ANYRING_STATS_FILE, ANYRING_STATS_INTERVAL
                   an absolute path, and seconds
  ANYRING_PATCH    0: patch no call of io_uring; each call then raises a signal (a trap)
  ANYRING_PRELOAD  the preload library, if it is neither in the directory of anyring nor in ../lib/anyring;
                   libanyring_inject.so, for static programs, must be in the same directory
An invalid value of a variable is an error.

Without CAP_SYS_ADMIN, anyring's own engine needs no_new_privs: programs such as sudo and ping gain
no privileges when they are started under anyring.

Exit status: the program's own; 125 if anyring itself fails, 126 if the program cannot be executed,
127 if it is not found.")]
pub struct Run {
    /// Which engine does the work [default: ANYRING_ENGINE, or auto]
    #[arg(long, value_enum)]
    pub engine: Option<Engine>,

    /// Which kernel version anyring's own engine emulates: 6.1, 6.12, 6.18, 7.2 [default: ANYRING_ABI, or 7.2]
    ///
    /// Chooses anyring's own engine. The program gets the features, operations, flags and errors of that version, whatever
    /// the kernel of the machine is.
    #[arg(long, value_name = "VERSION", value_parser = abi)]
    pub abi: Option<Version>,

    /// Log what anyring did: off, info (a line per process), debug; add ",/PATH", ",./PATH" or ",fd=N" to log to a file
    #[arg(long, value_name = "LEVEL[,FILE]")]
    pub log: Option<OsString>,

    /// Print, at the end of each process, what it did with io_uring: rings, operations, errors, refused requests
    ///
    /// The statistics go to the place of --log (by default standard error). Only work of anyring's own engine is counted.
    #[arg(long, value_enum, value_name = "FORMAT", num_args = 0..=1, default_missing_value = "text", require_equals = true)]
    pub stats: Option<Stats>,

    /// Write to PATH what the process does with io_uring, while it runs, in Prometheus's text format
    ///
    /// Rings, requests, completions and errors by operation, requests in flight, overflow, threads. The file is replaced as a
    /// whole from the first ring on, every --stats-interval seconds and at the end of the process. If PATH contains %p, each
    /// process that uses rings has a file, with its process ID for %p; otherwise only the process that anyring starts has one. Only
    /// work of anyring's own engine is counted.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub stats_file: Option<PathBuf>,

    /// The seconds between two versions of the file of --stats-file [default: 5]
    #[arg(long, value_name = "SECONDS", requires = "stats_file", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub stats_interval: Option<u32>,

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

/// Returns the arguments of `anyring run`, if the command line is a valid call of it. The definitions of all commands take ten times as
/// long to set up, and would delay the program; they are needed only for help and error messages.
pub fn run_alone(words: &[OsString]) -> Option<Run> {
    let matches = Run::augment_args(clap::Command::new("anyring")).try_get_matches_from(words).ok()?;
    Run::from_arg_matches(&matches).ok()
}

/// Returns the arguments of the process. The width of help fits the terminal.
pub fn parsed() -> Result<Arguments, clap::Error> {
    let mut command = Arguments::command();
    if let Some(columns) = anyring_say::narrow::columns() {
        command = command.mut_subcommands(|subcommand| match subcommand.get_after_long_help() {
            Some(text) => {
                let fitting = anyring_say::narrow::fit(&text.to_string(), columns.min(MOST_COLUMNS));
                subcommand.after_long_help(fitting)
            }
            None => subcommand,
        });
    }
    let mut matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Arguments::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Parses a kernel version that the engine can emulate.
fn abi(text: &str) -> Result<Version, String> {
    Version::parse(text.as_bytes()).ok_or_else(|| {
        let played = Version::PLAYED.map(|version| version.to_string());
        format!("anyring's engine emulates {}", played.join(", "))
    })
}

/// Run a program and show each of its io_uring requests with its result, or watch a running process
///
/// Prints one line per request when the request is done, in strace's grammar: the operation with its arguments, the result,
/// the time that it took, and how it was done. Programs that the program starts are traced, too. No privileges are needed.
///
/// With -p, a running process is watched from outside, which needs the rights of ptrace(2). It is not stopped, and no code is
/// loaded into it. On anyring's engine it records its requests meanwhile, and nothing is missed. Rings of the kernel are looked
/// at up to some thousand times a second; what passes by between two looks is counted.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  anyring trace -- fio --ioengine=io_uring --name=job --rw=randread --size=1m --filename=/tmp/file
  UV_USE_IO_URING=1 anyring trace -o trace.txt -- node server.js
  anyring trace -c -- cp-with-io-uring from to
  anyring trace -e accept,recv -e 'slow>1ms' -- ./server
  anyring trace -e errors --summary -- ./program
  anyring trace -k -e 'slow>1ms' -- ./program
  anyring trace -ff -tt -o trace.txt -- ./program       with the time of day, in a file trace.txt.PID for each process
  anyring trace -P /etc/passwd -- ./program             requests that name this file, or whose file it is
  anyring trace -p 4711                                 a running process, until it ends or Ctrl-C
  anyring trace -p 4711 --max-events 20
  anyring trace -p \"$(pidof -s fio)\" -c                 a table, at the end
  anyring trace --json -o trace.jsonl -- ./program

Expressions (-e): operations by name (read,write), op=NAME, file=GLOB, ring=N, errors, slow>TIME, slow<TIME (1ms, 20us).
A ! before an expression negates it. If several are given, all must hold.

Exit status: the program's own, or 128 plus the number of the signal that ended it; 125 if anyring itself fails. With -p,
0 when the process has ended, or the trace was interrupted.")]
pub struct Trace {
    /// Watch this running process, and with -f those that it starts; may be given several times
    #[arg(short = 'p', long = "attach", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with_all = ["engine", "lossy", "callers", "enters", "sample", "program"])]
    pub processes: Vec<u32>,

    /// With -p, look at the rings of anyring's engine as at the kernel's: the process does not record its requests
    #[arg(long, requires = "processes")]
    pub sampled: bool,

    /// Which engine does the work [default: ANYRING_ENGINE, or user]
    #[arg(long, value_enum)]
    pub engine: Option<Engine>,

    /// Show only requests for which this expression holds; may be given several times
    #[arg(short = 'e', value_name = "EXPRESSION")]
    pub expressions: Vec<String>,

    /// Show only requests that name this path, or whose file it is; may be given several times
    #[arg(short = 'P', long = "trace-path", value_name = "PATH")]
    pub paths: Vec<String>,

    /// Show at most this many bytes of data, and entries of a list
    #[arg(short = 's', value_name = "SIZE", default_value_t = 32, value_parser = clap::value_parser!(u16).range(..=1024))]
    pub sample: u16,

    /// Write to a file instead of standard error
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Begin lines with the time of day; -tt: with microseconds
    #[arg(short = 't', action = clap::ArgAction::Count, conflicts_with_all = ["json", "counts", "summary_only"])]
    pub clock: u8,

    /// Begin lines with the time since the line before
    #[arg(short = 'r', conflicts_with_all = ["clock", "json", "counts", "summary_only"])]
    pub relative: bool,

    /// Print no more than this many results; the program goes on
    ///
    /// A chain of linked requests is printed as a whole, even if it has more.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_events: Option<u64>,

    /// Print a table of operations at the end (counts, errors, latencies, bytes) instead of lines
    #[arg(short = 'c')]
    pub counts: bool,

    /// Print the table of -c after the lines
    #[arg(short = 'C', conflicts_with = "counts")]
    pub counts_too: bool,

    /// Print a line of JSON for each request (docs/trace-json.md describes the fields)
    #[arg(long)]
    pub json: bool,

    /// Also write a trace for the Perfetto UI (ui.perfetto.dev)
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,

    /// Report suspicious behaviour at the end: overflows, short transfers, batches of one, requests that never end
    #[arg(long)]
    pub summary: bool,

    /// Print the report of --summary, and no lines
    #[arg(long, conflicts_with_all = ["summary", "json"])]
    pub summary_only: bool,

    /// Show calls of io_uring_enter, too
    #[arg(long)]
    pub enters: bool,

    /// Drop events, and count them, if the program would have to wait for the trace
    #[arg(long)]
    pub lossy: bool,

    /// Show below each request the code that submitted it: functions and lines, the innermost first
    ///
    /// At each call of io_uring_enter, up to 16 KiB of the stack are copied.
    #[arg(short = 'k', long)]
    pub callers: bool,

    /// With -p, also watch processes that the process starts; -ff: with -o FILE, write each process to FILE.PID
    ///
    /// Without -p, -f has no effect: programs that the program starts are always traced.
    #[arg(short = 'f', action = clap::ArgAction::Count)]
    pub follow: u8,

    /// The program and its arguments
    #[arg(required_unless_present = "processes", trailing_var_arg = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

impl Trace {
    /// True if rings of the kernel may be traced.
    pub fn sees_kernel_rings(&self) -> bool {
        let by_variable = std::env::var_os("ANYRING_ENGINE").is_some_and(|engine| engine != "user");
        !self.processes.is_empty() || self.engine.map_or(by_variable, |engine| engine != Engine::User)
    }

    /// Returns the arguments for running the program, which reports its events in the buffer at `path`.
    pub fn run(&self, path: OsString) -> Run {
        let chosen = std::env::var_os("ANYRING_ENGINE").is_some();
        let engine = self.engine.or((!chosen).then_some(Engine::User));
        Run {
            engine,
            abi: None,
            log: None,
            stats: None,
            stats_file: None,
            stats_interval: None,
            program: self.program.clone(),
            trace: Some(path),
            callers: self.callers,
            chaos_plan: None,
            loads: false,
        }
    }
}

/// Show the io_uring rings of running processes: requests a second, operations, what is in flight, what is full
///
/// A table with a line for each ring, of the kernel's io_uring or of anyring's engine. On a terminal the table is live: arrow
/// keys choose a ring, Enter shows its last requests, letters sort, q ends. Otherwise it is printed again and again.
///
/// The rings are looked at from outside, up to five hundred times a second: no process is stopped or changed. Rates are exact, because the rings
/// themselves count. A ring that is made while a table is being prepared appears in the next table. Operations and errors are those of the requests
/// that were seen; the table says how many requests were not.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  anyring top
  sudo anyring top                                      the rings of all users
  anyring top -p 4711                                   the rings of one process
  anyring top --once                                    the table of one second
  anyring top --once -d 10 --json | jq '.rings[] | select(.overflows > 0)'
  anyring top --json -d 5 >> rings.jsonl                a line of JSON every five seconds

Columns: RING, the ring's descriptor in the process; FLIGHT, requests in flight; CQ, the most completions that waited to be
reaped, and the size of their queue; OVERFL, completions that were lost, and + if some wait because the queue is full; SQ
FULL, how often the submission queue was full; LATENCY, the average time from submission to completion, by the number of
requests in flight and their rate. A ? stands for what cannot be seen (docs/top.md).

Exit status: 0; 125 if anyring fails, or the process of -p cannot be looked at.")]
pub struct Top {
    /// Show only the rings of this process, and not those of processes that it starts
    #[arg(short = 'p', long = "process", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub process: Option<u32>,

    /// The time between two tables
    #[arg(short = 'd', long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub delay: std::time::Duration,

    /// Print one table, and end
    #[arg(long)]
    pub once: bool,

    /// Print a line of JSON for each table
    #[arg(long)]
    pub json: bool,
}

/// Parses the name of a crash model.
fn crash_model(text: &str) -> Result<anyring_chaos::power::Model, String> {
    anyring_chaos::power::Model::named(text).ok_or_else(|| "ext4, xfs or posix is expected".to_owned())
}

/// Parses a time in seconds that is neither zero nor infinite.
fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds is expected".to_owned())?;
    if (0.05..=86_400.0).contains(&seconds) {
        Ok(std::time::Duration::from_secs_f64(seconds))
    } else {
        Err("from 0.05 to 86400 seconds".into())
    }
}

/// Run a program and inject rare results that io_uring allows, to find bugs in how the program handles them
///
/// Such results ("faults") are short transfers, interrupted calls, late completions, multishot requests that end, and others
/// that the ABI allows and that rarely happen. A correct program passes with any seed. The seed and the requests of the
/// program decide which faults are injected, not the time: the same seed gives the same faults.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  anyring chaos -- ./program                            one run, with a random seed, which is printed
  anyring chaos --seed 7 --rate 0.1 -- ./program        this seed, with each fault one time in ten
  anyring chaos --runs 1000 --jobs 4 -- ./test          a thousand seeds, until one fails
  anyring chaos --runs 100 --compare -- ./cat file      a different standard output is a failure, too
  anyring chaos --runs 100 --expect 'corrupt' -- ./job  a run fails where its output matches
  anyring chaos --faults short,eintr --runs 100 -- ./program
  anyring chaos --faults '!late,!overflow' -- ./program
  anyring chaos --seed 7 --shrink --record few.json -- ./program
                                                        which few of the faults make it fail
  anyring chaos --replay few.json                       the program, with these faults and no others
  anyring chaos --runs 100 --power-cut --setup 'rm -rf data; mkdir data' --check './db verify data' -- ./db fill data
                                                        the power is cut while the program writes

Failures: with --runs or --shrink, the program first runs once without faults. A later run fails if it ends in another way
than the first (exit status, signal), if it does not end in time, or as --compare and --expect say.

Exit status: of a single run the program's own, or 128 plus the number of the signal that ended it, or 124 if it did not
end in time. With --runs or --shrink, 0 if all runs pass and 1 if one fails. 125 if anyring itself fails, 130 if it was
interrupted.")]
pub struct Chaos {
    /// The seed, or the first one [default: a random one]
    #[arg(long, value_name = "N", conflicts_with = "replay")]
    pub seed: Option<u64>,

    /// Try this many seeds, from --seed on
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "replay")]
    pub runs: Option<u64>,

    /// Run this many at a time
    #[arg(long, short = 'j', value_name = "J", default_value = "1", requires = "runs")]
    pub jobs: NonZero<usize>,

    /// Do not stop at the first seed that fails
    #[arg(long, short = 'k', requires = "runs", conflicts_with = "shrink")]
    pub keep_going: bool,

    /// The probability of each fault, wherever it is possible [default: 0.02]
    #[arg(long, value_name = "P", conflicts_with = "replay")]
    pub rate: Option<f64>,

    /// Which faults: names, all, ordinary, failure, strict; a ! before a name excludes it [default: ordinary]
    ///
    /// ordinary: a correct program handles these and goes on. failure: a resource runs out or a device fails, and a correct
    /// program may give up. strict: the ABI allows these, but no kernel does them today.
    #[arg(long, value_name = "LIST", conflicts_with = "replay")]
    pub faults: Option<String>,

    /// Let each pause last this long, and each late completion come this late [default: up to 2 milliseconds, as the seed decides]
    ///
    /// In a pause, another thread has the chance to come first. On a busy machine it may take longer than the pause lasts.
    #[arg(long, value_name = "SECONDS", conflicts_with = "replay")]
    pub delay: Option<f64>,

    /// Print the list of faults: what each does, and which manual page or kernel source allows it
    #[arg(long, exclusive = true)]
    pub list_faults: bool,

    /// Kill a run that takes longer, and count it as a hang [default: none for a single run, else 60]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<f64>,

    /// A run fails if its standard output or error matches this, and in no other case
    #[arg(long, value_name = "REGEX")]
    pub expect: Option<String>,

    /// A run also fails if its standard output differs from that of the run without faults
    #[arg(long, conflicts_with = "expect")]
    pub compare: bool,

    /// Write the injected faults to a file: those of the single run, or of the first run that fails
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Inject the faults in a file of --record, and no others
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,

    /// Find a minimal set of faults with which the program still fails in the same way
    #[arg(long)]
    pub shrink: bool,

    /// For --shrink, run each candidate up to this many times (programs with threads do not always do the same)
    #[arg(long, value_name = "K", default_value = "3", requires = "shrink")]
    pub tries: NonZero<u32>,

    /// Cut the power: kill the program at a moment that the seed chooses, lose what no sync covers, and run --check
    ///
    /// Writes, sizes and names that no fsync of the file or directory covers are lost, kept, reordered or torn at the sector size. No other
    /// faults are injected, unless --faults selects some.
    #[arg(long, requires = "check", conflicts_with_all = ["replay", "compare"])]
    pub power_cut: bool,

    /// Cut the power at this moment, and not where the seed chooses; 0: when the program has ended
    ///
    /// The moments are those before and after each operation on files, in the order in which the program begins the operations. The
    /// command that is printed for a seed that failed has this option.
    #[arg(long, value_name = "MOMENT", requires = "power_cut", value_parser = clap::value_parser!(u64).range(..=LAST_MOMENT))]
    pub cut_at: Option<u64>,

    /// After the power cut, run this command of the shell; a run fails if its exit status differs from that without a power cut
    ///
    /// Its input is what the program has printed on standard output.
    #[arg(long, value_name = "COMMAND", requires = "power_cut")]
    pub check: Option<String>,

    /// Before each run, run this command of the shell, which makes the files as the program needs them
    ///
    /// Needed with --power-cut, because a run must not begin with files that another run has left; `true` if the program itself makes
    /// all its files anew.
    #[arg(long, value_name = "COMMAND", requires = "power_cut")]
    pub setup: Option<String>,

    /// The guarantees of the file system after a power cut: ext4, xfs or posix [default: ext4]
    ///
    /// ext4: data=ordered, auto_da_alloc. posix: what the manual pages promise, and no more.
    #[arg(long, value_name = "MODEL", requires = "power_cut", value_parser = crash_model)]
    pub crash_model: Option<anyring_chaos::power::Model>,

    /// Which engine does the work: only anyring's own injects faults
    #[arg(long, value_name = "ENGINE", hide = true)]
    pub engine: Option<Engine>,

    /// The program and its arguments; with --replay, those in the file if there are none here
    #[arg(
        required_unless_present_any = ["replay", "list_faults"],
        trailing_var_arg = true,
        value_name = "PROGRAM",
        value_hint = ValueHint::CommandWithArguments
    )]
    pub program: Vec<OsString>,
}

/// Search directory trees, with the language of GNU find
///
/// The arguments are those of find: paths, and an expression of tests and actions.
#[derive(Debug, Args)]
#[command(disable_help_flag = true, after_long_help = anyring_find::HELP)]
pub struct Find {
    /// Paths and an expression
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORD", value_hint = ValueHint::AnyPath)]
    pub words: Vec<OsString>,
}

/// Execute a static program with anyring's engine in it (used internally under anyring run)
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
    /// Several lines of text
    Text,
    /// One line of JSON
    Json,
}

impl Stats {
    /// Returns the value of `ANYRING_STATS`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// The kernel's io_uring where it works and knows the memory layout of the ring, or else anyring's own engine
    Auto,
    /// Always the kernel's io_uring, even if it is denied
    Kernel,
    /// Always anyring's own engine, even where the kernel's io_uring works
    User,
}

impl Engine {
    /// Returns the value of `ANYRING_ENGINE`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kernel => "kernel",
            Self::User => "user",
        }
    }
}

/// Say whether this machine allows io_uring, what denies it, and what anyring will do
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  anyring doctor
  docker run --rm -v \"$PWD/anyring:/anyring:ro\" --entrypoint /anyring debian doctor      with the file of `make one-file`
  anyring doctor --json | jq .verdict
  anyring doctor -- fio job.fio                         whether anyring can run this program, and by which command
  anyring doctor --json -- fio | jq .program

Exit status: 0 if anyring can run programs, or the program that is named; 1 if it cannot.")]
pub struct Doctor {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// A program with its arguments: say how it is linked, how anyring's engine gets into it, and whether it will work here
    #[arg(trailing_var_arg = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

/// Returns the script that completes the words of this command in a shell.
#[cfg(not(feature = "one-file"))]
pub fn completions(shell: clap_complete::Shell) -> String {
    let mut text = Vec::new();
    let mut command = <Arguments as clap::CommandFactory>::command();
    clap_complete::generate(shell, &mut command, "anyring", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}
