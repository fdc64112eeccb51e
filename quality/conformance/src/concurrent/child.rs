//! Programs run in forked children, many in each: one that dies or hangs takes only its child with it.

use std::alloc::System;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use anyring_engine::abi::Sqe;
use cap::Cap;
use linux_raw_sys::io_uring::*;

use super::BATCH;
use super::children::announce_forks;
use super::generate::{self, Features};
use super::judge::judge;
use super::memory::Shared;
use super::ring::unmap_given;
use super::run::run;
use super::watch;
use super::world::{Ground, World};
use crate::harness::{Child, Heard};
use crate::ring::{Engine, Ring};
use crate::rng::program_seed;

/// How long resources of a program may outlive it.
const LINGERS: Duration = Duration::from_secs(30);

/// The programs that a child runs.
#[derive(Clone, Debug)]
pub struct Job {
    /// The engine of the programs.
    pub engine: Engine,
    /// The seeds of the programs.
    pub seeds: Seeds,
    /// The features that programs may use.
    pub features: Features,
    /// The time without progress after which a program counts as hanging.
    pub patience: Duration,
}

/// Seeds of programs.
#[derive(Clone, Copy, Debug)]
pub enum Seeds {
    /// A run's seed; the first index, and the one after the last.
    Range(u64, u64, u64),
    /// The seed of one program, and the number of its runs.
    One(u64, u64),
}

impl Seeds {
    /// Returns the range of indices.
    pub fn range(self) -> std::ops::Range<u64> {
        match self {
            Seeds::Range(_, first, end) => first..end,
            Seeds::One(_, times) => 0..times,
        }
    }

    /// Returns the seed of a program.
    pub fn of(self, index: u64) -> u64 {
        match self {
            Seeds::Range(seed, ..) => program_seed(seed, index),
            Seeds::One(seed, _) => seed,
        }
    }

    /// Returns the seeds from an index on.
    pub fn from(self, index: u64) -> Seeds {
        match self {
            Seeds::Range(seed, _, end) => Seeds::Range(seed, index, end),
            Seeds::One(seed, times) => Seeds::One(seed, times.saturating_sub(index)),
        }
    }
}

/// A failure of a program.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The program's index.
    pub index: u64,
    /// Lines that describe the failure.
    pub lines: Vec<String>,
}

impl Failure {
    /// Returns the signature, which is equal for failures that probably have one cause.
    pub fn signature(&self) -> String {
        let line = self.lines.first().map_or("", String::as_str);
        let line = line.split(':').next().unwrap_or(line);
        line.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect()
    }
}

/// Runs a job in children. Reports failures by `note`.
pub fn run_job(job: &Job, shared: &'static Shared, mut note: impl FnMut(Failure)) {
    let mut seeds = job.seeds;
    while !seeds.range().is_empty() {
        let part = Job { seeds, ..job.clone() };
        let Some(failure) = watch(fork(&part, shared), shared, part.patience) else { return };
        let index = failure.index;
        note(failure);
        seeds = seeds.from(index + 1);
    }
}

/// Forks a child for a job, in its own process group.
fn fork(job: &Job, shared: &'static Shared) -> Child {
    let child = Child::fork(900, |mut reports| {
        let high = reports.as_raw_fd();
        std::panic::set_hook(Box::new(move |panic| {
            let text = panic.to_string().replace('\n', " ");
            // SAFETY: the descriptor stays open until the process ends, which it does here.
            unsafe {
                let mut reports = std::mem::ManuallyDrop::new(File::from_raw_fd(high));
                let _ = writeln!(reports, "panic: {text}");
                libc::_exit(101);
            }
        }));
        // SAFETY: concerns this process only.
        let pid = unsafe {
            libc::setpgid(0, 0);
            libc::getpid()
        };
        let Some((index, failures)) = run_programs(job, shared, &directory(pid)) else { return 0 };
        shared.program.store(index, Relaxed);
        for line in failures {
            let _ = writeln!(reports, "{}", line.replace('\n', " "));
        }
        100
    });
    // SAFETY: our own child, which may not have made this call yet.
    unsafe { libc::setpgid(child.pid, child.pid) };
    child
}

/// Watches a child until it has ended; returns its failure, if there was one.
fn watch(mut child: Child, shared: &Shared, patience: Duration) -> Option<Failure> {
    let mut seen = (shared.progress.load(Relaxed), Instant::now());
    let (mut lines, mut stuck) = (Vec::new(), None);
    loop {
        match child.hear(100) {
            Heard::Line(line) => lines.push(line),
            Heard::End => break,
            Heard::Nothing => {
                let now = shared.progress.load(Relaxed);
                if now != seen.0 {
                    seen = (now, Instant::now());
                } else if seen.1.elapsed() > patience {
                    // The child may continue while it is examined.
                    stuck = Some(shared.program.load(Relaxed));
                    let mut told = vec![format!("hangs: no progress in {} s", patience.as_secs())];
                    told.extend(watch::describe(child.pid, shared));
                    lines.splice(0..0, told);
                    break;
                }
            }
        }
    }
    let hangs = stuck.is_some();
    if hangs {
        // SAFETY: our own child, not waited for yet, and its process group.
        unsafe { libc::kill(-child.pid, libc::SIGKILL) };
    }
    let status = child.wait();
    if status == 0 {
        return None;
    }
    Ground::remove(&directory(child.pid), child.pid);
    if !hangs && libc::WIFSIGNALED(status) {
        lines.insert(0, format!("killed by signal {}", libc::WTERMSIG(status)));
    } else if lines.is_empty() {
        lines.push(format!("ended with status {status:#x}"));
    }
    Some(Failure { index: stuck.unwrap_or_else(|| shared.program.load(Relaxed)), lines })
}

/// Returns the directory of a child.
fn directory(pid: i32) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let top = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    top.join(format!("anyring-concurrent-{pid}"))
}

/// Runs programs in a child until one fails; returns its index and the failures.
fn run_programs(job: &Job, shared: &'static Shared, directory: &Path) -> Option<(u64, Vec<String>)> {
    // SAFETY: a query only.
    let pid = unsafe { libc::getpid() };
    let ground = Ground::new(directory, pid);
    if job.engine == Engine::User {
        announce_forks();
    }
    warm_up(job.engine);
    let before = Left::now();
    let mut usage = Vec::new();
    for index in job.seeds.range() {
        shared.program.store(index, Relaxed);
        shared.begin();
        let program = generate::program(job.seeds.of(index), job.features);
        set_pauses(program.pauses);
        let world = World::new(job.engine, &program, &ground, shared);
        run(&world);
        judge(&world);
        world.close_all();
        let mut failures = world.failures.with(std::mem::take);
        drop(world);
        if failures.is_empty() {
            failures.extend(before.remains(shared));
        }
        // Memory given to rings stays mapped until their threads have ended.
        unmap_given();
        usage.push(Usage::now());
        if failures.is_empty() {
            failures.extend(growth(&usage, shared));
        }
        shared.requests.fetch_add(shared.used().into(), Relaxed);
        shared.done.fetch_add(1, Relaxed);
        shared.step();
        if !failures.is_empty() {
            Ground::remove(directory, pid);
            return Some((index, failures));
        }
    }
    Ground::remove(directory, pid);
    None
}

#[cfg(feature = "pauses")]
fn set_pauses(seed: u64) {
    anyring_engine::pauses::decide_by(seed);
}

#[cfg(not(feature = "pauses"))]
fn set_pauses(_seed: u64) {}

/// Makes an engine create what it creates once per process.
fn warm_up(engine: Engine) {
    // SAFETY: integers only.
    let params = unsafe { std::mem::zeroed() };
    let ring = Ring::new(engine, 4, params).expect("a ring");
    let time = [0u64, 6_000_000];
    let timeout = io_uring_op::IORING_OP_TIMEOUT as u8;
    ring.push(Sqe { opcode: timeout, fd: -1, addr: time.as_ptr() as u64, len: 1, ..Sqe::default() });
    // For paths, the engine opens a descriptor that reports changes of mounts.
    let (opcode, addr) = (io_uring_op::IORING_OP_UNLINKAT as u8, c"nothing/here".as_ptr() as u64);
    ring.push(Sqe { opcode, fd: libc::AT_FDCWD, addr, ..Sqe::default() });
    ring.enter(2, 0, 0);
    // SAFETY: the child ends immediately.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::_exit(0);
        }
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    // No thread waits in the ring, so that the engine has to drive it.
    for _ in 0..2 {
        while ring.reap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Descriptors, threads and rings, which a program must not leave to its process.
struct Left {
    files: Vec<String>,
    threads: Vec<String>,
    rings: usize,
}

impl Left {
    fn now() -> Left {
        Left { files: files(), threads: threads(), rings: ring_mappings() }
    }

    /// Returns what has not gone after a while, if anything.
    fn remains(&self, shared: &Shared) -> Option<String> {
        let mut seen = None;
        let has_gone = || {
            let now = Left::now();
            // A sanitizer's runtime opens descriptors of its own.
            let closed = now.files.len() <= self.files.len() || cfg!(anyring_sanitizer);
            let gone = closed && now.threads.len() <= self.threads.len() && now.rings <= self.rings;
            seen = Some(now);
            gone
        };
        if comes_true(shared, has_gone) {
            return None;
        }
        let now = seen?;
        Some(format!(
            "left over: {} descriptors more than the {} before, of {:?}; threads {:?}; {} mappings of rings more than the {} \
             before",
            now.files.len() as isize - self.files.len() as isize,
            self.files.len(),
            now.files,
            now.threads,
            now.rings as isize - self.rings as isize,
            self.rings
        ))
    }
}

/// True if a condition becomes true in a while. The time does not count as a hang of the program.
fn comes_true(shared: &Shared, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + LINGERS;
    while !holds() {
        if Instant::now() > deadline {
            return false;
        }
        shared.step();
        std::thread::sleep(Duration::from_micros(100));
    }
    true
}

/// Returns the number of mappings of rings' memory, of the engine and of the program.
fn ring_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter(|line| line.contains("[io_uring]")).count()
}

/// Counts the bytes that the harness and the engine have allocated. Resident memory would be less exact: the C library keeps
/// freed memory, in arenas that depend on threads.
#[global_allocator]
static ALLOCATED: Cap<System> = Cap::new(System, usize::MAX);

/// Threads and memory of a process, which an engine keeps between programs.
struct Usage {
    /// The number of threads, including those of the engine.
    threads: u64,
    /// The size of the allocated memory.
    memory_bytes: u64,
}

impl Usage {
    fn now() -> Usage {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let threads = status.lines().find_map(|line| line.strip_prefix("Threads:"));
        let threads = threads.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
        Usage { threads, memory_bytes: ALLOCATED.allocated() as u64 }
    }
}

/// The number of programs of a process whose first and last quarter are compared.
const COMPARED: usize = BATCH as usize;
/// A growth of threads and memory that counts as noise.
const NOISE: (u64, u64) = (8, 64 * 1024);

/// Returns the growth, if a process has more after each of its last programs than after any of its first ones. Checked once per
/// batch. Threads that end after some idle seconds do not count.
fn growth(usage: &[Usage], shared: &Shared) -> Option<String> {
    if usage.is_empty() || !usage.len().is_multiple_of(COMPARED) {
        return None;
    }
    let quarter = usage.len() / 4;
    let (first, last) = (&usage[..quarter], &usage[usage.len() - quarter..]);
    let grows = |of: fn(&Usage) -> u64, noise: u64| {
        let before = first.iter().map(of).max().unwrap_or(0);
        let after = last.iter().map(of).min().unwrap_or(0);
        (after > before + noise).then_some((before, after))
    };
    let threads = grows(|usage| usage.threads, NOISE.0)
        .filter(|&(before, _)| !comes_true(shared, || Usage::now().threads <= before + NOISE.0))
        .map(|grown| format!("threads {grown:?}"));
    let memory = grows(|usage| usage.memory_bytes, NOISE.1).map(|grown| format!("bytes of memory {grown:?}"));
    threads.or(memory).map(|what| format!("grows: {what}"))
}

fn files() -> Vec<String> {
    let Ok(directory) = std::fs::read_dir("/proc/self/fd") else { return vec![] };
    let name = |entry: std::fs::DirEntry| {
        let target = std::fs::read_link(entry.path()).map(|path| path.display().to_string());
        format!("{}:{}", entry.file_name().display(), target.unwrap_or_default())
    };
    directory.flatten().map(name).collect()
}

/// Returns the threads other than this one and an engine's idle threads.
fn threads() -> Vec<String> {
    let Ok(directory) = std::fs::read_dir("/proc/self/task") else { return vec![] };
    let own = std::process::id().to_string();
    let others = directory.flatten().filter(|task| task.file_name() != own.as_str());
    let names = others.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    // The last name is that of a sanitizer's own thread.
    let idle =
        ["anyring-reactor", "iou-wrk", if cfg!(anyring_sanitizer) { "anyring-conform" } else { "iou-wrk" }];
    names
        .map(|name| name.trim_end().to_owned())
        .filter(|name| !idle.iter().any(|idle| name.starts_with(idle)))
        .collect()
}
