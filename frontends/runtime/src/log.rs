//! Lines for the user, formatted on the stack and written in one piece.

use crate::config::{self, Level};
use crate::{process, sys};
use core::ffi::CStr;
use core::fmt::{self, Write};
use core::sync::atomic::Ordering;
use linux_raw_sys::general::{O_APPEND, O_CREAT, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, O_WRONLY};

/// A line of bounded length; what is too long is cut.
struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Room for the newline is kept.
        let room = self.bytes.len() - 1 - self.length;
        let taken = text.len().min(room);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}

/// Writes `anyring[pid]: ` and the message, if the level asks for it.
pub fn line(level: Level, message: fmt::Arguments<'_>) {
    if config::level() < level {
        return;
    }
    write(message);
}

/// Writes `anyring[pid]: ` and the message, whatever the level.
pub fn write(message: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 512], length: 0 };
    let _ = write!(line, "anyring[{}]: {message}", process::own_id());
    line.bytes[line.length] = b'\n';
    write_bytes(&line.bytes[..=line.length]);
}

/// Writes whole lines, as they are, whatever the level.
pub fn write_text(text: &str) {
    write_bytes(text.as_bytes());
}

fn write_bytes(bytes: &[u8]) {
    let Some(path) = path() else {
        sys::write(config::LOG_FD.load(Ordering::Relaxed), bytes);
        return;
    };
    let fd = open(path);
    // What has become of descriptor 2 meanwhile is the program's affair: no line goes there instead.
    if fd >= 0 {
        sys::write(fd, bytes);
        sys::close(fd);
    }
}

/// Whether lines can be written, if there are to be any.
///
/// # Errors
/// The file that cannot be opened, and the errno.
pub fn check() -> Result<(), (&'static CStr, i32)> {
    match path().filter(|_| config::level() > Level::Off).map(|path| (path, open(path))) {
        Some((path, error @ ..0)) => Err((path, -error)),
        Some((_, fd)) => {
            sys::close(fd);
            Ok(())
        }
        None => Ok(()),
    }
}

/// The file for lines, if the user named one.
fn path() -> Option<&'static CStr> {
    let path = config::LOG_PATH.load(Ordering::Relaxed);
    // SAFETY: a string of the environment that the process began with, which stays.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

/// Opens a file for lines; a negative errno on failure. Neither a link that somebody put in its place is followed, nor is a
/// reader waited for.
fn open(path: &CStr) -> i32 {
    let flags = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    // SAFETY: a string.
    unsafe { sys::open(path.as_ptr().cast(), flags, 0o644) }
}

/// Says something that happens rarely, for `ANYRING_LOG=debug`.
#[macro_export]
macro_rules! debug {
    ($($argument:tt)*) => {
        $crate::log::line($crate::config::Level::Debug, format_args!($($argument)*))
    };
}
pub use crate::debug;
