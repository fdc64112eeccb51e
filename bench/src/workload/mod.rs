//! The programs that are measured. They are run as processes of their own, by
//! `anyring-bench workload ...`, so that the same unmodified binary meets every engine; each prints
//! one line of JSON, a [`Report`].

pub mod accept;
pub mod clock;
pub mod echo;
pub mod linked;
pub mod meta;
pub mod nop;
pub mod ring;
mod sockets;

use std::time::Duration;

use clap::Subcommand;
use serde::{Deserialize, Serialize};

use crate::failure::{Doing, Result};
use clock::{process_cpu, wall};
use ring::Engine;

/// What a workload measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Who implemented the ring, if there was one.
    pub engine: Option<Engine>,
    /// Operations of the whole life of the process, warm-up included: what its system calls are divided by.
    pub total_ops: u64,
    /// One or more measured windows.
    pub windows: Vec<Window>,
}

/// One measured window.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Window {
    /// What was done in it; empty where a process measures one thing only.
    pub label: String,
    /// Operations completed.
    pub ops: u64,
    /// Time that passed.
    pub wall_ns: u64,
    /// CPU time of the measured process, all its threads.
    pub cpu_ns: u64,
}

/// The workloads.
#[derive(Clone, Debug, Subcommand)]
pub enum Workload {
    /// No-ops, or the cheapest plain system call for comparison.
    Nop(nop::Args),
    /// Open, statx and close of cached files.
    Meta(meta::Args),
    /// The server of many short connections.
    AcceptServer(accept::ServerArgs),
    /// Its clients.
    AcceptClient(accept::ClientArgs),
    /// The echo server.
    EchoServer(echo::ServerArgs),
    /// The echo server's clients.
    EchoClient(echo::ClientArgs),
}

impl Workload {
    /// Runs the workload and prints its report.
    pub fn run(&self) -> Result<()> {
        let report = match self {
            Self::Nop(args) => nop::run(args)?,
            Self::Meta(args) => meta::run(args)?,
            Self::AcceptServer(args) => return accept::serve(args),
            Self::AcceptClient(args) => accept::drive(args)?,
            Self::EchoServer(args) => return echo::serve(args),
            Self::EchoClient(args) => echo::drive(args)?,
        };
        let line = serde_json::to_string(&report).doing(|| "writing the report".into())?;
        println!("{line}");
        Ok(())
    }
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
    let cpu = process_cpu() - cpu_start;
    let measured = Window {
        label: String::new(),
        ops,
        wall_ns: elapsed.as_nanos() as u64,
        cpu_ns: cpu.as_nanos() as u64,
    };
    Ok((measured, warm_up + ops))
}
