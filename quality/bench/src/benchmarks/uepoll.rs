//! epoll compared with the ring of uepoll.

use super::{About, Benchmark, Run, Side, connections, run_served, run_workload, side};
use crate::failure::Result;
use crate::harness::launch::{Context, On};
use crate::report::Outcome;
use crate::report::verdict::{Bound, Check, speeds};

const CONNECTIONS: [usize; 4] = [1, 8, 200, 2000];

/// Requests in the measurement of the uepoll proposal; a window of the usual length measures as many.
const REQUESTS: u128 = 20_000;
const USUAL_WINDOW_MS: u128 = 150;

const HTTP_SIDES: [Side; 9] = [
    side("epoll", On::Plain, &["--means", "epoll"]),
    side("epoll, level", On::Plain, &["--means", "level"]),
    side("ring", On::Plain, &["--means", "ring"]),
    side("ring, spinning", On::Plain, &["--means", "ring", "--spin-us", "100"]),
    side("ring, epoll", On::Plain, &["--means", "ring-epoll"]),
    side("ring, io_uring", On::Plain, &["--means", "ring-uring"]),
    side("ring, io_uring, spinning", On::Plain, &["--means", "ring-uring", "--spin-us", "100"]),
    side("ring, AIO", On::Plain, &["--means", "ring-aio"]),
    side("ring, thread", On::Plain, &["--means", "ring-reactor"]),
];

/// An HTTP server on epoll and on the ring.
pub struct Http;

impl Benchmark for Http {
    fn about(&self) -> About {
        About {
            name: "uepoll",
            title: "HTTP server with keep-alive connections, 80 bytes per answer",
            text: "The server runs on one CPU and its clients on another, over the loopback interface; each connection has one request \
                   in flight, and there are 20,000 requests in all. The sides differ only in how the server waits: by epoll, edge- and \
                   level-triggered, or by the ring of uepoll, with the default feeder and with each of its feeders; `spinning` polls \
                   for events for 100 µs before it sleeps. With `thread`, the feeder's thread runs on the server's CPU. Times are \
                   those of the clients; CPU time and system calls are those of the server.",
            goal: "2.5 times epoll at 1 connection (spinning), more than epoll at 200, and nowhere less than 0.97 by default",
            baseline: "epoll",
            sides: &HTTP_SIDES,
        }
    }

    fn groups(&self, quick: bool) -> Vec<String> {
        let count = if quick { 3 } else { CONNECTIONS.len() };
        CONNECTIONS[..count].iter().map(connections).collect()
    }

    fn obstacle(&self, context: &Context, side: usize) -> Result<Option<String>> {
        obstacle(context, HTTP_SIDES[side].flags)
    }

    fn checks(&self, outcome: &Outcome) -> Vec<Check> {
        let of = |case: &'static str, side: &'static str| {
            speeds(outcome, move |one, other| one == case && other == side)
        };
        let default = speeds(outcome, |_, side| side == "ring");
        vec![
            Check::new(
                "speed over epoll at 1 connection, spinning",
                Bound::AtLeast(2.5),
                of("1 connection", "ring, spinning"),
            ),
            Check::new(
                "speed over epoll at 200 connections",
                Bound::AtLeast(1.0),
                of("200 connections", "ring"),
            ),
            Check::new(
                "speed over epoll by default, at every number of connections",
                Bound::AtLeast(0.97),
                default,
            ),
        ]
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        let connections = CONNECTIONS[group].to_string();
        let requests = (REQUESTS * context.window().as_millis() / USUAL_WINDOW_MS).max(1000);
        let mut client = context.workload(On::Plain, "uepoll-client");
        client.args(["--connections", &connections, "--requests", &requests.to_string()]);
        let mut server = context.workload(HTTP_SIDES[side].on, "uepoll-server");
        server.args(HTTP_SIDES[side].flags).args(["--connections", &connections]);
        run_served(context, server, client, count)
    }
}

/// Returns why a side cannot run; a side that feeds the ring by io_uring needs the kernel's io_uring.
fn obstacle(context: &Context, flags: &[&str]) -> Result<Option<String>> {
    context.obstacle(if flags.contains(&"ring-uring") { On::Kernel } else { On::Plain })
}

const EVENT_SIDES: [Side; 5] = [
    side("epoll", On::Plain, &["--means", "epoll"]),
    side("ring, epoll", On::Plain, &["--means", "ring-epoll"]),
    side("ring, io_uring", On::Plain, &["--means", "ring-uring"]),
    side("ring, AIO", On::Plain, &["--means", "ring-aio"]),
    side("ring, thread", On::Plain, &["--means", "ring-reactor"]),
];

const GROUPS: [(&str, &str); 3] =
    [("64 ready files", "files"), ("notified by a thread", "raised"), ("64 raised and taken", "alone")];

/// Events without a server.
pub struct Events;

impl Benchmark for Events {
    fn about(&self) -> About {
        About {
            name: "uepoll-events",
            title: "events alone: taking those of ready files, and raising them",
            text: "`64 ready files`: a thread on another CPU writes to 64 eventfds; measured is the time from the last write until the \
                   consumer has all events. `notified by a thread`: a thread on another CPU posts work and notifies the consumer, \
                   again and again; the consumer sleeps if there is no work. It is notified by an eventfd in epoll (edge-triggered and \
                   never read), or by a raised event of a set. `64 raised and taken`: one thread raises 64 events and takes them, or \
                   writes to 64 eventfds and takes their events by epoll.",
            goal: "1.5 times epoll for files, 10 times for raised events",
            baseline: "epoll",
            sides: &EVENT_SIDES,
        }
    }

    fn groups(&self, _quick: bool) -> Vec<String> {
        GROUPS.iter().map(|(name, _)| (*name).to_owned()).collect()
    }

    fn obstacle(&self, context: &Context, side: usize) -> Result<Option<String>> {
        obstacle(context, EVENT_SIDES[side].flags)
    }

    fn checks(&self, outcome: &Outcome) -> Vec<Check> {
        let files = speeds(outcome, |case, side| case == "64 ready files" && side.starts_with("ring"));
        let best = files.into_iter().max_by(|a, b| a.value.total_cmp(&b.value));
        let raised = speeds(outcome, |case, side| case != "64 ready files" && side.starts_with("ring"));
        vec![
            Check::new("speed over epoll for files, with the best feeder", Bound::AtLeast(1.5), best),
            Check::new("speed over epoll for raised events", Bound::AtLeast(10.0), raised),
        ]
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        let mut command = context.workload(EVENT_SIDES[side].on, "uepoll-ready");
        command.args(EVENT_SIDES[side].flags).args(["--what", GROUPS[group].1]);
        command.args(["--window-ms", &context.window().as_millis().to_string()]);
        run_workload(context, command, count)
    }
}
