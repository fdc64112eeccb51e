//! A test in a process of its own, which is ended with all its children.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The process exited with status 0.
    Good,
    /// The process exited with another status, or was killed by a signal.
    Bad,
    /// The process was killed because it took too long.
    Late,
}

/// The maximum size of a mutant's data: more than any test needs. Address space that is only reserved does not count.
const MEMORY_BYTES: u64 = 8 << 30;

/// Runs a command for at most `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Result<(End, Duration)> {
    let started = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: makes only calls that a forked child may make.
    unsafe {
        command.pre_exec(|| {
            let bound = |bytes| libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            libc::setsid();
            // The child dies with this program.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::setrlimit(libc::RLIMIT_DATA, &bound(MEMORY_BYTES));
            Ok(())
        });
    }
    let mut child = command.spawn().with_context(|| format!("{:?} starts", command.get_program()))?;
    let pid = child.id() as libc::pid_t;
    // SAFETY: opens a descriptor of our child, which has not been waited for.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    ensure!(pidfd >= 0, "a descriptor for a child");
    // SAFETY: the descriptor is open, and ours.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd as i32) };
    let mut poll = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    let ended = unsafe { libc::poll(&mut poll, 1, limit.as_millis() as i32) };
    let took = started.elapsed();
    // SAFETY: signals the group of a child that is not reaped yet, so the number is not reused.
    unsafe { libc::kill(-pid, libc::SIGKILL) };
    let status = child.wait().context("the child's end")?;
    let end = match (ended, status.success()) {
        (1.., true) => End::Good,
        (1.., false) => End::Bad,
        _ => End::Late,
    };
    Ok((end, took))
}
