//! The cost of an operation among few and among many requests, rings or queued work items.

use std::time::Duration;

use super::{About, BOTH, Benchmark, Run, Side, run_within};
use crate::failure::Result;
use crate::harness::launch::Context;
use crate::report::verdict::{Bound, Check, Figure};
use crate::report::{Outcome, SideResult};
use crate::workload::growth::can_hold_workers;

/// The number of sizes at which each operation is measured; sizes are in ascending order.
const SIZES: usize = 3;

const LIVE: [usize; SIZES] = [100, 10_000, 1_000_000];
const RINGS: [usize; SIZES] = [10, 100, 1000];
/// The largest size is one that fits into a CQ.
const QUEUED: [usize; SIZES] = [100, 10_000, 60_000];

/// Additional time, on a busy machine, to create the many objects and to end all of them.
const MAKING_MANY: Duration = Duration::from_secs(120);

/// An operation, measured at some sizes.
struct Operation {
    name: &'static str,
    /// The operation's name in the workload.
    what: &'static str,
    sizes: [usize; SIZES],
    of: &'static str,
}

const OPERATIONS: [Operation; 6] = [
    Operation { name: "cancel by descriptor", what: "cancel", sizes: LIVE, of: "requests" },
    Operation { name: "read at the position", what: "position", sizes: LIVE, of: "requests" },
    Operation { name: "close, unknown", what: "close-unknown", sizes: RINGS, of: "rings" },
    Operation { name: "close, known to one", what: "close-known", sizes: RINGS, of: "rings" },
    Operation { name: "queue for workers", what: "queue", sizes: QUEUED, of: "queued" },
    Operation { name: "submit", what: "slab", sizes: LIVE, of: "requests" },
];

/// The operation that the workload measures in two windows, and the names of the windows' cases.
const SUBMIT: &str = "submit";
const LONGEST: &str = "longest submission, submit";
const MEAN: &str = "mean submission, submit";

/// Operations measured among few and among many objects.
pub struct Growth;

impl Benchmark for Growth {
    fn about(&self) -> About {
        About {
            name: "growth",
            title: "an operation among few and among many requests, rings, queued work",
            text: "Each operation is measured while there is little and while there is much of what it should not depend on. `cancel by \
                   descriptor`: a poll and its cancellation by IORING_ASYNC_CANCEL_FD, while so many other polls wait for another \
                   descriptor. `read at the position`: 64 bytes of a file in memory, at offset -1, while so many polls wait and a worker \
                   is busy. `close, unknown`: a pipe is made and closed, while there are so many rings; `known to one`: the same after \
                   one of the rings has polled it. `queue for workers`: one FSYNC with IOSQE_ASYNC, while so many others are queued \
                   and the only worker is busy. `submit`: one poll per submission until so many wait; the \
                   longest and the mean submission, in CPU time of the thread. What the goal compares is CPU time of the process, \
                   which other work on the machine changes least.",
            goal: "among 1,000,000 requests, 1000 rings or 60,000 queued at most 3 times the CPU time among few; no submission above 1 ms",
            baseline: "kernel",
            sides: &BOTH,
        }
    }

    fn groups(&self, _quick: bool) -> Vec<String> {
        OPERATIONS.iter().flat_map(|one| one.sizes.map(|size| one.label(size))).collect()
    }

    fn missing(&self, _context: &Context, group: usize) -> Option<String> {
        let holds = ["position", "queue"].contains(&OPERATIONS[group / SIZES].what);
        (holds && !can_hold_workers()).then(|| "userfaultfd takes root".into())
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        let operation = &OPERATIONS[group / SIZES];
        let mut command = context.workload(BOTH[side].on, "growth");
        command
            .args(["--what", operation.what])
            .args(["--size", &operation.sizes[group % SIZES].to_string()])
            .args(["--window-ms", &context.window().as_millis().to_string()]);
        run_within(context, command, count, context.limit() + MAKING_MANY)
    }

    fn checks(&self, outcome: &Outcome) -> Vec<Check> {
        let growth = |(name, one): (&'static str, &Operation)| {
            let what = format!("{name}: CPU time among many over that among few");
            Check::new(&what, Bound::AtMost(3.0), one.growth(outcome, name, "anyring"))
        };
        let most = &OPERATIONS[5].label(LIVE[SIZES - 1]);
        let longest = cost(outcome, &most.replace(SUBMIT, LONGEST), "anyring");
        let longest = longest.map(|ns| Figure::of(ns / 1e3, format!("{most}: anyring")));
        let longest = Check::new("the longest submission", Bound::AtMost(1000.0), longest).in_unit("µs");
        measured().map(growth).chain([longest]).collect()
    }

    fn findings(&self, outcome: &Outcome) -> Vec<String> {
        let of = |(name, one): (&str, &Operation)| {
            let growth = |side: &Side| {
                let figure = one.growth(outcome, name, side.name)?;
                Some(format!("{} {:.2}", side.name, figure.value))
            };
            let growths: Vec<String> = BOTH.iter().filter_map(growth).collect();
            (!growths.is_empty()).then(|| format!("{name}: {}", growths.join(", ")))
        };
        let all: Vec<String> = measured().filter_map(of).collect();
        match all.is_empty() {
            true => Vec::new(),
            false => vec![format!("CPU time among many over that among few: {}.", all.join("; "))],
        }
    }
}

/// Returns the operations whose times are compared, with their names in the cases.
fn measured() -> impl Iterator<Item = (&'static str, &'static Operation)> {
    OPERATIONS.iter().map(|one| (if one.name == SUBMIT { MEAN } else { one.name }, one))
}

impl Operation {
    fn label(&self, size: usize) -> String {
        format!("{}, {size} {}", self.name, self.of)
    }

    /// Returns a side's cost among many objects, divided by its cost among few.
    fn growth(&self, outcome: &Outcome, name: &str, side: &str) -> Option<Figure> {
        let [few, _, many] = self.sizes.map(|size| self.label(size).replacen(self.name, name, 1));
        let growth = cost(outcome, &many, side)? / cost(outcome, &few, side)?;
        Some(Figure::of(growth, format!("{many}: {side}")))
    }
}

fn cost(outcome: &Outcome, case: &str, side: &str) -> Option<f64> {
    outcome.side(case, side).map(|side: &SideResult| side.cpu_ns_per_op).filter(|&ns| ns > 0.0)
}
