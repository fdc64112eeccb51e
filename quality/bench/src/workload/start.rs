//! A program that is started again and again, and measured from outside.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args as ClapArgs;

use super::clock::wall;
use super::{Latency, Report, Window, repeat_for};
use crate::failure::{Doing, Failure, Result};

/// Arguments of the workload.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// How many programs the command runs, which are the operations.
    #[arg(long, default_value_t = 1)]
    programs: u64,
    /// Milliseconds to measure.
    #[arg(long, default_value_t = 500)]
    window_ms: u64,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Runs the command from its start to its end, one after the other.
pub fn run(args: &Args) -> Result<Report> {
    let window = Duration::from_millis(args.window_ms);
    let (mut times, cpu_start) = (Vec::new(), children_cpu()?);
    let (measured, total_ops) = repeat_for(window, || {
        let began = wall();
        run_once(&args.command)?;
        times.push((wall() - began).as_nanos() as u64 / args.programs);
        Ok(args.programs)
    })?;
    // That of the warm-up is in it, in proportion.
    let cpu = (children_cpu()? - cpu_start).as_nanos() as u64;
    let cpu_ns = cpu * measured.ops / total_ops;
    let latency = Some(Latency::of(&mut times));
    let window = Window { cpu_ns, latency, ..measured };
    Ok(Report::of(None, total_ops, window))
}

fn run_once(words: &[OsString]) -> Result<()> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status().doing(|| format!("starting {}", words[0].display()))?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::new(format!("{} failed ({status})", words[0].display())))
}

/// CPU time of all children that have ended.
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
