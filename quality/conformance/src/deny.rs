//! Denies io_uring to a process the way container runtimes do: a seccomp filter that answers an errno.

use std::io;

/// `io_uring_setup`, `io_uring_enter` and `io_uring_register` are 425 to 427 on every architecture.
const FIRST: u32 = 425;
const LAST: u32 = 427;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_GE: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const JUMP_GT: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const fn insn(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Makes the three io_uring system calls fail with `errno` in this process and in all its descendants.
///
/// It cannot be taken back. The function makes two `prctl` calls and nothing else, so it may be called
/// between `fork` and `exec`.
pub fn deny_io_uring(errno: i32) -> io::Result<()> {
    let answer = libc::SECCOMP_RET_ERRNO | (errno as u32 & libc::SECCOMP_RET_DATA);
    let mut filter = [
        insn(LOAD_WORD, 0, 0, 0), // seccomp_data.nr
        insn(JUMP_GE, 0, 2, FIRST),
        insn(JUMP_GT, 1, 0, LAST),
        insn(RETURN, 0, 0, answer),
        insn(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: PR_SET_NO_NEW_PRIVS takes no pointer.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: `program` and the instructions it points to outlive the call; the kernel copies both.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
