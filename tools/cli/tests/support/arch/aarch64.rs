/// Sites of `sites-*.c` that are patched while threads run: all.
pub const SITES: u64 = 24;
/// Whether the bytes of an operand may look like a call site: instructions are words here.
pub const HAS_OPERANDS: bool = false;

/// Where Debian has the kernel's headers that are of one processor.
pub const HEADERS: &str = "/usr/include/aarch64-linux-gnu";
