//! Output of a command to its user. The reader may close the pipe before the end, as `head` does.

pub mod narrow;

use std::fmt;
use std::io::{self, ErrorKind, Write};

/// Writes to standard output. If the reader has closed the pipe, the process ends by SIGPIPE, as other tools do;
/// Rust's runtime has ignored that signal at the start.
pub fn out(text: fmt::Arguments<'_>) {
    let Err(error) = io::stdout().write_fmt(text) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        // SAFETY: the default action is always valid.
        unsafe {
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::raise(libc::SIGPIPE);
        }
    } else {
        self::error(format_args!("cannot write to standard output: {error}\n"));
    }
    // Reached if SIGPIPE is blocked.
    std::process::exit(1);
}

/// Writes to standard error, if possible: there is no other place to report a failure.
pub fn error(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}

/// Works as `println!`, by [`out`].
#[macro_export]
macro_rules! say {
    ($($argument:tt)*) => { $crate::out(format_args!("{}\n", format_args!($($argument)*))) };
}

/// Works as `eprintln!`, by [`error`].
#[macro_export]
macro_rules! say_error {
    ($($argument:tt)*) => { $crate::error(format_args!("{}\n", format_args!($($argument)*))) };
}
