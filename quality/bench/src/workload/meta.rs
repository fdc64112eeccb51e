//! Open, statx and close of cached files: as three operations, each submitted `depth` at a time, or
//! as chains of three linked requests through a direct descriptor.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use super::clock::{process_cpu, wall};
use super::ring::{DEFER, LINK, Ring, Sqe, close, io_uring_op, sqe};
use super::{Report, Window, repeat_for};
use crate::failure::{Doing, Failure, Result};

/// Files that are opened, then looked up by statx, then closed between two readings of the clock.
const BLOCK: usize = 64;
const LABELS: [&str; 3] = ["open", "statx", "close"];

/// Arguments of the workload.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// Directory of the files, as [`create_tree`] makes it.
    #[arg(long)]
    tree: PathBuf,
    /// Files (or chains) per call of `io_uring_enter`, a divisor of 64.
    #[arg(long, default_value_t = 1)]
    depth: usize,
    /// Milliseconds to measure.
    #[arg(long, default_value_t = 500)]
    window_ms: u64,
    /// How the operations are done.
    #[arg(long, value_enum, default_value_t = Means::Ring)]
    means: Means,
    /// Open, statx and close of a file as one chain.
    #[arg(long)]
    chain: bool,
}

/// How the operations are done.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Means {
    /// The ring.
    Ring,
    /// Plain system calls, one after the other.
    Syscall,
}

/// Directories and files per directory of the tree.
const TREE: (usize, usize) = (16, 64);

/// Creates the tree of small files that the workload visits.
pub fn create_tree(root: &Path) -> Result<()> {
    for directory in 0..TREE.0 {
        let path = root.join(format!("d{directory}"));
        std::fs::create_dir_all(&path).doing(|| format!("creating {}", path.display()))?;
        for file in 0..TREE.1 {
            let path = path.join(format!("f{file}"));
            std::fs::write(&path, b"anyring\n").doing(|| format!("writing {}", path.display()))?;
        }
    }
    Ok(())
}

/// Returns the tree's paths in an order in which neighbours lie in different directories.
fn paths(root: &Path) -> Result<Vec<CString>> {
    (0..TREE.0 * TREE.1)
        .map(|number| {
            let path = root.join(format!("d{}/f{}", number % TREE.0, number / TREE.0));
            CString::new(path.as_os_str().as_bytes()).doing(|| "naming the files".into())
        })
        .collect()
}

/// Runs the workload.
pub fn run(args: &Args) -> Result<Report> {
    if args.depth == 0 || BLOCK % args.depth != 0 {
        return Err(Failure::new(format!("--depth {} does not divide {BLOCK}", args.depth)));
    }
    let paths = paths(&args.tree)?;
    let window = Duration::from_millis(args.window_ms);
    match (args.means, args.chain) {
        (Means::Ring, true) => chained(args.depth, &paths, window),
        (Means::Ring, false) => {
            let mut worker = OnRing::new(args.depth)?;
            let engine = Some(worker.ring.engine());
            let report = separate(&mut worker, &paths, window)?;
            Ok(Report { engine, ..report })
        }
        (Means::Syscall, true) => plain_chain(&paths, window),
        (Means::Syscall, false) => separate(&mut Plain, &paths, window),
    }
}

/// The three operations on a block of files.
trait Phases {
    fn open(&mut self, paths: &[CString], descriptors: &mut [i32; BLOCK]) -> Result<()>;
    fn look(&mut self, paths: &[CString], results: &mut [libc::statx; BLOCK]) -> Result<()>;
    fn close(&mut self, descriptors: &[i32; BLOCK]) -> Result<()>;
}

/// Wall and CPU time of one phase.
#[derive(Clone, Copy, Default)]
struct Spent {
    wall: Duration,
    cpu: Duration,
}

impl Spent {
    fn time(&mut self, phase: impl FnOnce() -> Result<()>) -> Result<()> {
        let (start, cpu_start) = (wall(), process_cpu());
        phase()?;
        self.wall += wall() - start;
        self.cpu += process_cpu() - cpu_start;
        Ok(())
    }
}

fn separate(worker: &mut dyn Phases, paths: &[CString], window: Duration) -> Result<Report> {
    let mut descriptors = [-1; BLOCK];
    // SAFETY: all-zero bytes are a valid `statx`.
    let mut looks: [libc::statx; BLOCK] = unsafe { std::mem::zeroed() };
    let mut blocks = paths.chunks_exact(BLOCK).cycle();
    let mut block = |spent: &mut [Spent; 3]| {
        let paths = blocks.next().unwrap_or_default();
        spent[0].time(|| worker.open(paths, &mut descriptors))?;
        spent[1].time(|| worker.look(paths, &mut looks))?;
        spent[2].time(|| worker.close(&descriptors))?;
        Ok::<u64, Failure>(BLOCK as u64)
    };
    let mut warm_up = 0;
    let start = wall();
    while wall() - start < window / 10 {
        warm_up += block(&mut [Spent::default(); 3])?;
    }
    let (mut spent, mut ops) = ([Spent::default(); 3], 0);
    let start = wall();
    while wall() - start < window {
        ops += block(&mut spent)?;
    }
    let window = |(label, spent): (&&str, Spent)| Window {
        label: (*label).into(),
        ..Window::of(ops, spent.wall, spent.cpu)
    };
    let windows = LABELS.iter().zip(spent).map(window);
    Ok(Report { engine: None, total_ops: 3 * (warm_up + ops), copied: None, windows: windows.collect() })
}

struct Plain;

impl Phases for Plain {
    fn open(&mut self, paths: &[CString], descriptors: &mut [i32; BLOCK]) -> Result<()> {
        for (path, descriptor) in paths.iter().zip(descriptors) {
            *descriptor = plain_open(path)?;
        }
        Ok(())
    }

    fn look(&mut self, paths: &[CString], results: &mut [libc::statx; BLOCK]) -> Result<()> {
        paths.iter().zip(results).try_for_each(|(path, result)| plain_look(path, result))
    }

    fn close(&mut self, descriptors: &[i32; BLOCK]) -> Result<()> {
        descriptors.iter().try_for_each(|&fd| plain_close(fd))
    }
}

fn plain_open(path: &CString) -> Result<i32> {
    // SAFETY: `path` is a C string.
    let descriptor = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if descriptor < 0 {
        return Err(Failure::errno(format!("opening {path:?}")));
    }
    Ok(descriptor)
}

fn plain_look(path: &CString, result: &mut libc::statx) -> Result<()> {
    let (at, mask) = (libc::AT_FDCWD, libc::STATX_BASIC_STATS);
    // SAFETY: `path` is a C string and `result` a `statx`.
    if unsafe { libc::statx(at, path.as_ptr(), 0, mask, result) } != 0 {
        return Err(Failure::errno(format!("statx of {path:?}")));
    }
    Ok(())
}

fn plain_close(descriptor: i32) -> Result<()> {
    // SAFETY: the descriptor is this workload's own.
    if unsafe { libc::close(descriptor) } != 0 {
        return Err(Failure::errno("close"));
    }
    Ok(())
}

fn plain_chain(paths: &[CString], window: Duration) -> Result<Report> {
    // SAFETY: all-zero bytes are a valid `statx`.
    let mut look: libc::statx = unsafe { std::mem::zeroed() };
    let mut blocks = paths.chunks_exact(BLOCK).cycle();
    let (measured, total_ops) = repeat_for(window, || {
        for path in blocks.next().unwrap_or_default() {
            let descriptor = plain_open(path)?;
            plain_look(path, &mut look)?;
            plain_close(descriptor)?;
        }
        Ok(BLOCK as u64)
    })?;
    Ok(Report::of(None, total_ops, measured))
}

struct OnRing {
    ring: Ring,
    depth: usize,
}

impl OnRing {
    fn new(depth: usize) -> Result<Self> {
        let entries = (depth * 3).next_power_of_two() as u32;
        let ring = Ring::new(entries, entries * 2, DEFER)?;
        Ok(Self { ring, depth })
    }

    /// Submits the requests that `prepare` makes for each index of a block, `depth` at a time, and hands each
    /// result to `done`.
    fn in_batches(
        &mut self,
        what: &str,
        mut prepare: impl FnMut(usize) -> Sqe,
        mut done: impl FnMut(usize, i32),
    ) -> Result<()> {
        for first in (0..BLOCK).step_by(self.depth) {
            for index in first..first + self.depth {
                self.ring.push(Sqe { user_data: index as u64, ..prepare(index) })?;
            }
            let mut missing = self.depth;
            while missing > 0 {
                self.ring.submit_and_wait(missing as u32)?;
                while let Some(completion) = self.ring.completion() {
                    if completion.result < 0 {
                        return Err(Failure::negative_errno(what, completion.result.into()));
                    }
                    done(completion.user_data as usize, completion.result);
                    missing -= 1;
                }
            }
        }
        Ok(())
    }
}

impl Phases for OnRing {
    fn open(&mut self, paths: &[CString], descriptors: &mut [i32; BLOCK]) -> Result<()> {
        self.in_batches(
            "open on the ring",
            |index| open(&paths[index], libc::O_CLOEXEC),
            |index, result| descriptors[index] = result,
        )
    }

    fn look(&mut self, paths: &[CString], results: &mut [libc::statx; BLOCK]) -> Result<()> {
        self.in_batches("statx on the ring", |index| look(&paths[index], &mut results[index]), |_, _| {})
    }

    fn close(&mut self, descriptors: &[i32; BLOCK]) -> Result<()> {
        self.in_batches("close on the ring", |index| close(false, descriptors[index] as u32, 0), |_, _| {})
    }
}

fn open(path: &CString, flags: i32) -> Sqe {
    let op_flags = (libc::O_RDONLY | flags) as u32;
    let open = sqe(io_uring_op::IORING_OP_OPENAT, 0);
    Sqe { fd: libc::AT_FDCWD, addr: path.as_ptr() as u64, op_flags, ..open }
}

fn look(path: &CString, result: &mut libc::statx) -> Sqe {
    let (addr, off) = (path.as_ptr() as u64, std::ptr::from_mut(result) as u64);
    let look = sqe(io_uring_op::IORING_OP_STATX, 0);
    Sqe { fd: libc::AT_FDCWD, addr, off, len: libc::STATX_BASIC_STATS, ..look }
}

fn chained(depth: usize, paths: &[CString], window: Duration) -> Result<Report> {
    let mut worker = OnRing::new(depth)?;
    worker.ring.register_slots(depth as u32)?;
    // SAFETY: all-zero bytes are a valid `statx`.
    let mut looks: Vec<libc::statx> = vec![unsafe { std::mem::zeroed() }; depth];
    let mut blocks = paths.chunks_exact(depth).cycle();
    let (measured, total_ops) = repeat_for(window, || {
        for _ in 0..BLOCK / depth {
            let paths = blocks.next().unwrap_or_default();
            run_chains(&mut worker.ring, paths, &mut looks)?;
        }
        Ok(BLOCK as u64)
    })?;
    Ok(Report::of(Some(worker.ring.engine()), total_ops, measured))
}

/// Opens each path into a slot of its own, calls statx, closes the slot: one chain per path, all submitted together.
fn run_chains(ring: &mut Ring, paths: &[CString], looks: &mut [libc::statx]) -> Result<()> {
    for (slot, (path, result)) in paths.iter().zip(looks).enumerate() {
        ring.push(Sqe { file_index: slot as u32 + 1, flags: LINK, ..open(path, 0) })?;
        ring.push(Sqe { flags: LINK, ..look(path, result) })?;
        ring.push(close(true, slot as u32, 0))?;
    }
    let mut missing = paths.len() * 3;
    while missing > 0 {
        ring.submit_and_wait(missing as u32)?;
        while let Some(completion) = ring.completion() {
            if completion.result < 0 {
                return Err(Failure::negative_errno(
                    "a chain of open, statx, close on the ring",
                    completion.result.into(),
                ));
            }
            missing -= 1;
        }
    }
    Ok(())
}
