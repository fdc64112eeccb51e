//! The output of a trace: its contents and destination.

use crate::cli::Trace;
use anyring_tracer::filter::{Filter, Unknown};
use anyring_tracer::{Destination, Session, Settings, Time};
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};

/// Returns the filter of `-e` and `-P`.
///
/// # Errors An error if an expression is invalid.
pub fn filter(arguments: &Trace) -> Result<Filter, Unknown> {
    // A path is compared both with the name that the program uses, and with the name that the kernel gives the file.
    let real = |path: &String| std::fs::canonicalize(path).ok()?.into_os_string().into_string().ok();
    let paths: Vec<String> =
        arguments.paths.iter().cloned().chain(arguments.paths.iter().filter_map(real)).collect();
    Filter::parse(&arguments.expressions)?.with_paths(&paths)
}

/// Returns a session with the outputs that the arguments select.
///
/// # Errors An error if a file cannot be created.
pub fn session(arguments: &Trace, filter: Filter) -> io::Result<Session> {
    let is_each = arguments.follow > 1 && arguments.output.is_some();
    let file = arguments.output.as_ref().filter(|_| !is_each).map(File::create).transpose()?;
    let is_terminal = arguments.output.is_none() && io::stderr().is_terminal();
    let output = || -> io::Result<Box<dyn Write>> {
        Ok(match &file {
            Some(file) => Box::new(BufWriter::with_capacity(1 << 16, file.try_clone()?)),
            None => Box::new(BufWriter::new(io::stderr())),
        })
    };
    let destination = || -> io::Result<Destination> {
        Ok(match arguments.output.clone().filter(|_| is_each) {
            Some(path) => Destination::EachProcess(path),
            None => Destination::One(output()?),
        })
    };
    let settings = Settings {
        sample: arguments.sample.into(),
        colours: is_terminal && !is_plain(),
        enters: arguments.enters,
        time: time(arguments),
        most_results: arguments.max_events,
        filter,
    };
    let mut session = Session::new(settings);
    #[cfg(not(feature = "one-file"))]
    if arguments.callers {
        session = session.callers(anyring_callers::Stacks::default());
    }
    if arguments.json {
        session = session.json_to(destination()?);
    } else if !arguments.counts && !arguments.summary_only {
        session = session.text_to(destination()?);
    }
    if let Some(path) = &arguments.perfetto {
        session = session.perfetto(BufWriter::with_capacity(1 << 16, File::create(path)?));
    }
    if arguments.counts || arguments.counts_too {
        session = session.counts(output()?);
    }
    if arguments.summary || arguments.summary_only {
        session = session.summary(output()?);
    }
    Ok(session)
}

/// True if the terminal has no colours, or the user wants none.
fn is_plain() -> bool {
    let wants_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    wants_none || std::env::var_os("TERM").is_none_or(|term| term == "dumb")
}

/// Returns the time that lines begin with.
fn time(arguments: &Trace) -> Time {
    match arguments.clock {
        0 if arguments.relative => Time::SinceLine,
        0 => Time::SinceStart,
        precision => Time::OfDay { begun_ns: day_ns_at_beginning(), microseconds: precision > 1 },
    }
}

/// Returns the time of day, in the time zone of this process, at which the monotonic clock began. A day is added, so that the
/// result is never negative.
fn day_ns_at_beginning() -> u64 {
    const SECOND_NS: i64 = 1_000_000_000;
    const DAY_NS: i64 = 24 * 60 * 60 * SECOND_NS;
    let now = |clock| {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: fills a structure of ours.
        unsafe { libc::clock_gettime(clock, &raw mut now) };
        now
    };
    let (real, monotonic) = (now(libc::CLOCK_REALTIME), now(libc::CLOCK_MONOTONIC));
    // SAFETY: integers and a pointer, which is not used.
    let mut local: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: fills a structure of ours; this process has one thread.
    unsafe { libc::localtime_r(&raw const real.tv_sec, &raw mut local) };
    let of_day = |time: libc::timespec, offset: i64| {
        ((time.tv_sec + offset) * SECOND_NS + time.tv_nsec).rem_euclid(DAY_NS)
    };
    (of_day(real, local.tm_gmtoff) - of_day(monotonic, 0) + DAY_NS) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Arguments, Command};
    use clap::Parser;

    #[test]
    fn options_choose_the_time_that_lines_begin_with() {
        let time_of = |options: &[&str]| {
            let words = ["anyring", "trace"].iter().chain(options).chain(&["--", "true"]);
            let Command::Trace(arguments) = Arguments::parse_from(words).command else { panic!("a trace") };
            time(&arguments)
        };
        assert_eq!(time_of(&[]), Time::SinceStart);
        assert_eq!(time_of(&["-r"]), Time::SinceLine);
        assert!(matches!(time_of(&["-t"]), Time::OfDay { microseconds: false, .. }));
        let Time::OfDay { begun_ns, microseconds: true } = time_of(&["-tt"]) else { panic!("-tt") };
        // The beginning of the monotonic clock plus the time since then is the time of day of `date`.
        const SECOND_NS: u64 = 1_000_000_000;
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: fills a structure of ours.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        let shown = (begun_ns / SECOND_NS + now.tv_sec as u64) % (24 * 60 * 60);
        let date = std::process::Command::new("date").arg("+%H %M %S").output().unwrap();
        let parts: Vec<u64> = String::from_utf8(date.stdout)
            .unwrap()
            .split_whitespace()
            .map(|part| part.parse().unwrap())
            .collect();
        let expected = parts[0] * 3600 + parts[1] * 60 + parts[2];
        // The command may have run some seconds before, and midnight may have passed since.
        assert!((expected + 24 * 60 * 60 - shown) % (24 * 60 * 60) < 60, "{shown} {expected}");
    }
}
