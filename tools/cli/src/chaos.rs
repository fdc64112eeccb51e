//! `anyring chaos`: runs a program with faults that the ABI allows (crate `anyring-chaos`).
//!
//! Each run is an `anyring run` with a plan, whose path the program finds in `ANYRING_CHAOS`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use anyring_chaos::power::{Model, Power, PowerReport};
use anyring_chaos::{
    Dose, End, Failure, Found, Harms, Injected, Judge, Launch, Output, Record, Report, Rule, Runner, Search,
    describe, describe_harm,
};
use anyring_chaos_plan::{Class, Fault, Faults, Settings};
use anyring_say::say_error;
use indicatif::{ProgressBar, ProgressStyle};
use regex_lite::Regex;

use crate::cli::{Chaos, Engine};
use crate::library;
use crate::status::{self, NOT_EXECUTABLE, NOT_FOUND, OWN_FAILURE, quoted};

/// The default probability of faults, per million.
const RATE: u32 = 20_000;
/// The default time limit of each of several runs.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The number of faults of a run, and of seeds that failed in the same way, that are printed.
const MOST_PRINTED: usize = 20;
/// The exit status if one of several runs fails.
const FAILED: u8 = 1;
/// The exit status if a single run hangs, as of `timeout(1)`.
const HANG: u8 = 124;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The reason why this command stops early.
enum Stop {
    /// A failure, and its remedy.
    Own(String, &'static str),
    Interrupted,
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Own(format!("cannot run: {error}"), "see ulimit -u, ulimit -n and the memory limit")
    }
}

impl From<Option<io::Error>> for Stop {
    fn from(error: Option<io::Error>) -> Stop {
        error.map_or(Stop::Interrupted, Stop::from)
    }
}

/// Runs the program once or repeatedly.
pub fn chaos(arguments: &Chaos) -> ExitCode {
    if arguments.list_faults {
        return list_faults();
    }
    let done = Session::new(arguments).and_then(|session| session.run());
    done.unwrap_or_else(|stop| match stop {
        Stop::Own(what, remedy) => status::fail(OWN_FAILURE, &what, "", remedy),
        Stop::Interrupted => {
            say_error!("anyring: interrupted");
            status::by_signal(libc::SIGINT)
        }
    })
}

fn list_faults() -> ExitCode {
    let mut text = String::new();
    for (class, about) in [
        (Class::Ordinary, "ordinary: a correct program handles these and goes on (the default)"),
        (
            Class::Failure,
            "failure: a resource runs out or a device fails; a correct program may give up, and reports that",
        ),
        (Class::Strict, "strict: the ABI allows these, but no kernel does them today"),
        (Class::Power, "with --power-cut: the moment of the power cut, and what is lost"),
    ] {
        text.push_str(&format!("{about}\n"));
        for fault in Fault::ALL.iter().filter(|fault| fault.class() == class) {
            text.push_str(&format!("  {:15} {}\n", fault.name(), fault.about()));
            text.push_str(&format!("  {:15}   {}\n", "", fault.source()));
        }
    }
    anyring_say::out(format_args!("{text}"));
    ExitCode::SUCCESS
}

/// The session that the arguments describe.
struct Session<'a> {
    arguments: &'a Chaos,
    /// The runner of the first run, which checks whether the engine can be brought into the program.
    first: Runner<'static>,
    /// The runner of the other runs.
    runner: Runner<'static>,
    dose: Dose,
}

impl Session<'_> {
    fn new(arguments: &Chaos) -> Result<Session<'_>, Stop> {
        if matches!(arguments.engine, Some(Engine::Kernel)) {
            return Err(Stop::Own(
                "--engine kernel: the kernel's rings meet no faults and no power cuts, only anyring's own engine does that"
                    .to_owned(),
                "leave --engine kernel out",
            ));
        }
        if arguments.power_cut && arguments.jobs.get() > 1 {
            return Err(Stop::Own(
                "--jobs with --power-cut: the runs would write the same files".to_owned(),
                "leave --jobs out",
            ));
        }
        if arguments.power_cut && arguments.setup.is_none() {
            return Err(Stop::Own(
                "--power-cut without --setup: each run would begin with the files that the one before left"
                    .to_owned(),
                "give a command that makes the files anew, or --setup true if the program does that itself",
            ));
        }
        let record = arguments.replay.as_deref().map(read).transpose()?;
        let dose = match &record {
            Some(record) => {
                record.dose().map_err(|why| Stop::Own(why, "use a file as --record writes it"))?
            }
            None => Dose::of(settings(arguments)?),
        };
        let power = match &record {
            Some(record) => {
                record.power().map_err(|why| Stop::Own(why, "use a file as --record writes it"))?
            }
            None => power(arguments),
        };
        let power = power.map(Arc::new);
        let in_file = record.map(|record| record.program.into_iter().map(OsString::from).collect());
        let program = if arguments.program.is_empty() {
            in_file.unwrap_or_default()
        } else {
            arguments.program.clone()
        };
        let is_single = arguments.runs.is_none() && !arguments.shrink;
        let timeout = match arguments.timeout {
            Some(seconds) => Some(time("--timeout", seconds)?),
            None => (!is_single || power.is_some()).then_some(TIMEOUT),
        };
        let command = library::command().map_err(|why| {
            Stop::Own(format!("cannot find this command: {why}"), "see that /proc is mounted")
        })?;
        let runner = |options: &[&str]| {
            let words = ["run", "--engine", "user"].iter().chain(options).chain(&["--chaos-plan"]);
            let arguments = words.map(OsString::from).collect();
            let launch = Launch { command: command.clone(), arguments, program: program.clone(), timeout };
            Runner { launch, interrupted: &INTERRUPTED, power: power.clone() }
        };
        Ok(Session { arguments, first: runner(&[]), runner: runner(&["--loads"]), dose })
    }

    fn run(&self) -> Result<ExitCode, Stop> {
        let rule = Rule { expect: pattern(self.arguments)?, compare: self.arguments.compare };
        match self.arguments.runs {
            _ if self.arguments.shrink => self.find_few(rule),
            Some(runs) => self.search(rule, runs).map(|found| searched(&found)),
            None => self.once(rule),
        }
    }

    /// Runs the program once, with the streams of this command.
    fn once(&self, rule: Rule) -> Result<ExitCode, Stop> {
        let seed = self.dose.settings.seed;
        let draws_moment = |power: &Power| self.dose.only.is_none() && power.moment.is_none();
        let has_moment = !self.runner.power.as_deref().is_some_and(draws_moment);
        let judge = if rule.compare || !has_moment { Some(self.judge(rule.clone())?) } else { None };
        let kept = judge.is_some() || rule.expect.is_some() || self.runner.power.is_some();
        leave_interrupts_to_the_program(self.runner.launch.timeout.is_none() && !kept);
        let output = if kept { Output::Kept } else { Output::Inherited };
        let report = self.first.run(&self.dose, output)?.ok_or(Stop::Interrupted)?;
        let outcome = &report.outcome;
        let _ = io::stdout().write_all(&outcome.stdout);
        let _ = io::stderr().write_all(&outcome.stderr);
        let what = if self.dose.only.is_some() { "replay" } else { "run" };
        say_error!("anyring: {what} of seed {seed}: {}, {}", outcome.end, count(&report));
        print_injected(&report.injected);
        print_power(report.power.as_ref());
        print_harms(&outcome.harms);
        if !self.dose.only.as_ref().is_some_and(Vec::is_empty) && report.injected.is_empty() {
            hint_that_nothing_was_injected();
        }
        let looked_for = rule.expect.filter(|expect| {
            [&outcome.stdout, &outcome.stderr]
                .iter()
                .any(|output| expect.is_match(&String::from_utf8_lossy(output)))
        });
        if let Some(expect) = &looked_for {
            say_error!("anyring: the output matches \"{expect}\"");
        }
        let differs = judge.and_then(|judge| judge.judge(outcome));
        if let Some(failure) = &differs {
            say_error!("anyring: different from the run without faults: {failure}");
        }
        self.record(self.dose.settings, differs.map(|failure| failure.to_string()), &report.injected)?;
        Ok(match outcome.end {
            End::Exit(status) => ExitCode::from(status as u8),
            End::Signal(signal) => status::by_signal(signal),
            End::Hang => ExitCode::from(HANG),
        })
    }

    /// Creates the judge, by a run without faults.
    fn judge(&self, rule: Rule) -> Result<Judge, Stop> {
        leave_interrupts_to_the_program(false);
        let dose = Dose::nothing(self.dose.settings);
        let report = self.first.run(&dose, Output::Alone)?.ok_or(Stop::Interrupted)?;
        let stderr = String::from_utf8_lossy(&report.outcome.stderr).into_owned();
        let codes = [OWN_FAILURE, NOT_EXECUTABLE, NOT_FOUND];
        // With a power cut, the outcome is that of the check.
        let end = report.outcome.program.unwrap_or(report.outcome.end);
        let is_own = codes.iter().any(|&code| end == End::Exit(code.into()));
        if is_own && ["anyring: ", "anyring["].iter().any(|own| stderr.starts_with(own)) {
            return Err(Stop::Own(
                format!("the program cannot be run:\n{}", stderr.trim_end()),
                "see that anyring run runs it",
            ));
        }
        let judge = Judge::new(rule, report.outcome).map_err(|why| {
            Stop::Own(why, "give a program, --timeout or --expect with which it passes without faults")
        })?;
        if let Some(end) = judge.fails_without_faults() {
            say_error!("anyring: without faults the program ends with {end}; a run that ends so passes");
        }
        Ok(judge)
    }

    /// Tries seeds; returns the seeds whose runs failed.
    fn search(&self, rule: Rule, runs: u64) -> Result<Vec<Found>, Stop> {
        let judge = self.judge(rule)?;
        self.search_with(&judge, runs)
    }

    fn search_with(&self, judge: &Judge, runs: u64) -> Result<Vec<Found>, Stop> {
        let bar = progress(runs);
        let (passed, failed, injected) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let (left_alone, ended) = (Mutex::new(LeftAlone::default()), AtomicU64::new(0));
        let tell = |report: &Report, failure: Option<&Failure>| {
            let count = if failure.is_some() { &failed } else { &passed };
            count.fetch_add(1, Ordering::Relaxed);
            if let (None, Some(power)) = (failure, &report.power) {
                left_alone.lock().expect("no thread panics").add(power);
            }
            let is_whole = report.power.as_ref().is_some_and(|power| power.moment == 0 && !power.is_full);
            ended.fetch_add(u64::from(is_whole), Ordering::Relaxed);
            injected.fetch_add(report.faults(), Ordering::Relaxed);
            bar.inc(1);
            bar.set_message(format!("{} failed", failed.load(Ordering::Relaxed)));
        };
        let Chaos { jobs, keep_going, .. } = *self.arguments;
        let search = Search { first: self.dose.settings, runs, jobs, keeps_going: keep_going };
        let found = anyring_chaos::search(&self.runner, judge, &search, tell);
        bar.finish_and_clear();
        let found = found?;
        let first = self.dose.settings.seed;
        let (passed, failed, injected) = (passed.into_inner(), failed.into_inner(), injected.into_inner());
        say_error!(
            "anyring: from seed {first} on: {passed} passed, {failed} failed, {injected} faults injected"
        );
        let ended = ended.into_inner();
        if ended > 0 {
            say_error!("anyring: in {ended} of them the power was cut when the program had ended");
        }
        left_alone.into_inner().expect("no thread panics").print();
        for group in anyring_chaos::alike(&found) {
            // With fewer faults, the cause is easier to find.
            let Some(simplest) = group.iter().min_by_key(|found| found.report.faults()) else { continue };
            say_error!(
                "anyring: {}\n  {}",
                describe_group(&group),
                self.command(simplest.seed, simplest.report.power.as_ref())
            );
            print_power(simplest.report.power.as_ref());
            print_harms(&simplest.report.outcome.harms);
        }
        if INTERRUPTED.load(Ordering::Relaxed) {
            return Err(Stop::Interrupted);
        }
        if injected == 0 {
            hint_that_nothing_was_injected();
        }
        if let Some(first) = found.first().filter(|_| !self.arguments.shrink) {
            let settings = Settings { seed: first.seed, ..self.dose.settings };
            self.record(settings, Some(first.failure.to_string()), &first.report.injected)?;
        }
        Ok(found)
    }

    /// Finds a run that fails, and the few faults that make it fail.
    fn find_few(&self, rule: Rule) -> Result<ExitCode, Stop> {
        let judge = self.judge(rule)?;
        let (settings, failure, injected, unlogged) = if self.dose.only.is_some() {
            let report = self.runner.run(&self.dose, Output::Alone)?.ok_or(Stop::Interrupted)?;
            let Some(failure) = judge.judge(&report.outcome) else {
                say_error!("anyring: with these faults, the program passes");
                return Ok(ExitCode::SUCCESS);
            };
            (self.dose.settings, failure, report.injected, report.unlogged)
        } else {
            let mut found = self.search_with(&judge, self.arguments.runs.unwrap_or(1))?;
            if found.is_empty() {
                return Ok(ExitCode::SUCCESS);
            }
            let Found { seed, failure, report } = found.swap_remove(0);
            (Settings { seed, ..self.dose.settings }, failure, report.injected, report.unlogged)
        };
        if unlogged > 0 {
            say_error!(
                "anyring: {unlogged} faults are not considered, because the log had no space for them"
            );
        }
        let few = self.shrink(&judge, &failure, settings, &injected)?;
        say_error!(
            "anyring: seed {}: {} of {} faults make it fail ({failure}):",
            settings.seed,
            few.len(),
            injected.len()
        );
        few.iter().for_each(|one| say_error!("  {}", describe(one)));
        self.record(settings, Some(failure.to_string()), &few)?;
        match &self.arguments.record {
            Some(path) => say_error!("  anyring chaos --replay {}", quoted(path.as_os_str().to_owned())),
            None => say_error!("anyring: --record FILE keeps them, for --replay"),
        }
        Ok(ExitCode::from(FAILED))
    }

    fn shrink(
        &self,
        judge: &Judge,
        failure: &Failure,
        settings: Settings,
        injected: &[Injected],
    ) -> Result<Vec<Injected>, Stop> {
        let bar = ProgressBar::new_spinner();
        let tell = |left: usize| bar.set_message(format!("{left} faults left"));
        let tries: NonZero<u32> = self.arguments.tries;
        bar.enable_steady_tick(Duration::from_millis(200));
        let few = anyring_chaos::shrink(&self.runner, judge, failure, settings, injected, tries, tell);
        bar.finish_and_clear();
        few?.ok_or_else(|| {
            let what = format!(
                "with the same faults, the program did not fail in the same way again in {tries} runs"
            );
            Stop::Own(what, "the program does not always do the same: use more --tries, or another seed")
        })
    }

    /// Returns the command that runs a seed again, and cuts the power at the same moment.
    fn command(&self, seed: u64, cut: Option<&PowerReport>) -> String {
        let mut words: Vec<OsString> =
            vec!["anyring".into(), "chaos".into(), "--seed".into(), seed.to_string().into()];
        let mut option = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                words.extend([name.into(), value.into()]);
            }
        };
        option("--rate", self.arguments.rate.map(|rate| rate.to_string()));
        option("--faults", self.arguments.faults.clone());
        option("--delay", self.arguments.delay.map(|delay| delay.to_string()));
        option("--timeout", self.runner.launch.timeout.map(|timeout| timeout.as_secs_f64().to_string()));
        option("--expect", self.arguments.expect.clone());
        if let Some(power) = &self.runner.power {
            option("--check", Some(power.check.clone()));
            option("--setup", power.setup.clone());
            option("--crash-model", Some(power.model.name.to_owned()));
            option("--cut-at", cut.map(|cut| cut.moment.to_string()));
            words.push("--power-cut".into());
        }
        if self.arguments.compare {
            words.push("--compare".into());
        }
        words.push("--".into());
        words.extend(self.runner.launch.program.iter().cloned());
        words.into_iter().map(quoted).collect::<Vec<_>>().join(" ")
    }

    fn record(&self, settings: Settings, failure: Option<String>, injected: &[Injected]) -> Result<(), Stop> {
        let Some(path) = &self.arguments.record else { return Ok(()) };
        let cannot = |why: String| {
            Stop::Own(format!("cannot write {}: {why}", path.display()), "name a file that can be written")
        };
        let program = &self.runner.launch.program;
        let record = Record::new(settings, program, failure, injected).map_err(cannot)?;
        let record = record.with_power(self.runner.power.as_deref());
        record.write(path).map_err(|error| cannot(error.to_string()))
    }
}

fn read(path: &Path) -> Result<Record, Stop> {
    Record::read(path).map_err(|why| {
        Stop::Own(format!("cannot replay {}: {why}", path.display()), "name a file as --record writes it")
    })
}

fn time(option: &str, seconds: f64) -> Result<Duration, Stop> {
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| Stop::Own(format!("{option} {seconds}: no time"), "give seconds, more than 0"))
}

fn settings(arguments: &Chaos) -> Result<Settings, Stop> {
    let seed = match arguments.seed {
        Some(seed) => seed,
        None => random_seed()?,
    };
    let rate = arguments.rate.map_or(Ok(RATE), anyring_chaos::rate);
    let rate = rate.map_err(|why| Stop::Own(format!("--rate: {why}"), "give a probability, such as 0.05"))?;
    let default = if arguments.power_cut { Faults::NONE } else { Faults::ORDINARY };
    let faults = arguments.faults.as_deref().map_or(Ok(default), anyring_chaos::choose);
    let faults = faults.map_err(|why| {
        Stop::Own(format!("--faults: {why}"), "anyring chaos --list-faults says what each does")
    })?;
    let delay = arguments.delay.map(|seconds| time("--delay", seconds)).transpose()?;
    let delay_ns = delay.map_or(0, |delay| u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX >> 1));
    Ok(Settings { seed, rate, faults, delay_ns })
}

/// Returns the way in which the power is cut, if it is to be cut.
fn power(arguments: &Chaos) -> Option<Power> {
    let check = arguments.check.clone().filter(|_| arguments.power_cut)?;
    let model = arguments.crash_model.unwrap_or(Model::ALL[0]);
    let (setup, moment) = (arguments.setup.clone(), arguments.cut_at);
    Some(Power { model, setup, check, moment, whole: OnceLock::new() })
}

/// Returns a random seed, which is short because users have to type it.
fn random_seed() -> Result<u64, Stop> {
    let mut bytes = [0_u8; 4];
    // SAFETY: fills the given number of bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != bytes.len() as isize {
        return Err(Stop::Own("cannot make a seed".to_owned(), "give one, by --seed"));
    }
    Ok(u64::from(u32::from_ne_bytes(bytes)))
}

fn pattern(arguments: &Chaos) -> Result<Option<Regex>, Stop> {
    let compiled = arguments.expect.as_deref().map(Regex::new).transpose();
    compiled.map_err(|error| {
        Stop::Own(format!("--expect: {error}"), "give a regular expression of the crate regex-lite")
    })
}

fn searched(found: &[Found]) -> ExitCode {
    if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

fn count(report: &Report) -> String {
    let count = report.faults();
    format!("{count} fault{} injected", if count == 1 { "" } else { "s" })
}

/// Returns a line about runs that failed in the same way.
fn describe_group(group: &[&Found]) -> String {
    let failure = &group[0].failure;
    if let [found] = group {
        return format!("seed {} failed: {failure}, {}", found.seed, count(&found.report));
    }
    let faults = group.iter().map(|found| found.report.faults());
    let (fewest, most) = (faults.clone().min().unwrap_or(0), faults.max().unwrap_or(0));
    let seeds: Vec<String> = group.iter().take(MOST_PRINTED).map(|found| found.seed.to_string()).collect();
    let more = match group.len() - seeds.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "{} seeds failed: {failure}, {fewest} to {most} faults injected: {}{more}",
        group.len(),
        seeds.join(", ")
    )
}

fn print_injected(injected: &[Injected]) {
    injected.iter().take(MOST_PRINTED).for_each(|one| say_error!("  {}", describe(one)));
    if injected.len() > MOST_PRINTED {
        say_error!("  and {} more (--record FILE writes all)", injected.len() - MOST_PRINTED);
    }
}

/// The files that were left alone in runs that passed: the result of these runs does not cover them.
#[derive(Default)]
struct LeftAlone {
    runs: u64,
    /// The number of runs by file and reason.
    files: BTreeMap<String, u64>,
}

impl LeftAlone {
    fn add(&mut self, power: &PowerReport) {
        self.runs += u64::from(!power.left_alone.is_empty());
        for file in &power.left_alone {
            *self.files.entry(file.clone()).or_default() += 1;
        }
    }

    fn print(&self) {
        if self.runs == 0 {
            return;
        }
        say_error!("anyring: in {} of those that passed, files were left alone and lost nothing:", self.runs);
        for (file, runs) in self.files.iter().take(MOST_PRINTED) {
            say_error!("  {file}, in {runs}");
        }
        if self.files.len() > MOST_PRINTED {
            say_error!("  and {} more", self.files.len() - MOST_PRINTED);
        }
    }
}

fn print_power(power: Option<&PowerReport>) {
    let Some(PowerReport { moment, is_full, consequences, left_alone }) = power else { return };
    if *is_full {
        say_error!("anyring: the record of what the program writes is full: the power was cut there");
    } else if *moment == 0 {
        say_error!("anyring: the power was cut when the program had ended");
    }
    if *consequences > 0 {
        say_error!("  and {consequences} later operations, which cannot be left without these");
    }
    for file in left_alone.iter().take(MOST_PRINTED) {
        say_error!("anyring: left alone: {file}");
    }
}

fn print_harms(harms: &Harms) {
    if harms.count > 0 {
        let plural = if harms.count == 1 { "" } else { "s" };
        say_error!(
            "anyring: the program changed or freed memory of {} request{plural} in flight",
            harms.count
        );
    }
    harms.logged.iter().take(MOST_PRINTED).for_each(|one| say_error!("  {}", describe_harm(one)));
}

fn hint_that_nothing_was_injected() {
    say_error!(
        "anyring: no fault was injected: the program makes few requests for this --rate, or none (anyring run --engine user \
         --stats tells)"
    );
}

/// Creates the progress bar, which draws nothing unless standard error is a terminal.
fn progress(runs: u64) -> ProgressBar {
    let bar = ProgressBar::new(runs);
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} seeds, {msg}, {elapsed} (left: {eta})");
    bar.set_style(style.expect("a valid template"));
    bar
}

/// Sets the handlers of signals that end a process. If `leave`, an interrupt from the terminal has no effect on this
/// process, because the program, which is in its process group, gets the interrupt, too; otherwise it stops the runs,
/// as the other signals do.
fn leave_interrupts_to_the_program(leave: bool) {
    extern "C" fn stop(_: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    extern "C" fn pass(_: libc::c_int) {}
    let set = |signal, handler: extern "C" fn(libc::c_int)| {
        // SAFETY: the handlers do nothing that a handler may not do; `exec` resets them.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    };
    [libc::SIGTERM, libc::SIGHUP].into_iter().for_each(|signal| set(signal, stop));
    [libc::SIGINT, libc::SIGQUIT].into_iter().for_each(|signal| set(signal, if leave { pass } else { stop }));
}
