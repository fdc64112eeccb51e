//! Memory of connections on which nothing happens.

use std::process::Stdio;

use super::{About, Benchmark, Run, Side, side, tell};
use crate::failure::{Doing, Result};
use crate::harness::launch::{Context, On};
use crate::harness::process::Process;
use crate::harness::syscalls::Counter;
use crate::report::Outcome;
use crate::report::verdict::{Bound, Check, Figure};
use crate::workload::sockets::raise_file_limit;

const CONNECTIONS: [usize; 2] = [10_000, 100_000];
const QUICK_CONNECTIONS: [usize; 1] = [200];

const SIDES: [Side; 5] = [
    side("epoll", On::Plain, &["--means", "epoll"]),
    side("kernel, single-shot", On::Kernel, &["--means", "ring"]),
    side("kernel, multishot", On::Kernel, &["--means", "multishot"]),
    side("anyring, single-shot", On::Anyring, &["--means", "ring"]),
    side("anyring, multishot", On::Anyring, &["--means", "multishot"]),
];

/// Memory of connections on which nothing happens.
pub struct Idle;

impl Benchmark for Idle {
    fn about(&self) -> About {
        About {
            name: "idle",
            title: "memory of an idle connection that is waited for",
            text: "10,000 and 100,000 open connections on which nothing happens. Measured is what it takes to wait for each of them, by an \
                   edge-triggered registration or by a receive. `memory` is the growth of the process, per connection; `kernel memory` \
                   is the growth of the machine's slabs, which other processes change, too. Neither includes the sockets themselves, \
                   nor the buffers that a program keeps ready for single-shot receives. Time and CPU time are those of beginning to \
                   wait. Then messages come on one further connection, one after the other: p50, p99 and p99.9 are the times from its \
                   `send` until it was received. System calls are all of the process, those for the messages included.",
            goal: "under 1 KiB for a connection",
            baseline: "epoll",
            sides: &SIDES,
        }
    }

    fn groups(&self, quick: bool) -> Vec<String> {
        connections(quick).iter().map(|count| format!("{count} connections")).collect()
    }

    fn work_is_fixed(&self) -> bool {
        true
    }

    fn missing(&self, context: &Context, group: usize) -> Option<String> {
        // The limit is raised here for all sides: where io_uring is denied, the privilege to raise it is denied, too.
        raise_file_limit(connections(context.quick)[group] + 2)
            .err()
            .map(|failure| failure.to_string().replace('\n', ";"))
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        let connections = connections(context.quick)[group].to_string();
        let mut client = context.workload(On::Plain, "idle-client");
        client.args(["--connections", &connections]).stdin(Stdio::piped());
        let mut client = Process::start(client, &context.scratch, context.limit())?;
        // The client is running already. The counter sees only processes that start after it: the server.
        let mut counter = count.then(Counter::start).flatten();
        let mut server = context.workload(SIDES[side].on, "idle");
        server.args(SIDES[side].flags).args(["--connections", &connections]);
        let mut server = Process::start(server, &context.scratch, context.limit())?;
        tell(&mut client, &server.first_line()?)?;
        let output = server.finish()?.output;
        let report = serde_json::from_str(output.lines().last().unwrap_or_default())
            .doing(|| "understanding the report of a workload".into())?;
        Ok(Run { report, syscalls: counter.as_mut().map(Counter::count) })
    }

    fn checks(&self, outcome: &Outcome) -> Vec<Check> {
        let mut figures = Vec::new();
        for case in &outcome.cases {
            for side in case.sides.iter().filter(|side| side.side.starts_with("anyring")) {
                figures.extend(side.memory_per_op.map(|memory| {
                    Figure::of(memory.resident + memory.kernel, format!("{}: {}", case.name, side.side))
                }));
            }
        }
        vec![Check::new("memory of a connection", Bound::AtMost(1024.0), figures).in_unit("B")]
    }

    fn findings(&self, outcome: &Outcome) -> Vec<String> {
        let of = |side: &crate::report::SideResult| {
            let memory = side.memory_per_op?;
            Some(format!("{} {:.0} + {:.0}", side.side, memory.resident, memory.kernel))
        };
        let of_case = |case: &crate::report::Case| {
            let all: Vec<String> = case.sides.iter().filter_map(of).collect();
            let bytes = format!(
                "{}, bytes of each, in the process and in the kernel: {}.",
                case.name,
                all.join("; ")
            );
            (!all.is_empty()).then_some(bytes)
        };
        outcome.cases.iter().filter_map(of_case).collect()
    }
}

fn connections(quick: bool) -> &'static [usize] {
    if quick { &QUICK_CONNECTIONS } else { &CONNECTIONS }
}
