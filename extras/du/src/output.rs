//! The output.

use crate::size::Scale;
use crate::time::{Stamp, Style};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

/// The size at which the buffer is written.
const AT_ONCE: usize = 64 << 10;

/// An amount, which is counted and summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Saturates at [`u64::MAX`].
    pub bytes: u64,
    pub inodes: u64,
    /// The latest time.
    pub time: Option<Stamp>,
}

impl Amount {
    pub fn add(&mut self, other: Amount) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        // There are fewer inode numbers than a u64 holds.
        self.inodes += other.inodes;
        self.time = self.time.max(other.time);
    }
}

/// The format of the lines.
#[derive(Debug)]
pub struct Lines {
    pub scale: Scale,
    pub inodes: bool,
    pub times: Option<Style>,
    pub end: u8,
    /// The threshold: lines have at least this amount, or, if it is negative, at most its absolute value.
    pub threshold: i64,
}

impl Lines {
    fn write(&self, line: &mut Vec<u8>, amount: &Amount, path: &[u8]) {
        let size = self.scale.show(if self.inodes { amount.inodes } else { amount.bytes });
        line.extend_from_slice(size.as_bytes());
        line.push(b'\t');
        if let Some(style) = &self.times {
            line.extend(style.show(amount.time.unwrap_or_default()));
            line.push(b'\t');
        }
        line.extend_from_slice(path);
        line.push(self.end);
    }

    fn passes(&self, amount: &Amount) -> bool {
        let size = if self.inodes { amount.inodes } else { amount.bytes };
        let limit = self.threshold.unsigned_abs();
        if self.threshold < 0 { size <= limit } else { size >= limit }
    }
}

/// Buffered lines, in the order in which the threads print them.
pub struct Output {
    lines: Lines,
    /// True if the output is a terminal, so that each line is written immediately.
    terminal: bool,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    failure: Option<io::Error>,
}

impl Output {
    /// Creates the standard output.
    pub fn new(lines: Lines) -> Output {
        Output { lines, terminal: io::stdout().is_terminal(), waiting: Mutex::default() }
    }

    /// Prints a line, unless its amount is beyond the threshold; returns false if no more can be written.
    pub fn say(&self, amount: &Amount, path: &[u8]) -> bool {
        !self.lines.passes(amount) || self.say_always(amount, path)
    }

    /// Prints a line, whatever its amount; returns false if no more can be written.
    pub fn say_always(&self, amount: &Amount, path: &[u8]) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.lines.write(&mut waiting.bytes, amount, path);
        if self.terminal || waiting.bytes.len() >= AT_ONCE {
            waiting.flush();
        }
        waiting.failure.is_none()
    }

    /// Writes the rest; returns the first failure, if there was one.
    pub fn end(self) -> Result<(), io::Error> {
        let mut waiting = self.waiting.into_inner().unwrap_or_else(PoisonError::into_inner);
        waiting.flush();
        waiting.failure.map_or(Ok(()), Err)
    }
}

impl Waiting {
    fn flush(&mut self) {
        if self.failure.is_none() {
            // Bypasses the library's buffer, which searches for newlines.
            let written = io::stdout()
                .as_fd()
                .try_clone_to_owned()
                .and_then(|output| std::fs::File::from(output).write_all(&self.bytes));
            self.failure = written.err();
        }
        self.bytes.clear();
    }
}

/// Prints an error, with the path in quotes that shells understand.
pub fn complain(what: &str, path: Option<&[u8]>, why: &io::Error) {
    let mut line = format!("anyring du: {what}").into_bytes();
    if let Some(path) = path {
        line.push(b' ');
        line.extend(quoted(path));
    }
    line.extend(format!(": {}\n", reason(why)).into_bytes());
    // If standard error fails, the exit status still reports the failure.
    let _ = io::stderr().write_all(&line);
}

/// Prints a message on standard error.
pub fn say(text: &str) {
    let _ = io::stderr().write_all(format!("anyring du: {text}\n").as_bytes());
}

/// Returns the C library's text for an error.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((text, _)) => text.to_owned(),
        None => text,
    }
}

/// Returns the path in quotes; bytes that would harm a terminal are escaped.
fn quoted(path: &[u8]) -> Vec<u8> {
    let harmless = |byte: &u8| !byte.is_ascii_control() && *byte != b'\'';
    if path.iter().all(harmless) && std::str::from_utf8(path).is_ok() {
        return [b"'", path, b"'"].concat();
    }
    format!("$'{}'", path.escape_ascii().to_string().replace("\\\"", "\"")).into_bytes()
}
