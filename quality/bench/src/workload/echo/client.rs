//! The clients: many keep-alive connections in one process, each with one message in flight.

use std::time::Duration;

use clap::Args as ClapArgs;

use crate::failure::{Failure, Result};
use crate::workload::Report;
use crate::workload::clock::pin;
use crate::workload::conversation::{BUFFER, Clients};

/// Arguments of the clients. The server's address, one line of JSON, comes on the standard input.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// Connections.
    #[arg(long)]
    connections: usize,
    /// Bytes of a message, 8 to 4096.
    #[arg(long, default_value_t = 128)]
    message: usize,
    /// Milliseconds to measure.
    #[arg(long, default_value_t = 500)]
    window_ms: u64,
    /// Bind to this CPU.
    #[arg(long)]
    cpu: Option<usize>,
}

/// Connects, measures, closes.
pub fn run(args: &Args) -> Result<Report> {
    if !(8..=BUFFER).contains(&args.message) {
        return Err(Failure::new(format!("--message {} is not within 8 to {BUFFER}", args.message)));
    }
    pin(args.cpu)?;
    let message = |index: usize| vec![b'a' + (index % 26) as u8; args.message];
    let mut clients = Clients::connect(args.connections, message, None)?;
    let window = Duration::from_millis(args.window_ms);
    // The warm-up lasts until there are as many answers as connections.
    let (short, all) = ((window / 10).max(Duration::from_millis(50)), args.connections as u64);
    let warm_up = clients.run(|count, passed| passed >= short && count >= all, |_| {})?;
    clients.measured(warm_up, |clients| clients.run(|_, passed| passed >= window, |_| {}))
}
