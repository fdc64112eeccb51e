//! `struct user_pt_regs`: x0 to x30, sp, pc, pstate.

pub const REGISTERS: usize = 34;
pub const NUMBER: usize = 8;
pub const ARGUMENTS: [usize; 6] = [0, 1, 2, 3, 4, 5];
pub const RESULT: usize = 0;
