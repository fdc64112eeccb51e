//! The faults that this process meets: it attaches to the plan of `anyring chaos`, of which `ANYRING_CHAOS` is the path.

use crate::config::{self, Level};
use crate::{log, sys};
use anyring_engine::frontend;
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::general as raw;

/// Attaches the process, where it is to meet faults; once.
pub fn begin() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    let Some(path) = config::chaos_path() else { return };
    if BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: the path ends with zero.
    let fd = unsafe { sys::open(path.as_ptr().cast(), raw::O_RDWR | raw::O_CLOEXEC, 0) };
    let attached = if fd < 0 { Err(fd) } else { frontend::plan_from(fd) };
    if fd >= 0 {
        sys::close(fd);
    }
    if let Err(error) = attached {
        let path = path.to_str().unwrap_or_default();
        log::line(Level::Off, format_args!("meets no faults: {path} cannot be used (errno {})", -error));
    }
}
