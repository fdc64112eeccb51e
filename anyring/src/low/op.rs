//! The operations.

use super::entry::Sqe;
use anyring_engine::memory::Sqe as Raw;

/// Does nothing.
#[derive(Clone, Copy, Debug)]
pub struct Nop(Sqe);

impl Nop {
    /// A no-op.
    pub fn new() -> Nop {
        Nop(Sqe(Raw { fd: -1, ..Raw::default() }))
    }

    /// The entry.
    pub fn build(self) -> Sqe {
        self.0
    }
}

impl Default for Nop {
    fn default() -> Nop {
        Nop::new()
    }
}

/// The name of an operation.
pub fn name(opcode: u8) -> &'static str {
    anyring_engine::ops::lookup(opcode).name
}
