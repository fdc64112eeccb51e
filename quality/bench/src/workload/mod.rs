//! The programs that are measured. They run as processes of their own, by `anyring-bench workload
//! ...`, so that the same unmodified binary runs on every engine; each prints one line of JSON, a
//! [`Report`].

pub mod accept;
mod arch;
pub mod clock;
mod conversation;
pub mod echo;
pub mod growth;
pub mod idle;
pub mod linked;
pub mod meta;
pub mod nop;
pub mod operation;
mod provided;
pub mod ring;
pub mod send;
pub(crate) mod sockets;
pub mod start;
pub mod trees;
pub mod uepoll;
pub mod wake;

use std::time::Duration;

use clap::Subcommand;
use serde::{Deserialize, Serialize};

use crate::failure::{Doing, Failure, Result};
use clock::{process_cpu, wall};
use ring::Engine;

/// The timeout of everything that a workload waits for: a busy machine delays a process for seconds.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The measurements of a workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The engine of the ring, if there was a ring.
    pub engine: Option<Engine>,
    /// Operations of the whole life of the process, including the warm-up; the divisor of its system calls.
    pub total_ops: u64,
    /// The share of zero-copy sends whose data was copied after all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied: Option<f64>,
    /// One or more measured windows.
    pub windows: Vec<Window>,
}

/// One measured window.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Window {
    /// The measured operation; empty if the process measures only one.
    pub label: String,
    /// Operations completed.
    pub ops: u64,
    /// Elapsed time.
    pub wall_ns: u64,
    /// CPU time of all threads of the measured process.
    pub cpu_ns: u64,
    /// Latencies, if each operation is timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// The growth of memory, if it is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// The highest memory use of the process, if it is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
}

impl Window {
    /// Creates a window of `ops` operations with their elapsed time and CPU time.
    pub fn of(ops: u64, elapsed: Duration, cpu: Duration) -> Self {
        let (wall_ns, cpu_ns) = (elapsed.as_nanos() as u64, cpu.as_nanos() as u64);
        Self { ops, wall_ns, cpu_ns, ..Self::default() }
    }
}

impl Report {
    /// Creates the report of one window.
    pub fn of(engine: Option<Engine>, total_ops: u64, window: Window) -> Self {
        Self { engine, total_ops, copied: None, windows: vec![window] }
    }
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// Resident memory of the process.
    pub resident: u64,
    /// Slab memory of the machine's kernel.
    pub kernel: u64,
}

/// Latencies of operations, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// The median.
    pub median: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The 99.9th percentile.
    pub p999: u64,
}

impl Latency {
    /// Computes the latencies of `times`, which is sorted and must not be empty.
    pub fn of(times: &mut [u64]) -> Self {
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        Self { median: at(0.5), p99: at(0.99), p999: at(0.999) }
    }
}

/// The workloads.
#[derive(Clone, Debug, Subcommand)]
pub enum Workload {
    /// No-ops, or the cheapest plain system call for comparison.
    Nop(nop::Args),
    /// Open, statx and close of cached files.
    Meta(meta::Args),
    /// A workload of one operation, repeated.
    Operation(operation::Args),
    /// The server of many short connections.
    AcceptServer(accept::ServerArgs),
    /// The clients of the server of many short connections.
    AcceptClient(accept::ClientArgs),
    /// The echo server.
    EchoServer(echo::ServerArgs),
    /// The echo server's clients.
    EchoClient(echo::ClientArgs),
    /// A sender of equal messages.
    Send(send::Args),
    /// The receiver of the messages.
    Sink(send::SinkArgs),
    /// A small HTTP server.
    UepollServer(uepoll::ServerArgs),
    /// The clients of the HTTP server.
    UepollClient(uepoll::ClientArgs),
    /// Ready files, and events that threads raise.
    UepollReady(uepoll::ReadyArgs),
    /// Connections on which nothing happens.
    Idle(idle::Args),
    /// The clients of these connections.
    IdleClient(idle::ClientArgs),
    /// The cost of an operation among many live requests, rings or queued work items.
    Growth(growth::Args),
    /// A program that is started repeatedly.
    Start(start::Args),
    /// A program that reads a file and ends.
    Read(start::ReadArgs),
    /// The latency of completions.
    Wake(wake::Args),
    /// A program that goes through a directory tree.
    Tree(trees::CommandArgs),
    /// A walk through a directory tree by plain calls.
    TreeLoop(trees::LoopArgs),
}

impl Workload {
    /// Runs the workload and prints its report.
    pub fn run(&self) -> Result<()> {
        let report = match self {
            Self::Nop(args) => nop::run(args)?,
            Self::Meta(args) => meta::run(args)?,
            Self::Operation(args) => operation::run(args)?,
            Self::AcceptServer(args) => return accept::serve(args),
            Self::AcceptClient(args) => accept::drive(args)?,
            Self::EchoServer(args) => return echo::serve(args),
            Self::EchoClient(args) => echo::drive(args)?,
            Self::Send(args) => send::run(args)?,
            Self::Sink(args) => return send::drain(args),
            Self::UepollServer(args) => return uepoll::serve(args),
            Self::UepollClient(args) => uepoll::drive(args)?,
            Self::UepollReady(args) => uepoll::ready(args)?,
            Self::Idle(args) => idle::run(args)?,
            Self::IdleClient(args) => return idle::keep(args),
            Self::Growth(args) => growth::run(args)?,
            Self::Start(args) => start::run(args)?,
            Self::Read(args) => return start::read(args),
            Self::Wake(args) => wake::run(args)?,
            Self::Tree(args) => trees::run(args)?,
            Self::TreeLoop(args) => return trees::walk(args),
        };
        let line = serde_json::to_string(&report).doing(|| "writing the report".into())?;
        println!("{line}");
        Ok(())
    }
}

/// Maps fresh zeroed memory of whole pages, which stays until the process ends.
fn memory(bytes: usize) -> Result<*mut u8> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(Failure::errno(format!("mapping {bytes} bytes")));
    }
    Ok(memory.cast())
}

/// Repeats `batch`, which returns how many operations it did, first for a tenth of `window` unmeasured,
/// then for `window`. Returns the measured window and the number of all operations.
pub fn repeat_for(window: Duration, mut batch: impl FnMut() -> Result<u64>) -> Result<(Window, u64)> {
    let mut warm_up = 0;
    let start = wall();
    while wall() - start < window / 10 {
        warm_up += batch()?;
    }
    let (start, cpu_start) = (wall(), process_cpu());
    let mut ops = 0;
    let elapsed = loop {
        ops += batch()?;
        let elapsed = wall() - start;
        if elapsed >= window {
            break elapsed;
        }
    };
    Ok((Window::of(ops, elapsed, process_cpu() - cpu_start), warm_up + ops))
}
