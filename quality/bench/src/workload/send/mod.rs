//! A sender of equal messages, by each available call, and the sink that receives them over the loopback interface.

mod plain;
mod ring;
mod sink;

pub use sink::{Args as SinkArgs, run as drain};

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use super::Report;
use super::clock::pin;
use crate::failure::{Doing, Failure, Result};

/// Buffers that the sender uses in turn. A buffer is reused when nothing reads it any more.
const BUFFERS: usize = 32;

/// Arguments of the sender.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// The call that sends.
    #[arg(long, value_enum)]
    means: Means,
    /// Bytes of a message.
    #[arg(long)]
    payload: usize,
    /// Messages per call of `io_uring_enter`, or in a row.
    #[arg(long, default_value_t = 1)]
    per_enter: usize,
    /// The protocol.
    #[arg(long, value_enum)]
    protocol: Protocol,
    /// The destination.
    #[arg(long)]
    to: SocketAddr,
    /// Milliseconds to measure.
    #[arg(long, default_value_t = 500)]
    window_ms: u64,
    /// Bind to this CPU.
    #[arg(long)]
    cpu: Option<usize>,
}

/// The call by which the sender sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Means {
    /// The system call.
    Send,
    /// The system call with `MSG_ZEROCOPY`, its notifications read from the error queue.
    Zerocopy,
    /// `IORING_OP_SEND`.
    RingSend,
    /// `IORING_OP_SEND_ZC`.
    RingZc,
    /// `IORING_OP_SEND_ZC` from registered buffers.
    RingZcFixed,
}

/// The protocol of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Protocol {
    Udp,
    Tcp,
}

/// Sends for the window.
pub fn run(args: &Args) -> Result<Report> {
    pin(args.cpu)?;
    if !(1..=BUFFERS).contains(&args.per_enter) {
        return Err(Failure::new(format!("--per-enter {} is not within 1 to {BUFFERS}", args.per_enter)));
    }
    let socket = connect(args)?;
    let buffers = Buffers::new(args.payload)?;
    let window = Duration::from_millis(args.window_ms);
    match args.means {
        Means::Send => plain::send(socket.as_raw_fd(), &buffers, args.per_enter, window),
        Means::Zerocopy => plain::send_zerocopy(socket.as_raw_fd(), buffers, args.per_enter, window),
        _ => ring::send(socket.as_raw_fd(), buffers, args, window),
    }
}

fn connect(args: &Args) -> Result<OwnedFd> {
    let doing = || format!("connecting to {}", args.to);
    match args.protocol {
        Protocol::Udp => {
            let socket = UdpSocket::bind("0.0.0.0:0").doing(doing)?;
            socket.connect(args.to).doing(doing)?;
            Ok(socket.into())
        }
        Protocol::Tcp => {
            let stream = TcpStream::connect(args.to).doing(doing)?;
            stream.set_nodelay(true).doing(doing)?;
            Ok(stream.into())
        }
    }
}

/// The sender's memory, and which of its buffers are in flight.
struct Buffers {
    memory: *mut u8,
    payload: usize,
    stride: usize,
    /// True, by buffer, if the buffer may still be read.
    busy: [bool; BUFFERS],
    next: usize,
}

impl Buffers {
    /// Maps memory of whole pages that stays until the process ends.
    fn new(payload: usize) -> Result<Self> {
        let stride = payload.next_multiple_of(4096);
        let memory = super::memory(stride * BUFFERS)?;
        // SAFETY: the length is that of the mapping. The write replaces the shared zero page.
        unsafe { memory.write_bytes(b'm', stride * BUFFERS) };
        Ok(Self { memory, payload, stride, busy: [false; BUFFERS], next: 0 })
    }

    fn address(&self, index: usize) -> *mut u8 {
        // SAFETY: the index is below `BUFFERS`, the mapping as long as all of them.
        unsafe { self.memory.add(index % BUFFERS * self.stride) }
    }

    /// Takes the next buffer in turn, if it is free.
    fn take(&mut self) -> Option<usize> {
        let index = self.next;
        if self.busy[index] {
            return None;
        }
        self.next = (index + 1) % BUFFERS;
        Some(index)
    }
}

/// Numbers of notifications of zero-copy sends.
#[derive(Default)]
struct Notified {
    all: u64,
    copied: u64,
}

impl Notified {
    fn share(&self) -> Option<f64> {
        (self.all > 0).then(|| self.copied as f64 / self.all as f64)
    }
}
