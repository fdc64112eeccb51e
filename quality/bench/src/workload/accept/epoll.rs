//! The server on epoll, optimized: edge-triggered; it accepts until the backlog is empty, and
//! receives right after accept, so that a socket whose message has arrived is never registered.

use std::net::TcpListener;
use std::os::fd::AsRawFd;

use super::{MESSAGE, ROOM};
use crate::failure::{Doing, Failure, Result};
use crate::workload::sockets::{Epoll, Transfer, accept, announce, close, receive, send};

const LISTENER: u64 = u64::MAX;

struct Server {
    epoll: Epoll,
    listener: i32,
    /// Connections still to be served.
    left: usize,
}

/// Serves `connections` connections.
pub fn serve(listener: &TcpListener, connections: usize) -> Result<()> {
    listener.set_nonblocking(true).doing(|| "preparing the listening socket".into())?;
    let mut server = Server { epoll: Epoll::new()?, listener: listener.as_raw_fd(), left: connections };
    server.epoll.add(server.listener, libc::EPOLLIN | libc::EPOLLET, LISTENER)?;
    announce(listener, None)?;
    while server.left > 0 {
        for index in 0..server.epoll.wait(-1)? {
            match server.epoll.events[index].u64 {
                LISTENER => server.accept()?,
                socket => drop(server.serve(socket as i32)?),
            }
        }
    }
    Ok(())
}

impl Server {
    fn accept(&mut self) -> Result<()> {
        while let Some(socket) = accept(self.listener)? {
            if !self.serve(socket)? {
                self.epoll.add(socket, libc::EPOLLIN | libc::EPOLLET, socket as u64)?;
            }
        }
        Ok(())
    }

    /// Answers and closes; returns false if the message has not arrived yet.
    fn serve(&mut self, socket: i32) -> Result<bool> {
        let mut buffer = [0; ROOM];
        match receive(socket, &mut buffer) {
            Transfer::Bytes(MESSAGE) => {}
            Transfer::Later => return Ok(false),
            _ => return Err(Failure::new("a client sent something else than one message")),
        }
        let Transfer::Bytes(MESSAGE) = send(socket, &buffer[..MESSAGE]) else {
            return Err(Failure::errno("a fresh connection does not take an answer"));
        };
        close(socket);
        self.left -= 1;
        Ok(true)
    }
}
