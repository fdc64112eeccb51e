//! The data that OPENAT and OPENAT2 keep.

use linux_raw_sys::general::open_how;

use crate::os::user::Path;

/// An open under way.
pub struct Open {
    /// The path to be opened.
    pub path: Path,
    /// The way in which it is opened.
    pub how: open_how,
    /// `openat(2)` ignores flags that it does not know, `openat2(2)` refuses them.
    pub strict: bool,
    /// A FIFO must be waited for, not opened at once.
    pub patient: bool,
    /// The file goes into a slot: no program that is executed meanwhile may inherit it.
    pub in_slot: bool,
}
