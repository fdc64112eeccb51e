//! Statistics of a running process in a file, in Prometheus's text format (`ANYRING_STATS_FILE`).
//!
//! A thread of the engine writes the file at an interval, from the first ring on, and the process once more at its end. A `%p` in the
//! path is replaced by the process's id, and each process with rings has a file; without it only the process that `anyring run` became
//! writes the file.

use crate::config::{self, StatsFile};
use crate::{calls, log, process, sys};
use alloc::string::String;
use alloc::vec::Vec;
use anyring_engine::frontend::{self, Counters, Counts, Gauges, OperationCount};
use anyring_engine::ops;
use anyring_engine::os::pause;
use core::ffi::CStr;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The process is a child of `fork` without a thread that writes the file.
static IS_CHILD: AtomicBool = AtomicBool::new(false);
/// A thread is writing the file, or writes are forbidden.
static IS_BUSY: AtomicBool = AtomicBool::new(false);
/// The rings that the parents of this process had made before it was forked.
static RINGS_OF_PARENTS: AtomicU64 = AtomicU64::new(0);
/// A failed write was reported.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// How often, and for how long each time, the end of the process waits for a thread that writes the file.
const MOST_WAITS: u32 = 1000;
const WAIT_NS: u64 = 1_000_000;

/// Returns the file of this process, if it has one.
fn wanted() -> Option<StatsFile> {
    config::stats_file().filter(|file| process::active() && (file.is_of_each() || process::is_first()))
}

/// True if the process writes the file at its end.
pub fn is_wanted() -> bool {
    // A child of `fork` may have its parent's rings, and not use them.
    let uses_rings = calls::rings_exist() && !IS_CHILD.load(Ordering::Relaxed);
    wanted().is_some_and(|file| uses_rings || !file.is_of_each())
}

/// Notes that the process has made a ring.
pub fn begin() {
    IS_CHILD.store(false, Ordering::Relaxed);
    if let Some(file) = wanted() {
        frontend::report_every(file.interval_ns(), write);
    }
}

/// Notes that the process enters a ring, which a parent of it may have made.
#[inline]
pub fn enters() {
    if IS_CHILD.load(Ordering::Relaxed) {
        begin();
    }
}

/// Notes, in a child of `fork`, that no thread writes the file.
pub fn forked() {
    IS_BUSY.store(false, Ordering::Relaxed);
    let goes_on = config::stats_file().is_some_and(StatsFile::is_of_each) && calls::rings_exist();
    IS_CHILD.store(goes_on, Ordering::Relaxed);
    RINGS_OF_PARENTS.store(frontend::counters().rings, Ordering::Relaxed);
}

/// Logs that the file is not written, because the kernel serves the process's rings.
pub fn left_to_kernel() {
    if let Some(file) = config::stats_file().filter(|_| process::is_first()) {
        let path = Shown(file.path);
        log::write(format_args!(
            "the kernel serves the rings, and its requests are not counted: {path} is not written (--engine user writes it)"
        ));
    }
}

/// Forbids writes until [`allow`] is called, and waits until no write is in progress. False if a write does not end in
/// time; then nothing is forbidden.
pub fn forbid() -> bool {
    for _ in 0..MOST_WAITS {
        if !IS_BUSY.swap(true, Ordering::Acquire) {
            return true;
        }
        pause(WAIT_NS);
    }
    false
}

/// Allows writes again, after [`forbid`] has returned true.
pub fn allow() {
    IS_BUSY.store(false, Ordering::Release);
}

/// Writes the file when the process ends.
pub fn end() {
    // At the exit of the process, the thread that writes the file may be stopped anywhere.
    if let Some(file) = wanted().filter(|_| !log::is_filtered())
        && forbid()
    {
        // A program that the process has executed, and that makes no rings, does not replace the counts of the program
        // before.
        let path = file.path_of(process::own_id(), "");
        if calls::rings_exist() || !frontend::is_file(as_string(&path)) {
            write_now(file);
        }
        allow();
    }
}

/// Writes the file, unless another thread is writing it.
fn write() {
    if let Some(file) = wanted()
        && !IS_BUSY.swap(true, Ordering::Acquire)
    {
        write_now(file);
        allow();
    }
}

/// Writes the file. No other thread may be writing it.
fn write_now(file: StatsFile) {
    // A filter of the program may kill the process for opening a file. A child whose fork was not seen does not replace its parent's file.
    if log::is_filtered() || sys::process_id() != process::own_id() {
        return;
    }
    let mut text = String::new();
    let mut counters = frontend::counters();
    counters.rings = counters.rings.saturating_sub(RINGS_OF_PARENTS.load(Ordering::Relaxed));
    // Writing into a string cannot fail.
    let _ = write_metrics(&mut text, &counters, &frontend::gauges(), frontend::operation_counts());
    let own = process::own_id();
    let mut suffix = String::new();
    // No other process writes a file of this name.
    let _ = write!(suffix, ".{own}.new");
    let (path, beside) = (file.path_of(own, ""), file.path_of(own, &suffix));
    let (path, beside) = (as_string(&path), as_string(&beside));
    if let Err(errno) = frontend::replace_file(path, beside, text.as_bytes())
        && !HAS_FAILED.swap(true, Ordering::Relaxed)
    {
        let path = Shown(path);
        log::write(format_args!(
            "cannot write the statistics to {path} (error {}): they are written again as soon as that works; see its directory's rights and space, \
             and that it is a regular file",
            -errno
        ));
    }
}

/// Converts bytes, whose only zero is at their end, to a string.
fn as_string(path: &[u8]) -> &CStr {
    CStr::from_bytes_with_nul(path).unwrap_or_default()
}

/// A path in a message.
struct Shown<'a>(&'a CStr);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.to_bytes().utf8_chunks().try_for_each(|chunk| {
            to.write_str(chunk.valid())?;
            if chunk.invalid().is_empty() { Ok(()) } else { to.write_char(char::REPLACEMENT_CHARACTER) }
        })
    }
}

/// The type of a metric.
#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}

/// A text of metrics, whose samples all have the labels of the process.
struct Metrics<'a> {
    text: &'a mut String,
    labels: String,
}

impl Metrics<'_> {
    fn begin(&mut self, name: &str, kind: Kind, help: &str) -> fmt::Result {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        write!(self.text, "# HELP anyring_{name} {help}\n# TYPE anyring_{name} {kind}\n")
    }

    fn sample(&mut self, name: &str, more: fmt::Arguments<'_>, value: u64) -> fmt::Result {
        writeln!(self.text, "anyring_{name}{{{}{more}}} {value}", self.labels)
    }

    fn one(&mut self, name: &str, kind: Kind, help: &str, value: u64) -> fmt::Result {
        self.begin(name, kind, help)?;
        self.sample(name, format_args!(""), value)
    }

    /// Writes a counter for each operation with a count.
    fn operations(
        &mut self,
        name: &str,
        help: &str,
        counts: Option<&Counts>,
        value: impl Fn(&OperationCount) -> u64,
    ) -> fmt::Result {
        self.begin(name, Kind::Counter, help)?;
        for counted in counts.into_iter().flat_map(Counts::operations) {
            let operation = ops::lookup(counted.code).name;
            self.sample(name, format_args!(",operation=\"{operation}\""), value(&counted))?;
        }
        Ok(())
    }
}

fn write_metrics(
    text: &mut String,
    counters: &Counters,
    gauges: &Gauges,
    counts: Option<&Counts>,
) -> fmt::Result {
    let mut labels = String::new();
    write!(labels, "process=\"{}\",program=\"", process::own_id())?;
    write_escaped(&mut labels, log::program())?;
    labels.push('"');
    let mut metrics = Metrics { text, labels };
    let (counter, gauge) = (Kind::Counter, Kind::Gauge);
    metrics.begin("info", gauge, "The engine that serves the rings, and the version of anyring.")?;
    let (engine, version) = (process::engine_name(), env!("CARGO_PKG_VERSION"));
    metrics.sample("info", format_args!(",engine=\"{engine}\",version=\"{version}\""), 1)?;
    metrics.one("rings_created_total", counter, "Rings that the process has created.", counters.rings)?;
    metrics.one("rings", gauge, "Rings that the process has.", gauges.rings)?;
    metrics.one("submitted_total", counter, "SQEs consumed from submission queues.", counters.submitted)?;
    metrics.one("completed_total", counter, "CQEs posted or kept as overflow.", counters.completed)?;
    let enters = counts.map_or(0, Counts::enters);
    metrics.one("enter_calls_total", counter, "Calls of io_uring_enter.", enters)?;
    metrics.operations("requests_total", "Requests submitted.", counts, |of| of.requests)?;
    metrics.operations("completions_total", "Results of requests.", counts, |of| of.completions)?;
    metrics.operations("request_errors_total", "Results that are errors.", counts, |of| of.errors)?;
    let help = "Errors that say that the operation or an option of it is invalid or not supported.";
    metrics.operations("requests_refused_total", help, counts, |of| of.refused)?;
    metrics.one("requests_in_flight", gauge, "Requests that are not done.", gauges.in_flight)?;
    metrics.one("completions_ready", gauge, "CQEs that the program has not reaped.", gauges.ready)?;
    let help = "CQEs that are kept because their completion queues are full.";
    metrics.one("completions_overflowed", gauge, help, gauges.overflowed)?;
    metrics.one("threads", gauge, "Threads of the engine, workers among them.", gauges.threads)?;
    let traps = calls::TRAPS.load(Ordering::Relaxed);
    metrics.one("traps_total", counter, "Calls that came by a signal.", traps)?;
    let sites = calls::PATCHED_SITES.load(Ordering::Relaxed);
    metrics.one("patched_call_sites", gauge, "Instructions of the program that call the engine.", sites)
}

/// Writes the value of a label.
fn write_escaped(text: &mut String, value: &str) -> fmt::Result {
    for character in value.chars() {
        match character {
            '\\' | '"' => write!(text, "\\{character}")?,
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
    Ok(())
}

impl StatsFile {
    /// True if each process has a file.
    pub fn is_of_each(self) -> bool {
        self.path.to_bytes().windows(2).any(|two| two == b"%p")
    }

    /// Returns the path of a process's file, with a suffix and a terminating zero.
    fn path_of(self, process: u32, suffix: &str) -> Vec<u8> {
        let (mut path, mut number) = (Vec::new(), String::new());
        // Writing into a string cannot fail.
        let _ = write!(number, "{process}");
        let mut rest = self.path.to_bytes();
        while let [first, after @ ..] = rest {
            if let Some(after) = rest.strip_prefix(b"%p") {
                path.extend(number.bytes());
                rest = after;
            } else {
                path.push(*first);
                rest = after;
            }
        }
        path.extend(suffix.bytes().chain([0]));
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_its_path() {
        let file = |path| StatsFile { path, interval_s: 1 };
        assert!(file(c"/a/%p.prom").is_of_each() && !file(c"/a/p%.prom").is_of_each());
        assert_eq!(file(c"/a/%p.prom").path_of(17, ""), b"/a/17.prom\0");
        assert_eq!(file(c"/a/b").path_of(17, ".new"), b"/a/b.new\0");
    }

    #[test]
    fn labels_are_escaped() {
        let mut text = String::new();
        write_escaped(&mut text, "a\"b\\c\nd").unwrap();
        assert_eq!(text, "a\\\"b\\\\c\\nd");
    }
}
