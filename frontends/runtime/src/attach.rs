//! Attaching a process to a memory file of the command that started it.

use crate::config::Level;
use crate::{log, sys};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::general as raw;

/// Opens the file at `path`, and calls `attach` with the descriptor, which is closed after the call. Logs `without` and the reason, and
/// returns false, if this fails; returns false if there is no path. Further calls with this `begun` only return true.
pub fn once(
    begun: &AtomicBool,
    path: Option<&CStr>,
    without: &str,
    attach: impl FnOnce(i32) -> Result<(), i32>,
) -> bool {
    let Some(path) = path else { return false };
    if begun.swap(true, Ordering::Relaxed) {
        return true;
    }
    // SAFETY: the path ends with zero.
    let fd = unsafe { sys::open(path.as_ptr().cast(), raw::O_RDWR | raw::O_CLOEXEC, 0) };
    let attached = if fd < 0 { Err(fd) } else { attach(fd) };
    if fd >= 0 {
        sys::close(fd);
    }
    if let Err(error) = attached {
        let path = path.to_str().unwrap_or_default();
        log::line(Level::Off, format_args!("{without}: cannot use {path} (errno {})", -error));
    }
    attached.is_ok()
}
