//! Receives messages and drops them without copying them out of the kernel: only the sender is measured.

use std::io::Write;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsRawFd;

use clap::Args as ClapArgs;

use super::Protocol;
use crate::failure::{Doing, Failure, Result};
use crate::workload::clock::pin;

/// The maximum number of bytes that one call drops.
const PLENTY: usize = 1 << 20;

/// Arguments of the sink.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// The protocol.
    #[arg(long, value_enum)]
    protocol: Protocol,
    /// Bind to this CPU.
    #[arg(long)]
    cpu: Option<usize>,
    /// Poll for messages without sleeping, so that the sender wakes no thread.
    #[arg(long)]
    awake: bool,
}

/// Prints the sink's address, and drops messages until the process is killed, or, over TCP, until the sender closes.
pub fn run(args: &Args) -> Result<()> {
    pin(args.cpu)?;
    match args.protocol {
        Protocol::Udp => {
            let socket = UdpSocket::bind("127.0.0.1:0").doing(|| "binding the sink".into())?;
            say(socket.local_addr())?;
            drop_all(socket.as_raw_fd(), 0, args.awake)
        }
        Protocol::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0").doing(|| "binding the sink".into())?;
            say(listener.local_addr())?;
            let (stream, _) = listener.accept().doing(|| "accepting the sender".into())?;
            drop_all(stream.as_raw_fd(), PLENTY, args.awake)
        }
    }
}

fn say(address: std::io::Result<std::net::SocketAddr>) -> Result<()> {
    let address = address.doing(|| "reading the sink's address".into())?;
    let mut output = std::io::stdout();
    writeln!(output, "{address}").and_then(|()| output.flush()).doing(|| "saying the sink's address".into())
}

fn drop_all(socket: i32, length: usize, awake: bool) -> Result<()> {
    let flags = if awake { libc::MSG_TRUNC | libc::MSG_DONTWAIT } else { libc::MSG_TRUNC };
    loop {
        // SAFETY: with MSG_TRUNC, TCP drops up to `length` bytes and writes none, and UDP writes none of a length of 0.
        let result = unsafe { libc::recv(socket, std::ptr::null_mut(), length, flags) };
        match result {
            0 => return Ok(()),
            bytes if bytes > 0 => {}
            _ => match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) => while !is_readable(socket) {},
                _ => return Err(Failure::errno("receiving")),
            },
        }
    }
}

/// True if the socket is readable. poll does not take the socket's lock, which the sender needs.
fn is_readable(socket: i32) -> bool {
    let mut poll = libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which lives through the call.
    unsafe { libc::poll(&mut poll, 1, 0) != 0 }
}
