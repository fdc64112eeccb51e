//! The echo server.

use std::io::Write;
use std::process::Stdio;

use super::{About, Benchmark, Run, Side};
use crate::failure::{Doing, Failure, Result};
use crate::harness::launch::{Context, On};
use crate::harness::process::Process;
use crate::harness::syscalls::Counter;
use crate::workload::clock::allowed_cpus;

const CONNECTIONS: [usize; 4] = [1, 50, 200, 1000];
const MESSAGE: usize = 128;

const fn side(name: &'static str, on: On) -> Side {
    Side { name, on }
}

const SIDES: [Side; 7] = [
    side("epoll", On::Plain),
    side("kernel", On::Kernel),
    side("kernel, deferred", On::Kernel),
    side("kernel, tuned", On::Kernel),
    side("anyring", On::Anyring),
    side("anyring, deferred", On::Anyring),
    side("anyring, tuned", On::Anyring),
];

/// What the server is told on each side.
const FLAGS: [&[&str]; 7] = [
    &["--means", "epoll"],
    &["--means", "ring"],
    &["--means", "ring", "--defer"],
    &["--means", "ring", "--defer", "--fixed", "--poll-first"],
    &["--means", "ring"],
    &["--means", "ring", "--defer"],
    &["--means", "ring", "--defer", "--fixed", "--poll-first"],
];

/// An echo server on epoll and on rings.
pub struct Echo;

impl Benchmark for Echo {
    fn about(&self) -> About {
        About {
            name: "echo",
            title: "echo server, messages of 128 bytes on keep-alive connections",
            text: "A server on one CPU and its clients on another, over the loopback interface; each connection has one message under way. \
                   The epoll server is edge-triggered, tries a receive right at accept and none after a short one. \
                   The ring's server has single-shot accepts, receives and sends, the next receive in flight while it sends; \
                   the same binary on both engines, plain, with DEFER_TASKRUN (`deferred`), and with DEFER_TASKRUN, direct descriptors and POLL_FIRST, \
                   which is the kernel at its best (`tuned`). \
                   CPU time and system calls are the server's.",
            goal: "at least as fast as epoll, at every number of connections",
            baseline: "epoll",
        }
    }

    fn sides(&self) -> &[Side] {
        &SIDES
    }

    fn groups(&self, quick: bool) -> Vec<String> {
        let count = if quick { 2 } else { CONNECTIONS.len() };
        CONNECTIONS[..count]
            .iter()
            .map(|connections| match connections {
                1 => "1 connection".to_owned(),
                many => format!("{many} connections"),
            })
            .collect()
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        let connections = CONNECTIONS[group].to_string();
        let cpus = allowed_cpus();
        let pinned = |cpu: usize| match cpus.len() {
            0 | 1 => Vec::new(),
            _ => vec!["--cpu".to_owned(), cpus[cpu].to_string()],
        };
        let mut command = context.workload(On::Plain, "echo-client");
        command
            .args(["--connections", &connections])
            .args(["--message", &MESSAGE.to_string()])
            .args(["--window-ms", &context.window.as_millis().to_string()])
            .args(pinned(cpus.len() - 1))
            .stdin(Stdio::piped());
        let mut client = Process::start(command, &context.scratch, context.limit())?;
        // The client is there already and waits for the address: what is counted from here is the server's.
        let mut counter = count.then(Counter::start).flatten();
        let mut command = context.workload(SIDES[side].on, "echo-server");
        command.args(FLAGS[side]).args(["--connections", &connections]).args(pinned(0));
        let mut server = Process::start(command, &context.scratch, context.limit())?;
        let address = server.first_line()?;
        tell(&mut client, &address)?;
        let client = client.finish();
        // A server that failed explains why its clients did.
        let client = match client {
            Ok(client) => client,
            Err(failure) => return Err(server.finish().err().unwrap_or(failure)),
        };
        server.finish()?;
        let report =
            serde_json::from_str(&client.output).doing(|| "understanding the clients' report".into())?;
        Ok(Run { report, syscalls: counter.as_mut().map(Counter::count) })
    }
}

fn tell(client: &mut Process, address: &str) -> Result<()> {
    let mut input = client.input().ok_or_else(|| Failure::new("the clients' standard input is no pipe"))?;
    input.write_all(address.as_bytes()).doing(|| "telling the clients where the server is".into())
}
