//! The echo server.

use std::time::Duration;

use super::{About, Benchmark, Run, Side, connections, run_served, side};
use crate::failure::Result;
use crate::harness::launch::{Context, On};
use crate::report::Outcome;
use crate::report::verdict::{Bound, Check, speeds};

const CONNECTIONS: [usize; 4] = [1, 100, 1000, 10_000];
const MESSAGE: usize = 128;

const SIDES: [Side; 10] = [
    side("epoll", On::Denied, &["--means", "epoll"]),
    side("epoll, no filter", On::Plain, &["--means", "epoll"]),
    side("kernel", On::Kernel, &["--means", "ring"]),
    side("kernel, deferred", On::Kernel, &["--means", "ring", "--defer"]),
    side("kernel, tuned", On::Kernel, &["--means", "ring", "--defer", "--fixed", "--poll-first"]),
    side("kernel, multishot", On::Kernel, &["--means", "multishot"]),
    side("anyring", On::Anyring, &["--means", "ring"]),
    side("anyring, deferred", On::Anyring, &["--means", "ring", "--defer"]),
    side("anyring, tuned", On::Anyring, &["--means", "ring", "--defer", "--fixed", "--poll-first"]),
    side("anyring, multishot", On::Anyring, &["--means", "multishot"]),
];

/// An echo server on epoll and on rings.
pub struct Echo;

impl Benchmark for Echo {
    fn about(&self) -> About {
        About {
            name: "echo",
            title: "echo server, messages of 128 bytes on keep-alive connections",
            text: "The server runs on one CPU and its clients on another, over the loopback interface; each connection has one message \
                   in flight. The epoll server is edge-triggered, tries a receive right after each accept, and does not try another \
                   after a short receive. The server with a ring has single-shot accepts, receives and sends, and has the next receive \
                   in flight while it sends. The same binary runs on both engines: plain, with DEFER_TASKRUN (`deferred`), and with \
                   DEFER_TASKRUN, direct descriptors and POLL_FIRST (`tuned`), with which the kernel is fastest. `multishot` has one \
                   accept, and one receive per connection into at most 256 provided buffers (DEFER_TASKRUN). `epoll` runs under the \
                   seccomp filter that denies io_uring to anyring, because a program in the same container would, too; `epoll, no \
                   filter` runs without it. CPU time and system calls are those of the server.",
            goal: "at least as fast as epoll, at every number of connections",
            baseline: "epoll",
            sides: &SIDES,
        }
    }

    fn groups(&self, quick: bool) -> Vec<String> {
        let count = if quick { 2 } else { CONNECTIONS.len() };
        CONNECTIONS[..count].iter().map(connections).collect()
    }

    fn checks(&self, outcome: &Outcome) -> Vec<Check> {
        let ours = speeds(outcome, |_, side| side.starts_with("anyring"));
        vec![Check::new("speed over epoll", Bound::AtLeast(1.0), ours)]
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        let connections = CONNECTIONS[group].to_string();
        let mut client = context.workload(On::Plain, "echo-client");
        client
            .args(["--connections", &connections])
            .args(["--message", &MESSAGE.to_string()])
            .args(["--window-ms", &window(context, CONNECTIONS[group]).as_millis().to_string()]);
        let mut server = context.workload(SIDES[side].on, "echo-server");
        server.args(SIDES[side].flags).args(["--connections", &connections]);
        run_served(context, server, client, count)
    }
}

/// Returns a window in which every connection exchanges some messages.
fn window(context: &Context, connections: usize) -> Duration {
    context.window() * if connections < 10_000 { 1 } else { 4 }
}
