//! Output of a command to its user: whoever reads it may have gone before its end, `head` for one.

use std::fmt;
use std::io::{self, ErrorKind, Write};

/// Writes to standard output. Where its reader has gone, the process ends as other tools do, by SIGPIPE, which Rust's
/// start has made be ignored.
pub fn out(text: fmt::Arguments<'_>) {
    let Err(error) = io::stdout().write_fmt(text) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        // SAFETY: the default action is always fit.
        unsafe {
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::raise(libc::SIGPIPE);
        }
    } else {
        self::error(format_args!("cannot write to standard output: {error}\n"));
    }
    // Also where SIGPIPE is blocked.
    std::process::exit(1);
}

/// Writes to standard error, if it can be written to: there is no place where that could be told otherwise.
pub fn error(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}

/// `println!`, by [`out`].
#[macro_export]
macro_rules! say {
    ($($argument:tt)*) => { $crate::out(format_args!("{}\n", format_args!($($argument)*))) };
}

/// `eprintln!`, by [`error`].
#[macro_export]
macro_rules! say_error {
    ($($argument:tt)*) => { $crate::error(format_args!("{}\n", format_args!($($argument)*))) };
}
