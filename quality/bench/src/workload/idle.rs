//! Connections on which nothing happens: the cost of waiting for them, and for one more on which messages arrive.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use clap::{Args as ClapArgs, ValueEnum};
use linux_raw_sys::io_uring::{IORING_CQE_F_MORE, IORING_RECV_MULTISHOT};

use super::clock::{process_cpu, wall};
use super::provided::Provided;
use super::ring::{DEFER, Engine, Ring, SELECT, Sqe, io_uring_op, sqe};
use super::sockets::{
    Epoll, Transfer, announce, connect_from, listen, raise_file_limit, receive, server_address,
};
use super::{Latency, Memory, Report, Window};
use crate::failure::{Doing, Failure, Result};

/// Arguments of the workload.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// How the process waits.
    #[arg(long, value_enum)]
    means: Means,
    /// Connections.
    #[arg(long)]
    connections: usize,
}

/// How the process waits for the connections.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Means {
    /// An edge-triggered registration per connection.
    Epoll,
    /// A receive per connection.
    Ring,
    /// A multishot receive per connection.
    Multishot,
}

/// Arguments of the client.
#[derive(Clone, Debug, ClapArgs)]
pub struct ClientArgs {
    /// Connections.
    #[arg(long)]
    connections: usize,
}

/// Connections from one source address, which has only some 28,000 ports.
const PER_ADDRESS: usize = 20_000;
/// Messages on the busy connection.
const MESSAGES: usize = 500;

/// Opens connections to the server that the standard input names, and keeps them until the process is killed.
pub fn keep(args: &ClientArgs) -> Result<()> {
    raise_file_limit(args.connections)?;
    let server = server_address()?;
    let open = |number: usize| connect_from((number / PER_ADDRESS) as u32, server.port);
    let _connections = (0..args.connections).map(open).collect::<Result<Vec<_>>>()?;
    loop {
        std::thread::park();
    }
}

/// Accepts the connections and measures the cost of waiting for all of them; then receives messages on one more connection.
pub fn run(args: &Args) -> Result<Report> {
    raise_file_limit(args.connections + 2)?;
    let listener = listen()?;
    let port = listener.local_addr().doing(|| "reading the server's port".into())?.port();
    let mut sender = TcpStream::connect(("127.0.0.1", port)).doing(|| "connecting to itself".into())?;
    sender.set_nodelay(true).doing(|| "setting TCP_NODELAY".into())?;
    let busy = accepted(&listener)?;
    announce(&listener, None)?;
    let connections = (0..args.connections).map(|_| accepted(&listener)).collect::<Result<Vec<_>>>()?;
    let sockets: Vec<i32> = connections.iter().map(AsRawFd::as_raw_fd).collect();
    let mut waiter = Waiter::new(args)?;
    let mut window = measured(sockets.len(), || waiter.begin(&sockets))?;
    waiter.begin(&[busy.as_raw_fd()])?;
    let mut times = Vec::with_capacity(MESSAGES);
    for _ in 0..MESSAGES {
        let start = wall();
        sender.write_all(&[0]).doing(|| "sending to itself".into())?;
        waiter.take(busy.as_raw_fd())?;
        times.push((wall() - start).as_nanos() as u64);
    }
    window.latency = Some(Latency::of(&mut times));
    Ok(Report::of(waiter.engine(), window.ops, window))
}

fn accepted(listener: &TcpListener) -> Result<TcpStream> {
    Ok(listener.accept().doing(|| "accepting a connection".into())?.0)
}

/// The epoll instance or ring that waits.
enum Waiter {
    Epoll(Epoll),
    Ring { ring: Ring, buffers: Provided, multishot: bool },
}

impl Waiter {
    fn new(args: &Args) -> Result<Waiter> {
        let multishot = match args.means {
            Means::Epoll => return Ok(Waiter::Epoll(Epoll::new()?)),
            Means::Ring => false,
            Means::Multishot => true,
        };
        let entries = args.connections.next_power_of_two().clamp(64, 4096) as u32;
        let ring = Ring::new(entries, entries * 2, DEFER)?;
        let buffers = Provided::new(&ring, 64, 1024)?;
        Ok(Waiter::Ring { ring, buffers, multishot })
    }

    fn engine(&self) -> Option<Engine> {
        match self {
            Waiter::Epoll(_) => None,
            Waiter::Ring { ring, .. } => Some(ring.engine()),
        }
    }

    /// Starts waiting for `sockets`, none of which may have data yet.
    fn begin(&mut self, sockets: &[i32]) -> Result<()> {
        match self {
            Waiter::Epoll(epoll) => {
                let interest = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET;
                sockets.iter().try_for_each(|&socket| epoll.add(socket, interest, socket as u64))
            }
            Waiter::Ring { ring, multishot, .. } => {
                sockets.iter().try_for_each(|&socket| request(ring, socket, *multishot))?;
                ring.submit_and_wait(0)?;
                ring.completion().map_or(Ok(()), |_| Err(unexpected()))
            }
        }
    }

    /// Receives the message on `socket`, the only one with data, and waits for the next.
    fn take(&mut self, socket: i32) -> Result<()> {
        match self {
            Waiter::Epoll(epoll) => {
                while epoll.wait(-1)? == 0 {}
                let is_there = matches!(receive(socket, &mut [0; 128]), Transfer::Bytes(1));
                if is_there { Ok(()) } else { Err(unexpected()) }
            }
            Waiter::Ring { ring, buffers, multishot } => {
                let completion = loop {
                    ring.submit_and_wait(1)?;
                    if let Some(completion) = ring.completion() {
                        break completion;
                    }
                };
                if completion.user_data != socket as u64 || completion.result != 1 {
                    return Err(unexpected());
                }
                if let Some(number) = Provided::number(&completion) {
                    buffers.give_back(number);
                }
                if completion.flags & IORING_CQE_F_MORE != 0 {
                    Ok(())
                } else {
                    request(ring, socket, *multishot)
                }
            }
        }
    }
}

fn unexpected() -> Failure {
    Failure::new("something else came than the message on the busy connection")
}

/// Queues a receive. All single-shot receives share one buffer: the buffers that a program keeps ready for them come on top
/// of the measured memory.
fn request(ring: &mut Ring, socket: i32, multishot: bool) -> Result<()> {
    static mut BUFFER: [u8; 128] = [0; 128];
    let receive = Sqe { fd: socket, ..sqe(io_uring_op::IORING_OP_RECV, socket as u64) };
    ring.push(match multishot {
        true => Sqe { ioprio: IORING_RECV_MULTISHOT as u16, flags: SELECT, ..receive },
        false => Sqe { addr: &raw mut BUFFER as u64, len: 128, ..receive },
    })
}

fn measured(count: usize, arm: impl FnOnce() -> Result<()>) -> Result<Window> {
    let before = memory()?;
    let (start, cpu_start) = (wall(), process_cpu());
    arm()?;
    let (elapsed, cpu) = (wall() - start, process_cpu() - cpu_start);
    let after = memory()?;
    let memory = Memory {
        resident: after.resident.saturating_sub(before.resident),
        kernel: after.kernel.saturating_sub(before.kernel),
    };
    Ok(Window { memory: Some(memory), ..Window::of(count as u64, elapsed, cpu) })
}

/// Returns the resident memory of this process and the slab memory of the machine's kernel.
fn memory() -> Result<Memory> {
    Ok(Memory {
        resident: field("/proc/self/smaps_rollup", "Rss:")?,
        kernel: field("/proc/meminfo", "Slab:")?,
    })
}

/// Returns a field of a file of /proc, which has it in KiB, in bytes.
fn field(file: &str, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(file).doing(|| format!("reading {file}"))?;
    let value =
        text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    let kib: u64 = value.ok_or_else(|| Failure::new(format!("{file} has no {name}")))?;
    Ok(kib * 1024)
}
