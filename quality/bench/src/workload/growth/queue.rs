//! FSYNC of a file in memory, which a worker does: what it takes to queue one behind others.

use std::os::fd::AsRawFd;
use std::time::Duration;

use linux_raw_sys::io_uring::io_uring_op;

use super::held::{self, Page};
use super::{ASYNC, ENTRIES, FIXED_FILE, expect, memory_file, succeeded};
use crate::failure::Result;
use crate::workload::clock::{process_cpu, wall};
use crate::workload::ring::Ring;
use crate::workload::{Report, Window};

/// Requests behind the others that are measured.
const MEASURED: usize = 100;
/// As many completions as a ring holds.
const COMPLETIONS: u32 = 1 << 16;

/// One worker is held, so that nothing leaves the queue while it is measured.
pub fn run(size: usize, window: Duration) -> Result<Report> {
    let (file, page) = (memory_file()?, Page::new()?);
    let mut ring = Ring::new(ENTRIES, COMPLETIONS, 0)?;
    let engine = Some(ring.engine());
    ring.limit_workers(1)?;
    ring.register_files(&[file.as_raw_fd()])?;
    // The first time is the warm-up.
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
    Ok(Report { engine, total_ops, copied: None, windows: vec![measured] })
}

/// Queues all, measures the last of it, and lets the worker do it.
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
    let (wall_ns, cpu_ns) = (elapsed.as_nanos() as u64, cpu.as_nanos() as u64);
    Ok(Window { ops: MEASURED as u64, wall_ns, cpu_ns, ..Window::default() })
}

fn sync(ring: &mut Ring) -> Result<()> {
    let request = ring.request_or_submit()?;
    request.opcode = io_uring_op::IORING_OP_FSYNC as u8;
    request.flags = ASYNC | FIXED_FILE;
    request.fd = 0;
    Ok(())
}
