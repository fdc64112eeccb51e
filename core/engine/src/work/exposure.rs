//! How much work there is in the process on descriptors of the program, whose files must outlive a `close`.

use crate::os::sync::atomic::{AtomicU64, Ordering};

static PIECES: AtomicU64 = AtomicU64::new(0);

/// Such a piece of work was queued.
pub(super) fn begins() {
    PIECES.fetch_add(1, Ordering::Relaxed);
}

/// It is done or dropped, or holds its file.
pub(super) fn ends() {
    PIECES.fetch_sub(1, Ordering::Relaxed);
}

/// Is there any?
pub fn is_any() -> bool {
    PIECES.load(Ordering::Relaxed) > 0
}

/// In a child after `fork`: it is all the parent's.
pub fn forked() {
    PIECES.store(0, Ordering::Relaxed);
}
