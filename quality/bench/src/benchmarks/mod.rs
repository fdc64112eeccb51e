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

/// The description of a benchmark for its readers.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct About {
    /// The benchmark's name on the command line.
    pub name: &'static str,
    /// The title, one line.
    pub title: &'static str,
    /// The description: the operations, and how they are measured.
    pub text: &'static str,
    /// The goal that anyring has to reach.
    pub goal: &'static str,
    /// The side that the others are compared to.
    pub baseline: &'static str,
    /// The sides that are compared.
    #[serde(skip)]
    pub sides: &'static [Side],
}

/// A record has only the name of its benchmark; the rest of the description is in this program.
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

/// One of the compared configurations.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    /// The side's name in the tables.
    pub name: &'static str,
    /// The engine and launcher on which the side runs.
    pub on: On,
    /// Arguments of the measured program on this side.
    pub flags: &'static [&'static str],
}

const fn side(name: &'static str, on: On, flags: &'static [&'static str]) -> Side {
    Side { name, on, flags }
}

/// The sides of a program that runs on both engines.
const BOTH: [Side; 2] = [side("kernel", On::Kernel, &[]), side("anyring", On::Anyring, &[])];

/// Returns a number of connections in words.
fn connections(count: &usize) -> String {
    format!("{count} connection{}", if *count == 1 { "" } else { "s" })
}

/// One run of one side.
pub struct Run {
    /// The report of the workload.
    pub report: Report,
    /// The workload's system calls, if they were counted.
    pub syscalls: Option<u64>,
}

/// A benchmark. Its sides and groups are numbered; one process measures one group.
pub trait Benchmark {
    /// Returns the description.
    fn about(&self) -> About;

    /// Returns the sides that are compared.
    fn sides(&self) -> &[Side] {
        self.about().sides
    }

    /// Returns the names of the groups of cases.
    fn groups(&self, quick: bool) -> Vec<String>;

    /// Returns why a side cannot run here, if it cannot.
    ///
    /// # Errors
    /// Fails if something is missing that the user can supply.
    fn obstacle(&self, context: &Context, side: usize) -> Result<Option<String>> {
        context.obstacle(self.sides()[side].on)
    }

    /// True if a run does the same number of operations however long the window is.
    fn work_is_fixed(&self) -> bool {
        false
    }

    /// Returns why a group cannot run here, if it cannot.
    fn missing(&self, _context: &Context, _group: usize) -> Option<String> {
        None
    }

    /// Prepares everything that all rounds need; `usable` lists the sides that will run.
    ///
    /// # Errors
    /// Fails if the preparation fails.
    fn prepare(&mut self, _context: &Context, _usable: &[usize]) -> Result<()> {
        Ok(())
    }

    /// Returns the number of files in each directory tree, if the benchmark creates trees.
    fn entries(&self, _context: &Context) -> Option<usize> {
        None
    }

    /// Returns the goal in figures: each bound with the worst measured value.
    fn checks(&self, outcome: &Outcome) -> Vec<Check>;

    /// Returns conclusions from the figures, in words.
    fn findings(&self, _outcome: &Outcome) -> Vec<String> {
        Vec::new()
    }

    /// Runs one side once, counting its system calls if asked to.
    ///
    /// # Errors
    /// Fails if the run fails or takes too long.
    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run>;
}

/// Returns all benchmarks, in the order in which they run.
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

/// Runs a command that prints a [`Report`], within `limit`.
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
    // The client is running already and waits for the address. The counter sees only the server, which starts now.
    let mut counter = count.then(Counter::start).flatten();
    let mut server = Process::start(server, &context.scratch, context.limit())?;
    let address = server.first_line()?;
    tell(&mut client, &address)?;
    // If the server failed, its failure explains that of the clients.
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
