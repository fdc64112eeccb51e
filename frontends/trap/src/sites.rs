//! Patched call sites of a static program, of which the tracer that patches them (`tools/cli/src/inject`) and the image that they enter
//! (`frontends/inject`) have to agree.

use anyring_runtime::calls;
use core::mem::offset_of;

/// The data before the stubs.
#[repr(C)]
pub struct Block {
    /// By the lower half of a call's number, whether the call enters the engine: not before the image says so.
    pub table: [u8; 1 << 16],
    /// Where stubs jump.
    pub entry: usize,
    /// How many sites jump to stubs.
    pub sites: u64,
}

impl Block {
    /// Bytes before the first stub: whole pages, for code is protected otherwise.
    pub const BYTES: usize = size_of::<Self>().next_multiple_of(4096);
    /// Where the table lies, from the block's start.
    pub const TABLE: usize = offset_of!(Self, table);
    /// Where the entry's address lies.
    pub const ENTRY: usize = offset_of!(Self, entry);
    /// Where the number of sites lies.
    pub const SITES: usize = offset_of!(Self, sites);
}

/// Whether a call with this number is to enter the engine.
pub fn enters(number: u32) -> bool {
    calls::is_ring_call(number as usize)
}
