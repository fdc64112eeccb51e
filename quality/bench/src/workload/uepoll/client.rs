//! The HTTP clients: keep-alive connections in one process, each with one request under way.

use std::net::TcpStream;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::time::Duration;

use clap::Args as ClapArgs;

use super::{REQUEST, RESPONSE};
use crate::failure::{Doing, Failure, Result};
use crate::workload::clock::{cpu_of, pin, wall};
use crate::workload::sockets::{
    Epoll, Transfer, close, raise_file_limit, receive, send, server_address, set_nodelay,
};
use crate::workload::{Latency, Report, Window};

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

struct Connection {
    socket: i32,
    /// Bytes of the answer that have come.
    come: usize,
    asked: Duration,
}

/// Connects, asks, closes.
pub fn run(args: &Args) -> Result<Report> {
    pin(args.cpu)?;
    raise_file_limit(args.connections)?;
    let server = server_address()?;
    let mut epoll = Epoll::new()?;
    let mut connections = (0..args.connections)
        .map(|index| {
            let stream = TcpStream::connect(("127.0.0.1", server.port))
                .doing(|| format!("connection {index} to the server"))?;
            set_nodelay(stream.as_raw_fd())?;
            let socket = stream.into_raw_fd();
            epoll.add(socket, libc::EPOLLIN | libc::EPOLLET, index as u64)?;
            Ok(Connection { socket, come: 0, asked: Duration::ZERO })
        })
        .collect::<Result<Vec<_>>>()?;
    let mut latencies = Vec::with_capacity(args.requests as usize);
    for connection in &mut connections {
        connection.ask()?;
    }
    // Until the server has met every connection, and its clock frequency has settled.
    let warm_up = args.connections as u64 + args.requests / 10;
    ask(&mut epoll, &mut connections, warm_up, &mut latencies)?;
    latencies.clear();
    let (start, cpu_start) = (wall(), cpu_of(server.process)?);
    ask(&mut epoll, &mut connections, args.requests, &mut latencies)?;
    let (elapsed, cpu) = (wall() - start, cpu_of(server.process)? - cpu_start);
    for connection in &connections {
        close(connection.socket);
    }
    let latency = Some(Latency::of(&mut latencies));
    let window = Window { latency, ..Window::of(args.requests, elapsed, cpu) };
    Ok(Report::of(server.engine, warm_up + args.requests, window))
}

impl Connection {
    fn ask(&mut self) -> Result<()> {
        self.come = 0;
        self.asked = wall();
        match send(self.socket, REQUEST) {
            Transfer::Bytes(sent) if sent == REQUEST.len() => Ok(()),
            _ => Err(Failure::errno("the server's connection does not take a request")),
        }
    }

    /// Takes what is there; returns whether the whole answer is.
    fn listen(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let received = match receive(self.socket, buffer) {
            Transfer::Bytes(bytes) => bytes,
            Transfer::Later => return Ok(false),
            Transfer::Over => return Err(Failure::new("the server closed a connection")),
        };
        let end = self.come + received;
        if RESPONSE.get(self.come..end) != Some(&buffer[..received]) {
            return Err(Failure::new("an answer is not the one expected"));
        }
        self.come = end;
        Ok(end == RESPONSE.len())
    }
}

/// Keeps every connection busy until so many answers have come.
fn ask(
    epoll: &mut Epoll,
    connections: &mut [Connection],
    count: u64,
    latencies: &mut Vec<u64>,
) -> Result<()> {
    let mut buffer = [0; 4096];
    let mut come = 0;
    while come < count {
        let ready = epoll.wait(2000)?;
        if ready == 0 {
            return Err(Failure::new("no answer from the server for two seconds"));
        }
        for index in 0..ready {
            let connection = &mut connections[epoll.events[index].u64 as usize];
            if connection.listen(&mut buffer)? {
                latencies.push((wall() - connection.asked).as_nanos() as u64);
                come += 1;
                connection.ask()?;
            }
        }
    }
    Ok(())
}
