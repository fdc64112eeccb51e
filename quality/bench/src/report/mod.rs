//! The results: as data, as a table for the terminal, as a page.

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
    /// The machine on which the benchmarks ran.
    pub machine: Machine,
    /// The command that made the measurements.
    pub command: String,
    /// The results, one per benchmark.
    pub benchmarks: Vec<Outcome>,
}

/// The results of one benchmark.
#[derive(Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Name, description, baseline.
    #[serde(flatten)]
    pub about: About,
    /// The number of interleaved rounds.
    pub rounds: usize,
    /// Milliseconds measured per side, case and round.
    pub window_ms: u64,
    /// Sides that could not be measured.
    pub skipped: Vec<Skipped>,
    /// Sides that failed.
    pub failed: Vec<Failed>,
    /// The measured cases.
    pub cases: Vec<Case>,
    /// Conclusions from the figures, in words.
    pub findings: Vec<String>,
    /// Files in each directory tree, if the benchmark creates trees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<usize>,
    /// The highest memory use of each side over all cases, if memory is measured.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peak_bytes: BTreeMap<String, u64>,
}

impl Outcome {
    /// Returns the result of one side in one case.
    pub fn side(&self, case: &str, side: &str) -> Option<&SideResult> {
        let case = self.cases.iter().find(|one| one.name == case)?;
        case.sides.iter().find(|one| one.side == side)
    }
}

/// A side that could not be measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Skipped {
    /// The side's name.
    pub side: String,
    /// Why the side could not be measured.
    pub reason: String,
}

/// A side that failed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failed {
    /// The side's name.
    pub side: String,
    /// The case in which the side failed.
    pub case: String,
    /// The failure's text.
    pub how: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FAILED: {}, {}: {}", self.side, self.case, self.how)
    }
}

/// A case: one thing measured on all sides.
#[derive(Debug, Serialize, Deserialize)]
pub struct Case {
    /// The case's name.
    pub name: String,
    /// The results, one per side.
    pub sides: Vec<SideResult>,
}

/// The result of one case on one side.
#[derive(Debug, Serialize, Deserialize)]
pub struct SideResult {
    /// The side's name.
    pub side: String,
    /// Median over the rounds of the time per operation.
    pub ns_per_op: f64,
    /// Time per operation in the best round.
    pub fastest_ns_per_op: f64,
    /// Time per operation in the worst round.
    pub slowest_ns_per_op: f64,
    /// Median of the CPU time per operation.
    pub cpu_ns_per_op: f64,
    /// This side's speed over the baseline's: above 1 is faster.
    pub speed: Option<Ratio>,
    /// This side's CPU time per operation over the baseline's: below 1 is cheaper.
    pub cpu: Option<Ratio>,
    /// System calls per operation, from a run of its own.
    pub syscalls_per_op: Option<f64>,
    /// The share of zero-copy sends whose data was copied after all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied: Option<f64>,
    /// Medians of the memory per operation, if memory is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_per_op: Option<MemoryPerOp>,
    /// Medians of the latencies, if latencies are measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// The windows of every round; a record has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<Window>,
}

/// Bytes of memory per operation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MemoryPerOp {
    /// Resident memory of the process.
    pub resident: f64,
    /// Slab memory of the machine's kernel.
    pub kernel: f64,
}

/// Ratios to the baseline, each computed within a round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The median over all rounds.
    pub median: f64,
    /// The lowest of a round; old records have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowest: Option<f64>,
    /// The highest of a round; old records have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest: Option<f64>,
}

impl Ratio {
    /// Returns the lowest and the highest ratio, if they are known.
    pub fn spread(&self) -> Option<(f64, f64)> {
        self.lowest.zip(self.highest)
    }
}
