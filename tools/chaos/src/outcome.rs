//! The outcome of a program.

use std::fmt;

use anyring_chaos_plan::Harmed;

/// The end of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The program exited with this status.
    Exit(i32),
    /// The program was killed by this signal.
    Signal(i32),
    /// The program did not end in time, and was killed.
    Hang,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            End::Exit(status) => write!(f, "exit status {status}"),
            End::Signal(signal) => write!(f, "signal {signal}{}", signal_name(signal)),
            End::Hang => f.write_str("a hang"),
        }
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGFPE => " (SIGFPE)",
        libc::SIGILL => " (SIGILL)",
        libc::SIGKILL => " (SIGKILL)",
        libc::SIGPIPE => " (SIGPIPE)",
        libc::SIGSEGV => " (SIGSEGV)",
        libc::SIGTERM => " (SIGTERM)",
        libc::SIGTRAP => " (SIGTRAP)",
        _ => "",
    }
}

/// The end of a program, and its output, if that was kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The end of the program; with a power cut, the end of the check.
    pub end: End,
    /// The program's standard output; with a power cut, followed by the check's.
    pub stdout: Vec<u8>,
    /// The program's standard error; with a power cut, followed by the check's.
    pub stderr: Vec<u8>,
    /// Harm to memory of the requests in flight.
    pub harms: Harms,
    /// With a power cut, the end of the program, if it ended before.
    pub program: Option<End>,
}

/// Harm to the memory of requests in flight.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Harms {
    /// The harm that is in the plan's log, in approximate order.
    pub logged: Vec<Harmed>,
    /// The number of times that harm was found.
    pub count: u64,
}
