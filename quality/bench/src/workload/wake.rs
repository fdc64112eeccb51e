//! The latency of completions: of a ring's first request, and of requests that no call waits for.

use std::io::{Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use linux_raw_sys::general::__kernel_timespec;
use linux_raw_sys::io_uring::IORING_TIMEOUT_ABS;

use super::clock::{process_cpu, wall};
use super::memory;
use super::ring::{Completion, Ring, Sqe, io_uring_op, sqe};
use super::{Latency, PATIENCE, Report, Window};
use crate::failure::{Doing, Failure, Result};

/// The time from its submission after which a request can complete.
const AHEAD: Duration = Duration::from_millis(1);
/// The maximum number of rings, which stay until the process ends.
const MOST_RINGS: usize = 500;

/// Arguments of the workload.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// The completion.
    #[arg(long, value_enum)]
    what: What,
    /// Milliseconds to measure.
    #[arg(long, default_value_t = 500)]
    window_ms: u64,
}

/// The completions.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// A ring's first request, measured over the call that submits it.
    First,
    /// A timeout, measured from its expiry.
    Timeout,
    /// A poll, measured from the write to the pipe.
    Poll,
}

/// Runs the workload.
pub fn run(args: &Args) -> Result<Report> {
    let window = Duration::from_millis(args.window_ms);
    match args.what {
        What::First => first(window),
        What::Timeout => timeouts(window),
        What::Poll => polls(window),
    }
}

/// Measures the first request of a new ring each time. The first ring of the process is a case of its own.
fn first(window: Duration) -> Result<Report> {
    let (mut from, mut to) = pipe().doing(|| "making a pipe".into())?;
    let mut engine = None;
    let mut attempt = || {
        let mut ring = Ring::new(8, 16, 0)?;
        to.write_all(&[0]).doing(|| "writing to a pipe".into())?;
        poll(&mut ring, from.as_raw_fd())?;
        let start = wall();
        ring.submit_and_wait(1)?;
        let took = wall() - start;
        let completion = ring.completion();
        checked(completion.ok_or_else(|| Failure::new("the first request did not complete"))?)?;
        from.read_exact(&mut [0]).doing(|| "reading from a pipe".into())?;
        engine = Some(ring.engine());
        Ok(took)
    };
    let in_process = measure("first in the process", Duration::ZERO, 1, &mut attempt)?;
    let of_ring = measure("first of a ring", window, MOST_RINGS, &mut attempt)?;
    let total_ops = in_process.ops + of_ring.ops;
    Ok(Report { engine, total_ops, copied: None, windows: vec![in_process, of_ring] })
}

fn timeouts(window: Duration) -> Result<Report> {
    let mut ring = Ring::new(8, 16, 0)?;
    let engine = Some(ring.engine());
    let time = memory(size_of::<__kernel_timespec>())?.cast::<__kernel_timespec>();
    let measured = measure("", window, usize::MAX, || {
        let due = wall() + AHEAD;
        // SAFETY: our own memory, large enough; no request reads it at this moment.
        unsafe {
            (*time).tv_sec = due.as_secs() as i64;
            (*time).tv_nsec = due.subsec_nanos().into();
        }
        let timeout = sqe(io_uring_op::IORING_OP_TIMEOUT, 0);
        ring.push(Sqe { addr: time as u64, len: 1, op_flags: IORING_TIMEOUT_ABS, ..timeout })?;
        ring.submit_and_wait(0)?;
        match watch(&mut ring)? {
            Completion { result, .. } if result == -libc::ETIME => Ok(wall().saturating_sub(due)),
            other => Err(Failure::new(format!("a timeout completed as {other:?}"))),
        }
    })?;
    Ok(Report::of(engine, measured.ops, measured))
}

fn polls(window: Duration) -> Result<Report> {
    let (mut from, to) = pipe().doing(|| "making a pipe".into())?;
    let (go, begin) = channel();
    let (say, hear) = channel();
    std::thread::spawn(move || write_when_told(to, &begin, |moment| say.send(moment).is_ok()));
    let mut ring = Ring::new(8, 16, 0)?;
    let engine = Some(ring.engine());
    let ended = |_| Failure::new("the thread that writes has ended");
    let measured = measure("", window, usize::MAX, || {
        poll(&mut ring, from.as_raw_fd())?;
        ring.submit_and_wait(0)?;
        go.send(()).map_err(|_| ended(()))?;
        checked(watch(&mut ring)?)?;
        let seen = wall();
        let written: Duration = hear.recv().map_err(|_| ended(()))?;
        from.read_exact(&mut [0]).doing(|| "reading from a pipe".into())?;
        Ok(seen.saturating_sub(written))
    })?;
    Ok(Report::of(engine, measured.ops, measured))
}

/// Writes a little after each message of `begin`, and then reports the time of the write.
fn write_when_told(mut to: impl Write, begin: &Receiver<()>, say: impl Fn(Duration) -> bool) {
    while begin.recv().is_ok() {
        std::thread::sleep(AHEAD);
        let moment = wall();
        if to.write_all(&[0]).is_err() || !say(moment) {
            return;
        }
    }
}

/// Returns the next completion, found by polling the ring's memory only.
fn watch(ring: &mut Ring) -> Result<Completion> {
    let end = wall() + PATIENCE;
    loop {
        if let Some(completion) = ring.completion() {
            return Ok(completion);
        }
        if wall() > end {
            return Err(Failure::new("a completion that nobody waits for never came"));
        }
        std::hint::spin_loop();
    }
}

fn poll(ring: &mut Ring, file: i32) -> Result<()> {
    ring.push(Sqe { fd: file, op_flags: libc::POLLIN as u32, ..sqe(io_uring_op::IORING_OP_POLL_ADD, 0) })
}

fn checked(completion: Completion) -> Result<()> {
    match completion.result {
        1.. => Ok(()),
        _ => Err(Failure::new(format!("a poll completed as {completion:?}"))),
    }
}

/// Repeats `attempt`, which returns a delay, for `window`, at most `most` times and at least once.
fn measure(
    label: &str,
    window: Duration,
    most: usize,
    mut attempt: impl FnMut() -> Result<Duration>,
) -> Result<Window> {
    let (start, cpu_start) = (wall(), process_cpu());
    let mut delays = vec![attempt()?.as_nanos() as u64];
    while wall() - start < window && delays.len() < most {
        delays.push(attempt()?.as_nanos() as u64);
    }
    let cpu_ns = (process_cpu() - cpu_start).as_nanos() as u64;
    let (ops, wall_ns) = (delays.len() as u64, delays.iter().sum());
    let latency = Some(Latency::of(&mut delays));
    Ok(Window { label: label.into(), ops, wall_ns, cpu_ns, latency, ..Window::default() })
}
