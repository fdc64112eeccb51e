//! What an operation takes while there is much of something else: live requests, rings, queued work.

mod cancel;
mod close;
mod held;
mod position;
mod queue;
mod slab;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use super::Report;
use super::ring::{Completion, Ring, Sqe, io_uring_op, sqe};
use crate::failure::{Doing, Failure, Result};

/// Requests that a ring takes at once.
const ENTRIES: u32 = 4096;

/// Arguments of the workload.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// The operation.
    #[arg(long, value_enum)]
    what: What,
    /// How much there is of what it should not depend on.
    #[arg(long)]
    size: usize,
    /// Milliseconds to measure.
    #[arg(long, default_value_t = 500)]
    window_ms: u64,
}

/// The operations.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// A cancellation by descriptor, among so many polls of another.
    Cancel,
    /// A read at the file's position, among so many polls, while a worker is busy.
    Position,
    /// A close of a descriptor that no ring knows, among so many rings.
    CloseUnknown,
    /// A close of a descriptor that one ring has polled, among so many rings.
    CloseKnown,
    /// A request for the workers, behind so many others.
    Queue,
    /// The longest submission while so many polls begin.
    Slab,
}

/// Can a worker be kept busy here, which some of the operations need?
pub fn can_hold_workers() -> bool {
    held::new_faults().is_ok()
}

/// Runs the workload.
pub fn run(args: &Args) -> Result<Report> {
    let (size, window) = (args.size, Duration::from_millis(args.window_ms));
    match args.what {
        What::Cancel => cancel::run(size, window),
        What::Position => position::run(size, window),
        What::CloseUnknown => close::run(size, window, false),
        What::CloseKnown => close::run(size, window, true),
        What::Queue => queue::run(size, window),
        What::Slab => slab::run(size),
    }
}

/// A file that never becomes readable.
fn idle_file() -> Result<OwnedFd> {
    Ok(UnixDatagram::unbound().doing(|| "making a socket".into())?.into())
}

/// A file in memory.
fn memory_file() -> Result<OwnedFd> {
    // SAFETY: reads a string that ends in zero.
    owned(unsafe { libc::memfd_create(c"growth".as_ptr(), libc::MFD_CLOEXEC) }, "memfd_create")
}

/// A descriptor that the call `what` has just returned.
fn owned(descriptor: i32, what: &str) -> Result<OwnedFd> {
    if descriptor < 0 {
        return Err(Failure::errno(what));
    }
    // SAFETY: the descriptor is fresh and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// A poll of `file` for input.
fn poll(ring: &mut Ring, file: &OwnedFd, user_data: u64) -> Result<()> {
    let op_flags = libc::POLLIN as u32;
    ring.push(Sqe { fd: file.as_raw_fd(), op_flags, ..sqe(io_uring_op::IORING_OP_POLL_ADD, user_data) })
}

/// A ring with so many live requests: polls of `idle`.
fn ring_with_polls(count: usize, idle: &OwnedFd) -> Result<Ring> {
    let mut ring = Ring::new(ENTRIES, 2 * ENTRIES, 0)?;
    for number in 0..count {
        poll(&mut ring, idle, number as u64)?;
    }
    ring.submit_and_wait(0)?;
    Ok(ring)
}

/// The next completion, which a submission has waited for.
fn expect(ring: &mut Ring) -> Result<Completion> {
    ring.completion()
        .ok_or_else(|| Failure::new("a completion is not there after an enter that waits for it"))
}

/// Is the completion a success?
fn succeeded(completion: Completion, what: &str) -> Result<()> {
    match completion.result {
        0.. => Ok(()),
        error => Err(Failure::negative_errno(what, i64::from(error))),
    }
}
