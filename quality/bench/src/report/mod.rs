//! What came out: as data, as a table for the terminal, as a page.

pub mod chart;
mod colour;
mod costs;
mod overview;
pub mod page;
pub mod record;
pub mod table;
pub mod verdict;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::benchmarks::About;
use crate::harness::machine::Machine;
use crate::workload::{Latency, Window};

/// Everything that one call of the program measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Results {
    /// What it was measured on.
    pub machine: Machine,
    /// The command that measured it.
    pub command: String,
    /// One per benchmark.
    pub benchmarks: Vec<Outcome>,
}

/// What one benchmark gave.
#[derive(Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Name, description, baseline.
    #[serde(flatten)]
    pub about: About,
    /// Interleaved rounds.
    pub rounds: usize,
    /// Milliseconds measured per side, case and round.
    pub window_ms: u64,
    /// Sides that could not be measured.
    pub skipped: Vec<Skipped>,
    /// Sides that failed.
    pub failed: Vec<Failed>,
    /// One per thing measured.
    pub cases: Vec<Case>,
    /// What the figures say, in words.
    pub findings: Vec<String>,
    /// Files in each directory tree, where the benchmark makes some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<usize>,
    /// How much memory each side had at most, over all cases, where that is measured.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peak_bytes: BTreeMap<String, u64>,
}

impl Outcome {
    /// What one side gave in one case.
    pub fn side(&self, case: &str, side: &str) -> Option<&SideResult> {
        let case = self.cases.iter().find(|one| one.name == case)?;
        case.sides.iter().find(|one| one.side == side)
    }
}

/// A side that could not be measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Skipped {
    /// Its name.
    pub side: String,
    /// Why not.
    pub reason: String,
}

/// A side that failed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failed {
    /// Its name.
    pub side: String,
    /// Where.
    pub case: String,
    /// How.
    pub how: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FAILED: {}, {}: {}", self.side, self.case, self.how)
    }
}

/// One thing measured on all sides.
#[derive(Debug, Serialize, Deserialize)]
pub struct Case {
    /// What was measured.
    pub name: String,
    /// One per side.
    pub sides: Vec<SideResult>,
}

/// One thing measured on one side.
#[derive(Debug, Serialize, Deserialize)]
pub struct SideResult {
    /// The side's name.
    pub side: String,
    /// Median over the rounds of time per operation.
    pub ns_per_op: f64,
    /// The best round.
    pub fastest_ns_per_op: f64,
    /// The worst round.
    pub slowest_ns_per_op: f64,
    /// Median of the CPU time per operation.
    pub cpu_ns_per_op: f64,
    /// This side's speed over the baseline's: above 1 is faster.
    pub speed: Option<Ratio>,
    /// This side's CPU time per operation over the baseline's: below 1 is cheaper.
    pub cpu: Option<Ratio>,
    /// System calls per operation, from a run of its own.
    pub syscalls_per_op: Option<f64>,
    /// How much of what was sent without copying was copied after all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied: Option<f64>,
    /// Medians of the memory that an operation took, where that is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_per_op: Option<MemoryPerOp>,
    /// Medians of the latencies, where those are measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Every round; not in a record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<Window>,
}

/// Bytes of memory per operation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MemoryPerOp {
    /// Of the process.
    pub resident: f64,
    /// Of the machine's kernel, in slabs.
    pub kernel: f64,
}

/// Ratios within each round to the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Over all rounds.
    pub median: f64,
    /// The lowest of a round; old records have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowest: Option<f64>,
    /// The highest of a round; old records have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest: Option<f64>,
}

impl Ratio {
    /// The lowest and the highest, where they are known.
    pub fn spread(&self) -> Option<(f64, f64)> {
        self.lowest.zip(self.highest)
    }
}
