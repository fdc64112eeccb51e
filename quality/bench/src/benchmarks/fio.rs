//! fio, as Debian ships it.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use std::time::Duration;

use serde::Deserialize;

use super::{About, Benchmark, Run, Side, side};
use crate::failure::{Doing, Failure, Result};
use crate::harness::launch::{Context, On};
use crate::harness::process::{Finished, Process};
use crate::harness::stats::median;
use crate::harness::syscalls::Counter;
use crate::report::Outcome;
use crate::report::verdict::{Bound, Check, speeds};
use crate::workload::{Report, Window};

const FILE_MIB: usize = 256;

/// Sides that read from the page cache, with fio's name of the I/O engine.
const CACHED: [Side; 4] = [
    side("kernel", On::Kernel, &["io_uring"]),
    side("anyring", On::Anyring, &["io_uring"]),
    side("anyring, unpatched", On::AnyringTrap, &["io_uring"]),
    side("psync", On::Plain, &["psync"]),
];

/// Sides that reach the device, among them what a user would configure without a ring: fio's posixaio uses threads.
const DEVICE: [Side; 5] = [
    side("kernel", On::Kernel, &["io_uring"]),
    side("anyring", On::Anyring, &["io_uring"]),
    side("psync", On::Plain, &["psync"]),
    side("libaio", On::Plain, &["libaio"]),
    side("posixaio", On::Plain, &["posixaio"]),
];

/// A case: the options with which fio runs.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// The I/O depth, and how many requests fio submits and reaps per batch.
    depth: (u32, u32),
    /// Options that differ from random reads of 4 KiB.
    options: &'static [&'static str],
}

const fn case(name: &'static str, depth: (u32, u32), options: &'static [&'static str]) -> Case {
    Case { name, depth, options }
}

const READS: &[Case] = &[
    case("iodepth 1", (1, 1), &[]),
    case("iodepth 8", (8, 1), &[]),
    case("iodepth 32", (32, 1), &[]),
    case("iodepth 32, batches of 16", (32, 16), &[]),
];
/// The case in which the file lies in the lower directory of an overlayfs, as all files of a container's image do.
const OVERLAID: &str = "overlayfs, iodepth 32";
const COLD: &[Case] = &[
    case("iodepth 1", (1, 1), &[]),
    case("iodepth 4", (4, 1), &[]),
    case("iodepth 32", (32, 1), &[]),
    case("iodepth 32, batches of 16", (32, 16), &[]),
    case(OVERLAID, (32, 1), &[]),
];
const TRANSFERS: &[Case] = &[
    case("iodepth 1", (1, 1), &[]),
    case("iodepth 8", (8, 1), &[]),
    case("iodepth 32", (32, 1), &[]),
    case("iodepth 32, batches of 16", (32, 16), &[]),
    case("iodepth 128", (128, 1), &[]),
    case("reads of 128 KiB, iodepth 8", (8, 1), &["--bs=128k"]),
    case("writes, iodepth 1", (1, 1), &["--rw=randwrite"]),
    case("writes, iodepth 8", (8, 1), &["--rw=randwrite"]),
    case("writes, iodepth 32", (32, 1), &["--rw=randwrite"]),
    case("writes, iodepth 32, batches of 16", (32, 16), &["--rw=randwrite"]),
    case("writes of 128 KiB, iodepth 8", (8, 1), &["--rw=randwrite", "--bs=128k"]),
];
const SYNCS: &[Case] = &[
    case("O_DIRECT, iodepth 1", (1, 1), &["--rw=randwrite", "--direct=1", "--fdatasync=1"]),
    case("O_DIRECT, iodepth 8", (8, 1), &["--rw=randwrite", "--direct=1", "--fdatasync=1"]),
    case("buffered, iodepth 1", (1, 1), &["--rw=randwrite", "--fsync=1"]),
    case("buffered, iodepth 8", (8, 1), &["--rw=randwrite", "--fsync=1"]),
];

/// The state of the page cache between fio and the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cache {
    /// The whole file is cached.
    Full,
    /// Nothing of the file is cached.
    Empty,
    /// Transfers bypass the cache, by `O_DIRECT`.
    None,
    /// Each write is synchronized to the device.
    Synchronized,
}

/// Random transfers by fio.
pub struct Fio {
    about: About,
    cases: &'static [Case],
    cache: Cache,
    program: PathBuf,
    file: PathBuf,
    /// The overlayfs with the file, or why there is none.
    overlaid: std::result::Result<Overlay, String>,
    /// CPU time that fio takes to start and to end, by the side's number.
    start_up: BTreeMap<usize, Duration>,
}

/// The conditions of all of fio's benchmarks except cached reads.
const CONDITIONS: &str = "One job, a file of 256 MiB. The speed of the machine's disk affects all sides. CPU time is that of all of fio's \
                          threads and processes, without the time that fio takes to start and end. psync has no depth.";

impl Fio {
    /// Returns the benchmark of reads that hit the page cache.
    pub fn cached_reads() -> Self {
        let about = About {
            name: "fio-read",
            title: "fio, cached random reads of 4 KiB",
            text: "fio with its default options except those that the title names: one job, a file of 256 MiB in the page cache, \
                   `invalidate=0`, `norandommap`. Batches of 16 are fio's `iodepth_batch_submit` and `iodepth_batch_complete`. CPU \
                   time is that of all of fio's threads and processes, without the time that fio takes to start and end. psync has no \
                   depth.",
            goal: "at least 1.0 of the kernel's io_uring at depth 1, 8 and 32",
            baseline: "kernel",
            sides: &CACHED,
        };
        Self::new(about, READS, Cache::Full)
    }

    /// Returns the benchmark of reads that miss the page cache.
    pub fn cold_reads() -> Self {
        let about = About {
            name: "fio-cold",
            title: "fio, random reads of 4 KiB that miss the page cache",
            text: CONDITIONS,
            goal: "at least 0.95 of the speed of the kernel's io_uring, with at most 1.15 of its CPU time at depth 32",
            baseline: "kernel",
            sides: &DEVICE,
        };
        Self::new(about, COLD, Cache::Empty)
    }

    /// Returns the benchmark of transfers that bypass the page cache.
    pub fn direct_transfers() -> Self {
        let about = About {
            name: "fio-direct",
            title: "fio, O_DIRECT random reads and writes",
            text: CONDITIONS,
            goal: "at depth 8 and 32 at least 0.93 of the speed of the kernel's io_uring and 0.97 of libaio's, at depth 1 as fast as the \
                   kernel's and at least 0.88 of psync's",
            baseline: "kernel",
            sides: &DEVICE,
        };
        Self::new(about, TRANSFERS, Cache::None)
    }

    /// Returns the benchmark of writes that are each synchronized to the device.
    pub fn syncs() -> Self {
        let about = About {
            name: "fio-sync",
            title: "fio, random writes of 4 KiB, each followed by fdatasync or fsync",
            text: CONDITIONS,
            goal: "at least 0.95 of the speed of the kernel's io_uring where the writes are O_DIRECT",
            baseline: "kernel",
            sides: &DEVICE,
        };
        Self::new(about, SYNCS, Cache::Synchronized)
    }

    fn new(about: About, cases: &'static [Case], cache: Cache) -> Self {
        let overlaid = Err("it was not prepared".to_owned());
        let (program, file) = (PathBuf::new(), PathBuf::new());
        Self { about, cases, cache, program, file, overlaid, start_up: BTreeMap::new() }
    }

    fn file_of(&self, case: Case) -> &Path {
        match &self.overlaid {
            Ok(overlay) if case.name == OVERLAID => &overlay.file,
            _ => &self.file,
        }
    }

    fn command(&self, context: &Context, side: usize, case: Case) -> Command {
        let Side { on, flags, .. } = self.about.sides[side];
        let mut command = context.command(on, &self.program);
        command
            .args(["--name=fio", "--rw=randread", "--bs=4k", "--allow_file_create=0", "--output-format=json"])
            .arg(format!("--filename={}", self.file_of(case).display()))
            .arg(format!("--size={FILE_MIB}M"))
            .arg(format!("--ioengine={}", flags[0]))
            .arg(format!("--direct={}", u8::from(self.cache == Cache::None)))
            .arg(format!("--invalidate={}", u8::from(self.cache == Cache::Empty)));
        let (depth, batch) = case.depth;
        command.arg(format!("--iodepth={depth}"));
        if self.cache != Cache::Empty {
            command.arg("--norandommap=1");
        }
        if batch > 1 {
            command
                .arg(format!("--iodepth_batch_submit={batch}"))
                .arg(format!("--iodepth_batch_complete_min={batch}"))
                .arg(format!("--iodepth_batch_complete_max={depth}"));
        }
        // If an option is repeated, fio uses its last value.
        command.args(case.options);
        command
    }

    fn finish(&self, context: &Context, command: Command) -> Result<Finished> {
        Process::start(command, &context.scratch, context.limit())?.finish()
    }

    /// Measures the CPU time of fio with a single I/O.
    fn measure_start_up(&self, context: &Context, side: usize) -> Result<Duration> {
        let mut seconds = Vec::new();
        for _ in 0..3 {
            let mut command = self.command(context, side, self.cases[0]);
            command.arg("--number_ios=1");
            seconds.push(self.finish(context, command)?.cpu.as_secs_f64());
        }
        Ok(Duration::from_secs_f64(median(seconds)))
    }
}

impl Benchmark for Fio {
    fn about(&self) -> About {
        self.about
    }

    fn groups(&self, _quick: bool) -> Vec<String> {
        self.cases.iter().map(|case| case.name.to_owned()).collect()
    }

    fn obstacle(&self, context: &Context, side: usize) -> Result<Option<String>> {
        let Side { on, flags, .. } = self.about.sides[side];
        if !engines(&find_fio()?)?.split_whitespace().any(|word| word == flags[0]) {
            return Ok(Some(format!("this fio has no engine {}", flags[0])));
        }
        context.obstacle(on)
    }

    fn missing(&self, _context: &Context, group: usize) -> Option<String> {
        let reason = self.overlaid.as_ref().err().cloned();
        reason.filter(|_| self.cases[group].name == OVERLAID)
    }

    fn prepare(&mut self, context: &Context, usable: &[usize]) -> Result<()> {
        self.program = find_fio()?;
        let directory = context.scratch.join(self.about.name);
        std::fs::create_dir_all(&directory).doing(|| format!("creating {}", directory.display()))?;
        self.file = directory.join("file");
        create(&self.file)?;
        if self.cases.iter().any(|case| case.name == OVERLAID) {
            self.overlaid = Overlay::mount(&directory).map_err(|failure| failure.to_string());
        }
        if self.cache == Cache::Full {
            read_all(&self.file)?;
        }
        for &side in usable {
            // A side that fails here also fails in its rounds, where the failure is reported.
            if let Ok(start_up) = self.measure_start_up(context, side) {
                self.start_up.insert(side, start_up);
            }
        }
        Ok(())
    }

    fn checks(&self, outcome: &Outcome) -> Vec<Check> {
        let ours = |case: &str, side: &str| side == "anyring" && !case.contains("batches");
        let (least, counted): (f64, fn(&str) -> bool) = match self.cache {
            Cache::Full => (1.0, |_| true),
            Cache::Empty => (0.95, |_| true),
            Cache::None => (0.93, |case| case.ends_with("iodepth 8") || case.ends_with("iodepth 32")),
            Cache::Synchronized => (0.95, |case| case.starts_with("O_DIRECT")),
        };
        let counts = |case: &str, side: &str| ours(case, side) && counted(case);
        vec![Check::new("speed over the kernel's io_uring", Bound::AtLeast(least), speeds(outcome, counts))]
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        let mut command = self.command(context, side, self.cases[group]);
        if self.cache == Cache::Empty {
            // Limited by bytes, not by time: a block that has been read once is cached.
            let kib = (context.window().as_millis() as usize * 64).min(FILE_MIB << 9);
            command.arg(format!("--io_size={kib}k"));
        } else if count && self.cache != Cache::Full {
            // On a busy machine a longer time does not mean more transfers.
            command.arg(format!("--number_ios={}", context.window().as_millis() * 25));
        } else {
            command.arg("--time_based=1").arg(format!("--runtime={}ms", context.window().as_millis()));
        }
        let mut counter = count.then(Counter::start).flatten();
        let finished = self.finish(context, command)?;
        let syscalls = counter.as_mut().map(Counter::count);
        let done = parse(&finished.output)?;
        let start_up = self.start_up.get(&side).copied().unwrap_or_default();
        let cpu = finished.cpu.saturating_sub(start_up);
        let window = Window::of(done.total_ios, Duration::from_millis(done.runtime), cpu);
        Ok(Run { report: Report::of(None, done.total_ios, window), syscalls })
    }
}

/// The part of fio's JSON that matters.
#[derive(Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    error: i32,
    read: Transfers,
    write: Transfers,
}

#[derive(Deserialize)]
struct Transfers {
    total_ios: u64,
    /// Milliseconds.
    runtime: u64,
}

fn parse(text: &str) -> Result<Transfers> {
    // fio may print notes before the JSON.
    let json = text.find('{').map_or("", |start| &text[start..]);
    let output: Output = serde_json::from_str(json).doing(|| "understanding fio's JSON".into())?;
    match output.jobs.into_iter().next() {
        Some(Job { error: 0, read, .. }) if read.runtime > 0 => Ok(read),
        Some(Job { error: 0, write, .. }) if write.runtime > 0 => Ok(write),
        Some(job) => Err(Failure::new(format!("fio's job ended with error {}", job.error))),
        None => Err(Failure::new("fio's JSON names no job")),
    }
}

fn find_fio() -> Result<PathBuf> {
    std::env::var_os("PATH")
        .iter()
        .flat_map(std::env::split_paths)
        .map(|directory| directory.join("fio"))
        .find(|path| path.is_file())
        .ok_or_else(|| Failure::new("fio is not installed").advice("apt-get install fio"))
}

fn engines(fio: &Path) -> Result<String> {
    let output = Command::new(fio).arg("--enghelp").output().doing(|| "asking fio for its engines".into())?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Writes the file with incompressible bytes, synchronizes it to the disk and drops it from the page cache.
fn create(path: &Path) -> Result<()> {
    let doing = || format!("writing {}", path.display());
    let mut file = File::create(path).doing(doing)?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut chunk = vec![0; 1 << 20];
    for _ in 0..FILE_MIB {
        for word in chunk.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_ne_bytes());
        }
        file.write_all(&chunk).doing(doing)?;
    }
    file.sync_all().doing(doing)?;
    // SAFETY: advice on a file of our own.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

/// An overlayfs in a mount namespace of this process and its children, mounted until the value is dropped.
struct Overlay {
    top: CString,
    /// The path in the overlayfs of the file in the lower directory.
    file: PathBuf,
}

impl Overlay {
    /// Mounts an overlayfs over a directory that has the file.
    fn mount(lower: &Path) -> Result<Self> {
        let directory = |name: &str| {
            let path = lower.with_extension(name);
            std::fs::create_dir_all(&path).doing(|| format!("creating {}", path.display()))?;
            Ok::<_, Failure>(path)
        };
        let (upper, work, top) = (directory("upper")?, directory("work")?, directory("overlay")?);
        let options =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        let text =
            |text: &Path| CString::new(text.as_os_str().as_bytes()).doing(|| "naming a directory".into());
        let (target, options, kind) = (text(&top)?, text(Path::new(&options))?, c"overlay".as_ptr());
        let (root, none) = (c"/".as_ptr(), ptr::null());
        // SAFETY: all strings live through the calls.
        let mounted = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(none, root, none, libc::MS_REC | libc::MS_PRIVATE, ptr::null()) == 0
                && libc::mount(kind, target.as_ptr(), kind, 0, options.as_ptr().cast()) == 0
        };
        let file = top.join("file");
        if mounted { Ok(Self { top: target, file }) } else { Err(Failure::errno("mounting an overlayfs")) }
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        // SAFETY: the string lives through the call.
        unsafe { libc::umount2(self.top.as_ptr(), libc::MNT_DETACH) };
    }
}

fn read_all(path: &Path) -> Result<()> {
    let doing = || format!("reading {}", path.display());
    let mut file = File::open(path).doing(doing)?;
    let mut chunk = vec![0; 1 << 20];
    while file.read(&mut chunk).doing(doing)? > 0 {}
    Ok(())
}
