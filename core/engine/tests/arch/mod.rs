//! Differences between processors. The registers of a traced thread (`NT_PRSTATUS`) in which a system call stands, for one:
//! `PTRACE_GET_SYSCALL_INFO` would know, but not before Linux 5.3.
#![allow(dead_code, reason = "each test program uses its own part")]

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as machine;
#[cfg(target_arch = "x86_64")]
use x86_64 as machine;

/// Has the kernel take addresses with a tag from this thread; returns what gives an address one.
///
/// # Errors
/// Why it does not.
pub fn allow_tags() -> Result<fn(u64) -> u64, &'static str> {
    machine::allow_tags()
}

/// A thread that is stopped at the begin or the end of a system call.
pub struct Stopped([u64; machine::REGISTERS]);

impl Stopped {
    /// Looks at a thread that this one traces.
    pub fn look(thread: libc::pid_t) -> Stopped {
        const NT_PRSTATUS: libc::c_long = 1;
        let mut registers = [0; machine::REGISTERS];
        let mut room =
            libc::iovec { iov_base: registers.as_mut_ptr().cast(), iov_len: size_of_val(&registers) };
        // SAFETY: the kernel writes into the registers, as many as there is room for.
        let done = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, thread, NT_PRSTATUS, &raw mut room) };
        assert_eq!((done, room.iov_len), (0, size_of_val(&registers)));
        Stopped(registers)
    }

    /// The call's number, at its begin.
    pub fn number(&self) -> i64 {
        self.0[machine::NUMBER] as i64
    }

    /// Its arguments, at its begin.
    pub fn arguments(&self) -> [u64; 6] {
        machine::ARGUMENTS.map(|register| self.0[register])
    }

    /// The result of the call, at its end.
    pub fn result(&self) -> i64 {
        self.0[machine::RESULT] as i64
    }
}
