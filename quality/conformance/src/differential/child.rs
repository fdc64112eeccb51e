//! Programs run in forked children, so that a program that dies or hangs takes only its child with it.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::generate;
use super::program::Program;
use super::progress::{self, Page};
use super::run::{Arenas, Difference, Times, run};
use super::tape::Tape;
use super::timing;
use crate::harness::{self, Heard};
use crate::ring::{self, Engine};
use crate::rng::program_seed;

/// The time without progress after which a program counts as hanging. An `fsync` behind gigabytes of other writes takes
/// many seconds, and a busy machine starts the kernel's workers late.
const HANGS: Duration = Duration::from_secs(60);

/// A finding that a child reported about a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// The engines differ in every run.
    Differs(Difference),
    /// The engines differed once, and not again; or the kernel hung once.
    Unsteady(Difference),
    /// The engines differ, but the kernel also differs from itself, or the engines agree under another timing.
    Racy(Difference),
    /// The child died or hung: how, and where.
    Lost(String),
}

impl Finding {
    /// Returns the signature, which is equal for findings that probably have one cause.
    pub fn signature(&self) -> &str {
        match self {
            Finding::Differs(difference) | Finding::Unsteady(difference) | Finding::Racy(difference) => {
                &difference.signature
            }
            Finding::Lost(how) => how.split(" (").next().unwrap_or(how),
        }
    }
}

/// How a child was lost.
pub struct Lost {
    /// A description, with the place.
    pub how: String,
    /// True if the program hung in a call to the kernel.
    pub by_kernel: bool,
}

/// A forked child, whose progress is followed by its page.
pub struct Child {
    forked: harness::Child,
    page: &'static Page,
    seen: (u64, u64, Instant),
}

impl Child {
    /// Forks a child that runs `body` and ends. `body` gets the pipe for reports.
    pub fn new(page: &'static Page, body: impl FnOnce(&mut File) -> i32) -> Child {
        // Installed before the fork: otherwise the child would wait for ever for a thread of this
        // process that is in the middle of the installation.
        ring::install();
        let forked = harness::Child::fork(450, |mut reports| {
            quiet();
            progress::use_page(page);
            body(&mut reports)
        });
        Child { forked, page, seen: (0, 0, Instant::now()) }
    }

    /// Waits for the child's next report; returns `None` if it has ended well.
    ///
    /// # Errors
    /// Returns how the child was lost.
    pub fn report(&mut self) -> Result<Option<String>, Lost> {
        loop {
            match self.forked.hear(200) {
                Heard::Line(line) => return Ok(Some(line)),
                Heard::End => return self.ended().map(|()| None),
                Heard::Nothing if self.stuck() => {
                    let how = format!("hangs ({})", self.page.place());
                    let by_kernel = self.page.engine() == Engine::Kernel;
                    // SAFETY: our own child, not waited for yet.
                    unsafe { libc::kill(self.forked.pid, libc::SIGKILL) };
                    self.forked.wait();
                    return Err(Lost { how, by_kernel });
                }
                Heard::Nothing => {}
            }
        }
    }

    fn stuck(&mut self) -> bool {
        let now = (self.page.program.load(Ordering::Relaxed), self.page.step.load(Ordering::Relaxed));
        if now != (self.seen.0, self.seen.1) {
            self.seen = (now.0, now.1, Instant::now());
        }
        self.seen.2.elapsed() > HANGS
    }

    fn ended(&self) -> Result<(), Lost> {
        let status = self.forked.wait();
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
            return Ok(());
        }
        let how = if libc::WIFSIGNALED(status) {
            format!("killed by signal {}", libc::WTERMSIG(status))
        } else {
            format!("exit status {}", libc::WEXITSTATUS(status))
        };
        Err(Lost { how: format!("{how} ({})", self.page.place()), by_kernel: false })
    }
}

/// Redirects the standard descriptors to `/dev/null`, so that programs may use them.
fn quiet() {
    // SAFETY: system calls on descriptors of this process, which has one thread.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for fd in if std::env::var_os("ANYRING_FUZZ_LOUD").is_some() { 0..1 } else { 0..3 } {
            libc::dup2(null, fd);
        }
        libc::close(null);
        libc::alarm(0);
    }
}

/// A range of programs: the first index and the number.
pub type Range = (u64, u64);

/// Returns the directory of a child.
pub fn scratch_directory(lane: usize, index: u64) -> PathBuf {
    // File systems differ in which requests block: two of them are used.
    let memory = Path::new("/dev/shm");
    let top = if index % 2 == 0 && memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    top.join(format!("anyring-differential-{}-{lane}", std::process::id()))
}

/// Runs a range of a run's programs; reports a line for each that has a finding.
pub fn run_range(page: &'static Page, seed: u64, range: Range, scratch: &Path) -> Child {
    Child::new(page, |reports| {
        enter_scratch(scratch);
        for index in range.0..range.0 + range.1 {
            let arenas = Arenas::default();
            page.program.store(index, Ordering::Relaxed);
            let program = generate::program(program_seed(seed, index));
            let counter = match examine(&program, &arenas, scratch) {
                Ok(None) => &page.clean,
                Ok(Some(Explained::Proved(why))) => &page.proved[why],
                Ok(Some(Explained::Unproved(why))) => &page.unproved[why],
                Err(finding) => {
                    let _ = writeln!(reports, "{index}\t{}", encode(&finding));
                    let Some(counter) = counter_of(page, &finding) else { continue };
                    counter
                }
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let _ = std::fs::remove_dir_all(scratch);
        i32::from(leaks() > 64)
    })
}

/// Returns the counter of findings that do not count against the user engine.
pub fn counter_of<'a>(page: &'a Page, finding: &Finding) -> Option<&'a AtomicU64> {
    match finding {
        Finding::Unsteady(_) => Some(&page.unsteady),
        Finding::Racy(_) => Some(&page.racy),
        Finding::Differs(_) | Finding::Lost(_) => None,
    }
}

/// Runs one program in a child of its own; if it differs, repeats it to be `sure`.
pub fn run_alone(page: &'static Page, program: &Program, scratch: &Path, sure: bool) -> Option<Finding> {
    let mut child = Child::new(page, |reports| {
        let arenas = Arenas::default();
        enter_scratch(scratch);
        let found = if sure {
            examine(program, &arenas, scratch).err()
        } else {
            run_and_clean(program, BOTH, &arenas, scratch, Times::HASTY).err().map(Finding::Differs)
        };
        if let Some(finding) = found {
            let _ = writeln!(reports, "0\t{}", encode(&finding));
        }
        let _ = std::fs::remove_dir_all(scratch);
        0
    });
    let mut finding = None;
    loop {
        match child.report() {
            Ok(Some(line)) => finding = line.split_once('\t').map(|(_, text)| decode(text)),
            Ok(None) => return finding,
            Err(lost) => return Some(Finding::Lost(lost.how)),
        }
    }
}

/// Creates the directory of a child, and enters it.
pub fn enter_scratch(scratch: &Path) {
    std::fs::create_dir_all(scratch.join("empty")).expect("a scratch directory");
    std::env::set_current_dir(scratch.join("empty")).expect("a scratch directory");
}

/// Returns the number of open descriptors.
fn leaks() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

const BOTH: [Engine; 2] = [Engine::User, Engine::Kernel];

/// An intended difference: the index of its explanation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Explained {
    /// The kernel itself does what the user engine does, in another run ([`timing::is_proved`]).
    Proved(usize),
    /// Only the conditions of the explanation are met.
    Unproved(usize),
}

/// How often the kernel is compared with itself before a difference counts against the user engine.
const KERNEL_RUNS: usize = 4;

/// Runs a program; if it differs, repeats it with more patience, and on the kernel alone: results that
/// vary are not a difference here. Returns the explanation of an intended difference.
///
/// # Errors
/// Returns the difference.
pub fn examine(program: &Program, arenas: &Arenas, scratch: &Path) -> Result<Option<Explained>, Finding> {
    let again = |engines| run_and_clean(program, engines, arenas, scratch, Times::PATIENT);
    let first = match run_and_clean(program, BOTH, arenas, scratch, Times::FIRST) {
        Ok(None) => return Ok(None),
        other => other,
    };
    let mut last = None;
    for _ in 0..3 {
        match (again(BOTH), &first) {
            (Ok(None), Ok(_)) => return Ok(None),
            (Ok(None), Err(difference)) => return Err(Finding::Unsteady(difference.clone())),
            (Ok(Some(why)), _) if timing::is_proved(program, arenas, scratch) => {
                return Ok(Some(Explained::Proved(why)));
            }
            (Ok(Some(why)), _) => return Ok(Some(Explained::Unproved(why))),
            (Err(difference), _) => last = Some(difference),
        }
    }
    let Some(last) = last else { return Ok(None) };
    let place = |difference: &Difference| difference.step.unwrap_or(usize::MAX);
    for _ in 0..KERNEL_RUNS {
        if again([Engine::Kernel; 2]).is_err_and(|racy| place(&racy) <= place(&last)) {
            return Err(Finding::Racy(last));
        }
    }
    if timing::agree_otherwise(program, arenas, scratch) {
        return Err(Finding::Racy(last));
    }
    Err(Finding::Differs(last))
}

/// Runs a program once, and closes the descriptors that it left open.
///
/// # Errors
/// Returns the first difference.
pub fn run_and_clean(
    program: &Program,
    engines: [Engine; 2],
    arenas: &Arenas,
    scratch: &Path,
    times: Times,
) -> Result<Option<usize>, Difference> {
    run_with_tape(program, engines, arenas, scratch, times, &mut Tape::None)
}

/// Runs a program with a tape of the kernel's answers.
///
/// # Errors
/// Returns the first difference.
pub fn run_with_tape(
    program: &Program,
    engines: [Engine; 2],
    arenas: &Arenas,
    scratch: &Path,
    times: Times,
    tape: &mut Tape,
) -> Result<Option<usize>, Difference> {
    let result = run(program, engines, arenas, scratch, times, tape);
    // Closes descriptors that a program opened and that are not recorded.
    // SAFETY: no descriptor of this process is in that range between programs.
    unsafe { libc::syscall(libc::SYS_close_range, 3, 199, 0) };
    // SAFETY: a query only.
    let is_open = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
    assert!((0..3).all(is_open), "a standard descriptor is closed, which later programs need");
    result
}

const SEPARATOR: char = '\x1f';

fn encode(finding: &Finding) -> String {
    let parts = |kind: &str, d: &Difference| {
        let step = d.step.map_or("-".into(), |step| step.to_string());
        [kind, &step, &d.signature, &d.user, &d.kernel].join(&SEPARATOR.to_string())
    };
    match finding {
        Finding::Differs(difference) => parts("differs", difference),
        Finding::Unsteady(difference) => parts("unsteady", difference),
        Finding::Racy(difference) => parts("racy", difference),
        Finding::Lost(how) => ["lost", how].join(&SEPARATOR.to_string()),
    }
}

/// Parses a report.
pub fn decode(text: &str) -> Finding {
    let parts: Vec<&str> = text.split(SEPARATOR).collect();
    let part = |n: usize| parts.get(n).copied().unwrap_or("").to_owned();
    let difference =
        Difference { step: part(1).parse().ok(), signature: part(2), user: part(3), kernel: part(4) };
    match parts[0] {
        "differs" => Finding::Differs(difference),
        "unsteady" => Finding::Unsteady(difference),
        "racy" => Finding::Racy(difference),
        _ => Finding::Lost(part(1)),
    }
}
