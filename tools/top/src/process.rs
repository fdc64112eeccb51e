//! A process, as `/proc` shows it, and descriptors that are duplicated from it.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::refusal::{Refusal, Step};

/// A process, which is not confused with a later one that gets its number.
#[derive(Debug)]
pub struct Process {
    id: u32,
    pidfd: OwnedFd,
}

impl Process {
    /// Opens the process with this number.
    ///
    /// # Errors
    /// A refusal if there is no such process, or the kernel is older than Linux 5.3.
    pub fn open(id: u32) -> Result<Process, Refusal> {
        // SAFETY: the call takes integers.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, id, 0) };
        if pidfd < 0 {
            return Err(Refusal::last(Step::OpenProcess, id));
        }
        // SAFETY: a fresh descriptor, which nobody else has.
        Ok(Process { id, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd as RawFd) } })
    }

    /// Returns the number of the process.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Duplicates a descriptor of the process. The file lives as long as the duplicate.
    ///
    /// # Errors
    /// A refusal if the caller may not trace the process, or there is no such descriptor.
    pub fn duplicate(&self, fd: RawFd) -> Result<OwnedFd, Refusal> {
        // SAFETY: the call takes integers.
        let taken = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.pidfd.as_raw_fd(), fd, 0) };
        if taken < 0 {
            return Err(Refusal::last(Step::TakeDescriptor, self.id));
        }
        // SAFETY: a fresh descriptor, which nobody else has.
        Ok(unsafe { OwnedFd::from_raw_fd(taken as RawFd) })
    }

    /// Lists the descriptors of the process.
    ///
    /// # Errors
    /// A refusal if the process is another user's.
    pub fn descriptors(&self) -> Result<Vec<RawFd>, Refusal> {
        descriptors(self.id).map_err(|error| Refusal::new(Step::ListDescriptors, self.id, error))
    }

    /// True if the process has ended; its descriptors are closed by then.
    pub fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// Waits for `timeout` at most; returns true if the process has ended.
    pub fn ends_within(&self, timeout: Duration) -> bool {
        let mut polled = libc::pollfd { fd: self.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: structures of ours.
        unsafe { libc::ppoll(&raw mut polled, 1, &raw const timeout, std::ptr::null()) > 0 }
    }

    /// Checks that the caller may take descriptors from the process.
    ///
    /// # Errors
    /// A refusal if the caller lacks the rights.
    pub fn check_rights(&self) -> Result<(), Refusal> {
        const NONE: RawFd = -1;
        match self.duplicate(NONE) {
            Err(refusal) if !refusal.is_end() => Err(refusal),
            // The kernel checks the rights before the descriptor.
            _ => Ok(()),
        }
    }
}

/// Returns the numbers of all processes.
pub fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut all: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    all.sort_unstable();
    all
}

/// True if a process may have descriptors: it has not ended, and is not a kernel thread.
pub fn may_have_descriptors(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|status| is_program(&status))
}

/// True if a line of `/proc/PID/stat` is that of a running program.
fn is_program(status: &str) -> bool {
    const KERNEL_THREAD: u64 = 0x20_0000;
    let Some((_, behind_name)) = status.rsplit_once(')') else { return false };
    let mut fields = behind_name.split_whitespace();
    let has_ended = fields.next().is_none_or(|state| matches!(state, "Z" | "X"));
    // The parent, the group, the session, the terminal and its group are between the state and the flags.
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok());
    !has_ended && flags.is_some_and(|flags| flags & KERNEL_THREAD == 0)
}

/// Returns the user that a process belongs to.
pub fn owner(process: u32) -> Option<u32> {
    Some(fs::metadata(format!("/proc/{process}")).ok()?.uid())
}

/// Returns the name of the program that a process runs, as `ps` shows it.
pub fn program(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    name.trim_end().chars().map(|symbol| if symbol.is_control() { '?' } else { symbol }).collect()
}

/// Lists the descriptors of a process.
///
/// # Errors
/// An error if the process is another user's, or does not exist.
pub fn descriptors(process: u32) -> io::Result<Vec<RawFd>> {
    let entries = fs::read_dir(format!("/proc/{process}/fd"))?;
    let mut all: Vec<RawFd> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    all.sort_unstable();
    Ok(all)
}

/// Returns the processes that a process has started and that have not been waited for; none if the process has ended.
pub fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// True if the kernel lists the children of processes (`CONFIG_PROC_CHILDREN`).
pub fn lists_children() -> bool {
    fs::exists("/proc/thread-self/children").unwrap_or(false)
}

/// Returns the target of a descriptor's link in `/proc`.
pub fn target(process: u32, fd: RawFd) -> Option<String> {
    let target = fs::read_link(format!("/proc/{process}/fd/{fd}")).ok()?;
    Some(target.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_zombies_nor_threads_of_the_kernel_have_descriptors() {
        assert!(is_program("11 (a) b) S 1 11 11 0 -1 4194560 7 0"));
        assert!(!is_program("11 (a) Z 1 11 11 0 -1 4194560 7 0"));
        assert!(!is_program("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0"));
        assert!(may_have_descriptors(std::process::id()));
    }
}
