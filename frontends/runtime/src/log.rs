//! Lines for the user, formatted on the stack and written in one piece.

use crate::config::{self, Level};
use crate::{metrics, process, sys};
use alloc::boxed::Box;
use alloc::string::String;
use core::ffi::CStr;
use core::fmt::{self, Write};
use core::mem::MaybeUninit;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use linux_raw_sys::general::{
    self as raw, O_APPEND, O_CREAT, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, O_WRONLY, S_IFIFO, S_IFMT, S_IFSOCK,
    stat,
};

/// A line of limited length; the rest of a longer line is cut off.
struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One byte is reserved for the newline.
        let room = self.bytes.len() - 1 - self.length;
        let taken = text.len().min(room);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}

/// Writes `anyring[pid]: ` and the message, if the log has this level.
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

/// Calls `use_text` with a message that ends with a zero.
pub fn as_text<R>(message: fmt::Arguments<'_>, use_text: impl FnOnce(&CStr) -> R) -> R {
    let mut line = Line { bytes: [0; 512], length: 0 };
    let _ = line.write_fmt(message);
    // The last byte of the line is still zero.
    use_text(CStr::from_bytes_until_nul(&line.bytes).unwrap_or_default())
}

/// Writes whole lines, as they are, whatever the level.
pub fn write_text(text: &str) {
    write_bytes(text.as_bytes());
}

fn write_bytes(bytes: &[u8]) {
    let Some(path) = path() else {
        if let Some(fd) = descriptor() {
            write_to(fd, bytes);
        }
        return;
    };
    let fd = open(path);
    // The program may have reused descriptor 2, so a line is not written there instead.
    if fd >= 0 {
        sys::write_without_signal(fd, bytes);
        sys::close(fd);
    }
}

/// True if lines must be written without changes of the signal mask: the program has a filter of its own, or signals are blocked anyway.
static WRITES_ONLY: AtomicBool = AtomicBool::new(false);
/// True if the log's descriptor is of a kind that has a reader (pipe or socket), which may be gone.
static HAS_READER: AtomicBool = AtomicBool::new(true);

/// Writes to the log's descriptor. If the reader is gone, the write must not end the program by SIGPIPE. A filter of the program
/// may forbid the calls that suppress the signal.
fn write_to(fd: i32, bytes: &[u8]) {
    if HAS_READER.load(Ordering::Relaxed) && !WRITES_ONLY.load(Ordering::Relaxed) {
        sys::write_without_signal(fd, bytes);
    } else {
        sys::write(fd, bytes);
    }
}

/// Notes that the following lines are the last of the process, in a thread that has blocked signals already.
pub fn signals_are_blocked() {
    WRITES_ONLY.store(true, Ordering::Relaxed);
}

/// A call that may install a filter of the program. The filter may forbid every call that the program itself does not
/// need.
#[must_use]
pub struct Filtering {
    is_own: bool,
    forbids_metrics: bool,
}

impl Filtering {
    const NONE: Filtering = Filtering { is_own: false, forbids_metrics: false };

    /// Notes that the call has been made.
    #[inline]
    pub fn made(self, result: isize) {
        if self.is_own && result >= 0 {
            FILTERED.store(true, Ordering::Relaxed);
        }
        if self.forbids_metrics {
            metrics::allow();
        }
    }
}

/// True if the program was seen to install a filter.
static FILTERED: AtomicBool = AtomicBool::new(false);

/// True if the program was seen to install a filter for itself.
#[inline]
pub fn is_filtered() -> bool {
    FILTERED.load(Ordering::Relaxed)
}

/// Notes that the program makes a call by its number, which may install a filter.
#[inline]
pub fn sees_call(number: usize, arguments: [usize; 6]) -> Filtering {
    const SET_MODE_FILTER: usize = 1;
    match number as u32 {
        raw::__NR_seccomp if arguments[0] <= SET_MODE_FILTER => may_have_filter(),
        raw::__NR_prctl => sees_prctl(arguments[0]),
        _ => Filtering::NONE,
    }
}

/// Notes that the program calls `prctl`, which may install a filter.
#[inline]
pub fn sees_prctl(option: usize) -> Filtering {
    if option == sys::PR_SET_SECCOMP { may_have_filter() } else { Filtering::NONE }
}

#[cold]
fn may_have_filter() -> Filtering {
    // A filter of a child of `vfork` in this memory applies to the child only.
    let is_own = sys::process_id() == process::own_id();
    if is_own {
        WRITES_ONLY.store(true, Ordering::Relaxed);
    }
    // A filter may apply to all threads at once, and kill the process when one of them opens a file.
    Filtering { is_own, forbids_metrics: is_own && metrics::is_wanted() && metrics::forbid() }
}

/// A duplicate of the log's descriptor, for programs that close theirs before they end, as GNU programs do. Only a process
/// that will write lines keeps a duplicate, because the reader of a pipe waits until the last writer has closed it.
static ASIDE: AtomicI32 = AtomicI32::new(-1);
/// The device and inode of the log's descriptor at the beginning. [`UNKNOWN`] before that.
static TARGET: [AtomicU64; 2] = [const { AtomicU64::new(UNKNOWN) }; 2];
const UNKNOWN: u64 = u64::MAX;
/// The log's descriptor was closed at the beginning.
const NOTHING: u64 = u64::MAX - 1;
/// The name of the program, which [`begin`] stores.
static PROGRAM: AtomicPtr<String> = AtomicPtr::new(core::ptr::null_mut());

/// Prepares for lines that the process may write later: stores the required data before the program closes descriptors or
/// forbids calls.
pub fn begin() {
    let name = Box::new(executable_name());
    // If threads begin at the same time, each leaks a name.
    PROGRAM.store(Box::into_raw(name), Ordering::Release);
    if path().is_some() || TARGET[0].load(Ordering::Relaxed) != UNKNOWN {
        return;
    }
    let fd = config::LOG_FD.load(Ordering::Relaxed);
    let target = status(fd);
    let kind = target.as_ref().map_or(0, |target| target.st_mode & S_IFMT);
    HAS_READER.store(matches!(kind, S_IFIFO | S_IFSOCK), Ordering::Relaxed);
    let target = target.map_or([NOTHING; 2], |target| [target.st_dev, target.st_ino]);
    TARGET.iter().zip(target).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    keep_descriptor();
}

/// Makes the duplicate of the log's descriptor, if the process has none, because the process will write lines.
pub(crate) fn keep_descriptor() {
    let own = config::LOG_FD.load(Ordering::Relaxed);
    let target = TARGET.each_ref().map(|word| word.load(Ordering::Relaxed));
    if ASIDE.load(Ordering::Relaxed) >= 0 || target[0] >= NOTHING || identity(own) != Some(target) {
        return;
    }
    let aside = sys::duplicate_aside(own);
    // Another thread may have stored a duplicate meanwhile.
    if ASIDE.compare_exchange(-1, aside, Ordering::Relaxed, Ordering::Relaxed).is_err() && aside >= 0 {
        sys::close(aside);
    }
}

/// Closes the duplicate in a child of `fork`, if the child will write no line.
pub(crate) fn forked() {
    // As a rule there is none: a page that is only read is not copied.
    let aside = ASIDE.load(Ordering::Relaxed);
    if aside >= 0 && process::is_silent() {
        ASIDE.store(-1, Ordering::Relaxed);
        sys::close(aside);
    }
}

/// Notes that the program closes or replaces these descriptors.
#[inline]
pub fn closes(first: u32, last: u32) {
    let aside = ASIDE.load(Ordering::Relaxed);
    if aside >= 0 {
        closes_beside(aside, first..=last);
    }
}

#[inline(never)]
fn closes_beside(aside: i32, closed: RangeInclusive<u32>) {
    let closes = |fd: i32| u32::try_from(fd).is_ok_and(|fd| closed.contains(&fd));
    let takes_it = closes(aside);
    let lets_go = || closes(config::LOG_FD.load(Ordering::Relaxed)) && process::is_silent();
    // A child of `vfork` in this memory has a descriptor table of its own.
    if (takes_it || lets_go()) && sys::process_id() == process::own_id() {
        ASIDE.store(-1, Ordering::Relaxed);
        if !takes_it {
            sys::close(aside);
        }
    }
}

/// Returns the log's descriptor. The duplicate is used without a check, because a filter of the program may allow no more than
/// writes; the program's own descriptor may have been closed and reused, and is checked.
fn descriptor() -> Option<i32> {
    let own = config::LOG_FD.load(Ordering::Relaxed);
    let target = TARGET.each_ref().map(|word| word.load(Ordering::Relaxed));
    match ASIDE.load(Ordering::Relaxed) {
        aside @ 0.. => Some(aside),
        _ if target == [UNKNOWN; 2] => Some(own),
        _ => (identity(own) == Some(target)).then_some(own),
    }
}

/// Returns the device and inode of a descriptor's file.
fn identity(fd: i32) -> Option<[u64; 2]> {
    status(fd).map(|status| [status.st_dev, status.st_ino])
}

/// Returns the status of a descriptor's file.
fn status(fd: i32) -> Option<stat> {
    let mut status = MaybeUninit::uninit();
    if fd < 0 || sys::fstat(fd, &mut status) < 0 {
        return None;
    }
    // SAFETY: filled in by the call.
    Some(unsafe { status.assume_init() })
}

/// Returns the file name of the program, without its directory; empty if [`begin`] was not called.
pub fn program() -> &'static str {
    let name = PROGRAM.load(Ordering::Acquire);
    // SAFETY: `begin` has made it, and it is never changed or freed. Pairs with the release in `begin`.
    unsafe { name.as_ref() }.map_or("", String::as_str)
}

fn executable_name() -> String {
    let path = process::executable();
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let mut shown = String::new();
    for chunk in name.utf8_chunks() {
        shown.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            shown.push(char::REPLACEMENT_CHARACTER);
        }
    }
    shown
}

/// A value in a `key=value` line: plain, or in JSON quotes if it contains characters that separate values.
pub struct Value<'a>(pub &'a str);

impl fmt::Display for Value<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separates = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '=' | '\\');
        if self.0.is_empty() || self.0.contains(separates) {
            return write_string(to, self.0);
        }
        to.write_str(self.0)
    }
}

/// Writes a string in JSON quotes.
pub fn write_string(text: &mut impl Write, string: &str) -> fmt::Result {
    text.write_char('"')?;
    for character in string.chars() {
        match character {
            '"' | '\\' => write!(text, "\\{character}")?,
            control if control.is_control() => write!(text, "\\u{:04x}", u32::from(control))?,
            other => text.write_char(other)?,
        }
    }
    text.write_char('"')
}

/// Checks that the log can be written, if its level is not off.
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

/// Returns the path of the log file, if the user named one.
fn path() -> Option<&'static CStr> {
    // Acquire pairs with the release in `config`.
    let path = config::LOG_PATH.load(Ordering::Acquire);
    // SAFETY: a string that `config` has made, which stays.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

/// Opens a log file; a negative errno on failure. A symbolic link at the path is not followed, and a reader
/// of a pipe is not waited for.
fn open(path: &CStr) -> i32 {
    let flags = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    // SAFETY: a string.
    unsafe { sys::open(path.as_ptr().cast(), flags, 0o644) }
}

/// Logs a rare event, for `ANYRING_LOG=debug`.
#[macro_export]
macro_rules! debug {
    ($($argument:tt)*) => {
        $crate::log::line($crate::config::Level::Debug, format_args!($($argument)*))
    };
}
pub use crate::debug;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_can_be_told_apart() {
        let shown = |text| format!("{}", Value(text));
        assert_eq!(shown("fio"), "fio");
        assert_eq!(shown("a b"), "\"a b\"");
        assert_eq!(shown("a\"b\n"), "\"a\\\"b\\u000a\"");
        assert_eq!(shown(""), "\"\"");
    }

    #[test]
    fn a_duplicate_lies_aside() {
        let aside = sys::duplicate_aside(2);
        assert!(aside >= sys::descriptor_limit().min(1000) as i32, "{aside}");
        assert_eq!(identity(aside), identity(2));
        assert!(!sys::survives_exec(aside));
        sys::close(aside);
        assert_eq!(identity(aside), None);
    }
}
