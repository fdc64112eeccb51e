//! No-ops: the cost of the ring itself.

use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use super::ring::{Ring, io_uring_op, sqe};
use super::{Report, repeat_for};
use crate::failure::{Failure, Result};

/// Batches between two readings of the clock.
const BATCHES: u32 = 128;

/// Arguments of the workload.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// No-ops per call of `io_uring_enter`.
    #[arg(long, default_value_t = 1)]
    per_enter: u32,
    /// Milliseconds to measure.
    #[arg(long, default_value_t = 500)]
    window_ms: u64,
    /// The measured operation.
    #[arg(long, value_enum, default_value_t = Means::Ring)]
    means: Means,
    /// Register the ring's descriptor and enter by its registered index.
    #[arg(long)]
    registered: bool,
    /// Have a second thread, so that the table of descriptors is shared.
    #[arg(long)]
    threaded: bool,
}

/// The measured operation.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Means {
    /// `IORING_OP_NOP`.
    Ring,
    /// `getppid`, the cheapest system call whose result the C library does not cache.
    Syscall,
}

/// Runs the workload.
pub fn run(args: &Args) -> Result<Report> {
    let window = Duration::from_millis(args.window_ms);
    if args.threaded {
        std::thread::spawn(|| {
            loop {
                std::thread::park();
            }
        });
    }
    match args.means {
        Means::Ring => on_ring(args, window),
        Means::Syscall => plain(args.per_enter, window),
    }
}

fn on_ring(args: &Args, window: Duration) -> Result<Report> {
    let per_enter = args.per_enter;
    let entries = per_enter.next_power_of_two();
    let mut ring = Ring::new(entries, entries * 2, 0)?;
    let engine = Some(ring.engine());
    if args.registered {
        ring.register_descriptor()?;
    }
    let (measured, total_ops) = repeat_for(window, || {
        for _ in 0..BATCHES {
            batch(&mut ring, per_enter)?;
        }
        Ok(u64::from(BATCHES * per_enter))
    })?;
    Ok(Report::of(engine, total_ops, measured))
}

fn batch(ring: &mut Ring, count: u32) -> Result<()> {
    for number in 0..count {
        ring.push(sqe(io_uring_op::IORING_OP_NOP, u64::from(number)))?;
    }
    ring.submit_and_wait(count)?;
    for _ in 0..count {
        match ring.completion() {
            Some(completion) if completion.result == 0 => {}
            other => {
                return Err(Failure::new(format!(
                    "a no-op completed as {other:?} after an enter that waits for all"
                )));
            }
        }
    }
    Ok(())
}

fn plain(per_batch: u32, window: Duration) -> Result<Report> {
    let (measured, total_ops) = repeat_for(window, || {
        for _ in 0..BATCHES * per_batch {
            // SAFETY: takes nothing, changes nothing.
            std::hint::black_box(unsafe { libc::syscall(libc::SYS_getppid) });
        }
        Ok(u64::from(BATCHES * per_batch))
    })?;
    Ok(Report::of(None, total_ops, measured))
}
