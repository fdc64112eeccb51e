//! `struct user_regs_struct`.

pub const REGISTERS: usize = 27;
/// orig_rax
pub const NUMBER: usize = 15;
/// rdi, rsi, rdx, r10, r8, r9
pub const ARGUMENTS: [usize; 6] = [14, 13, 12, 7, 9, 8];
/// rax
pub const RESULT: usize = 10;
