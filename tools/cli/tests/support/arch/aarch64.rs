/// Are call sites patched, rather than trapped each time?
pub const PATCHES: bool = false;

/// Where Debian has the kernel's headers that are of one processor.
pub const HEADERS: &str = "/usr/include/aarch64-linux-gnu";
