/// Are call sites patched, rather than trapped each time?
pub const PATCHES: bool = true;

/// Where Debian has the kernel's headers that are of one processor.
pub const HEADERS: &str = "/usr/include/x86_64-linux-gnu";
