//! The kernel's answers to a fixed set of programs, recorded, so that the user engine can be compared with them even without
//! io_uring.
//!
//! A file has a line of answers for each program. Omitted are programs whose answers vary between three recordings, each at
//! a different speed and on the two file systems of a run, and programs to which the user engine has a different answer that
//! [`super::explain`] explains.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyring_engine::request::version::{self, Version};

use super::child::{Child, enter_scratch, run_with_tape, scratch_directory};
use super::run::{Arenas, Times};
use super::tape::Tape;
use super::{MOST_UNPROVED, Options, generate, progress};
use crate::harness::{self, lanes};
use crate::ring::{Engine, kernel_available};
use crate::rng::program_seed;

/// The number of programs per child.
const BATCH: usize = 25;

/// The number of different programs after which the search ends.
const MANY: usize = 12;

/// The speeds of the recordings: all leave the kernel's threads enough time.
const SPEEDS: [Times; 3] =
    [Times::PATIENT, Times::UNHURRIED, Times { pause: Duration::from_millis(10), ..Times::UNHURRIED }];
/// The speeds at which the user engine must give the same answers.
const REPLAYS: [Times; 2] = [Times::REPLAYED, Times::UNHURRIED];

/// Recorded answers.
pub struct Recording {
    /// The kernel version of the answers.
    pub version: Version,
    /// The seed of the run with the programs.
    pub seed: u64,
    /// The answers, by the index of the program.
    pub lines: BTreeMap<u64, String>,
}

impl Recording {
    /// Reads a recording from a file.
    ///
    /// # Panics
    /// Panics if the file is not a recording.
    pub fn read(path: &Path) -> Recording {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut lines = text.lines();
        let head: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
        let [_, "Linux", version, "seed", seed, ..] = head[..] else {
            panic!("{} does not begin with `# Linux VERSION seed SEED`", path.display())
        };
        let answers = lines.filter_map(|line| line.split_once(' '));
        Recording {
            version: Version::parse(version.as_bytes()).expect("a version that the engine plays"),
            seed: seed.parse().expect("a seed"),
            lines: answers.map(|(index, line)| (index.parse().expect("an index"), line.to_owned())).collect(),
        }
    }
}

/// The results of a comparison with a recording.
#[derive(Default, Debug)]
pub struct Replayed {
    /// The number of programs with equal answers.
    pub same: usize,
    /// The number of programs with explained differences.
    pub explained: usize,
    /// The programs that differ.
    pub different: Vec<String>,
}

impl Replayed {
    /// True if there are more explained differences than chance makes. Programs with any were left out of the recording.
    pub fn explains_too_much(&self) -> bool {
        self.explained as u64 * 1000 > (self.same + self.explained) as u64 * MOST_UNPROVED
    }
}

/// Calls `body` for programs in several concurrent children; returns a line for each. After a line with `!` the rest of a batch
/// is skipped, and after `enough` of them all other programs.
///
/// A child must not use data on the stack of a thread other than the one that forked it, because the next new thread reuses that
/// stack. So each lane has a clone of `body`, which owns its data.
fn in_children(
    enough: Option<usize>,
    indices: &[u64],
    jobs: Option<usize>,
    body: impl Fn(u64, &Arenas, &Path) -> String + Clone + Sync,
) -> BTreeMap<u64, String> {
    let pages = harness::pages(jobs, 8, progress::new_page);
    let (next, all) = (AtomicUsize::new(0), Mutex::new(BTreeMap::<u64, String>::new()));
    let is_enough = || {
        let bad = all.lock().unwrap().values().filter(|line| line.starts_with('!')).count();
        enough.is_some_and(|enough| bad >= enough)
    };
    lanes(&pages, |lane, page| {
        let (body, stops) = (body.clone(), enough.is_some());
        loop {
            let first = next.fetch_add(BATCH, Ordering::Relaxed);
            let Some(mut rest) = indices.get(first..indices.len().min(first + BATCH)) else { return };
            if is_enough() {
                return;
            }
            while let Some(&index) = rest.first() {
                page.program.store(index, Ordering::Relaxed);
                let scratch = scratch_directory(lane, 0);
                let mut child = Child::new(page, |reports| {
                    enter_scratch(&scratch);
                    for &index in rest {
                        let arenas = Arenas::default();
                        page.program.store(index, Ordering::Relaxed);
                        let line = body(index, &arenas, &scratch).replace('\n', "\x1f");
                        let _ = writeln!(reports, "{index}\t{line}");
                        if stops && line.starts_with('!') {
                            break;
                        }
                    }
                    let _ = fs::remove_dir_all(&scratch);
                    0
                });
                let note = |index, line| _ = all.lock().unwrap().insert(index, line);
                rest = loop {
                    match child.report() {
                        Ok(Some(line)) => {
                            let (index, line) = line.split_once('\t').expect("a child's report");
                            note(index.parse().expect("an index"), line.replace('\x1f', "\n"));
                        }
                        Ok(None) => break &[],
                        Err(lost) => {
                            let index = page.program.load(Ordering::Relaxed);
                            note(index, format!("!lost: {}", lost.how));
                            let at = rest.iter().position(|&one| one == index).expect("one of these");
                            break &rest[at + 1..];
                        }
                    }
                };
            }
        }
    });
    all.into_inner().unwrap()
}

/// Returns the kernel's answers to a program, or why they are left out.
fn answers(seed: u64, index: u64, arenas: &Arenas, scratch: &Path) -> String {
    let program = generate::program(program_seed(seed, index));
    // The file systems of a run alternate.
    let other = scratch_directory(usize::MAX - index as usize, 1);
    let places = [scratch, &other, scratch];
    let mut recorded: Option<String> = None;
    for (times, place) in SPEEDS.into_iter().zip(places) {
        let mut tape = Tape::Written(String::new());
        let compared = run_with_tape(&program, [Engine::Kernel; 2], arenas, place, times, &mut tape);
        let Tape::Written(line) = tape else { unreachable!("it is written") };
        let _ = fs::remove_dir_all(&other);
        if !matches!(compared, Ok(None)) || recorded.as_ref().is_some_and(|before| *before != line) {
            return "!varies".into();
        }
        recorded = Some(line);
    }
    let line = recorded.unwrap_or_default();
    let mut different = Vec::new();
    for times in REPLAYS {
        match run_with_tape(&program, [Engine::User; 2], arenas, scratch, times, &mut Tape::of(&line)) {
            Ok(None) => {}
            Ok(Some(_)) => return "!explained".into(),
            Err(difference) => different.push(format!("{difference:?}")),
        }
    }
    match &different[..] {
        [] => line,
        [.., last] if different.len() == REPLAYS.len() => format!("!differs: {program}\n{last}"),
        _ => "!unsteady".into(),
    }
}

/// The command `differential --record FILE`.
pub fn record(path: &Path, options: &Options) -> ExitCode {
    if !kernel_available() {
        eprintln!("anyring-conformance: this kernel gives no io_uring, so there is nothing to record");
        return ExitCode::from(2);
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let Some(version) = Version::of_release(&release) else {
        eprintln!("anyring-conformance: the user engine does not play Linux {release}");
        return ExitCode::from(2);
    };
    let indices: Vec<u64> = (options.run.first..options.run.end()).collect();
    let seed = options.run.seed;
    let body = move |index: u64, arenas: &Arenas, scratch: &Path| answers(seed, index, arenas, scratch);
    let lines = in_children(None, &indices, options.jobs, body);
    let (mut text, mut left_out) = (String::new(), BTreeMap::<&str, usize>::new());
    let mut good = true;
    for (index, line) in &lines {
        let Some(reason) = line.strip_prefix('!') else {
            let _ = writeln!(text, "{index} {line}");
            continue;
        };
        let kind = reason.split(':').next().unwrap_or(reason);
        *left_out.entry(kind).or_default() += 1;
        if kind != reason {
            good = false;
            println!("program {index}: {reason}");
        }
    }
    let counts: String = left_out.iter().map(|(kind, count)| format!(", {kind} {count}")).collect();
    let head = format!(
        "# Linux {version} seed {} programs {}; recorded {}{counts}",
        options.run.seed,
        indices.len(),
        text.lines().count()
    );
    println!("{head}");
    if let Err(error) = fs::write(path, format!("{head}\n{text}")) {
        eprintln!("anyring-conformance: cannot write {}: {error}", path.display());
        return ExitCode::from(2);
    }
    ExitCode::from(u8::from(!good))
}

/// Compares an engine with a recording.
pub fn replay(path: &Path, engine: Engine, jobs: Option<usize>) -> Replayed {
    let recording = Arc::new(Recording::read(path));
    let indices: Vec<u64> = recording.lines.keys().copied().collect();
    let lines = in_children(Some(MANY), &indices, jobs, move |index, arenas: &Arenas, scratch: &Path| {
        version::play(recording.version);
        let program = generate::program(program_seed(recording.seed, index));
        let mut tape = Tape::of(&recording.lines[&index]);
        match run_with_tape(&program, [engine; 2], arenas, scratch, Times::REPLAYED, &mut tape) {
            Ok(None) => "same".into(),
            Ok(Some(_)) => "explained".into(),
            Err(difference) => {
                let step = difference.step.map_or("the end".into(), |step| format!("step {step}"));
                format!(
                    "!{program}\nprogram {index}, at {step}: {}\n  {engine:?}  {}\n  recorded  {}",
                    difference.signature, difference.user, difference.kernel
                )
            }
        }
    });
    let mut replayed = Replayed::default();
    for line in lines.into_values() {
        match line.as_str() {
            "same" => replayed.same += 1,
            "explained" => replayed.explained += 1,
            _ => replayed.different.push(line.trim_start_matches('!').to_owned()),
        }
    }
    replayed
}

/// The command `differential --replay FILE`.
pub fn command(path: &Path, options: &Options) -> ExitCode {
    let engine = if options.kernel { Engine::Kernel } else { Engine::User };
    let replayed = replay(path, engine, options.jobs);
    replayed.different.iter().for_each(|what| println!("{what}\n"));
    println!(
        "{} programs answered as recorded, {} otherwise as explained, {} differ",
        replayed.same,
        replayed.explained,
        replayed.different.len()
    );
    ExitCode::from(u8::from(!replayed.different.is_empty() || replayed.explains_too_much()))
}
