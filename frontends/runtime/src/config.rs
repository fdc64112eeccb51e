//! The environment variables, read once at start.
//!
//! - `ANYRING_ENGINE`: `auto` (default), `kernel`, `user`.
//! - `ANYRING_LOG`: unset, `0` or `off`: silent; `info` or `1`: one line when the process ends;
//!   `debug`: each ring and each patch too. A path, or `fd=N`, says where to, standard error as a
//!   rule; `debug,/path` says both.
//! - `ANYRING_PATCH`: `0` leaves every call site to the trap.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, Ordering};

/// Which engine the user asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The kernel where its `io_uring` works, else ours.
    Auto,
    /// The kernel.
    Kernel,
    /// Ours.
    User,
}

/// How much to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Level {
    /// Nothing.
    Off,
    /// One line at the end.
    Info,
    /// Each event that is rare.
    Debug,
}

static LEVEL: AtomicU8 = AtomicU8::new(0);
/// The descriptor to write to, where no path is given.
pub static LOG_FD: AtomicI32 = AtomicI32::new(2);
/// The file to append to, if any.
pub static LOG_PATH: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

/// What is read at start.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// `ANYRING_ENGINE`.
    pub choice: Choice,
    /// `ANYRING_PATCH`.
    pub patch: bool,
}

/// How much to say.
pub fn level() -> Level {
    match LEVEL.load(Ordering::Relaxed) {
        0 => Level::Off,
        1 => Level::Info,
        _ => Level::Debug,
    }
}

/// Reads the variables.
///
/// # Safety
/// `environment` must be null or a list of strings that ends with null, as `environ` is; the
/// strings must stay.
pub unsafe fn read(environment: *const *const c_char) -> Config {
    // SAFETY: the caller's promise.
    let get = |name: &str| unsafe { variable(environment, name) };
    let choice = match get("ANYRING_ENGINE").map(CStr::to_bytes) {
        Some(b"kernel") => Choice::Kernel,
        Some(b"user") => Choice::User,
        _ => Choice::Auto,
    };
    if let Some(value) = get("ANYRING_LOG") {
        let (level, target) = parse_log(value);
        LEVEL.store(level as u8, Ordering::Relaxed);
        match target {
            Target::Fd(fd) => LOG_FD.store(fd, Ordering::Relaxed),
            Target::Path(path) => LOG_PATH.store(path.as_ptr().cast_mut(), Ordering::Relaxed),
        }
    }
    let patch = get("ANYRING_PATCH").is_none_or(|value| value.to_bytes() != b"0");
    Config { choice, patch }
}

enum Target<'a> {
    Fd(i32),
    Path(&'a CStr),
}

/// Reads `info`, `/path`, `debug,/path`, `info,fd=3`: the path, which may hold commas, comes last.
fn parse_log(value: &CStr) -> (Level, Target<'_>) {
    let (mut level, mut target) = (None, Target::Fd(2));
    let mut rest = value;
    loop {
        let bytes = rest.to_bytes();
        if bytes.starts_with(b"/") || bytes.starts_with(b".") {
            target = Target::Path(rest);
            level = level.or(Some(Level::Info));
            break;
        }
        let end = bytes.iter().position(|&byte| byte == b',');
        let word = &bytes[..end.unwrap_or(bytes.len())];
        match word {
            b"" | b"0" | b"off" => level = level.or(Some(Level::Off)),
            b"debug" | b"2" => level = Some(Level::Debug),
            _ => {
                level = level.or(Some(Level::Info));
                if let Some(fd) = word.strip_prefix(b"fd=").and_then(number) {
                    target = Target::Fd(fd);
                }
            }
        }
        let Some(end) = end else { break };
        // The tail of a C string is one.
        let Ok(tail) = CStr::from_bytes_with_nul(&rest.to_bytes_with_nul()[end + 1..]) else { break };
        rest = tail;
    }
    (level.unwrap_or(Level::Off), target)
}

fn number(digits: &[u8]) -> Option<i32> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// The value of a variable.
///
/// # Safety
/// As for [`read`].
pub unsafe fn variable<'a>(environment: *const *const c_char, name: &str) -> Option<&'a CStr> {
    // SAFETY: the caller's promise.
    unsafe { entries(environment) }.find_map(|entry| {
        let value = entry.to_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        let start = entry.to_bytes_with_nul().len() - 1 - value.len();
        CStr::from_bytes_with_nul(&entry.to_bytes_with_nul()[start..]).ok()
    })
}

/// The strings of an environment.
///
/// # Safety
/// As for [`read`].
pub unsafe fn entries<'a>(environment: *const *const c_char) -> impl Iterator<Item = &'a CStr> + Clone {
    let mut next = environment;
    core::iter::from_fn(move || {
        if next.is_null() {
            return None;
        }
        // SAFETY: the list goes on until a null, which is never stepped over.
        let entry = unsafe { *next };
        if entry.is_null() {
            return None;
        }
        // SAFETY: not at the end yet; entries are strings.
        unsafe {
            next = next.add(1);
            Some(CStr::from_ptr(entry))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_words() {
        let level = |text| parse_log(text).0;
        assert_eq!(level(c""), Level::Off);
        assert_eq!(level(c"0"), Level::Off);
        assert_eq!(level(c"1"), Level::Info);
        assert_eq!(level(c"debug"), Level::Debug);
        assert!(matches!(parse_log(c"/tmp/a,b"), (Level::Info, Target::Path(p)) if p == c"/tmp/a,b"));
        assert!(matches!(parse_log(c"debug,/x"), (Level::Debug, Target::Path(p)) if p == c"/x"));
        assert!(matches!(parse_log(c"info,fd=7"), (Level::Info, Target::Fd(7))));
    }
}
