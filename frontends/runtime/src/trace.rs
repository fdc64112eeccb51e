//! What `anyring trace` hears of this process: it attaches to the reader's buffer, of which `ANYRING_TRACE` is the path.

use crate::config::{self, Level};
use crate::{log, sys};
use alloc::vec::Vec;
use anyring_engine::frontend;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::general as raw;

/// The longest program's path or arguments that are told.
const MOST: usize = 4096;

/// Whether the process is to be traced.
pub fn is_wanted() -> bool {
    config::trace_path().is_some()
}

/// Attaches the process, which runs `engine`, where it is to be traced; once. Whether it is attached.
pub fn begin(engine: u32) -> bool {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    let Some(path) = config::trace_path() else { return false };
    if BEGUN.swap(true, Ordering::Relaxed) {
        return true;
    }
    // SAFETY: the path ends with zero.
    let fd = unsafe { sys::open(path.as_ptr().cast(), raw::O_RDWR | raw::O_CLOEXEC, 0) };
    let attached = if fd < 0 { Err(fd) } else { frontend::trace_to(fd, engine, &program(), &arguments()) };
    if fd >= 0 {
        sys::close(fd);
    }
    if let Err(error) = attached {
        let path = path.to_str().unwrap_or_default();
        log::line(Level::Off, format_args!("cannot be traced: {path} (errno {})", -error));
    }
    attached.is_ok()
}

fn program() -> Vec<u8> {
    let mut path = alloc::vec![0; MOST];
    let length = sys::read_link(c"/proc/self/exe", &mut path);
    path.truncate(usize::try_from(length).unwrap_or(0));
    path
}

fn arguments() -> Vec<u8> {
    const PATH: &CStr = c"/proc/self/cmdline";
    let mut text = alloc::vec![0; MOST];
    // SAFETY: the path ends with zero.
    let fd = unsafe { sys::open(PATH.as_ptr().cast(), raw::O_RDONLY | raw::O_CLOEXEC, 0) };
    let length = sys::read(fd, &mut text);
    text.truncate(usize::try_from(length).unwrap_or(0));
    if fd >= 0 {
        sys::close(fd);
    }
    text
}
