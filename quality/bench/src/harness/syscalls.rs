//! Counts the system calls of child processes, by the tracepoint that every system call passes.
//!
//! The kernel applies seccomp before the tracepoint: a call that a filter traps or refuses is not
//! counted, but the `rt_sigreturn` that ends a trap is.

use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;

const TRACEPOINT: u32 = 2;
const INHERIT: u64 = 1 << 1;
const CLOSE_ON_EXEC: u64 = 1 << 3;

/// The first version of `struct perf_event_attr`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

/// A running count of the system calls of this process and of the children that it starts from now on.
pub struct Counter {
    event: File,
    start: u64,
}

impl Counter {
    /// Starts counting; returns `None` without the permission (root, or a readable tracefs and a low
    /// `perf_event_paranoid`).
    pub fn start() -> Option<Self> {
        let attributes = Attributes {
            kind: TRACEPOINT,
            size: size_of::<Attributes>() as u32,
            config: tracepoint()?,
            flags: INHERIT,
            ..Attributes::default()
        };
        let (this_process, every_cpu, no_group) = (0, -1, -1);
        // SAFETY: the attributes live through the call and have the size they name.
        let descriptor = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &attributes,
                this_process,
                every_cpu,
                no_group,
                CLOSE_ON_EXEC,
            )
        };
        let descriptor = i32::try_from(descriptor).ok().filter(|&fd| fd >= 0)?;
        // SAFETY: the descriptor is fresh and nobody else's.
        let event = unsafe { File::from_raw_fd(descriptor) };
        let mut counter = Self { event, start: 0 };
        counter.start = counter.read();
        Some(counter)
    }

    /// Returns the system calls since the start. The calls of a child are complete when it has ended.
    pub fn count(&mut self) -> u64 {
        self.read() - self.start
    }

    fn read(&mut self) -> u64 {
        let mut bytes = [0; 8];
        match self.event.read_exact(&mut bytes) {
            Ok(()) => u64::from_ne_bytes(bytes),
            Err(_) => 0,
        }
    }
}

fn tracepoint() -> Option<u64> {
    ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
        .iter()
        .find_map(|root| std::fs::read_to_string(format!("{root}/events/raw_syscalls/sys_enter/id")).ok())
        .and_then(|id| id.trim().parse().ok())
}
