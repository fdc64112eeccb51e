//! The environment variables, read once at start.
//!
//! - `ANYRING_ENGINE`: `auto` (default), `kernel`, `user`.
//! - `ANYRING_ABI`: `6.1`, `6.12`, `6.18` or `7.2` (newest, default): the kernel whose io_uring the user engine emulates. Setting it
//!   selects the user engine, unless `ANYRING_ENGINE` is set; it has no effect on the kernel engine.
//! - `ANYRING_LOG`: unset, `0` or `off`: silent; `info` or `1`: one line when the process ends;
//!   `debug` or `2`: also a line for each ring and each patch. An absolute path, or `fd=N`, is the destination; the default is standard
//!   error. `debug,/path` sets both.
//! - `ANYRING_PATCH`: `0` leaves every call site to the trap; `1` (default) does not.
//! - `ANYRING_TRACE`: the path of a buffer in which the process records what happens to its requests (`anyring trace`).
//! - `ANYRING_STATS`: `text` or `json`: when the process ends, it writes to the log what it did with io_uring.
//! - `ANYRING_STATS_FILE`: an absolute path: the process writes there, every `ANYRING_STATS_INTERVAL` seconds (5), what it does with io_uring.
//! - `ANYRING_CHAOS`: the path of the plan for fault injection (`anyring chaos`).
//! - `ANYRING_STARTED`: the id of the process that `anyring run` became. That process ends if something that was asked for is not
//!   available. If a letter replaces the first digit, the process has executed another program since.
//!
//! Any other value is [wrong](Config::wrong).

use crate::{log, process};
use alloc::ffi::CString;
use anyring_engine::request::version::{self, Version};
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering};

/// The engine that the user has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The kernel if its `io_uring` works, else the user engine.
    Auto,
    /// The kernel.
    Kernel,
    /// The user engine.
    User,
}

/// The amount of output in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Level {
    /// Nothing.
    Off,
    /// One line at the end.
    Info,
    /// Each rare event.
    Debug,
}

static LEVEL: AtomicU8 = AtomicU8::new(0);
/// The descriptor of the log, if no path is given.
pub static LOG_FD: AtomicI32 = AtomicI32::new(2);
/// The path of the log file, if any.
pub static LOG_PATH: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

/// The format of the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stats {
    /// Text for people.
    Text,
    /// In one line of JSON.
    Json,
}

static STATS: AtomicU8 = AtomicU8::new(0);
static STARTED: AtomicBool = AtomicBool::new(false);
static SUCCEEDS: AtomicBool = AtomicBool::new(false);

/// True if `ANYRING_STARTED` named this process when the variables were read.
pub fn was_started() -> bool {
    STARTED.load(Ordering::Relaxed)
}

/// True if `ANYRING_STARTED` named this process at first, or before it executed another program.
pub fn succeeds_started() -> bool {
    SUCCEEDS.load(Ordering::Relaxed)
}

/// Returns the value of `ANYRING_STATS`.
pub fn stats() -> Option<Stats> {
    match STATS.load(Ordering::Relaxed) {
        0 => None,
        1 => Some(Stats::Text),
        _ => Some(Stats::Json),
    }
}

/// The file of the statistics of a running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatsFile {
    /// The absolute path; `%p` stands for the process's id.
    pub path: &'static CStr,
    /// The interval at which the file is written, in seconds.
    pub interval_s: u32,
}

impl StatsFile {
    /// Returns the interval in nanoseconds.
    pub fn interval_ns(self) -> u64 {
        u64::from(self.interval_s) * 1_000_000_000
    }
}

/// The path of the statistics of a running process, if they are to be written.
static STATS_PATH: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());
/// The default interval of the statistics in seconds.
const STATS_INTERVAL_S: u32 = 5;
/// The longest interval of the statistics, a day.
const LONGEST_INTERVAL_S: i32 = 86_400;
static INTERVAL_S: AtomicU32 = AtomicU32::new(STATS_INTERVAL_S);

/// Returns the values of `ANYRING_STATS_FILE` and `ANYRING_STATS_INTERVAL`.
pub fn stats_file() -> Option<StatsFile> {
    // Acquire pairs with the release in `read`.
    let path = STATS_PATH.load(Ordering::Acquire);
    if path.is_null() {
        return None;
    }
    // SAFETY: a string that `keep` has made.
    let path = unsafe { CStr::from_ptr(path) };
    Some(StatsFile { path, interval_s: INTERVAL_S.load(Ordering::Relaxed) })
}

/// The path of the trace buffer, if the process is traced.
static TRACE_PATH: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the value of `ANYRING_TRACE`.
pub fn trace_path() -> Option<&'static CStr> {
    // Acquire pairs with the release in `read`.
    let path = TRACE_PATH.load(Ordering::Acquire);
    // SAFETY: a string that `keep` has made.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

/// The path of the fault plan, if there is one.
static CHAOS_PATH: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the value of `ANYRING_CHAOS`.
pub fn chaos_path() -> Option<&'static CStr> {
    // Acquire pairs with the release in `read`.
    let path = CHAOS_PATH.load(Ordering::Acquire);
    // SAFETY: a string that `keep` has made.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

/// The settings that are read at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// `ANYRING_ENGINE`.
    pub choice: Choice,
    /// `ANYRING_PATCH`.
    pub patch: bool,
    /// True if `ANYRING_STARTED` names this process.
    pub started: bool,
    /// A variable with an invalid value; its default is used.
    pub wrong: Option<Wrong>,
}

/// A variable with an invalid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The variable's name.
    pub name: &'static str,
    /// The values that the variable may have.
    pub wanted: &'static str,
}

/// Returns the level of the log.
pub fn level() -> Level {
    match LEVEL.load(Ordering::Relaxed) {
        0 => Level::Off,
        1 => Level::Info,
        _ => Level::Debug,
    }
}

/// Returns a copy that is never freed: the program may overwrite the strings of its environment (`setproctitle` does).
fn keep(path: &CStr) -> *mut c_char {
    CString::from(path).into_raw()
}

/// Reads the variables, and configures the log.
///
/// # Safety
/// `environment` must be null or a list of strings that ends with null, as `environ` is.
pub unsafe fn read(environment: *const *const c_char) -> Config {
    // SAFETY: the caller's promise.
    let get = |name: &str| unsafe { variable(environment, name) };
    let mut wrong = None;
    let mut refuse = |name, wanted| wrong = Some(Wrong { name, wanted });
    let choice = match get("ANYRING_ENGINE").map_or(b"".as_slice(), CStr::to_bytes) {
        b"kernel" => Choice::Kernel,
        b"user" => Choice::User,
        other => {
            if !matches!(other, b"" | b"auto") {
                refuse("ANYRING_ENGINE", "auto, kernel or user");
            }
            Choice::Auto
        }
    };
    let choice = match get("ANYRING_ABI").map_or(b"".as_slice(), CStr::to_bytes) {
        b"" => choice,
        wanted => match Version::parse(wanted) {
            None => {
                refuse("ANYRING_ABI", "6.1, 6.12, 6.18 or 7.2");
                choice
            }
            Some(_) if choice == Choice::Kernel => {
                refuse("ANYRING_ABI", "unset where the engine is the kernel's, which has its own");
                choice
            }
            Some(version) => {
                version::play(version);
                Choice::User
            }
        },
    };
    match parse_log(get("ANYRING_LOG").unwrap_or_default()) {
        Some((level, target)) => {
            LEVEL.store(level as u8, Ordering::Relaxed);
            match target {
                Target::Fd(fd) => LOG_FD.store(fd, Ordering::Relaxed),
                Target::Path(path) => LOG_PATH.store(keep(path), Ordering::Release),
            }
        }
        None => {
            refuse("ANYRING_LOG", "off, info or debug; then perhaps a comma and fd=N or a path from the root")
        }
    }
    match get("ANYRING_STATS").map_or(b"".as_slice(), CStr::to_bytes) {
        b"" => {}
        b"text" => STATS.store(1, Ordering::Relaxed),
        b"json" => STATS.store(2, Ordering::Relaxed),
        _ => refuse("ANYRING_STATS", "text or json"),
    }
    if let Some(seconds) = get("ANYRING_STATS_INTERVAL").filter(|text| !text.is_empty()) {
        match number(seconds.to_bytes()) {
            Some(seconds @ 1..=LONGEST_INTERVAL_S) => INTERVAL_S.store(seconds as u32, Ordering::Relaxed),
            _ => refuse("ANYRING_STATS_INTERVAL", "a number of seconds, from 1 to 86400"),
        }
    }
    match get("ANYRING_STATS_FILE").filter(|path| !path.is_empty()) {
        None => {}
        Some(path) if path.to_bytes().starts_with(b"/") => {
            STATS_PATH.store(keep(path), Ordering::Release);
        }
        Some(_) => refuse("ANYRING_STATS_FILE", "a path from the root"),
    }
    if let Some(path) = get("ANYRING_TRACE").filter(|path| !path.is_empty()) {
        TRACE_PATH.store(keep(path), Ordering::Release);
    }
    if let Some(path) = get("ANYRING_CHAOS").filter(|path| !path.is_empty()) {
        CHAOS_PATH.store(keep(path), Ordering::Release);
    }
    let patch = get("ANYRING_PATCH").map_or(b"".as_slice(), CStr::to_bytes);
    if !matches!(patch, b"" | b"0" | b"1") {
        refuse("ANYRING_PATCH", "0 or 1");
    }
    let started = get("ANYRING_STARTED").map_or(Started::No, |value| started(value.to_bytes()));
    STARTED.store(started == Started::Now, Ordering::Relaxed);
    SUCCEEDS.store(started != Started::No, Ordering::Relaxed);
    let started = started == Started::Now;
    if level() > Level::Off || stats().is_some() || stats_file().is_some() {
        log::begin();
    }
    Config { choice, patch: patch != b"0", started, wrong }
}

/// True if the variables leave the choice of the engine to anyring.
///
/// # Safety
/// As for [`read`].
pub unsafe fn leave_the_choice(environment: *const *const c_char) -> bool {
    // SAFETY: the caller's promise.
    let get = |name: &str| unsafe { variable(environment, name) }.map_or(b"".as_slice(), CStr::to_bytes);
    matches!(get("ANYRING_ENGINE"), b"" | b"auto") && get("ANYRING_ABI").is_empty()
}

/// The meaning of `ANYRING_STARTED` for this process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Started {
    /// The variable does not name this process.
    No,
    /// The process is the one that `anyring run` became, and this is the program that was to be run.
    Now,
    /// The variable named this process, which has executed another program since.
    Before,
}

/// The letter that replaces the digit 0 as first digit, once the variable was [forgotten](forget_started).
const FIRST_LETTER: u8 = b'a';

fn started(value: &[u8]) -> Started {
    let Some((&first, rest)) = value.split_first() else { return Started::No };
    let (digit, what) = match first {
        b'0'..=b'9' => (first - b'0', Started::Now),
        b'a'..=b'j' => (first - FIRST_LETTER, Started::Before),
        _ => return Started::No,
    };
    let id = rest.iter().try_fold(u32::from(digit), |id, &byte| {
        byte.is_ascii_digit().then(|| id.wrapping_mul(10).wrapping_add(u32::from(byte - b'0')))
    });
    if id == Some(process::own_id()) { what } else { Started::No }
}

/// Marks in `ANYRING_STARTED` that the program has been started, because a process that this program starts, or becomes, may have the same
/// id in a PID namespace of its own. The string keeps its length, because the data that the kernel passes to the program follows it.
///
/// # Safety
/// As for [`read`]; the strings must be writable, and nothing else may read them meanwhile.
pub unsafe fn forget_started(environment: *const *const c_char) {
    // SAFETY: the caller's promise.
    if let Some(value) = unsafe { variable(environment, "ANYRING_STARTED") }
        && let Some(digit @ b'0'..=b'9') = value.to_bytes().first()
    {
        let letter = FIRST_LETTER + (digit - b'0');
        // SAFETY: the caller's promise; the string is not empty.
        unsafe { value.as_ptr().cast_mut().write(letter as c_char) };
    }
}

enum Target<'a> {
    Fd(i32),
    Path(&'a CStr),
}

/// Parses `info`, `/path`, `debug,/path`, `info,fd=3`: the path, which may contain commas, comes last. A relative path is refused, because
/// its meaning would depend on the program's working directory.
fn parse_log(value: &CStr) -> Option<(Level, Target<'_>)> {
    let (mut level, mut target) = (None, Target::Fd(2));
    let mut rest = value;
    loop {
        let bytes = rest.to_bytes();
        if bytes.starts_with(b"/") {
            target = Target::Path(rest);
            level = level.or(Some(Level::Info));
            break;
        }
        let end = bytes.iter().position(|&byte| byte == b',');
        let word = &bytes[..end.unwrap_or(bytes.len())];
        match word {
            b"" | b"0" | b"off" => level = level.or(Some(Level::Off)),
            b"info" | b"1" => level = Some(Level::Info),
            b"debug" | b"2" => level = Some(Level::Debug),
            _ => {
                target = Target::Fd(word.strip_prefix(b"fd=").and_then(number)?);
                level = level.or(Some(Level::Info));
            }
        }
        let Some(end) = end else { break };
        // The tail of a C string is a C string.
        rest = CStr::from_bytes_with_nul(&rest.to_bytes_with_nul()[end + 1..]).ok()?;
    }
    Some((level.unwrap_or(Level::Off), target))
}

fn number(digits: &[u8]) -> Option<i32> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns the value of a variable.
///
/// # Safety
/// As for [`read`].
pub unsafe fn variable<'a>(environment: *const *const c_char, name: &str) -> Option<&'a CStr> {
    // SAFETY: the caller's promise.
    let entry = unsafe { entry(environment, name.bytes().chain(core::iter::once(b'='))) }?;
    // SAFETY: the rest of a C string is a C string.
    Some(unsafe { CStr::from_ptr(entry.as_ptr().add(name.len() + 1)) })
}

/// Returns the first string of an environment that begins with these bytes.
///
/// # Safety
/// As for [`read`].
pub unsafe fn entry<'a>(
    environment: *const *const c_char,
    beginning: impl Iterator<Item = u8> + Clone,
) -> Option<&'a CStr> {
    // The environment may have many and long entries: each is read only up to the first difference.
    let begins = |entry: &*const c_char| {
        beginning.clone().enumerate().all(|(at, byte)| {
            // SAFETY: the byte is within the string or its end, because no byte before was the end.
            unsafe { entry.add(at).cast::<u8>().read() == byte }
        })
    };
    // SAFETY: the caller's promise; entries are strings.
    unsafe { starts(environment).find(begins).map(|entry| CStr::from_ptr(entry)) }
}

/// Returns the strings of an environment.
///
/// # Safety
/// As for [`read`].
pub unsafe fn entries<'a>(environment: *const *const c_char) -> impl Iterator<Item = &'a CStr> + Clone {
    // SAFETY: the caller's promise; entries are strings.
    unsafe { starts(environment).map(|entry| CStr::from_ptr(entry)) }
}

/// Returns the beginnings of the strings of an environment.
///
/// # Safety
/// As for [`read`].
unsafe fn starts(environment: *const *const c_char) -> impl Iterator<Item = *const c_char> + Clone {
    let mut next = environment;
    core::iter::from_fn(move || {
        if next.is_null() {
            return None;
        }
        // SAFETY: the list ends with a null, beyond which `next` is never moved.
        let entry = unsafe { *next };
        if entry.is_null() {
            return None;
        }
        // SAFETY: the entry was not the end of the list.
        next = unsafe { next.add(1) };
        Some(entry)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_words() {
        let parse_log = |text| super::parse_log(text).unwrap();
        let level = |text| parse_log(text).0;
        assert_eq!(level(c""), Level::Off);
        assert_eq!(level(c"0"), Level::Off);
        assert_eq!(level(c"1"), Level::Info);
        assert_eq!(level(c"debug"), Level::Debug);
        assert!(matches!(parse_log(c"/tmp/a,b"), (Level::Info, Target::Path(p)) if p == c"/tmp/a,b"));
        assert!(matches!(parse_log(c"debug,/x"), (Level::Debug, Target::Path(p)) if p == c"/x"));
        assert!(matches!(parse_log(c"info,fd=7"), (Level::Info, Target::Fd(7))));
        for wrong in [c"bogus", c"info,bogus", c"fd=x", c"fd=", c"./relative", c"info,log.txt"] {
            assert!(super::parse_log(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn who_was_started_is_forgotten() {
        let mut started = *b"ANYRING_STARTED=7\0";
        let list =
            [c"A=1".as_ptr(), started.as_mut_ptr().cast_const().cast(), c"B=2".as_ptr(), core::ptr::null()];
        // SAFETY: a list that ends with null, whose second string is writable.
        unsafe { forget_started(list.as_ptr()) };
        assert_eq!(&started, b"ANYRING_STARTED=h\0");
        // SAFETY: as before.
        unsafe { forget_started(list.as_ptr()) };
        assert_eq!(&started, b"ANYRING_STARTED=h\0");
    }

    #[test]
    fn what_was_started_is_known_again() {
        let id = process::own_id().to_string();
        let letter = char::from(FIRST_LETTER + (id.as_bytes()[0] - b'0'));
        let known = |value: &str| super::started(value.as_bytes());
        assert!(known(&id) == Started::Now);
        assert!(known(&format!("{letter}{}", &id[1..])) == Started::Before);
        for another in ["", "x", "1x", &format!("{id}0"), &format!("{letter}{}0", &id[1..])] {
            assert!(known(another) == Started::No, "{another}");
        }
    }

    #[test]
    fn what_is_kept_stays_when_the_environment_is_overwritten() {
        let mut variable = *b"ANYRING_TRACE=/a/path\0";
        let list = [variable.as_mut_ptr().cast_const().cast(), core::ptr::null()];
        // SAFETY: a list that ends with null.
        unsafe { read(list.as_ptr()) };
        variable.fill(0);
        assert_eq!(trace_path(), Some(c"/a/path"));
    }

    #[test]
    fn unknown_values_are_wrong() {
        let read = |entry: &CStr| {
            let list = [entry.as_ptr(), core::ptr::null()];
            // SAFETY: a list that ends with null.
            unsafe { read(list.as_ptr()) }
        };
        assert_eq!(read(c"ANYRING_ENGINE=user"), Config { choice: Choice::User, ..read(c"") });
        assert_eq!(read(c"").wrong, None);
        assert_eq!(read(c"ANYRING_ABI=7.2"), Config { choice: Choice::User, ..read(c"") });
        for (entry, name) in [
            (c"ANYRING_ENGINE=bogus", "ANYRING_ENGINE"),
            (c"ANYRING_LOG=bogus", "ANYRING_LOG"),
            (c"ANYRING_PATCH=2", "ANYRING_PATCH"),
            (c"ANYRING_ABI=6.7", "ANYRING_ABI"),
        ] {
            assert_eq!(read(entry).wrong.map(|wrong| wrong.name), Some(name));
        }
    }
}
