//! Data that OPENAT and OPENAT2 keep.

use linux_raw_sys::general::open_how;

use crate::os::user::Path;

/// The arguments of an open in progress.
pub struct Open {
    /// The path to open.
    pub path: Path,
    /// Flags, mode and resolution.
    pub how: open_how,
    /// Unknown flags are refused, as by `openat2(2)`; `openat(2)` ignores them.
    pub strict: bool,
    /// The open waits for the other end of a FIFO, instead of failing or succeeding immediately.
    pub patient: bool,
    /// The file goes into a slot, so it is opened close-on-exec: no program executed meanwhile may inherit it.
    pub in_slot: bool,
}
