//! Cancellation of the one request on a descriptor.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use linux_raw_sys::io_uring::IORING_ASYNC_CANCEL_FD;

use super::{expect, idle_file, poll, ring_with_polls};
use crate::failure::{Failure, Result};
use crate::workload::ring::{Ring, Sqe, io_uring_op, sqe};
use crate::workload::{Report, repeat_for};

/// User data that no poll of [`ring_with_polls`] has.
const POLL: u64 = u64::MAX - 1;
const CANCELLATION: u64 = u64::MAX;

pub fn run(size: usize, window: Duration) -> Result<Report> {
    let (idle, other) = (idle_file()?, idle_file()?);
    let mut ring = ring_with_polls(size, &idle)?;
    let engine = Some(ring.engine());
    let (measured, total_ops) = repeat_for(window, || {
        poll_and_cancel(&mut ring, &other)?;
        Ok(1)
    })?;
    Ok(Report::of(engine, total_ops, measured))
}

fn poll_and_cancel(ring: &mut Ring, file: &OwnedFd) -> Result<()> {
    poll(ring, file, POLL)?;
    let cancellation = sqe(io_uring_op::IORING_OP_ASYNC_CANCEL, CANCELLATION);
    ring.push(Sqe { fd: file.as_raw_fd(), op_flags: IORING_ASYNC_CANCEL_FD, ..cancellation })?;
    ring.submit_and_wait(2)?;
    for _ in 0..2 {
        let completion = expect(ring)?;
        match (completion.user_data, completion.result) {
            (POLL, result) if result == -libc::ECANCELED => {}
            (CANCELLATION, 0) => {}
            _ => return Err(Failure::new(format!("a cancelled poll came as {completion:?}"))),
        }
    }
    Ok(())
}
