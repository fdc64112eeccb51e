//! A test in a process of its own, which ends with all that it started.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// With status 0.
    Good,
    /// With another, or by a signal.
    Bad,
    /// The program was killed, for it took too long.
    Late,
}

/// The bytes that a mutant may take for its data: more than any test does. Addresses that are only reserved are no memory.
const MEMORY_BYTES: u64 = 8 << 30;

/// Runs a command, for `limit` at most.
pub fn run(command: &mut Command, limit: Duration) -> Result<(End, Duration)> {
    let started = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: calls that a forked child may make.
    unsafe {
        command.pre_exec(|| {
            let bound = |bytes| libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            libc::setsid();
            // Nobody is left behind where this program is ended.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::setrlimit(libc::RLIMIT_DATA, &bound(MEMORY_BYTES));
            Ok(())
        });
    }
    let mut child = command.spawn().with_context(|| format!("{:?} starts", command.get_program()))?;
    let pid = child.id() as libc::pid_t;
    // SAFETY: opens a descriptor for our child, which nobody has waited for.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    ensure!(pidfd >= 0, "a descriptor for a child");
    // SAFETY: it is open, and ours.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd as i32) };
    let mut poll = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    let ended = unsafe { libc::poll(&mut poll, 1, limit.as_millis() as i32) };
    let took = started.elapsed();
    // SAFETY: the group of a child that is not reaped yet, so the number is no other's.
    unsafe { libc::kill(-pid, libc::SIGKILL) };
    let status = child.wait().context("the child's end")?;
    let end = match (ended, status.success()) {
        (1.., true) => End::Good,
        (1.., false) => End::Bad,
        _ => End::Late,
    };
    Ok((end, took))
}
