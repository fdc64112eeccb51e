//! Refusals to look at a process's ring.

use std::fmt;
use std::io;

/// The step that a process or the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Naming the process (`pidfd_open`).
    OpenProcess,
    /// Listing the descriptors of the process (`/proc/PID/fd`).
    ListDescriptors,
    /// Duplicating the ring's descriptor (`pidfd_getfd`).
    TakeDescriptor,
    /// Mapping the ring's memory.
    MapMemory,
}

/// A refused step, with the system's error.
#[derive(Debug)]
pub struct Refusal {
    step: Step,
    process: u32,
    error: io::Error,
}

impl Refusal {
    /// Returns the refusal of a step by the error of the last system call.
    pub fn last(step: Step, process: u32) -> Refusal {
        Refusal { step, process, error: io::Error::last_os_error() }
    }

    /// Returns the refusal of a step by this error.
    pub fn new(step: Step, process: u32, error: io::Error) -> Refusal {
        Refusal { step, process, error }
    }

    /// True if the process or the descriptor does not exist any more, which is no failure.
    pub fn is_end(&self) -> bool {
        matches!(self.error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT | libc::EBADF))
    }

    /// True if the caller lacks a right.
    pub fn is_denied(&self) -> bool {
        matches!(self.error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
    }

    /// True if the descriptor's file has no memory of a ring, or does not have it yet.
    pub fn is_no_ring(&self) -> bool {
        self.step == Step::MapMemory && self.error.kind() == io::ErrorKind::InvalidData
    }

    /// Returns the likely cause.
    pub fn why(&self) -> String {
        match self.error.raw_os_error() {
            Some(libc::EINVAL | libc::ENOENT) if self.step == Step::OpenProcess => {
                "the number is that of a thread: its process has another one".into()
            }
            Some(libc::ESRCH | libc::ENOENT) => "there is no such process".into(),
            Some(libc::ENOSYS) => "this kernel does not have the call (pidfd_getfd: Linux 5.6)".into(),
            Some(libc::EPERM | libc::EACCES) => self.why_denied(),
            None if self.is_no_ring() => {
                "the ring was half made or resized at that moment, or the program has written over its sizes, \
                 or another file is called as a ring's"
                    .into()
            }
            _ => String::new(),
        }
    }

    /// Returns which of the rights is missing that the kernel requires (`PTRACE_MODE_ATTACH_REALCREDS`).
    fn why_denied(&self) -> String {
        let owner = crate::process::owner(self.process);
        // SAFETY: asks only.
        let own = unsafe { libc::getuid() };
        if owner.is_some_and(|owner| owner != own) && own != 0 {
            return format!(
                "process {} belongs to another user, and the call needs the rights of ptrace(2)",
                self.process
            );
        }
        let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
        match scope.trim() {
            "" | "0" => {
                "the call needs the rights of ptrace(2): the process has more capabilities than the caller, \
                         is not dumpable, lives in another user namespace, or a sandbox denies the call"
                    .into()
            }
            level => {
                format!("the call needs the rights of ptrace(2), and kernel.yama.ptrace_scope is {level}")
            }
        }
    }

    /// Returns the remedy.
    pub fn remedy(&self) -> &'static str {
        match self.error.raw_os_error() {
            Some(libc::ESRCH | libc::ENOENT) => "see ps for the processes that there are",
            Some(libc::ENOSYS) => "start the program by anyring trace -- PROGRAM",
            Some(libc::EPERM | libc::EACCES) => {
                "run anyring as root or with CAP_SYS_PTRACE, or start the program by anyring trace -- PROGRAM"
            }
            None if self.is_no_ring() => {
                "look again; if that does not help, start the program by anyring trace -- PROGRAM"
            }
            _ => "",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.step {
            Step::OpenProcess => "open",
            Step::ListDescriptors => "list the descriptors of",
            Step::TakeDescriptor => "take a ring's descriptor from (pidfd_getfd)",
            Step::MapMemory => "map the memory of a ring of",
        };
        write!(f, "cannot {what} process {}: {}", self.process, self.error)
    }
}

impl std::error::Error for Refusal {}
