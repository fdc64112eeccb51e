//! The cost of `anyring trace`.

use super::{About, Benchmark, Run, Side, nop, run_workload, side};
use crate::failure::Result;
use crate::harness::launch::{Context, On};
use crate::report::Outcome;
use crate::report::verdict::{Bound, Check, Figure};

/// No-ops per enter.
const GROUPS: [u32; 3] = [1, 4, 16];

/// Rings of the user engine and rings of the kernel, each without and with a trace.
const SIDES: [Side; 4] = [
    side("anyring", On::Anyring, &[]),
    side("anyring, traced", On::AnyringTraced, &[]),
    side("kernel", On::Kernel, &[]),
    side("kernel, traced", On::KernelTraced, &[]),
];

/// No-ops with and without a trace of them.
pub struct Trace;

impl Benchmark for Trace {
    fn about(&self) -> About {
        About {
            name: "trace",
            title: "no-ops, 1, 4 and 16 per io_uring_enter, under anyring trace",
            text: "Requests that do nothing, as in the benchmark `nop`. `traced`: `anyring trace -o FILE` writes a line for each of them, \
                   and the program waits where `anyring trace` cannot keep up, so that nothing is lost. CPU time is that of the traced \
                   program alone; `anyring trace` takes another processor.",
            goal: "a trace to a file takes at most 1 µs more for each request, on either engine",
            baseline: "anyring",
            sides: &SIDES,
        }
    }

    fn groups(&self, _quick: bool) -> Vec<String> {
        GROUPS.map(label).into()
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        let command = nop::workload(context, SIDES[side].on, GROUPS[group]);
        // The count would include the calls of `anyring trace`.
        run_workload(context, command, count && !SIDES[side].name.ends_with("traced"))
    }

    fn checks(&self, outcome: &Outcome) -> Vec<Check> {
        let more = |[without, with]: [&Side; 2]| {
            let of = move |&per_enter: &u32| more(outcome, &label(per_enter), without.name, with.name);
            GROUPS.iter().filter_map(of).collect::<Vec<_>>()
        };
        let [anyring, traced, kernel, kernel_traced] = &SIDES;
        let check = |title, sides| Check::new(title, Bound::AtMost(1000.0), more(sides)).in_unit("ns");
        vec![
            check("time of a request of the user engine more than without a trace", [anyring, traced]),
            check("time of a request of the kernel more than without a trace", [kernel, kernel_traced]),
        ]
    }
}

fn label(per_enter: u32) -> String {
    nop::label(per_enter, false)
}

/// Returns how many nanoseconds longer a request takes with a trace.
fn more(outcome: &Outcome, case: &str, without: &str, with: &str) -> Option<Figure> {
    let time = |side| Some(outcome.side(case, side)?.ns_per_op);
    Some(Figure::of(time(with)? - time(without)?, format!("{case}: {with}")))
}
