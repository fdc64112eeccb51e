//! A small HTTP server with keep-alive connections, optimized for each way to wait: one registration for the
//! connection's life, no receive after a short one.

use std::os::fd::AsRawFd;

use clap::Args as ClapArgs;

use super::RESPONSE;
use super::poller::{How, Means, Poller};
use crate::failure::{Doing, Failure, Result};
use crate::workload::clock::pin;
use crate::workload::sockets::{Transfer, accept, announce, close, listen, raise_file_limit, receive, send};

const LISTENER: u64 = u64::MAX;
const BUFFER: usize = 4096;

/// Arguments of the server.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    #[command(flatten)]
    how: How,
    /// The server ends when it has accepted this many connections and all are closed again.
    #[arg(long)]
    connections: usize,
    /// Bind to this CPU.
    #[arg(long)]
    cpu: Option<usize>,
}

struct Server {
    poller: Poller,
    listener: i32,
    /// By socket: how many bytes of the empty line that ends a request's head have come.
    ends: Vec<usize>,
    buffer: [u8; BUFFER],
    expected: usize,
    open: usize,
}

/// Serves until all clients have closed.
pub fn serve(args: &Args) -> Result<()> {
    raise_file_limit(args.connections)?;
    pin(args.cpu)?;
    let listener = listen()?;
    listener.set_nonblocking(true).doing(|| "preparing the listening socket".into())?;
    let mut server = Server {
        poller: Poller::new(args.how, args.connections + 1)?,
        listener: listener.as_raw_fd(),
        ends: Vec::new(),
        buffer: [0; BUFFER],
        expected: args.connections,
        open: 0,
    };
    server.poller.add(server.listener, LISTENER)?;
    announce(&listener, None)?;
    let level = args.how.means == Means::Level;
    while server.expected > 0 || server.open > 0 {
        for index in 0..server.poller.wait(-1)? {
            let (token, events) = server.poller.event(index);
            if token == LISTENER {
                server.accept()?;
            } else {
                let ending = events as i32 & (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) != 0;
                server.answer(token as i32, ending && !level)?;
            }
        }
    }
    Ok(())
}

impl Server {
    fn accept(&mut self) -> Result<()> {
        while let Some(socket) = accept(self.listener)? {
            let index = socket as usize;
            if self.ends.len() <= index {
                self.ends.resize(index + 1, 0);
            }
            self.ends[index] = 0;
            self.expected = self.expected.saturating_sub(1);
            self.open += 1;
            self.poller.add(socket, index as u64)?;
        }
        Ok(())
    }

    /// Receives until a receive is short, and answers each request.
    fn answer(&mut self, socket: i32, to_the_end: bool) -> Result<()> {
        loop {
            let received = match receive(socket, &mut self.buffer) {
                Transfer::Bytes(bytes) => bytes,
                Transfer::Later => return Ok(()),
                Transfer::Over => {
                    self.poller.remove(socket);
                    close(socket);
                    self.open -= 1;
                    return Ok(());
                }
            };
            for _ in 0..requests(&self.buffer[..received], &mut self.ends[socket as usize]) {
                match send(socket, RESPONSE) {
                    Transfer::Bytes(sent) if sent == RESPONSE.len() => {}
                    _ => return Err(Failure::new("a client does not take its answer")),
                }
            }
            if received < BUFFER && !to_the_end {
                return Ok(());
            }
        }
    }
}

/// Counts the requests that end in `bytes`; `matched` bytes of the empty line came before.
fn requests(bytes: &[u8], matched: &mut usize) -> usize {
    const END: &[u8] = b"\r\n\r\n";
    let mut count = 0;
    for &byte in bytes {
        *matched = if byte == END[*matched] { *matched + 1 } else { usize::from(byte == END[0]) };
        if *matched == END.len() {
            *matched = 0;
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::super::REQUEST;
    use super::requests;

    #[test]
    fn requests_are_counted_however_they_are_cut() {
        let bytes = REQUEST.repeat(3);
        for cut in 0..bytes.len() {
            let mut matched = 0;
            let count = requests(&bytes[..cut], &mut matched) + requests(&bytes[cut..], &mut matched);
            assert_eq!(count, 3);
        }
    }
}
