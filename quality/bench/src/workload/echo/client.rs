//! The clients: many keep-alive connections in one process, each with one message under way.

use std::net::TcpStream;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::time::Duration;

use clap::Args as ClapArgs;

use crate::failure::{Doing, Failure, Result};
use crate::workload::clock::{cpu_of, pin, wall};
use crate::workload::sockets::{
    Epoll, Transfer, close, raise_file_limit, receive, send, server_address, set_nodelay,
};
use crate::workload::{Report, Window};

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

struct Connection {
    socket: i32,
    message: Vec<u8>,
    /// Bytes of the message that are back.
    back: usize,
    sequence: u64,
}

/// Connects, measures, closes.
pub fn run(args: &Args) -> Result<Report> {
    if !(8..=super::BUFFER).contains(&args.message) {
        return Err(Failure::new(format!("--message {} is not within 8 to {}", args.message, super::BUFFER)));
    }
    pin(args.cpu)?;
    raise_file_limit(args.connections)?;
    let server = server_address()?;
    let mut epoll = Epoll::new()?;
    let mut connections = connect(&epoll, server.port, args)?;
    for connection in &mut connections {
        connection.send()?;
    }
    let mut clients = Clients { epoll: &mut epoll, connections: &mut connections };
    let window = Duration::from_millis(args.window_ms);
    // Until the server has met every connection.
    let warm_up = clients.run_for((window / 10).max(Duration::from_millis(50)), args.connections as u64)?;
    let (start, cpu_start) = (wall(), cpu_of(server.process)?);
    let ops = clients.run_for(window, 0)?;
    let (elapsed, cpu) = (wall() - start, cpu_of(server.process)? - cpu_start);
    for connection in &connections {
        close(connection.socket);
    }
    Ok(Report::of(server.engine, warm_up + ops, Window::of(ops, elapsed, cpu)))
}

fn connect(epoll: &Epoll, port: u16, args: &Args) -> Result<Vec<Connection>> {
    (0..args.connections)
        .map(|index| {
            let stream = TcpStream::connect(("127.0.0.1", port))
                .doing(|| format!("connection {index} to the server"))?;
            set_nodelay(stream.as_raw_fd())?;
            let socket = stream.into_raw_fd();
            epoll.add(socket, libc::EPOLLIN | libc::EPOLLET, index as u64)?;
            Ok(Connection {
                socket,
                message: vec![b'a' + (index % 26) as u8; args.message],
                back: 0,
                sequence: (index as u64) << 32,
            })
        })
        .collect()
}

impl Connection {
    /// Sends the next message, which no other connection and no earlier message equals.
    fn send(&mut self) -> Result<()> {
        self.sequence += 1;
        self.back = 0;
        self.message[..8].copy_from_slice(&self.sequence.to_ne_bytes());
        match send(self.socket, &self.message) {
            Transfer::Bytes(sent) if sent == self.message.len() => Ok(()),
            _ => Err(Failure::errno("the server's connection does not take a message")),
        }
    }

    /// Takes what is there; returns whether the whole message is back.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let received = match receive(self.socket, buffer) {
            Transfer::Bytes(bytes) => bytes,
            Transfer::Later => return Ok(false),
            Transfer::Over => return Err(Failure::new("the server closed a connection")),
        };
        let end = self.back + received;
        if self.message.get(self.back..end) != Some(&buffer[..received]) {
            return Err(Failure::new(format!("message {:#x} came back changed", self.sequence)));
        }
        self.back = end;
        Ok(end == self.message.len())
    }
}

struct Clients<'a> {
    epoll: &'a mut Epoll,
    connections: &'a mut [Connection],
}

impl Clients<'_> {
    /// Keeps every connection busy for `window`, and longer until `at_least` messages came back; returns how many did.
    fn run_for(&mut self, window: Duration, at_least: u64) -> Result<u64> {
        let mut buffer = [0; super::BUFFER];
        let (start, mut last, mut count) = (wall(), wall(), 0);
        while last - start < window || count < at_least {
            let ready = self.epoll.wait(2000)?;
            if ready == 0 && wall() - last > Duration::from_secs(1) {
                return Err(Failure::new("no answer from the server for two seconds"));
            }
            for index in 0..ready {
                let connection = &mut self.connections[self.epoll.events[index].u64 as usize];
                if connection.receive(&mut buffer)? {
                    count += 1;
                    connection.send()?;
                }
            }
            last = wall();
        }
        Ok(count)
    }
}
