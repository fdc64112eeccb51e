//! `close` of a pipe.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use super::{expect, idle_file, owned, poll, succeeded};
use crate::failure::{Failure, Result};
use crate::workload::ring::Ring;
use crate::workload::sockets::raise_file_limit;
use crate::workload::{Report, repeat_for};

/// The maximum number of descriptors of a ring and its idle file.
const FILES_PER_RING: usize = 9;

/// Measures the close of a pipe, which the first ring has polled if `known`.
pub fn run(size: usize, window: Duration, known: bool) -> Result<Report> {
    raise_file_limit(size * FILES_PER_RING)?;
    let idle = (0..size).map(|_| idle_file()).collect::<Result<Vec<_>>>()?;
    let mut rings = idle.iter().map(used_ring).collect::<Result<Vec<_>>>()?;
    let ring = rings.first_mut().ok_or_else(|| Failure::new("there is no ring"))?;
    let engine = Some(ring.engine());
    let (measured, total_ops) = repeat_for(window, || {
        let ends = pipe()?;
        if known {
            poll_readable(ring, &ends)?;
        }
        drop(ends);
        Ok(1)
    })?;
    Ok(Report::of(engine, total_ops, measured))
}

/// Creates a ring with a pending poll of `idle`.
fn used_ring(idle: &OwnedFd) -> Result<Ring> {
    let mut ring = Ring::new(4, 8, 0)?;
    poll(&mut ring, idle, 0)?;
    ring.submit_and_wait(0)?;
    Ok(ring)
}

/// Creates a pipe; returns the read end and the write end.
fn pipe() -> Result<[OwnedFd; 2]> {
    let mut ends = [-1; 2];
    // SAFETY: writes two numbers of ours.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(Failure::errno("pipe2"));
    }
    Ok([owned(ends[0], "pipe2")?, owned(ends[1], "pipe2")?])
}

/// Polls the pipe, which becomes readable only after the poll is armed.
fn poll_readable(ring: &mut Ring, [from, to]: &[OwnedFd; 2]) -> Result<()> {
    poll(ring, from, 1)?;
    ring.submit_and_wait(0)?;
    // SAFETY: reads one byte of ours.
    if unsafe { libc::write(to.as_raw_fd(), [0u8].as_ptr().cast(), 1) } != 1 {
        return Err(Failure::errno("writing to a pipe"));
    }
    ring.submit_and_wait(1)?;
    succeeded(expect(ring)?, "a poll of a pipe")
}
