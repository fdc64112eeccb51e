//! The cost of an operation among many live requests, rings or queued work items.

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

/// The size of a ring's SQ.
const ENTRIES: u32 = 4096;

/// Arguments of the workload.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// The operation.
    #[arg(long, value_enum)]
    what: What,
    /// The number of requests, rings or queued work items, on which the time should not depend.
    #[arg(long)]
    size: usize,
    /// Milliseconds to measure.
    #[arg(long, default_value_t = 500)]
    window_ms: u64,
}

/// The operations.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// A cancellation by descriptor, among `size` polls of another descriptor.
    Cancel,
    /// A read at the file's position, among `size` polls, while a worker is busy.
    Position,
    /// A close of a descriptor that no ring knows, among `size` rings.
    CloseUnknown,
    /// A close of a descriptor that one ring has polled, among `size` rings.
    CloseKnown,
    /// A request for the workers, behind `size` others.
    Queue,
    /// The longest of `size` submissions of a poll.
    Slab,
}

/// True if a worker can be kept busy here, which some of the operations need.
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

/// Creates a file that never becomes readable.
fn idle_file() -> Result<OwnedFd> {
    Ok(UnixDatagram::unbound().doing(|| "making a socket".into())?.into())
}

/// Creates a file in memory.
fn memory_file() -> Result<OwnedFd> {
    // SAFETY: reads a string that ends in zero.
    owned(unsafe { libc::memfd_create(c"growth".as_ptr(), libc::MFD_CLOEXEC) }, "memfd_create")
}

/// Wraps a descriptor that the call `what` has just returned.
fn owned(descriptor: i32, what: &str) -> Result<OwnedFd> {
    if descriptor < 0 {
        return Err(Failure::errno(what));
    }
    // SAFETY: the descriptor is fresh and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Queues a poll of `file` for input.
fn poll(ring: &mut Ring, file: &OwnedFd, user_data: u64) -> Result<()> {
    let op_flags = libc::POLLIN as u32;
    ring.push(Sqe { fd: file.as_raw_fd(), op_flags, ..sqe(io_uring_op::IORING_OP_POLL_ADD, user_data) })
}

/// Creates a ring with `count` live requests: polls of `idle`.
fn ring_with_polls(count: usize, idle: &OwnedFd) -> Result<Ring> {
    let mut ring = Ring::new(ENTRIES, 2 * ENTRIES, 0)?;
    for number in 0..count {
        poll(&mut ring, idle, number as u64)?;
    }
    ring.submit_and_wait(0)?;
    Ok(ring)
}

/// Returns the next completion, for which an enter has waited.
fn expect(ring: &mut Ring) -> Result<Completion> {
    ring.completion()
        .ok_or_else(|| Failure::new("a completion is not there after an enter that waits for it"))
}

/// Checks that the completion is a success.
fn succeeded(completion: Completion, what: &str) -> Result<()> {
    match completion.result {
        0.. => Ok(()),
        error => Err(Failure::negative_errno(what, i64::from(error))),
    }
}
