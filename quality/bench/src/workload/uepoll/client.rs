//! The HTTP clients: keep-alive connections in one process, each with one request in flight.

use clap::Args as ClapArgs;

use super::{REQUEST, RESPONSE};
use crate::failure::Result;
use crate::workload::clock::{pin, wall};
use crate::workload::conversation::{Clients, Connection};
use crate::workload::{Latency, Report};

/// Arguments of the clients. The server's address, one line of JSON, comes on the standard input.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// Connections.
    #[arg(long)]
    connections: usize,
    /// Requests to be measured, of all connections together.
    #[arg(long, default_value_t = 20_000)]
    requests: u64,
    /// Bind to this CPU.
    #[arg(long)]
    cpu: Option<usize>,
}

/// Connects, sends requests and receives the answers, and closes.
pub fn run(args: &Args) -> Result<Report> {
    pin(args.cpu)?;
    let mut clients = Clients::connect(args.connections, |_| REQUEST.to_vec(), Some(RESPONSE))?;
    let mut latencies = Vec::with_capacity(args.requests as usize);
    // The warm-up lets the server accept every connection and its clock frequency settle.
    let warm_up = args.connections as u64 + args.requests / 10;
    let warm_up = clients.run(|count, _| count >= warm_up, |_| {})?;
    let mut report = clients.measured(warm_up, |clients| {
        let note = |connection: &Connection| latencies.push((wall() - connection.sent).as_nanos() as u64);
        clients.run(|count, _| count >= args.requests, note)
    })?;
    report.windows[0].latency = Some(Latency::of(&mut latencies));
    Ok(report)
}
