//! Many short connections.

use super::{About, Benchmark, Run, Side, run_served, side};
use crate::failure::Result;
use crate::harness::launch::{Context, On};
use crate::report::Outcome;
use crate::report::verdict::{Bound, Check, Figure, cpu, speeds};

/// The total number of clients.
const CLIENTS: usize = 10_000;
const QUICK_CLIENTS: usize = 300;
/// The maximum numbers of concurrent clients.
const AT_ONCE: [usize; 4] = [1, 100, 1000, 10_000];
const QUICK: usize = 2;

const SIDES: [Side; 9] = [
    side("epoll", On::Denied, &["--means", "epoll"]),
    side("epoll, no filter", On::Plain, &["--means", "epoll"]),
    side("bare loop", On::Denied, &["--means", "bare"]),
    side("kernel, single-shot", On::Kernel, &["--means", "ring"]),
    side("kernel, multishot", On::Kernel, &["--means", "ring", "--multishot"]),
    side("kernel, multishot, direct", On::Kernel, &["--means", "ring", "--multishot", "--fixed"]),
    side("anyring, single-shot", On::Anyring, &["--means", "ring"]),
    side("anyring, multishot", On::Anyring, &["--means", "ring", "--multishot"]),
    side("anyring, multishot, direct", On::Anyring, &["--means", "ring", "--multishot", "--fixed"]),
];

/// Servers of many short connections.
pub struct Accept;

impl Benchmark for Accept {
    fn about(&self) -> About {
        About {
            name: "accept",
            title: "10,000 clients, a message of 128 bytes each",
            text: "Each client connects, sends 128 bytes, receives them back, waits for the server to close, and closes. The server \
                   runs on one CPU and its clients on another, over the loopback interface; the case says how many clients run at the \
                   same time. The server's buffers have 1 KiB. The epoll server is edge-triggered, accepts until no connection is \
                   waiting, and tries a receive right after each accept. The server with a ring has an accept (single-shot or \
                   multishot), a receive per connection, and a send with a linked close (SINGLE_ISSUER, DEFER_TASKRUN; `direct` \
                   accepts into direct descriptors); the same binary runs on both engines. The bare loop accepts, receives, sends and \
                   closes with one connection after the other, by blocking calls. An operation is a connection. `epoll` runs under the \
                   seccomp filter that denies io_uring to anyring, because a program in the same container would, too; `epoll, no \
                   filter` runs without it. CPU time and system calls are those of the server.",
            goal: "at least epoll's speed and at most 1.05 of its CPU; multishot costs no more CPU than single-shot",
            baseline: "epoll",
            sides: &SIDES,
        }
    }

    fn groups(&self, quick: bool) -> Vec<String> {
        let count = if quick { QUICK } else { AT_ONCE.len() };
        AT_ONCE[..count].iter().map(|at_once| format!("{at_once} at once")).collect()
    }

    fn work_is_fixed(&self) -> bool {
        true
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        let clients = if context.quick { QUICK_CLIENTS } else { CLIENTS };
        let (warm_up, at_once) = (clients / 10, AT_ONCE[group].to_string());
        let mut client = context.workload(On::Plain, "accept-client");
        client
            .args(["--connections", &clients.to_string()])
            .args(["--warm-up", &warm_up.to_string()])
            .args(["--at-once", &at_once]);
        let mut server = context.workload(SIDES[side].on, "accept-server");
        server
            .args(SIDES[side].flags)
            .args(["--connections", &(clients + warm_up + 1).to_string()])
            .args(["--at-once", &at_once]);
        run_served(context, server, client, count)
    }

    fn checks(&self, outcome: &Outcome) -> Vec<Check> {
        let ours = |_: &str, side: &str| side.starts_with("anyring");
        let multishot = outcome.cases.iter().filter_map(|case| {
            let single = outcome.side(&case.name, "anyring, single-shot")?;
            let multishot = outcome.side(&case.name, "anyring, multishot")?;
            Some(Figure::of(multishot.cpu_ns_per_op / single.cpu_ns_per_op, case.name.clone()))
        });
        vec![
            Check::new("speed over epoll", Bound::AtLeast(1.0), speeds(outcome, ours)),
            Check::new("CPU time over epoll's", Bound::AtMost(1.05), cpu(outcome, ours)),
            Check::new("CPU time of multishot over single-shot", Bound::AtMost(1.0), multishot),
        ]
    }

    fn findings(&self, outcome: &Outcome) -> Vec<String> {
        let saved = |case: &str, engine: &str| {
            let single = outcome.side(case, &format!("{engine}, single-shot"))?;
            let multi = outcome.side(case, &format!("{engine}, multishot"))?;
            let percent = (1.0 - multi.cpu_ns_per_op / single.cpu_ns_per_op) * 100.0;
            Some(format!("{case}, {engine} {percent:+.1}%"))
        };
        let saved: Vec<String> = outcome
            .cases
            .iter()
            .flat_map(|case| ["kernel", "anyring"].into_iter().filter_map(|engine| saved(&case.name, engine)))
            .collect();
        if saved.is_empty() {
            return Vec::new();
        }
        vec![format!("CPU that multishot saves per connection, over single-shot: {}.", saved.join("; "))]
    }
}
