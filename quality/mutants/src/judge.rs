//! Runs tests on mutants: first each test without a mutant, to learn how long it takes and which mutants' places it reaches;
//! then for each mutant the tests that reach its place, until one fails.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::process::{End, run};
use crate::tree::Built;

/// A program that fails if the engine misbehaves.
pub struct Test {
    /// The test's name in reports.
    pub name: String,
    program: PathBuf,
    arguments: Vec<String>,
    /// How long the test takes without a mutant.
    pub took: Duration,
    /// A byte for every mutant, which is set if the test reaches its place.
    reached: Vec<u8>,
}

/// The outcome of a mutant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The named test fails.
    Caught(String),
    /// The named test does not end in time.
    Late(String),
    /// The given number of tests reach the mutant, and none fails.
    Missed(usize),
}

/// Returns the tests of the built programs.
pub fn tests(built: &Built, tools: bool) -> Result<Vec<Test>> {
    let test = |name: &str, program: PathBuf, arguments: &[&str]| Test {
        name: name.to_owned(),
        program,
        arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
        took: Duration::ZERO,
        reached: Vec::new(),
    };
    let mut tests: Vec<Test> = Vec::new();
    for program in &built.tests {
        let output = Command::new(program).args(["--list", "--format", "terse"]).output();
        let output = output.context("the tests start")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the tests do not list themselves: {said}");
        let text = String::from_utf8(output.stdout)?;
        // The tests of layers, circles and verbs read the sources, which are not those of the mutants.
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        let names = names.filter(|name| {
            !["layers::", "circles::", "verbs::"].iter().any(|module| name.starts_with(module))
        });
        tests.extend(names.map(|name| test(name, program.clone(), &["--exact", name])));
    }
    if tools {
        let tool = |name: &str| built.tools.join(name);
        for seed in ["1", "2", "3"] {
            let arguments = ["differential", "--programs", "1000", "--seed", seed, "--no-shrink"];
            tests.push(test(&format!("differential {seed}"), tool("anyring-conformance"), &arguments));
        }
        for program in ["messages", "storage", "quiet", "cancel", "streams", "any"] {
            let arguments = ["--jobs", "1", "--program", program, "--seed", "1", "--schedules", "3000"];
            tests.push(test(&format!("simulation {program}"), tool("anyring-simulation"), &arguments));
        }
    }
    Ok(tests)
}

impl Test {
    fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(folder);
        command
    }

    /// Returns the test's time limit, so long that other load on the machine does not make a mutant look caught.
    fn limit(&self) -> Duration {
        Duration::from_secs(5) + 20 * self.took
    }

    /// Runs the test without a mutant; returns true if it passes in one of three runs.
    fn learn(&mut self, folder: &Path, mutants: usize, worker: usize) -> Result<bool> {
        let path = folder.join(format!("reached-{worker}"));
        for _ in 0..3 {
            fs::write(&path, vec![0; mutants + 1])?;
            let mut command = self.command(folder);
            command.env("ANYRING_MUTANTS_REACHED", &path);
            let (end, took) = run(&mut command, Duration::from_secs(300))?;
            if end == End::Good {
                self.took = took;
                self.reached = fs::read(&path)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn fails(&self, folder: &Path, mutant: usize) -> Result<End> {
        let mut command = self.command(folder);
        Ok(run(command.env("ANYRING_MUTANT", mutant.to_string()), self.limit())?.0)
    }
}

/// Calls `work` for each of `count` numbers, in `jobs` threads.
pub fn each(jobs: usize, count: usize, work: impl Fn(usize, usize) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let (next, work) = (&next, &work);
    std::thread::scope(|scope| {
        let workers = (0..jobs).map(|worker| {
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return Ok(());
                    }
                    work(worker, index)?;
                }
            })
        });
        let workers: Vec<_> = workers.collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })
}

/// Runs every test without a mutant. Tests that fail are left out, and named.
pub fn learn(tests: Vec<Test>, folder: &Path, mutants: usize, jobs: usize) -> Result<Vec<Test>> {
    let slots: Vec<_> = tests.into_iter().map(|test| Mutex::new(Some(test))).collect();
    each(jobs, slots.len(), |worker, index| {
        let mut slot = slots[index].lock().unwrap();
        let test = slot.as_mut().context("a test")?;
        if !test.learn(folder, mutants, worker)? {
            eprintln!("mutants: left out, for it fails without a mutant: {}", test.name);
            *slot = None;
        }
        Ok(())
    })?;
    let mut tests: Vec<Test> = slots.into_iter().filter_map(|slot| slot.into_inner().unwrap()).collect();
    tests.sort_by_key(|test| test.took);
    Ok(tests)
}

/// How many mutants of a function each test has caught.
#[derive(Default)]
pub struct Habits(Mutex<HashMap<String, HashMap<usize, usize>>>);

impl Habits {
    fn of(&self, function: &str) -> HashMap<usize, usize> {
        self.0.lock().unwrap().get(function).cloned().unwrap_or_default()
    }

    fn note(&self, function: &str, test: usize) {
        *self.0.lock().unwrap().entry(function.to_owned()).or_default().entry(test).or_default() += 1;
    }
}

/// Runs the tests that reach a mutant's place until one fails.
pub fn judge(
    tests: &[Test],
    folder: &Path,
    mutant: usize,
    function: &str,
    habits: &Habits,
) -> Result<Outcome> {
    let comes = |test: &Test| test.reached.get(mutant).is_some_and(|&reached| reached != 0);
    let mut reaching: Vec<usize> = (0..tests.len()).filter(|&index| comes(&tests[index])).collect();
    // Tests that have caught other mutants of the function come first, then the quick ones.
    let known = habits.of(function);
    reaching.sort_by_key(|index| std::cmp::Reverse(known.get(index).copied().unwrap_or_default()));
    for &index in &reaching {
        let test = &tests[index];
        let end = test.fails(folder, mutant)?;
        let outcome = match end {
            End::Good => continue,
            // Repeated: a test that fails by chance has not caught the mutant.
            End::Bad if test.fails(folder, mutant)? == End::Good => continue,
            End::Bad => Outcome::Caught(test.name.clone()),
            End::Late => Outcome::Late(test.name.clone()),
        };
        habits.note(function, index);
        return Ok(outcome);
    }
    Ok(Outcome::Missed(reaching.len()))
}
