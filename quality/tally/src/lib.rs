//! Counts comparisons and skips of tests.
//!
//! A test runner counts a test that found nothing to test as passed. Such tests report it here: each comparison and each skip
//! appends a line to the file that `ANYRING_TALLY` names, which all processes of a run share. The caller of the tests sums the
//! lines: `compared`, the test; `handed over`, the test; `skipped`, the test, the reason; separated by tabs.

use std::fs::File;
use std::io::Write;

/// Counts a comparison of the user engine's answers with an oracle's.
pub fn compared() {
    append("compared", None);
}

/// Counts a program of the running test whose rings were handed over to the kernel. Without kernel rings there is no such program,
/// so that its comparison is not missed then.
pub fn handed_over() {
    append("handed over", None);
}

/// Counts a part of the running test that is skipped, with the reason, for example `no kernel ring`. Equal reasons must have
/// equal words, because skips are summed by reason.
pub fn skipped(reason: &str) {
    eprintln!("skipped: {reason}");
    append("skipped", Some(reason));
}

/// Appends a line by one write, so that lines of different processes do not mix.
fn append(what: &str, reason: Option<&str>) {
    let Some(path) = std::env::var_os("ANYRING_TALLY") else { return };
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a thread without a name");
    let line = match reason {
        None => format!("{what}\t{test}\n"),
        Some(reason) => format!("{what}\t{test}\t{reason}\n"),
    };
    let written = File::options()
        .append(true)
        .create(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        panic!("ANYRING_TALLY names {}, where nothing can be written: {error}", path.display());
    }
}
