//! x86-64.

// `struct user_regs_struct`.
pub const REGISTERS: usize = 27;
/// orig_rax
pub const NUMBER: usize = 15;
/// rdi, rsi, rdx, r10, r8, r9
pub const ARGUMENTS: [usize; 6] = [14, 13, 12, 7, 9, 8];
/// rax
pub const RESULT: usize = 10;

/// Linear Address Masking is a process's matter, and to be asked for while it has one thread.
pub fn allow_tags() -> Result<fn(u64) -> u64, &'static str> {
    const ARCH_ENABLE_TAGGED_ADDR: i32 = 0x4002;
    // SAFETY: changes which addresses the kernel takes.
    match unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_ENABLE_TAGGED_ADDR, 6) } {
        0 => Ok(|address| address | 0x2a << 57),
        _ => Err("no Linear Address Masking here, or no more, for there are threads"),
    }
}
