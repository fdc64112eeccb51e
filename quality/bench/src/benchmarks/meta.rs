//! Open, statx and close of cached files.

use std::path::PathBuf;

use super::{About, Benchmark, Run, Side, run_workload, side};
use crate::failure::Result;
use crate::harness::launch::{Context, On};
use crate::report::Outcome;
use crate::report::verdict::{Bound, Check, speeds};
use crate::workload::meta::create_tree;

const SIDES: [Side; 3] =
    [side("kernel", On::Kernel, &[]), side("anyring", On::Anyring, &[]), side("plain calls", On::Plain, &[])];

/// Depth, and whether the three operations are a chain.
const GROUPS: [(usize, bool); 4] = [(1, false), (64, false), (1, true), (64, true)];

/// Open, statx and close, one binary on both engines.
#[derive(Default)]
pub struct Meta {
    tree: PathBuf,
}

impl Benchmark for Meta {
    fn about(&self) -> About {
        About {
            name: "meta",
            title: "open, statx and close of cached files",
            text: "1024 small files in 16 directories, all cached. Separately: 64 opens, then 64 statx by path, then 64 closes, with \
                   as many requests per enter as the depth says. As a chain: open into a direct descriptor, statx, and close of the \
                   slot, linked; an operation is then the whole chain. The same binary runs on both engines (SINGLE_ISSUER, \
                   DEFER_TASKRUN); `plain calls` makes the same system calls one after the other. System calls per operation are the \
                   mean of the three.",
            goal: "ahead of the kernel's io_uring at depth 1 and 64",
            baseline: "kernel",
            sides: &SIDES,
        }
    }

    fn groups(&self, _quick: bool) -> Vec<String> {
        GROUPS
            .map(|(depth, chain)| match chain {
                true => format!("chain of three, depth {depth}"),
                false => format!("depth {depth}"),
            })
            .into()
    }

    fn prepare(&mut self, context: &Context, _usable: &[usize]) -> Result<()> {
        self.tree = context.scratch.join("tree");
        create_tree(&self.tree)
    }

    fn checks(&self, outcome: &Outcome) -> Vec<Check> {
        let ours = speeds(outcome, |_, side| side == "anyring");
        vec![Check::new("speed over the kernel's io_uring", Bound::AtLeast(1.0), ours)]
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        let (on, (depth, chain)) = (SIDES[side].on, GROUPS[group]);
        let means = if on == On::Plain { "syscall" } else { "ring" };
        let mut command = context.workload(on, "meta");
        command
            .arg("--tree")
            .arg(&self.tree)
            .args(["--means", means])
            .args(["--depth", &depth.to_string()])
            .args(["--window-ms", &context.window().as_millis().to_string()]);
        if chain {
            command.arg("--chain");
        }
        run_workload(context, command, count)
    }
}
