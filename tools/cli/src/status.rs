//! The exit statuses of the command itself, and the messages with them.

use anyring_say::say_error;
use std::ffi::OsString;
use std::process::ExitCode;

/// The exit status for failures of the command itself, as in `env(1)` and similar tools.
pub const OWN_FAILURE: u8 = anyring_runtime::process::OWN_FAILURE as u8;
/// The exit status if the program cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The exit status if there is no such program.
pub const NOT_FOUND: u8 = 127;

/// Returns the status of a program that a signal ended, as a shell reports it.
pub fn by_signal(signal: i32) -> ExitCode {
    const BY_SIGNAL: u8 = 128;
    ExitCode::from(BY_SIGNAL + signal as u8)
}

/// Prints the failure, its reason and the remedy; the reason and the remedy may be empty.
pub fn fail(code: u8, what: &str, why: &str, remedy: &str) -> ExitCode {
    say_error!("anyring: {what}");
    if !why.is_empty() {
        say_error!("  why: {why}");
    }
    if !remedy.is_empty() {
        say_error!("  do:  {remedy}");
    }
    ExitCode::from(code)
}

/// Quotes a word for a shell.
pub fn quoted(word: OsString) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
