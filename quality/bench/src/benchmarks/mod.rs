//! The benchmarks: each says what is compared to what, and runs one side once.

mod accept;
mod echo;
mod fio;
mod growth;
mod idle;
mod meta;
mod nop;
mod send;
mod start;
mod trace;
mod trees;
mod uepoll;
mod wake;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::failure::{Doing, Failure, Result};
use crate::harness::launch::{Context, On};
use crate::harness::process::Process;
use crate::harness::syscalls::Counter;
use crate::report::Outcome;
use crate::report::verdict::Check;
use crate::workload::Report;
use crate::workload::clock::allowed_cpus;

/// What a reader has to know about a benchmark.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct About {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line.
    pub title: &'static str,
    /// What is measured and how.
    pub text: &'static str,
    /// What anyring has to reach.
    pub goal: &'static str,
    /// The side that the others are compared to.
    pub baseline: &'static str,
    /// What is compared.
    #[serde(skip)]
    pub sides: &'static [Side],
}

/// A record names its benchmark; what there is to know about it stands here.
impl<'de> Deserialize<'de> for About {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        let Named { name } = Named::deserialize(deserializer)?;
        let known = all().into_iter().map(|one| one.about()).find(|about| about.name == name);
        known.ok_or_else(|| de::Error::custom(format!("there is no benchmark `{name}`")))
    }
}

/// One of the things compared.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    /// Its name in the tables.
    pub name: &'static str,
    /// On what it runs.
    pub on: On,
    /// What the measured program is told on this side.
    pub flags: &'static [&'static str],
}

const fn side(name: &'static str, on: On, flags: &'static [&'static str]) -> Side {
    Side { name, on, flags }
}

/// The same program on both engines.
const BOTH: [Side; 2] = [side("kernel", On::Kernel, &[]), side("anyring", On::Anyring, &[])];

/// A number of connections in words.
fn connections(count: &usize) -> String {
    format!("{count} connection{}", if *count == 1 { "" } else { "s" })
}

/// One run of one side.
pub struct Run {
    /// What the workload reported.
    pub report: Report,
    /// System calls that it made, where they were counted.
    pub syscalls: Option<u64>,
}

/// A benchmark. Sides and groups are numbered; a group is what one process measures.
pub trait Benchmark {
    /// What a reader has to know.
    fn about(&self) -> About;

    /// What is compared.
    fn sides(&self) -> &[Side] {
        self.about().sides
    }

    /// The groups of cases, by name.
    fn groups(&self, quick: bool) -> Vec<String>;

    /// Why a side cannot run here, if it cannot.
    ///
    /// # Errors
    /// Something is missing that the user can supply.
    fn obstacle(&self, context: &Context, side: usize) -> Result<Option<String>> {
        context.obstacle(self.sides()[side].on)
    }

    /// Does a run do the same number of operations however long the window is?
    fn work_is_fixed(&self) -> bool {
        false
    }

    /// Why a group cannot run here, if it cannot.
    fn missing(&self, _context: &Context, _group: usize) -> Option<String> {
        None
    }

    /// Makes what all rounds need; `usable` are the sides that will run.
    ///
    /// # Errors
    /// It could not be made.
    fn prepare(&mut self, _context: &Context, _usable: &[usize]) -> Result<()> {
        Ok(())
    }

    /// Files in each directory tree that it makes, if it makes some.
    fn entries(&self, _context: &Context) -> Option<usize> {
        None
    }

    /// The goal in figures: what was asked, and the worst that was measured.
    fn checks(&self, outcome: &Outcome) -> Vec<Check>;

    /// What the figures say, in words.
    fn findings(&self, _outcome: &Outcome) -> Vec<String> {
        Vec::new()
    }

    /// Runs one side once, counting its system calls if asked to.
    ///
    /// # Errors
    /// It failed or took too long.
    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run>;
}

/// All benchmarks, in the order in which they run.
pub fn all() -> Vec<Box<dyn Benchmark>> {
    vec![
        Box::new(accept::Accept),
        Box::new(nop::Nop),
        Box::new(fio::Fio::cached_reads()),
        Box::new(fio::Fio::cold_reads()),
        Box::new(fio::Fio::direct_transfers()),
        Box::new(fio::Fio::syncs()),
        Box::new(meta::Meta::default()),
        Box::new(send::Send::default()),
        Box::new(echo::Echo),
        Box::new(idle::Idle),
        Box::new(trees::Trees::find()),
        Box::new(trees::Trees::du()),
        Box::new(uepoll::Http),
        Box::new(uepoll::Events),
        Box::new(growth::Growth),
        Box::new(start::Start::default()),
        Box::new(wake::Wake),
        Box::new(trace::Trace),
    ]
}

/// Runs a command that prints a [`Report`].
fn run_workload(context: &Context, command: Command, count: bool) -> Result<Run> {
    run_within(context, command, count, context.limit())
}

/// The same with a time of its own to finish.
fn run_within(context: &Context, command: Command, count: bool, limit: Duration) -> Result<Run> {
    let mut counter = count.then(Counter::start).flatten();
    let finished = Process::start(command, &context.scratch, limit)?.finish()?;
    let report =
        serde_json::from_str(&finished.output).doing(|| "understanding the report of a workload".into())?;
    Ok(Run { report, syscalls: counter.as_mut().map(Counter::count) })
}

/// Runs a server, bound to one CPU, and the clients that measure it, bound to another.
fn run_served(context: &Context, mut server: Command, mut client: Command, count: bool) -> Result<Run> {
    let cpus = allowed_cpus();
    if let [first, .., last] = cpus[..] {
        server.args(["--cpu", &first.to_string()]);
        client.args(["--cpu", &last.to_string()]);
    }
    client.stdin(Stdio::piped());
    let mut client = Process::start(client, &context.scratch, context.limit())?;
    // The client is there already and waits for the address: what is counted from here is the server's.
    let mut counter = count.then(Counter::start).flatten();
    let mut server = Process::start(server, &context.scratch, context.limit())?;
    let address = server.first_line()?;
    tell(&mut client, &address)?;
    // A server that failed explains why its clients did.
    let client = match client.finish() {
        Ok(client) => client,
        Err(failure) => return Err(server.finish().err().unwrap_or(failure)),
    };
    server.finish()?;
    let report = serde_json::from_str(&client.output).doing(|| "understanding the clients' report".into())?;
    Ok(Run { report, syscalls: counter.as_mut().map(Counter::count) })
}

fn tell(client: &mut Process, address: &str) -> Result<()> {
    let mut input = client.input().ok_or_else(|| Failure::new("the clients' standard input is no pipe"))?;
    input.write_all(address.as_bytes()).doing(|| "telling the clients where the server is".into())
}
