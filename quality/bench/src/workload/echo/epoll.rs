//! The echo server on epoll, optimized: one edge-triggered registration for the connection's life,
//! a receive right after accept, no receive after a short one, output kept for `EPOLLOUT` only if a
//! send is short.

use std::net::TcpListener;
use std::os::fd::AsRawFd;

use super::BUFFER;
use crate::failure::{Doing, Result};
use crate::workload::sockets::{Epoll, Transfer, accept, announce, close, receive, send};

const LISTENER: u64 = u64::MAX;

struct Connection {
    /// Bytes that the last send did not accept.
    output: Vec<u8>,
}

struct Server {
    epoll: Epoll,
    listener: i32,
    connections: Vec<Option<Connection>>,
    buffer: [u8; BUFFER],
    /// Connections still to be accepted, and those that are open.
    expected: usize,
    open: usize,
}

/// Serves until `expected` connections have been accepted and closed.
pub fn serve(listener: &TcpListener, expected: usize) -> Result<()> {
    listener.set_nonblocking(true).doing(|| "preparing the listening socket".into())?;
    let mut server = Server {
        epoll: Epoll::new()?,
        listener: listener.as_raw_fd(),
        connections: Vec::new(),
        buffer: [0; BUFFER],
        expected,
        open: 0,
    };
    let interest = libc::EPOLLIN | libc::EPOLLET;
    server.epoll.add(server.listener, interest, LISTENER)?;
    announce(listener, None)?;
    while server.expected > 0 || server.open > 0 {
        for index in 0..server.epoll.wait(-1)? {
            let event = server.epoll.events[index];
            let (token, happened) = (event.u64, event.events as i32);
            if token == LISTENER {
                server.accept()?;
            } else {
                server.ready(token as i32, happened);
            }
        }
    }
    Ok(())
}

impl Server {
    fn accept(&mut self) -> Result<()> {
        while let Some(socket) = accept(self.listener)? {
            let index = socket as usize;
            if self.connections.len() <= index {
                self.connections.resize_with(index + 1, || None);
            }
            self.connections[index] = Some(Connection { output: Vec::new() });
            self.expected = self.expected.saturating_sub(1);
            self.open += 1;
            let interest = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
            self.epoll.add(socket, interest, index as u64)?;
            self.echo(socket, false);
        }
        Ok(())
    }

    fn ready(&mut self, socket: i32, happened: i32) {
        let Some(Some(connection)) = self.connections.get_mut(socket as usize) else {
            return;
        };
        if !connection.output.is_empty() {
            match send(socket, &connection.output) {
                Transfer::Bytes(sent) => drop(connection.output.drain(..sent)),
                Transfer::Later => {}
                Transfer::Over => return self.end(socket),
            }
            if !connection.output.is_empty() {
                return;
            }
        }
        let ending = libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR;
        self.echo(socket, happened & ending != 0);
    }

    /// Receives and sends until a receive is short; with `to_the_end` until the socket is empty.
    fn echo(&mut self, socket: i32, to_the_end: bool) {
        loop {
            let received = match receive(socket, &mut self.buffer) {
                Transfer::Bytes(bytes) => bytes,
                Transfer::Later => return,
                Transfer::Over => return self.end(socket),
            };
            let sent = match send(socket, &self.buffer[..received]) {
                Transfer::Bytes(bytes) => bytes,
                Transfer::Later => 0,
                Transfer::Over => return self.end(socket),
            };
            if sent < received {
                if let Some(Some(connection)) = self.connections.get_mut(socket as usize) {
                    connection.output.extend_from_slice(&self.buffer[sent..received]);
                }
                return;
            }
            if received < BUFFER && !to_the_end {
                return;
            }
        }
    }

    fn end(&mut self, socket: i32) {
        self.connections[socket as usize] = None;
        self.open -= 1;
        close(socket);
    }
}
