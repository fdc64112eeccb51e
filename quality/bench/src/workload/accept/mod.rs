//! Servers of many short connections, and their clients: each connects, sends one message, receives
//! it back and closes. The servers do not measure; the clients read the server's CPU clock.

mod bare;
mod client;
mod epoll;
mod uring;

pub use client::{Args as ClientArgs, run as drive};

use clap::{Args, ValueEnum};

use super::clock::pin;
use super::sockets::{listen, raise_file_limit};
use crate::failure::Result;

/// Bytes of a client's message.
const MESSAGE: usize = 128;

/// Bytes of a server's receive buffer; a server does not know the length of a message in advance.
const ROOM: usize = 1024;

/// Arguments of the server.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// How the server accepts and transfers bytes.
    #[arg(long, value_enum)]
    means: Means,
    /// The server ends when it has served this many connections.
    #[arg(long)]
    connections: usize,
    /// The maximum number of concurrent clients.
    #[arg(long)]
    at_once: usize,
    /// Bind to this CPU.
    #[arg(long)]
    cpu: Option<usize>,
    /// One accept for all connections.
    #[arg(long)]
    multishot: bool,
    /// Accept into direct descriptors.
    #[arg(long)]
    fixed: bool,
}

/// How the server accepts and transfers bytes.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Means {
    /// accept, recv, send and close, one after the other, each blocking.
    Bare,
    /// Edge-triggered epoll and plain calls.
    Epoll,
    /// A ring.
    Ring,
}

/// Runs a server until all clients have closed.
pub fn serve(args: &ServerArgs) -> Result<()> {
    raise_file_limit(args.at_once)?;
    pin(args.cpu)?;
    let listener = listen()?;
    match args.means {
        Means::Bare => bare::serve(&listener, args.connections),
        Means::Epoll => epoll::serve(&listener, args.connections),
        Means::Ring => uring::serve(&listener, args),
    }
}
