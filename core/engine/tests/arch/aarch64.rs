//! aarch64.

// `struct user_pt_regs`: x0 to x30, sp, pc, pstate.
pub const REGISTERS: usize = 34;
pub const NUMBER: usize = 8;
pub const ARGUMENTS: [usize; 6] = [0, 1, 2, 3, 4, 5];
pub const RESULT: usize = 0;

/// On Arm that is a thread's matter, which it hands down to those that it makes.
pub fn allow_tags() -> Result<fn(u64) -> u64, &'static str> {
    const PR_SET_TAGGED_ADDR_CTRL: i32 = 55;
    // SAFETY: changes which addresses the kernel takes.
    match unsafe { libc::prctl(PR_SET_TAGGED_ADDR_CTRL, 1, 0, 0, 0) } {
        0 => Ok(|address| address | 0x2a << 56),
        _ => Err("the kernel takes no tagged addresses"),
    }
}
