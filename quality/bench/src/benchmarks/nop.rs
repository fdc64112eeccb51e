//! No-ops per enter, by the ring's descriptor and by its registration.

use std::process::Command;

use super::{About, Benchmark, Run, Side, run_workload, side};
use crate::failure::Result;
use crate::harness::launch::{Context, On};
use crate::report::Outcome;
use crate::report::verdict::{Bound, Check, Figure, speeds};

/// No-ops per enter, and whether the process has a second thread.
const GROUPS: [(u32, bool); 7] =
    [(1, false), (2, false), (4, false), (16, false), (1, true), (2, true), (4, true)];
const QUICK: usize = 2;

const SIDES: [Side; 7] = [
    side("kernel", On::Kernel, &[]),
    side("kernel, registered", On::Kernel, &["--registered"]),
    side("anyring", On::Anyring, &[]),
    side("anyring, registered", On::Anyring, &["--registered"]),
    side("anyring, unpatched", On::AnyringTrap, &[]),
    side("engine, called", On::Linked, &[]),
    side("getppid", On::Plain, &[]),
];

/// No-ops per enter, one binary on both engines.
pub struct Nop;

impl Benchmark for Nop {
    fn about(&self) -> About {
        About {
            name: "nop",
            title: "no-ops, 1, 2, 4 and 16 per io_uring_enter",
            text: "The cost of the ring itself, with requests that do nothing: fill in the requests, enter, take the completions. The \
                   same binary, with inline system calls, runs on both engines. `registered` enters by the registered ring descriptor \
                   (IORING_REGISTER_RING_FDS); `unpatched` does not patch the call site, so that every enter is a trap; `engine, \
                   called` has the engine linked into the program and calls it as a function. `getppid` is the cost of a plain system \
                   call. In the cases with two threads, one of them sleeps; it is there because the kernel counts references to a \
                   descriptor only if its table is shared.",
            goal: "a no-op costs less than on the kernel's io_uring; registration gains, or there is nothing left to gain",
            baseline: "kernel",
            sides: &SIDES,
        }
    }

    fn groups(&self, quick: bool) -> Vec<String> {
        let count = if quick { QUICK } else { GROUPS.len() };
        GROUPS[..count].iter().map(|&(per_enter, threaded)| label(per_enter, threaded)).collect()
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        let (per_enter, threaded) = GROUPS[group];
        let mut command = workload(context, SIDES[side].on, per_enter);
        command.args(SIDES[side].flags);
        if threaded {
            command.arg("--threaded");
        }
        run_workload(context, command, count)
    }

    fn checks(&self, outcome: &Outcome) -> Vec<Check> {
        let ours = |_: &str, side: &str| ["anyring", "anyring, registered"].contains(&side);
        let case = label(1, false);
        let enter =
            outcome.side(&case, "anyring").zip(outcome.side(&case, "getppid")).map(|(enter, call)| {
                Figure::of(enter.cpu_ns_per_op / call.cpu_ns_per_op, format!("{case}: anyring over getppid"))
            });
        vec![
            Check::new("speed over the kernel's io_uring", Bound::AtLeast(1.0), speeds(outcome, ours)),
            Check::new(
                "an enter takes no more CPU than a plain system call, so that registration has nothing left to gain",
                Bound::AtMost(1.0),
                enter,
            ),
        ]
    }

    fn findings(&self, outcome: &Outcome) -> Vec<String> {
        let gained: Vec<String> = GROUPS
            .iter()
            .filter_map(|&(per_enter, threaded)| gain(outcome, &label(per_enter, threaded)))
            .collect();
        if gained.is_empty() {
            return Vec::new();
        }
        let mut text = format!(
            "What registering the ring's descriptor changes in the CPU time of one enter: {}.",
            gained.join("; ")
        );
        if let Some(limit) = limit(outcome) {
            text.push(' ');
            text.push_str(&limit);
        }
        vec![text]
    }
}

/// Returns the command of the workload with `per_enter` no-ops per enter.
pub(super) fn workload(context: &Context, on: On, per_enter: u32) -> Command {
    let means = if on == On::Plain { "syscall" } else { "ring" };
    let mut command = context.workload(on, "nop");
    command
        .args(["--means", means])
        .args(["--per-enter", &per_enter.to_string()])
        .args(["--window-ms", &context.window().as_millis().to_string()]);
    command
}

/// Returns a case's name.
pub(super) fn label(per_enter: u32, threaded: bool) -> String {
    let threads = if threaded { ", two threads" } else { "" };
    format!("{per_enter} per enter{threads}")
}

/// Returns the CPU time of an enter without and with registration in one case, for each engine that has both sides.
fn gain(outcome: &Outcome, case: &str) -> Option<String> {
    let per_enter: f64 = case.split(' ').next()?.parse().ok()?;
    let of = |engine: &str| {
        let before = outcome.side(case, engine)?.cpu_ns_per_op * per_enter;
        let after = outcome.side(case, &format!("{engine}, registered"))?.cpu_ns_per_op * per_enter;
        let percent = (before / after - 1.0) * 100.0;
        Some(format!("{engine} {before:.0} to {after:.0} ns ({percent:+.0}%)"))
    };
    let engines: Vec<String> = ["kernel", "anyring"].into_iter().filter_map(of).collect();
    (!engines.is_empty()).then(|| format!("{case}: {}", engines.join(", ")))
}

/// Returns how much a registration could save the user engine at most.
fn limit(outcome: &Outcome) -> Option<String> {
    let case = label(1, false);
    let enter = outcome.side(&case, "anyring")?.cpu_ns_per_op;
    let function = outcome.side(&case, "engine, called")?.cpu_ns_per_op;
    let call = outcome.side(&case, "getppid")?.cpu_ns_per_op;
    Some(format!(
        "A registration saves the kernel an atomic get and put of the file on each enter. The user engine has no file to get: \
         it finds the ring by its number in a table of its own, without a system call, and a registration has to be turned into \
         that number first, so it can save nothing there. All of its enter with one no-op takes {enter:.0} ns ({function:.0} ns \
         where the engine is called as a function), about what one system call that does nothing takes ({call:.0} ns)."
    ))
}
