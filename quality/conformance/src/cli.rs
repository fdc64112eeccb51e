//! The command line of `anyring-conformance`.

use std::ffi::OsString;
use std::fs;
use std::num::NonZeroU32;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::oracle::{Oracle, kernel_release};
use crate::report::{Reasons, Row, Totals, Verdict, status_page, transparency_page};
use crate::run::{Anyring, Conditions, Outcome, Places, Ran, run_test, run_until};
use crate::source::{Libc, Suite, prepare, prepare_linked, prepare_static};
use crate::traced::check_trace;
use crate::{concurrent, coverage, differential, refusals};

/// The time limit of a run with io_uring denied: such a test has nothing to wait for.
const DENIED_LIMIT: Duration = Duration::from_secs(20);

/// The time limit of a native test: that of the suite's own script. The remembered outcomes must not
/// depend on `--limit`.
const NATIVE_LIMIT: Duration = Duration::from_secs(60);

/// The number of native runs of a test, one of which must pass for the test to count as passed: noise must not remove
/// it from the score.
const NATIVE_TRIES: NonZeroU32 = NonZeroU32::new(3).unwrap();

/// The probability of each fault; it is high because the tests are short.
const CHAOS_RATE: &str = "0.1";

/// Run liburing's own test suite over anyring
#[derive(Parser)]
#[command(name = "anyring-conformance", version)]
struct Cli {
    #[command(subcommand)]
    command: Option<Task>,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Common {
    /// The directory of sources, programs, logs and remembered outcomes [default: HOME/work]
    #[arg(long, global = true, value_name = "DIR", env = "ANYRING_CONFORMANCE_WORK")]
    work: Option<PathBuf>,
    /// Sources of liburing, of any version, instead of the fetched ones; they are built in place
    #[arg(long, global = true, value_name = "DIR")]
    liburing: Option<PathBuf>,
    /// The crate's directory, which holds reasons.toml, must-pass.txt and STATUS.md
    #[arg(long, global = true, value_name = "DIR", default_value = env!("CARGO_MANIFEST_DIR"))]
    home: PathBuf,
    /// The anyring command [default: the one beside this program]
    #[arg(long, global = true, value_name = "PATH")]
    anyring: Option<PathBuf>,
    /// Time limit in seconds of each test over anyring
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 180)]
    limit: u64,
    /// Only these tests
    #[arg(long, global = true, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// Answer ENOSYS to io_uring's calls instead of EPERM
    #[arg(long, global = true)]
    enosys: bool,
    /// Keep the tests' directories
    #[arg(long, global = true)]
    keep: bool,
}

#[derive(Subcommand)]
enum Task {
    /// Run the tests natively, denied, and over anyring, and compare (the default command)
    Suite(SuiteArgs),
    /// Run the tests of must-pass.txt over the user engine with io_uring denied; fail if one fails
    MustPass {
        /// Link with our liburing.so.2 beside this program, instead of `anyring run`
        #[arg(long)]
        library: bool,
        /// Link statically with this C library, instead of dynamically; without the tests of static.toml
        #[arg(long, value_enum, value_name = "LIBC", conflicts_with = "library")]
        statically: Option<Libc>,
        /// In the default sandbox of a container, as `anyring-deny --container` makes it; without the tests of container.toml
        #[arg(long, conflicts_with = "library")]
        container: bool,
        /// Which engine. With the kernel's, io_uring is not denied; it needs --library
        #[arg(long, value_enum, default_value_t = Engine::User, requires_if("kernel", "library"))]
        engine: Engine,
        /// How often a test may run until it passes. More than once is for slow machines: some tests give other threads
        /// only a millisecond
        #[arg(long, value_name = "N", default_value_t = NonZeroU32::MIN)]
        tries: NonZeroU32,
    },
    /// Run the tests of chaos.txt with the faults that it lists; fail if one fails
    Chaos {
        /// The first seed
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// Number of seeds
        #[arg(long, value_name = "N", default_value_t = 5)]
        seeds: u64,
    },
    /// Run the tests of must-pass.txt under anyring trace; fail if one fails, or if a trace lacks a submitted request
    Traced {
        /// Which engine. With the kernel's, io_uring is not denied
        #[arg(long, value_enum, default_value_t = Engine::User)]
        engine: Engine,
    },
    /// Run the tests natively and denied only, without anyring
    Oracle {
        /// Forget the remembered outcomes of these tests first
        #[arg(long)]
        refresh: bool,
    },
    /// Fetch and build the tests, and do nothing else
    Prepare,
    /// Print which operations and which of their errors the tests saw; fail if one was not seen
    Coverage {
        /// The file in which tests that were built with the feature `coverage` noted results
        file: PathBuf,
    },
    /// Run random programs on the kernel's io_uring and on the user engine, and compare
    Differential(differential::Options),
    /// Run random programs of several threads and rings, judged by conditions that hold on any engine
    Concurrent(concurrent::Options),
    /// Print an engine's answer to each flag, registration and field of an SQE
    Refusals(refusals::Options),
}

#[derive(Args, Default)]
struct SuiteArgs {
    /// Which engine anyring uses. With the kernel's, io_uring is not denied
    #[arg(long, value_enum, default_value_t = Engine::User)]
    engine: Engine,
    /// Print the names of the tests
    #[arg(long)]
    list: bool,
    /// Write STATUS.md; with the kernel's engine, STATUS-KERNEL.md
    #[arg(long, conflicts_with_all = ["only", "liburing"])]
    write_status: bool,
    /// Forget the remembered outcomes of these tests' runs without anyring first
    #[arg(long)]
    refresh: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Engine {
    #[default]
    User,
    Kernel,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::User => "user",
            Engine::Kernel => "kernel",
        }
    }
}

/// The way in which tests are linked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Build {
    /// The test is linked dynamically with the C library, as liburing's Makefile does it.
    Dynamic,
    /// The test is linked dynamically with our liburing.so.2, too.
    Library,
    /// The test is linked statically.
    Static(Libc),
}

/// Runs the command; returns the exit status of the process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command.unwrap_or_else(|| Task::Suite(SuiteArgs::default())) {
        Task::Suite(args) => suite(&cli.common, args),
        Task::MustPass { library, statically, container, engine, tries } => {
            let build = match statically {
                Some(libc) => Build::Static(*libc),
                None if *library => Build::Library,
                None => Build::Dynamic,
            };
            must_pass(&cli.common, build, *container, *engine, *tries)
        }
        Task::Chaos { seed, seeds } => chaos(&cli.common, *seed..seed.saturating_add(*seeds)),
        Task::Traced { engine } => traced(&cli.common, *engine),
        Task::Oracle { refresh } => oracle(&cli.common, *refresh),
        Task::Differential(options) => Ok(differential::command(options)),
        Task::Concurrent(options) => Ok(concurrent::command(options)),
        Task::Refusals(options) => Ok(refusals::command(options)),
        Task::Coverage { file } => coverage::report(file).map(|complete| ExitCode::from(u8::from(!complete))),
        Task::Prepare => cli.common.bench().map(|bench| {
            println!("{} tests in {}", bench.suite.built.len(), bench.places.programs.display());
            ExitCode::SUCCESS
        }),
    };
    done.unwrap_or_else(|error| {
        eprintln!("anyring-conformance: {error:#}");
        ExitCode::from(2)
    })
}

/// The built suite, and its directories.
struct Bench {
    suite: Suite,
    places: Places,
    work: PathBuf,
}

impl Bench {
    fn new(suite: Suite, work: PathBuf) -> Bench {
        let places = Places {
            programs: suite.programs.clone(),
            scratch: work.join("scratch"),
            logs: work.join("logs"),
            lock: std::env::temp_dir().join("anyring-conformance.lock"),
        };
        Bench { suite, places, work }
    }
}

impl Common {
    fn bench(&self) -> Result<Bench> {
        let work = self.work_directory()?;
        let suite = prepare(&work, self.liburing.as_deref())?;
        Ok(Bench::new(suite, work))
    }

    /// Returns the suite linked with the library beside this program, and the conditions under which it runs.
    fn linked(&self, engine: Engine) -> Result<(Bench, Conditions)> {
        let work = self.work_directory()?;
        let library =
            std::env::current_exe().context("cannot find this program")?.with_file_name("liburing.so.2");
        let library = library.canonicalize().with_context(|| {
            format!("no library at {}: run `make build`, or scripts/link-liburing", library.display())
        })?;
        let suite = prepare_linked(&work, self.liburing.as_deref(), &library)?;
        let conditions = Conditions {
            label: format!("library-{}", engine.name()),
            deny: (engine == Engine::User).then(|| self.errno()),
            anyring: None,
            library: library.parent().map(PathBuf::from),
            limit: Duration::from_secs(self.limit),
            keep: self.keep,
        };
        Ok((Bench::new(suite, work), conditions))
    }

    /// Returns the suite linked statically.
    fn linked_statically(&self, libc: Libc) -> Result<Bench> {
        let work = self.work_directory()?;
        let suite = prepare_static(&work, self.liburing.as_deref(), libc)?;
        Ok(Bench::new(suite, work))
    }

    fn work_directory(&self) -> Result<PathBuf> {
        let work = self.work.clone().unwrap_or_else(|| self.home.join("work"));
        fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
        work.canonicalize().context("cannot resolve the work directory")
    }

    /// Returns the tests to run: all, or the named ones.
    fn selection(&self, suite: &Suite) -> Result<Vec<String>> {
        if self.only.is_empty() {
            return Ok(suite.built.clone());
        }
        known_only(&self.only, suite)?;
        Ok(self.only.clone())
    }

    /// Returns the names in a list of the crate's directory.
    fn list(&self, name: &str) -> Result<Vec<String>> {
        let path = self.home.join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(listed(&text))
    }

    /// Returns the tests that must pass, limited to the named ones; all of them must be built, unless they are linked in another way than liburing
    /// does it.
    fn must_pass(&self, suite: &Suite, build: Build) -> Result<Vec<String>> {
        let mut names = self.list("must-pass.txt")?;
        names.retain(|name| build == Build::Dynamic || !suite.not_built.contains(name));
        known_only(&names, suite).context("in must-pass.txt")?;
        if !self.only.is_empty() {
            names.retain(|name| self.only.contains(name));
        }
        Ok(names)
    }

    fn errno(&self) -> i32 {
        if self.enosys { libc::ENOSYS } else { libc::EPERM }
    }

    fn without_anyring(&self, label: &str, deny: Option<i32>) -> Conditions {
        let limit = if deny.is_some() { DENIED_LIMIT } else { NATIVE_LIMIT };
        Conditions { label: label.to_owned(), deny, anyring: None, library: None, limit, keep: self.keep }
    }

    fn with_anyring(&self, engine: Engine) -> Result<Conditions> {
        let anyring = match &self.anyring {
            Some(path) => path.clone(),
            None => std::env::current_exe().context("cannot find this program")?.with_file_name("anyring"),
        };
        let anyring = anyring.canonicalize().with_context(|| {
            format!(
                "no anyring command at {}: build the workspace, or name it with --anyring",
                anyring.display()
            )
        })?;
        Ok(Conditions {
            label: engine.name().to_owned(),
            deny: (engine == Engine::User).then(|| self.errno()),
            anyring: Some(Anyring {
                command: anyring,
                arguments: ["run", "--engine", engine.name()].map(OsString::from).into(),
                is_user: engine == Engine::User,
            }),
            library: None,
            limit: Duration::from_secs(self.limit),
            keep: self.keep,
        })
    }
}

fn known_only(names: &[String], suite: &Suite) -> Result<()> {
    let unknown: Vec<&str> =
        names.iter().filter(|name| !suite.built.contains(name)).map(String::as_str).collect();
    ensure!(unknown.is_empty(), "no such test was built: {} (see suite --list)", unknown.join(", "));
    Ok(())
}

/// The outcomes of the two runs without anyring.
struct Oracles<'a> {
    bench: &'a Bench,
    native: (Oracle, Conditions),
    denied: (Oracle, Conditions),
}

impl<'a> Oracles<'a> {
    /// Loads the remembered outcomes; with `refresh`, forgets those of the selected tests.
    fn load(common: &Common, bench: &'a Bench, kernel: &str, refresh: bool) -> Result<Oracles<'a>> {
        let denied = if common.enosys { "enosys" } else { "denied" };
        let version = &bench.suite.version;
        let mut oracles = Oracles {
            bench,
            native: (
                Oracle::load(&bench.work, "native", version, kernel)?,
                common.without_anyring("native", None),
            ),
            denied: (
                Oracle::load(&bench.work, denied, version, kernel)?,
                common.without_anyring(denied, Some(common.errno())),
            ),
        };
        if refresh {
            for name in common.selection(&bench.suite)? {
                oracles.native.0.forget(&name);
                oracles.denied.0.forget(&name);
            }
        }
        Ok(oracles)
    }

    fn row(&mut self, name: &str) -> Result<Row> {
        let places = &self.bench.places;
        let native = self.native.0.outcome(places, &self.native.1, name, NATIVE_TRIES)?;
        let denied = self.denied.0.outcome(places, &self.denied.1, name, NonZeroU32::MIN)?;
        Ok(Row { name: name.to_owned(), native, denied, anyring: None })
    }
}

fn suite(common: &Common, args: &SuiteArgs) -> Result<ExitCode> {
    let bench = common.bench()?;
    if args.list {
        bench.suite.built.iter().for_each(|name| println!("{name}"));
        return Ok(ExitCode::SUCCESS);
    }
    let conditions = common.with_anyring(args.engine)?;
    let reasons = Reasons::load(&common.home.join("reasons.toml"))?;
    let kernel = kernel_release()?;
    let mut oracles = Oracles::load(common, &bench, &kernel, args.refresh)?;
    let mut rows = Vec::new();
    println!("{:<28} {:<10} {:<10} {:<10}", "test", "native", "denied", conditions.label);
    for name in common.selection(&bench.suite)? {
        let mut row = oracles.row(&name)?;
        let ran = run_test(&bench.places, &conditions, &name)?;
        row.anyring = Some(ran.outcome);
        println!(
            "{name:<28} {:<10} {:<10} {:<10} {:>6.2} s  {}",
            row.native,
            row.denied,
            ran.outcome,
            ran.took.as_secs_f64(),
            mark(&row)
        );
        rows.push(row);
    }
    finish(&bench, &rows);
    if args.write_status {
        let (page, file) = match args.engine {
            Engine::User => (status_page(&rows, &bench.suite.not_built, &reasons, &kernel), "STATUS.md"),
            Engine::Kernel => (transparency_page(&rows, &reasons, &kernel), "STATUS-KERNEL.md"),
        };
        let path = common.home.join(file);
        fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn mark(row: &Row) -> &'static str {
    match row.verdict() {
        Verdict::Passed => "ok",
        Verdict::Failed => "FAILED",
        Verdict::Skipped if row.counts() => "skipped",
        Verdict::Skipped if row.is_beyond() => "ok, not natively",
        Verdict::Skipped => "proves nothing",
    }
}

fn finish(bench: &Bench, rows: &[Row]) {
    let totals = Totals::of(rows);
    if !bench.suite.not_built.is_empty() {
        println!("not built: {}", bench.suite.not_built.join(" "));
    }
    println!("what the tests said is in {}", bench.places.logs.display());
    println!("{}", totals.summary());
    println!("{}", totals.line());
}

fn oracle(common: &Common, refresh: bool) -> Result<ExitCode> {
    let bench = common.bench()?;
    let mut oracles = Oracles::load(common, &bench, &kernel_release()?, refresh)?;
    let mut rows = Vec::new();
    println!("{:<28} {:<10} {:<10}", "test", "native", "denied");
    for name in common.selection(&bench.suite)? {
        let row = oracles.row(&name)?;
        println!("{name:<28} {:<10} {:<10}", row.native, row.denied);
        rows.push(row);
    }
    finish(&bench, &rows);
    Ok(ExitCode::SUCCESS)
}

fn must_pass(
    common: &Common,
    build: Build,
    container: bool,
    engine: Engine,
    tries: NonZeroU32,
) -> Result<ExitCode> {
    let (bench, conditions) = match build {
        Build::Dynamic => (common.bench()?, common.with_anyring(engine)?),
        Build::Library => common.linked(engine)?,
        Build::Static(libc) => {
            let mut conditions = common.with_anyring(engine)?;
            conditions.label = libc.name().to_owned();
            (common.linked_statically(libc)?, conditions)
        }
    };
    let mut known = Reasons::default();
    let mut expect = |list: &str| -> Result<()> {
        known.0.extend(Reasons::load(&common.home.join(list))?.0);
        Ok(())
    };
    match build {
        Build::Library if engine == Engine::User => expect("library.toml")?,
        Build::Static(_) => expect("static.toml")?,
        _ => {}
    }
    if container {
        expect("container.toml")?;
        anyring_deny::confine().context("cannot install the filter of a container")?;
    }
    let names = common.must_pass(&bench.suite, build)?;
    let (mut passed, mut failed, mut skipped, mut unsteady) = (0, 0, 0, 0);
    for name in &names {
        if let Some(reason) = known.0.get(name) {
            println!("{name:<28} skipped: {reason}");
            skipped += 1;
            continue;
        }
        let (good, runs) = run_until(|&good| good, tries, || passes(&bench, &conditions, name, name))?;
        if good {
            passed += 1;
            unsteady += u32::from(runs > 1);
        } else if engine == Engine::Kernel && !passes_natively(common, &bench, name)? {
            println!("{name:<28} skipped: it does not pass natively either");
            skipped += 1;
        } else {
            failed += 1;
        }
    }
    if build != Build::Dynamic && !bench.suite.not_built.is_empty() {
        println!("not built so: {}", bench.suite.not_built.join(" "));
    }
    if unsteady > 0 {
        println!("passed in another run only: {unsteady}");
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(ExitCode::from(u8::from(failed != 0)))
}

/// True if a test passes on the kernel's io_uring; false if the kernel is too old for it.
fn passes_natively(common: &Common, bench: &Bench, name: &str) -> Result<bool> {
    let natively = common.without_anyring("native", None);
    Ok(run_test(&bench.places, &natively, name)?.outcome == Outcome::Pass)
}

/// Runs a test and prints its outcome, with its log if it did not pass. Returns true if it passed.
fn passes(bench: &Bench, conditions: &Conditions, name: &str, shown: &str) -> Result<bool> {
    let Ran { outcome, took } = run_test(&bench.places, conditions, name)?;
    let good = outcome == Outcome::Pass;
    let end = if good { "ok" } else { "FAILED" };
    println!("{shown:<28} {outcome:<10} {:>6.2} s  {end}", took.as_secs_f64());
    if !good {
        print_log(bench, conditions, name);
    }
    Ok(good)
}

/// Runs each test of the list with each seed.
fn chaos(common: &Common, seeds: Range<u64>) -> Result<ExitCode> {
    let (bench, mut conditions) = (common.bench()?, common.with_anyring(Engine::User)?);
    "chaos".clone_into(&mut conditions.label);
    let (mut passed, mut failed) = (0, 0);
    for line in common.list("chaos.txt")? {
        let (name, faults) = line.split_once(' ').with_context(|| format!("no faults for {line}"))?;
        known_only(&[name.to_owned()], &bench.suite).context("in chaos.txt")?;
        if !common.only.is_empty() && !common.only.iter().any(|only| only == name) {
            continue;
        }
        for seed in seeds.clone() {
            let words =
                ["chaos", "--seed", &seed.to_string(), "--rate", CHAOS_RATE, "--faults", faults.trim()];
            if let Some(anyring) = &mut conditions.anyring {
                anyring.arguments = words.map(OsString::from).into();
            }
            if passes(&bench, &conditions, name, &format!("{name}, seed {seed}"))? {
                passed += 1;
            } else {
                failed += 1;
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    Ok(ExitCode::from(u8::from(failed != 0)))
}

/// Runs each test that must pass, traced.
fn traced(common: &Common, engine: Engine) -> Result<ExitCode> {
    let (bench, mut conditions) = (common.bench()?, common.with_anyring(engine)?);
    conditions.label = format!("traced-{}", engine.name());
    let (mut passed, mut failed, mut requests, mut unseen) = (0, 0, 0, 0);
    for name in common.must_pass(&bench.suite, Build::Dynamic)? {
        let trace = bench.places.logs.join(format!("{}.json", conditions.label));
        if let Some(anyring) = &mut conditions.anyring {
            let words = ["trace", "--json", "--engine", engine.name(), "-o"].map(OsString::from);
            anyring.arguments = words.into_iter().chain([trace.clone().into()]).collect();
        }
        let is_passed = passes(&bench, &conditions, &name, &name)?;
        let lines = fs::read_to_string(&trace).with_context(|| format!("no trace at {}", trace.display()))?;
        match check_trace(&lines) {
            Ok(shown) => {
                requests += shown.requests;
                unseen += shown.unseen;
                if is_passed { passed += 1 } else { failed += 1 }
            }
            Err(error) => {
                println!("{name:<28} the trace is not whole: {error:#}");
                failed += 1;
            }
        }
        fs::remove_file(&trace)?;
    }
    println!(
        "{passed} passed, {failed} failed; {requests} requests shown; rings that could not be seen whole: {unseen}"
    );
    Ok(ExitCode::from(u8::from(failed != 0)))
}

/// Returns the names in a list with comments.
fn listed(text: &str) -> Vec<String> {
    let bare = |line: &str| line.split('#').next().unwrap_or("").trim().to_owned();
    text.lines().map(bare).filter(|name| !name.is_empty()).collect()
}

/// Prints the end of a failed test's output.
fn print_log(bench: &Bench, conditions: &Conditions, name: &str) {
    let path = bench.places.logs.join(&conditions.label).join(format!("{name}.log"));
    let bytes = fs::read(&path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(20)..] {
        println!("    {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        assert!(Cli::try_parse_from(["x", "suite", "--engine", "kernel", "--only", "nop", "link"]).is_ok());
        assert!(Cli::try_parse_from(["x", "suite", "--write-status", "--only", "nop"]).is_err());
        assert!(Cli::try_parse_from(["x", "suite", "--write-status", "--liburing", "there"]).is_err());
    }

    #[test]
    fn a_test_runs_until_it_passes() {
        let runs_of = |tries, passing_run| {
            let mut runs = 0;
            let passes = || {
                runs += 1;
                Ok(runs == passing_run)
            };
            let (passed, took) = run_until(|&good| good, NonZeroU32::new(tries).unwrap(), passes).unwrap();
            (passed.then_some(took), runs)
        };
        assert_eq!(runs_of(1, 1), (Some(1), 1));
        assert_eq!(runs_of(3, 3), (Some(3), 3));
        assert_eq!(runs_of(3, 2), (Some(2), 2));
        assert_eq!(runs_of(1, 2), (None, 1));
        assert_eq!(runs_of(3, 4), (None, 3));
    }

    #[test]
    fn lists_have_comments() {
        assert_eq!(listed("# all\nnop\n\n link # flaky\n"), ["nop", "link"]);
    }

    #[test]
    fn the_committed_lists_can_be_read() {
        let home = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        Reasons::load(&home.join("reasons.toml")).unwrap();
        let known = ["library.toml", "static.toml"].map(|name| Reasons::load(&home.join(name)).unwrap());
        let names = listed(&fs::read_to_string(home.join("must-pass.txt")).unwrap());
        let mut sorted = names.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(names, sorted, "must-pass.txt is sorted and names nothing twice");
        assert!(
            known.iter().all(|list| list.0.keys().all(|name| names.contains(name))),
            "library.toml and static.toml name what must pass elsewhere"
        );
    }
}
