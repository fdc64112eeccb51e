//! `anyring-deny [--enosys] [--container] [--like VERSION] CMD...`: runs a program with io_uring denied, in the sandbox of a
//! container, or as on an older kernel.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyring_deny::{Like, confine, deny_io_uring, play};
use clap::Parser;

/// Run a program with the three io_uring system calls answered EPERM, as a container's seccomp profile does.
#[derive(Parser)]
#[command(name = "anyring-deny", version, after_help = DETAILS)]
struct Args {
    /// Answer ENOSYS instead, as a kernel without io_uring does
    #[arg(long)]
    enosys: bool,
    /// Answer all system calls as the default profile of Docker and podman does: what it does not list, ENOSYS or EPERM
    #[arg(long, conflicts_with = "enosys")]
    container: bool,
    /// Answer other system calls and flags, too, as this kernel does: those that it does not know
    #[arg(long, value_name = "VERSION")]
    like: Option<Like>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

const DETAILS: &str = "\
Examples:
  anyring-deny fio job.fio                         as in a container: fails, and says why
  anyring-deny anyring run -- fio job.fio          the same under anyring: works
  anyring-deny --container anyring run -- fio job.fio
                                                   where kcmp, futex_waitv, vmsplice... are refused, too
  anyring-deny --like 5.4 anyring run -- fio job.fio
                                                   where openat2, epoll_pwait2, close_range... are missing, too
  anyring-deny --like 4.18 python3 -c 'import os; os.pidfd_open(1)'
                                                   Function not implemented: it came with 5.3

What --like plays:
  System calls that are newer than the kernel answer ENOSYS; flags, options and commands that are newer answer what the kernel
  answers to them (EINVAL, EOPNOTSUPP, ENOPROTOOPT, ENOTTY...). io_uring is of 5.1: with --like 4.18 it answers ENOSYS, with a
  newer kernel EPERM, or ENOSYS with --enosys.

What it cannot play, for a filter sees the numbers in registers only:
  - what stands in memory: arguments of clone3 and openat2 (RESOLVE_CACHED), IOCB_CMD_POLL of io_submit (4.19), lengths of
    TCP_ZEROCOPY_RECEIVE, requests of bpf and perf_event_open
  - flags that the kernel ignores rather than refuses: CLONE_PIDFD of clone, IN_MASK_CREATE, bits of statx's mask
  - what depends on the file behind a descriptor: MSG_ZEROCOPY over UDP (5.0) and vsock (6.7), RWF_NOWAIT on pipes and tmpfs
  - uname, /proc, /sys and sysctls, which stay those of this machine, as its faults and its speed do
  - programs of another architecture (32-bit ones), for which io_uring alone is denied";

fn main() -> ExitCode {
    let args = Args::parse();
    let lacks_io_uring = args.like.is_some_and(|like| !like.has_io_uring());
    let errno = if args.enosys || lacks_io_uring { libc::ENOSYS } else { libc::EPERM };
    let confined = if args.container { confine() } else { deny_io_uring(errno) };
    if let Err(error) = args.like.map_or(Ok(()), play).and(confined) {
        eprintln!("anyring-deny: cannot install the seccomp filter: {error}");
        eprintln!(
            "  The kernel must have CONFIG_SECCOMP_FILTER, and a sandbox around this must allow seccomp."
        );
        return ExitCode::from(126);
    }
    let error = Command::new(&args.command[0]).args(&args.command[1..]).exec();
    eprintln!("anyring-deny: cannot run {}: {error}", args.command[0].to_string_lossy());
    ExitCode::from(127)
}
