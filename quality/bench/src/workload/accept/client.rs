//! The clients: each connects, sends one message, receives it back, waits until the server closes, and closes.

use clap::Args as ClapArgs;

use super::MESSAGE;
use crate::failure::{Failure, Result};
use crate::workload::clock::{cpu_of, pin, wall};
use crate::workload::sockets::{
    Epoll, Transfer, close, connect_later, raise_file_limit, receive, send, server_address,
};
use crate::workload::{PATIENCE, Report, Window};

/// Arguments of the clients. The server's address, one line of JSON, comes on the standard input.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// Clients that are measured.
    #[arg(long)]
    connections: usize,
    /// Clients before the measured ones.
    #[arg(long)]
    warm_up: usize,
    /// Concurrent clients.
    #[arg(long)]
    at_once: usize,
    /// Bind to this CPU.
    #[arg(long)]
    cpu: Option<usize>,
}

/// A client between its connect and its close, indexed by its socket's descriptor.
#[derive(Clone, Copy, Default)]
struct Client {
    sent: bool,
    back: usize,
}

struct Clients {
    epoll: Epoll,
    port: u16,
    clients: Vec<Client>,
}

/// Runs the clients and measures the server.
pub fn run(args: &Args) -> Result<Report> {
    pin(args.cpu)?;
    raise_file_limit(args.at_once)?;
    let server = server_address()?;
    let mut clients = Clients { epoll: Epoll::new()?, port: server.port, clients: Vec::new() };
    clients.serve(args.warm_up, args.at_once)?;
    let (start, cpu_start) = (wall(), cpu_of(server.process)?);
    clients.serve(args.connections, args.at_once)?;
    let (elapsed, cpu) = (wall() - start, cpu_of(server.process)? - cpu_start);
    // One more client lets the server end: its CPU clock has been read.
    clients.serve(1, 1)?;
    let total_ops = (args.warm_up + args.connections + 1) as u64;
    Ok(Report::of(server.engine, total_ops, Window::of(args.connections as u64, elapsed, cpu)))
}

impl Clients {
    /// Runs `connections` clients, `at_once` of them concurrently.
    fn serve(&mut self, connections: usize, at_once: usize) -> Result<()> {
        let (mut started, mut done) = (0, 0);
        while started < connections.min(at_once) {
            self.connect()?;
            started += 1;
        }
        let mut last = wall();
        while done < connections {
            let ready = self.epoll.wait(PATIENCE.as_millis() as i32)?;
            if ready == 0 && wall() - last >= PATIENCE {
                return Err(Failure::new("no answer from the server for a minute"));
            }
            last = wall();
            for index in 0..ready {
                let event = self.epoll.events[index];
                if !self.ready(event.u64 as i32, event.events as i32)? {
                    continue;
                }
                done += 1;
                if started < connections {
                    self.connect()?;
                    started += 1;
                }
            }
        }
        Ok(())
    }

    fn connect(&mut self) -> Result<()> {
        let socket = connect_later(self.port)?;
        let index = socket as usize;
        if self.clients.len() <= index {
            self.clients.resize(index + 1, Client::default());
        }
        self.clients[index] = Client::default();
        self.epoll.add(
            socket,
            libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET,
            index as u64,
        )
    }

    /// Continues a client after its socket's events; returns true if the client is done.
    fn ready(&mut self, socket: i32, happened: i32) -> Result<bool> {
        let client = &mut self.clients[socket as usize];
        if !client.sent && happened & libc::EPOLLOUT != 0 {
            let Transfer::Bytes(MESSAGE) = send(socket, &[b'm'; MESSAGE]) else {
                return Err(Failure::errno("a client's connection does not take its message"));
            };
            client.sent = true;
        }
        let mut buffer = [0; MESSAGE];
        loop {
            match receive(socket, &mut buffer) {
                Transfer::Bytes(bytes) => client.back += bytes,
                Transfer::Later => return Ok(false),
                Transfer::Over if client.back == MESSAGE => break,
                Transfer::Over => {
                    return Err(Failure::new(format!("a client got {} bytes, not {MESSAGE}", client.back)));
                }
            }
        }
        close(socket);
        Ok(true)
    }
}
