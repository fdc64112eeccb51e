//! No-ops per enter.

use super::{About, Benchmark, Run, Side, run_workload};
use crate::failure::Result;
use crate::harness::launch::{Context, On};

const PER_ENTER: [u32; 3] = [1, 4, 16];

const SIDES: [Side; 5] = [
    Side { name: "kernel", on: On::Kernel },
    Side { name: "anyring", on: On::Anyring },
    Side { name: "anyring, unpatched", on: On::AnyringTrap },
    Side { name: "engine, called", on: On::Linked },
    Side { name: "getppid", on: On::Plain },
];

/// No-ops per enter, one binary on both engines.
pub struct Nop;

impl Benchmark for Nop {
    fn about(&self) -> About {
        About {
            name: "nop",
            title: "no-ops, 1, 4 and 16 per io_uring_enter",
            text: "The way through the ring with nothing to do at its end: fill in the requests, enter, take the completions. \
                   The same binary with inline system calls on both engines; `unpatched` leaves its call site as it is, \
                   so that every enter is a trap; `engine, called` has the engine linked in and calls it as a function. `getppid` is what a plain system call costs.",
            goal: "a no-op costs less than on the kernel's io_uring",
            baseline: "kernel",
        }
    }

    fn sides(&self) -> &[Side] {
        &SIDES
    }

    fn groups(&self, _quick: bool) -> Vec<String> {
        PER_ENTER.map(|count| format!("{count} per enter")).into()
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        let on = SIDES[side].on;
        let means = if on == On::Plain { "syscall" } else { "ring" };
        let mut command = context.workload(on, "nop");
        command
            .args(["--means", means])
            .args(["--per-enter", &PER_ENTER[group].to_string()])
            .args(["--window-ms", &context.window.as_millis().to_string()]);
        run_workload(context, command, count)
    }
}
