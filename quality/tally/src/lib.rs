//! Counts of what tests compare and skip.
//!
//! A test runner counts a test that found nothing to test as passed. Tests that may find nothing say so here: each comparison and
//! each skip adds a line to the file that `ANYRING_TALLY` names, which every process of a run appends to. Whoever runs the tests
//! sums the lines up: `compared`, the test; `handed over`, the test; `skipped`, the test, the reason. Tabs stand between.

use std::fs::File;
use std::io::Write;

/// Counts a comparison of the user engine's answers with an oracle's.
pub fn compared() {
    append("compared", None);
}

/// Counts a program of the running test whose rings were handed over to the kernel: there is none where the kernel gives no rings,
/// so that such a program is no comparison that is missed there.
pub fn handed_over() {
    append("handed over", None);
}

/// Counts something that the running test leaves out, and says why: `no kernel ring`, for example. The same reason has the same
/// words everywhere, for skips are summed up by it.
pub fn skipped(reason: &str) {
    eprintln!("skipped: {reason}");
    append("skipped", Some(reason));
}

/// One write, so that the lines of processes do not mix.
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
