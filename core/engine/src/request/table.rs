//! The operations, by their opcodes.

use crate::request::op::Op;

/// The operation of each opcode.
pub struct Operations {
    by_code: [&'static Op; 256],
}

impl Operations {
    /// Makes the table of one operation for each opcode.
    pub const fn new(by_code: [&'static Op; 256]) -> Operations {
        Operations { by_code }
    }

    /// Returns the operation of an opcode.
    #[inline(always)]
    pub const fn lookup(&self, code: u8) -> &'static Op {
        self.by_code[code as usize]
    }
}
