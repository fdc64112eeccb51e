/// Sites of `sites-*.c` that are patched while threads run: those that lie in one word, half of the 24.
pub const SITES: u64 = 12;
/// Whether the bytes of an operand may look like a call site.
pub const HAS_OPERANDS: bool = true;

/// Where Debian has the kernel's headers that are of one processor.
pub const HEADERS: &str = "/usr/include/x86_64-linux-gnu";
