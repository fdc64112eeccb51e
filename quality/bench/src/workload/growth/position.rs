//! READ at the position of a file.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use super::held::Page;
use super::{expect, idle_file, memory_file, ring_with_polls};
use crate::failure::{Failure, Result};
use crate::workload::ring::{Ring, Sqe, io_uring_op, sqe};
use crate::workload::{Report, memory, repeat_for};

const BYTES: usize = 64;
/// The number of reads from the beginning of the file to its end.
const READS: usize = 1024;

pub fn run(size: usize, window: Duration) -> Result<Report> {
    let (idle, file, page) = (idle_file()?, memory_file()?, Page::new()?);
    // SAFETY: takes a descriptor and a length.
    if unsafe { libc::ftruncate(file.as_raw_fd(), (BYTES * READS) as libc::off_t) } != 0 {
        return Err(Failure::errno("making a file longer"));
    }
    let mut ring = ring_with_polls(size, &idle)?;
    let engine = Some(ring.engine());
    page.hold_worker(&mut ring)?;
    // The FSYNC at the head of the chain has completed; the write holds the worker.
    let _ = ring.completion();
    let (buffer, mut reads) = (memory(BYTES)?, 0);
    let (measured, total_ops) = repeat_for(window, || {
        if reads % READS == 0 {
            rewind(&file)?;
        }
        reads += 1;
        read(&mut ring, &file, buffer)?;
        Ok(1)
    })?;
    page.give()?;
    Ok(Report::of(engine, total_ops, measured))
}

fn rewind(file: &OwnedFd) -> Result<()> {
    // SAFETY: takes plain numbers.
    match unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_SET) } {
        0 => Ok(()),
        _ => Err(Failure::errno("lseek")),
    }
}

fn read(ring: &mut Ring, file: &OwnedFd, buffer: *mut u8) -> Result<()> {
    let (fd, addr, len) = (file.as_raw_fd(), buffer as u64, BYTES as u32);
    ring.push(Sqe { fd, addr, len, off: u64::MAX, ..sqe(io_uring_op::IORING_OP_READ, 0) })?;
    ring.submit_and_wait(1)?;
    match expect(ring)?.result {
        result if result == BYTES as i32 => Ok(()),
        other => Err(Failure::new(format!("a read of {BYTES} bytes returned {other}"))),
    }
}
