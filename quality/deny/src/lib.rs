//! Denies io_uring to a process as container runtimes do, and system calls that an older kernel lacks as that kernel
//! does, by seccomp filters that return an errno.

mod arch;
mod container;
mod like;
mod newer;

use std::io;

pub use container::confine;
pub use like::{Like, play};

/// `io_uring_setup`, `io_uring_enter` and `io_uring_register` are 425 to 427 on every architecture.
const FIRST: u32 = 425;
const LAST: u32 = 427;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const JUMP_EQ: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_GE: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const JUMP_GT: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const JUMP_ANY: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const fn insn(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

const ALLOW: libc::sock_filter = insn(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);

/// Returns the instruction by which a filter fails a call with `errno`.
const fn refuse(errno: i32) -> libc::sock_filter {
    insn(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | (errno as u32 & libc::SECCOMP_RET_DATA))
}

/// Makes the three io_uring system calls fail with `errno` in this process and in all its descendants.
///
/// The filter cannot be removed. The function makes two `prctl` calls and nothing else, so it may be
/// called between `fork` and `exec`.
pub fn deny_io_uring(errno: i32) -> io::Result<()> {
    install(&mut [
        insn(LOAD_WORD, 0, 0, 0), // seccomp_data.nr
        insn(JUMP_GE, 0, 2, FIRST),
        insn(JUMP_GT, 1, 0, LAST),
        refuse(errno),
        ALLOW,
    ])
}

/// Installs a filter for this thread and its children, by two `prctl` calls.
fn install(filter: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: PR_SET_NO_NEW_PRIVS takes no pointer.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: `program` and the instructions it points to outlive the call; the kernel copies both.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
