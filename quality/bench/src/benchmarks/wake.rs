//! The latency of completions.

use super::{About, BOTH, Benchmark, Run, run_workload};
use crate::failure::Result;
use crate::harness::launch::Context;
use crate::report::Outcome;
use crate::report::verdict::{Bound, Check, Figure};

const FIRST: &str = "request";

/// Names of the groups, and the workload's argument for each.
const GROUPS: [(&str, &str); 3] =
    [(FIRST, "first"), ("timeout, watched", "timeout"), ("poll of a pipe, watched", "poll")];

/// The latency of first requests, and of completions that no call waits for.
pub struct Wake;

impl Benchmark for Wake {
    fn about(&self) -> About {
        About {
            name: "wake",
            title: "the first request of a ring, and completions that nobody waits for in a call",
            text: "`first in the process` and `first of a ring`: how long the call takes that submits the first request of a new ring, a \
                   poll of a readable pipe, and waits for it. `watched`: the program looks at the completion ring's tail, and makes no \
                   system call, until the completion is there: of a timeout that ends 1 ms after its submission, or of a poll of a pipe \
                   to which another thread writes. Measured is the delay from the timeout's end, or from before the write.",
            goal: "the first request of a ring takes at most 0.2 ms, a watched completion comes within 0.1 ms at the median",
            baseline: "kernel",
            sides: &BOTH,
        }
    }

    fn groups(&self, _quick: bool) -> Vec<String> {
        GROUPS.map(|(name, _)| name.to_owned()).into()
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        let mut command = context.workload(BOTH[side].on, "wake");
        command
            .args(["--what", GROUPS[group].1])
            .args(["--window-ms", &context.window().as_millis().to_string()]);
        run_workload(context, command, count)
    }

    fn checks(&self, outcome: &Outcome) -> Vec<Check> {
        vec![
            Check::new("the first request, at the median", Bound::AtMost(200.0), medians(outcome, true))
                .in_unit("µs"),
            Check::new(
                "delay of a completion that nobody waits for, at the median",
                Bound::AtMost(100.0),
                medians(outcome, false),
            )
            .in_unit("µs"),
        ]
    }
}

/// Returns the median of each case on anyring, in microseconds: of first requests if `first`, else of the other cases.
fn medians(outcome: &Outcome, first: bool) -> impl Iterator<Item = Figure> {
    let cases = outcome.cases.iter().filter(move |case| case.name.ends_with(FIRST) == first);
    cases.filter_map(|case| {
        let latency = outcome.side(&case.name, "anyring")?.latency?;
        Some(Figure::of(latency.median as f64 / 1e3, format!("{}: anyring", case.name)))
    })
}
