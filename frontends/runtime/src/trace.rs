//! The connection to `anyring trace`: the process attaches to the reader's buffer, whose path is in `ANYRING_TRACE`.

use crate::{attach, config, process, sys};
use alloc::vec::Vec;
use anyring_engine::frontend;
use core::ffi::CStr;
use core::sync::atomic::AtomicBool;
use linux_raw_sys::general as raw;

/// The maximum length of the command line that is reported, in bytes.
const MOST: usize = 4096;

/// True if the process is to be traced.
pub fn is_wanted() -> bool {
    config::trace_path().is_some()
}

/// Attaches the process, which runs `engine`, to the trace buffer if it is to be traced; once. Returns true if it is attached.
pub fn begin(engine: u32) -> bool {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    attach::once(&BEGUN, config::trace_path(), "cannot be traced", |fd| {
        frontend::trace_to(fd, engine, &process::executable(), &arguments())
    })
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
