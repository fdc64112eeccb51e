//! The clients of a server of keep-alive connections: many in one process, each with one message in flight.

use std::net::TcpStream;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::time::Duration;

use super::clock::{cpu_of, wall};
use super::sockets::{
    Address, Epoll, Transfer, close, raise_file_limit, receive, send, server_address, set_nodelay,
};
use super::{PATIENCE, Report, Window};
use crate::failure::{Doing, Failure, Result};

/// Bytes of a client's receive buffer.
pub const BUFFER: usize = 4096;

/// A connection.
pub struct Connection {
    socket: i32,
    message: Vec<u8>,
    /// The expected answer. `None` expects the message itself, which is then different each time.
    answer: Option<&'static [u8]>,
    /// Bytes of the answer that have been received.
    back: usize,
    sequence: u64,
    /// When the message was sent, if `Clients::timed` is set.
    pub sent: Duration,
}

/// All connections to the server.
pub struct Clients {
    epoll: Epoll,
    connections: Vec<Connection>,
    server: Address,
    timed: bool,
}

impl Clients {
    /// Connects to the server that the standard input names, and sends a message on every connection. Without an `answer`, the server
    /// returns the messages, which have at least 8 bytes; with one, the time of each send is recorded.
    pub fn connect(
        count: usize,
        message: impl Fn(usize) -> Vec<u8>,
        answer: Option<&'static [u8]>,
    ) -> Result<Self> {
        raise_file_limit(count)?;
        let server = server_address()?;
        let epoll = Epoll::new()?;
        let connect = |index: usize| {
            let stream = TcpStream::connect(("127.0.0.1", server.port))
                .doing(|| format!("connection {index} to the server"))?;
            set_nodelay(stream.as_raw_fd())?;
            let socket = stream.into_raw_fd();
            epoll.add(socket, libc::EPOLLIN | libc::EPOLLET, index as u64)?;
            let (message, sequence) = (message(index), (index as u64) << 32);
            Ok(Connection { socket, message, answer, back: 0, sequence, sent: Duration::ZERO })
        };
        let connections = (0..count).map(connect).collect::<Result<Vec<_>>>()?;
        let mut clients = Self { epoll, connections, server, timed: answer.is_some() };
        clients.connections.iter_mut().try_for_each(|connection| connection.send(clients.timed))?;
        Ok(clients)
    }

    /// Keeps every connection busy until `enough` accepts the number of answers and the time that passed; returns the number of answers.
    /// Calls `each` with the connection of each answer.
    pub fn run(
        &mut self,
        enough: impl Fn(u64, Duration) -> bool,
        mut each: impl FnMut(&Connection),
    ) -> Result<u64> {
        let mut buffer = [0; BUFFER];
        let (start, mut last, mut count) = (wall(), wall(), 0);
        while !enough(count, last - start) {
            let ready = self.epoll.wait(PATIENCE.as_millis() as i32)?;
            if ready == 0 && wall() - last >= PATIENCE {
                return Err(Failure::new("no answer from the server for a minute"));
            }
            for index in 0..ready {
                let connection = &mut self.connections[self.epoll.events[index].u64 as usize];
                if connection.receive(&mut buffer)? {
                    each(connection);
                    count += 1;
                    connection.send(self.timed)?;
                }
            }
            last = wall();
        }
        Ok(count)
    }

    /// Measures the server during `measure`, which returns its number of operations, after a `warm_up`; then closes all
    /// connections.
    pub fn measured(
        mut self,
        warm_up: u64,
        measure: impl FnOnce(&mut Self) -> Result<u64>,
    ) -> Result<Report> {
        let (start, cpu_start) = (wall(), cpu_of(self.server.process)?);
        let ops = measure(&mut self)?;
        let (elapsed, cpu) = (wall() - start, cpu_of(self.server.process)? - cpu_start);
        self.connections.iter().for_each(|connection| close(connection.socket));
        Ok(Report::of(self.server.engine, warm_up + ops, Window::of(ops, elapsed, cpu)))
    }
}

impl Connection {
    /// Sends the next message; if it is echoed, it differs from earlier messages and from those of other connections.
    fn send(&mut self, timed: bool) -> Result<()> {
        self.back = 0;
        if self.answer.is_none() {
            self.sequence += 1;
            self.message[..8].copy_from_slice(&self.sequence.to_ne_bytes());
        }
        if timed {
            self.sent = wall();
        }
        match send(self.socket, &self.message) {
            Transfer::Bytes(sent) if sent == self.message.len() => Ok(()),
            _ => Err(Failure::errno("the server's connection does not take a message")),
        }
    }

    /// Receives what has arrived; returns true if the answer is complete.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let received = match receive(self.socket, buffer) {
            Transfer::Bytes(bytes) => bytes,
            Transfer::Later => return Ok(false),
            Transfer::Over => return Err(Failure::new("the server closed a connection")),
        };
        let (answer, end) = (self.answer.unwrap_or(&self.message), self.back + received);
        if answer.get(self.back..end) != Some(&buffer[..received]) {
            return Err(Failure::new(format!("the answer to message {:#x} is another one", self.sequence)));
        }
        self.back = end;
        Ok(end == answer.len())
    }
}
