//! FSYNC of a file in memory, which a worker does: the cost of queueing it behind others.

use std::os::fd::AsRawFd;
use std::time::Duration;

use super::held::{self, Page};
use super::{ENTRIES, expect, memory_file, succeeded};
use crate::failure::Result;
use crate::workload::clock::{process_cpu, wall};
use crate::workload::ring::{ASYNC, FIXED_FILE, Ring, Sqe, io_uring_op, sqe};
use crate::workload::{Report, Window};

/// Measured requests, which are queued behind the others.
const MEASURED: usize = 100;
/// The largest CQ that a ring can have.
const COMPLETIONS: u32 = 1 << 16;

/// Measures while the one worker is held, so that nothing leaves the queue.
pub fn run(size: usize, window: Duration) -> Result<Report> {
    let (file, page) = (memory_file()?, Page::new()?);
    let mut ring = Ring::new(ENTRIES, COMPLETIONS, 0)?;
    let engine = Some(ring.engine());
    ring.limit_workers(1)?;
    ring.register_files(&[file.as_raw_fd()])?;
    // The first round is the warm-up.
    round(&mut ring, &page, size)?;
    let mut measured = Window::default();
    let mut rounds = 1;
    while measured.ops == 0 || Duration::from_nanos(measured.wall_ns) * 10 < window && rounds < 10 {
        let one = round(&mut ring, &page, size)?;
        measured.ops += one.ops;
        measured.wall_ns += one.wall_ns;
        measured.cpu_ns += one.cpu_ns;
        rounds += 1;
    }
    let total_ops = rounds * (size + MEASURED) as u64;
    Ok(Report::of(engine, total_ops, measured))
}

/// Queues `size` requests, measures queueing `MEASURED` more, and releases the worker.
fn round(ring: &mut Ring, page: &Page, size: usize) -> Result<Window> {
    page.hold_worker(ring)?;
    for _ in 0..size {
        sync(ring)?;
    }
    ring.submit_and_wait(0)?;
    let (start, cpu_start) = (wall(), process_cpu());
    for _ in 0..MEASURED {
        sync(ring)?;
        ring.submit_and_wait(0)?;
    }
    let (elapsed, cpu) = (wall() - start, process_cpu() - cpu_start);
    page.give()?;
    let all = size + MEASURED + held::COMPLETIONS;
    ring.submit_and_wait(all as u32)?;
    for _ in 0..all {
        succeeded(expect(ring)?, "work of a worker")?;
    }
    page.take()?;
    Ok(Window::of(MEASURED as u64, elapsed, cpu))
}

fn sync(ring: &mut Ring) -> Result<()> {
    ring.push(Sqe { fd: 0, flags: ASYNC | FIXED_FILE, ..sqe(io_uring_op::IORING_OP_FSYNC, 0) })
}
