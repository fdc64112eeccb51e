//! Connections on which nothing happens: what it costs to wait for them.

use std::net::TcpStream;
use std::os::fd::AsRawFd;

use clap::{Args as ClapArgs, ValueEnum};
use linux_raw_sys::io_uring::{
    IORING_RECV_MULTISHOT, IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_SINGLE_ISSUER, io_uring_op,
    io_uring_sqe_flags_bit,
};

use super::clock::{process_cpu, wall};
use super::provided::Provided;
use super::ring::Ring;
use super::sockets::{Epoll, announce, listen, raise_file_limit, server_address};
use super::{Memory, Report, Window};
use crate::failure::{Doing, Failure, Result};

/// Arguments of the workload.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// What waits.
    #[arg(long, value_enum)]
    means: Means,
    /// Connections.
    #[arg(long)]
    connections: usize,
}

/// What waits for the connections.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Means {
    /// An edge-triggered registration each.
    Epoll,
    /// A receive each.
    Ring,
    /// A multishot receive each.
    Multishot,
}

/// Arguments of the other end.
#[derive(Clone, Debug, ClapArgs)]
pub struct ClientArgs {
    /// Connections.
    #[arg(long)]
    connections: usize,
}

/// Opens connections to the server that the standard input names, and keeps them until it is killed.
pub fn keep(args: &ClientArgs) -> Result<()> {
    raise_file_limit(args.connections)?;
    let server = server_address()?;
    let open = |number| {
        TcpStream::connect(("127.0.0.1", server.port)).doing(|| format!("connection {number} to the server"))
    };
    let _connections = (0..args.connections).map(open).collect::<Result<Vec<_>>>()?;
    loop {
        std::thread::park();
    }
}

/// Accepts the connections, then waits for all of them, and reports what that took.
pub fn run(args: &Args) -> Result<Report> {
    raise_file_limit(args.connections)?;
    let listener = listen()?;
    announce(&listener, None)?;
    let accept = |number| match listener.accept() {
        Ok((stream, _)) => Ok(stream),
        Err(error) => Err(error).doing(|| format!("accepting connection {number}")),
    };
    let connections = (0..args.connections).map(accept).collect::<Result<Vec<_>>>()?;
    let sockets: Vec<i32> = connections.iter().map(AsRawFd::as_raw_fd).collect();
    let (engine, window) = match args.means {
        Means::Epoll => {
            let epoll = Epoll::new()?;
            let arm = || {
                let interest = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET;
                sockets.iter().try_for_each(|&socket| epoll.add(socket, interest, socket as u64))
            };
            (None, measured(sockets.len(), arm)?)
        }
        Means::Ring | Means::Multishot => {
            let entries = args.connections.next_power_of_two().clamp(64, 4096) as u32;
            let mut ring =
                Ring::new(entries, entries * 2, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN)?;
            let _buffers = Provided::new(&ring, 64, 1024)?;
            let engine = ring.engine();
            let multishot = matches!(args.means, Means::Multishot);
            let window = measured(sockets.len(), || arm(&mut ring, &sockets, multishot))?;
            if ring.completion().is_some() {
                return Err(Failure::new("something came from an idle connection"));
            }
            (Some(engine), window)
        }
    };
    Ok(Report { engine, total_ops: window.ops, copied: None, windows: vec![window] })
}

/// A receive per socket. None ever ends, so that all may name one buffer: what a program keeps ready for its
/// single-shot receives is its own affair, and comes on top.
fn arm(ring: &mut Ring, sockets: &[i32], multishot: bool) -> Result<()> {
    static mut BUFFER: [u8; 128] = [0; 128];
    for &socket in sockets {
        let request = ring.request_or_submit()?;
        request.opcode = io_uring_op::IORING_OP_RECV as u8;
        request.fd = socket;
        if multishot {
            request.ioprio = IORING_RECV_MULTISHOT as u16;
            request.flags = 1 << io_uring_sqe_flags_bit::IOSQE_BUFFER_SELECT_BIT as u8;
        } else {
            request.__bindgen_anon_2.addr = &raw mut BUFFER as u64;
            request.len = 128;
        }
        request.user_data = socket as u64;
    }
    ring.submit_and_wait(0)
}

fn measured(count: usize, arm: impl FnOnce() -> Result<()>) -> Result<Window> {
    let before = memory()?;
    let (start, cpu_start) = (wall(), process_cpu());
    arm()?;
    let (elapsed, cpu) = (wall() - start, process_cpu() - cpu_start);
    let after = memory()?;
    Ok(Window {
        latency: None,
        peak_bytes: None,
        label: String::new(),
        ops: count as u64,
        wall_ns: elapsed.as_nanos() as u64,
        cpu_ns: cpu.as_nanos() as u64,
        memory: Some(Memory {
            resident: after.resident.saturating_sub(before.resident),
            kernel: after.kernel.saturating_sub(before.kernel),
        }),
    })
}

/// What this process has in memory, and what the whole machine's kernel has in its slabs.
fn memory() -> Result<Memory> {
    Ok(Memory {
        resident: field("/proc/self/smaps_rollup", "Rss:")?,
        kernel: field("/proc/meminfo", "Slab:")?,
    })
}

/// A field of a file of /proc, which gives it in KiB.
fn field(file: &str, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(file).doing(|| format!("reading {file}"))?;
    let value =
        text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    let kib: u64 = value.ok_or_else(|| Failure::new(format!("{file} has no {name}")))?;
    Ok(kib * 1024)
}
