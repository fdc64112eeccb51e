//! An echo server, once on epoll and once on a ring, and the clients that load it.
//!
//! The servers do not measure. The client counts the messages that return within its window and reads
//! the server's CPU clock at both ends of the window.

mod client;
mod epoll;
mod multishot;
mod uring;

pub use client::{Args as ClientArgs, run as drive};

use clap::{Args, ValueEnum};

use super::clock::pin;
use super::sockets::{listen, raise_file_limit};
use crate::failure::Result;

/// The largest message that one receive takes.
const BUFFER: usize = 4096;

/// Arguments of the server.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// How the server waits and transfers bytes.
    #[arg(long, value_enum)]
    means: Means,
    /// The server ends when it has accepted this many connections and all are closed again.
    #[arg(long)]
    connections: usize,
    /// Bind to this CPU.
    #[arg(long)]
    cpu: Option<usize>,
    /// Set up the ring with SINGLE_ISSUER and DEFER_TASKRUN.
    #[arg(long)]
    defer: bool,
    /// Accept into direct descriptors.
    #[arg(long)]
    fixed: bool,
    /// Receive with POLL_FIRST.
    #[arg(long)]
    poll_first: bool,
}

/// How the server waits and transfers bytes.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Means {
    /// Edge-triggered epoll and plain calls.
    Epoll,
    /// A ring.
    Ring,
    /// A ring with multishot accept and receives.
    Multishot,
}

/// Runs a server until all clients have closed.
pub fn serve(args: &ServerArgs) -> Result<()> {
    raise_file_limit(args.connections)?;
    pin(args.cpu)?;
    let listener = listen()?;
    match args.means {
        Means::Epoll => epoll::serve(&listener, args.connections),
        Means::Ring => uring::serve(&listener, args),
        Means::Multishot => multishot::serve(&listener, args),
    }
}
