//! A program that is started repeatedly and measured from outside.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use clap::Args as ClapArgs;

use super::clock::wall;
use super::ring::{Ring, Sqe, io_uring_op, sqe};
use super::{Latency, Report, Window, memory, repeat_for};
use crate::failure::{Doing, Failure, Result};

/// The number of reads of the program that reads, and the bytes of each.
const READS: u32 = 32;
const READ_BYTES: usize = 4096;

/// Arguments of the workload.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// How many programs the command runs, which are the operations.
    #[arg(long, default_value_t = 1)]
    programs: u64,
    /// Milliseconds to measure.
    #[arg(long, default_value_t = 500)]
    window_ms: u64,
    /// Measure from the time that the program prints, in nanoseconds on the monotonic clock.
    #[arg(long)]
    from_printed: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Arguments of the program that reads.
#[derive(Clone, Debug, ClapArgs)]
pub struct ReadArgs {
    /// The file, of 1 MiB at least.
    #[arg(long)]
    file: PathBuf,
    /// Open the file with `O_DIRECT`.
    #[arg(long)]
    direct: bool,
    /// Milliseconds between the last read and the end.
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
}

/// Reads a file by a ring, and prints the time just before the process ends.
pub fn read(args: &ReadArgs) -> Result<()> {
    let flags = if args.direct { libc::O_DIRECT } else { 0 };
    let file = File::options().read(true).custom_flags(flags).open(&args.file);
    let file = file.doing(|| format!("opening {}", args.file.display()))?;
    let mut ring = Ring::new(READS, 2 * READS, 0)?;
    let memory = memory(READS as usize * READ_BYTES)?;
    for number in 0..READS {
        let off = u64::from(number) * READ_BYTES as u64;
        let read = sqe(io_uring_op::IORING_OP_READ, off);
        let addr = memory as u64 + off;
        ring.push(Sqe { fd: file.as_raw_fd(), off, addr, len: READ_BYTES as u32, ..read })?;
    }
    ring.submit_and_wait(READS)?;
    for _ in 0..READS {
        match ring.completion() {
            Some(completion) if completion.result == READ_BYTES as i32 => {}
            other => return Err(Failure::new(format!("a read completed as {other:?}"))),
        }
    }
    std::thread::sleep(Duration::from_millis(args.pause_ms));
    println!("{}", wall().as_nanos());
    Ok(())
}

/// Runs the command repeatedly, each time from its start to its end.
pub fn run(args: &Args) -> Result<Report> {
    let window = Duration::from_millis(args.window_ms);
    let (mut times, cpu_start) = (Vec::new(), children_cpu()?);
    let (measured, total_ops) = repeat_for(window, || {
        let mut began = wall();
        let printed = run_once(&args.command)?;
        if args.from_printed {
            let began_ns =
                printed.trim().parse().doing(|| "reading the time that the program printed".into())?;
            began = Duration::from_nanos(began_ns);
        }
        times.push((wall() - began).as_nanos() as u64 / args.programs);
        Ok(args.programs)
    })?;
    // The CPU time includes the warm-up, and is scaled to the measured operations.
    let cpu = (children_cpu()? - cpu_start).as_nanos() as u64;
    let cpu_ns = cpu * measured.ops / total_ops;
    let latency = Some(Latency::of(&mut times));
    let window = Window { cpu_ns, latency, ..measured };
    Ok(Report::of(None, total_ops, window))
}

/// Runs a command, and returns its output.
fn run_once(words: &[OsString]) -> Result<String> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::inherit());
    let Output { status, stdout, .. } =
        command.output().doing(|| format!("starting {}", words[0].display()))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    Err(Failure::new(format!("{} failed ({status})", words[0].display())))
}

/// Returns the CPU time of all children that have been waited for.
fn children_cpu() -> Result<Duration> {
    // SAFETY: all-zero bytes are a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the result lives through the call.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) } != 0 {
        return Err(Failure::errno("getrusage"));
    }
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    Ok(time(usage.ru_utime) + time(usage.ru_stime))
}
