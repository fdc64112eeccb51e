//! Polls that are submitted one after the other and never complete.

use std::time::Duration;

use super::{ENTRIES, idle_file, poll};
use crate::failure::Result;
use crate::workload::clock::thread_cpu;
use crate::workload::ring::Ring;
use crate::workload::{Report, Window};

/// Unmeasured submissions, in which the ring creates what its first requests need.
const WARM_UP: u64 = 64;

/// Measures the longest submission as CPU time of the thread, so that other programs do not count.
pub fn run(size: usize) -> Result<Report> {
    let idle = idle_file()?;
    let mut ring = Ring::new(ENTRIES, 2 * ENTRIES, 0)?;
    let engine = Some(ring.engine());
    let (mut longest, mut all) = (0, 0);
    for number in 0..size as u64 {
        poll(&mut ring, &idle, number)?;
        let start = thread_cpu();
        ring.submit_and_wait(0)?;
        if number >= WARM_UP.min(size as u64 / 2) {
            let took = (thread_cpu() - start).as_nanos() as u64;
            longest = longest.max(took);
            all += took;
        }
    }
    let ops = size as u64 - WARM_UP.min(size as u64 / 2);
    let window = |label: &str, ops, ns| {
        let took = Duration::from_nanos(ns);
        Window { label: label.into(), ..Window::of(ops, took, took) }
    };
    let windows = vec![window("longest submission", 1, longest), window("mean submission", ops, all)];
    Ok(Report { engine, total_ops: size as u64, copied: None, windows })
}
