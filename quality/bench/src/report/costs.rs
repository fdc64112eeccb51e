//! The table of the README: what anyring costs, in a few figures of the records.

use std::fmt::Write as _;

use super::{Outcome, Results, SideResult};

/// A line of the table.
struct Row {
    what: &'static str,
    compared: &'static str,
    /// The text of the cell; each `{}` is replaced by the next figure.
    text: &'static str,
    figures: &'static [Figure],
}

/// A figure, or the lowest and the highest of several.
struct Figure {
    benchmark: &'static str,
    /// The cases, and the sides in each case.
    cases: &'static [&'static str],
    sides: &'static [&'static str],
    of: Of,
}

#[derive(Clone, Copy)]
enum Of {
    /// The speed, divided by that of the baseline.
    Speed,
    /// The CPU time of an operation, divided by that of the baseline.
    Cpu,
    /// The time of an operation less that of the baseline, in microseconds.
    MoreTime,
}

const fn speed(
    benchmark: &'static str,
    cases: &'static [&'static str],
    sides: &'static [&'static str],
) -> Figure {
    Figure { benchmark, cases, sides, of: Of::Speed }
}

const ANYRING: &[&str] = &["anyring"];
const UNPATCHED: &[&str] = &["anyring, unpatched"];
const RING: &str = "the kernel's io_uring";

const ROWS: &[Row] = &[
    Row {
        what: "no-ops through the ring, 1 to 16 per call",
        compared: RING,
        text: "{} times as fast",
        figures: &[speed("nop", &["1 per enter", "2 per enter", "4 per enter", "16 per enter"], ANYRING)],
    },
    Row {
        what: "`statx`, one at a time; depth 64",
        compared: RING,
        text: "{}; {}",
        figures: &[speed("meta", &["statx, depth 1"], ANYRING), speed("meta", &["statx, depth 64"], ANYRING)],
    },
    Row {
        what: "open, statx and close as a chain, one at a time; depth 64",
        compared: RING,
        text: "{}; {}",
        figures: &[
            speed("meta", &["chain of three, depth 1"], ANYRING),
            speed("meta", &["chain of three, depth 64"], ANYRING),
        ],
    },
    Row {
        what: "opening files, one at a time; depth 64",
        compared: RING,
        text: "{}; {}",
        figures: &[speed("meta", &["open, depth 1"], ANYRING), speed("meta", &["open, depth 64"], ANYRING)],
    },
    Row {
        what: "fio, cached reads of 4 KiB, depth 1, 8, 32",
        compared: RING,
        text: "{}, {}, {}",
        figures: &[
            speed("fio-read", &["iodepth 1"], ANYRING),
            speed("fio-read", &["iodepth 8"], ANYRING),
            speed("fio-read", &["iodepth 32"], ANYRING),
        ],
    },
    Row {
        what: "fio, reads of 4 KiB that miss the page cache, depth 1, 4, 32",
        compared: RING,
        text: "{}, {}, {}",
        figures: &[
            speed("fio-cold", &["iodepth 1"], ANYRING),
            speed("fio-cold", &["iodepth 4"], ANYRING),
            speed("fio-cold", &["iodepth 32"], ANYRING),
        ],
    },
    Row {
        what: "fio, `O_DIRECT` reads of 4 KiB, depth 1, 8, 32",
        compared: RING,
        text: "{}, {}, {}, at depth 32 with {} of the CPU time",
        figures: &[
            speed("fio-direct", &["iodepth 1"], ANYRING),
            speed("fio-direct", &["iodepth 8"], ANYRING),
            speed("fio-direct", &["iodepth 32"], ANYRING),
            Figure { benchmark: "fio-direct", cases: &["iodepth 32"], sides: ANYRING, of: Of::Cpu },
        ],
    },
    Row {
        what: "fio, cached reads, batches of 16",
        compared: RING,
        text: "{}",
        figures: &[speed("fio-read", &["iodepth 32, batches of 16"], ANYRING)],
    },
    Row {
        what: "echo server, 1000 connections",
        compared: "epoll",
        text: "{} (the kernel's io_uring: {})",
        figures: &[
            speed(
                "echo",
                &["1000 connections"],
                &["anyring", "anyring, deferred", "anyring, tuned", "anyring, multishot"],
            ),
            speed(
                "echo",
                &["1000 connections"],
                &["kernel", "kernel, deferred", "kernel, tuned", "kernel, multishot"],
            ),
        ],
    },
    Row {
        what: "zero-copy sends of 60 KiB over veth, one per call; 8",
        compared: "`send`",
        text: "{}; {} (the kernel's io_uring: {}; {})",
        figures: &[
            speed("send", &["veth UDP, 60 KiB"], &["anyring, SEND_ZC", "anyring, SEND_ZC fixed"]),
            speed(
                "send",
                &["veth UDP, 60 KiB, 8 per enter"],
                &["anyring, SEND_ZC", "anyring, SEND_ZC fixed"],
            ),
            speed("send", &["veth UDP, 60 KiB"], &["kernel, SEND_ZC", "kernel, SEND_ZC fixed"]),
            speed("send", &["veth UDP, 60 KiB, 8 per enter"], &["kernel, SEND_ZC", "kernel, SEND_ZC fixed"]),
        ],
    },
    Row {
        what: "one no-op, where the system call is caught by a signal instead of a patched call",
        compared: RING,
        text: "{}: {} microseconds more per call",
        figures: &[
            speed("nop", &["1 per enter"], UNPATCHED),
            Figure { benchmark: "nop", cases: &["1 per enter"], sides: UNPATCHED, of: Of::MoreTime },
        ],
    },
    Row {
        what: "fio, cached reads of 4 KiB, depth 1, caught by a signal",
        compared: RING,
        text: "{} (batches of 16: {})",
        figures: &[
            speed("fio-read", &["iodepth 1"], UNPATCHED),
            speed("fio-read", &["iodepth 32, batches of 16"], UNPATCHED),
        ],
    },
];

/// Returns the table, without lines that lack a recorded figure.
pub fn table(records: &[(Results, Outcome)]) -> String {
    let mut text = "| | compared to | anyring |\n|---|---|---|\n".to_owned();
    for row in ROWS {
        if let Some(figures) = row.text(records) {
            let _ = writeln!(text, "| {} | {} | {figures} |", row.what, row.compared);
        }
    }
    text
}

impl Row {
    fn text(&self, records: &[(Results, Outcome)]) -> Option<String> {
        let mut text = self.text.to_owned();
        for figure in self.figures {
            text = text.replacen("{}", &figure.text(records)?, 1);
        }
        Some(text)
    }
}

impl Figure {
    fn text(&self, records: &[(Results, Outcome)]) -> Option<String> {
        let (_, outcome) = records.iter().find(|(_, outcome)| outcome.about.name == self.benchmark)?;
        let mut values = Vec::new();
        for case in self.cases {
            for side in self.sides {
                let baseline = outcome.side(case, outcome.about.baseline)?;
                values.push(self.of.value(outcome.side(case, side)?, baseline)?);
            }
        }
        let lowest = rounded(values.iter().copied().reduce(f64::min)?);
        let highest = rounded(values.iter().copied().reduce(f64::max)?);
        Some(if lowest == highest { lowest } else { format!("{lowest} to {highest}") })
    }
}

impl Of {
    fn value(self, side: &SideResult, baseline: &SideResult) -> Option<f64> {
        match self {
            Of::Speed => side.speed.map(|ratio| ratio.median),
            Of::Cpu => side.cpu.map(|ratio| ratio.median),
            Of::MoreTime => Some((side.ns_per_op - baseline.ns_per_op) / 1e3),
        }
    }
}

/// Formats a figure without the digits that differ from run to run.
fn rounded(value: f64) -> String {
    if value < 2.5 { format!("{value:.2}") } else { format!("{value:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::record;
    use std::path::Path;

    #[test]
    fn the_readme_has_the_figures_of_the_records() {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let table = table(&record::read(&project.join("docs/benchmarks")).unwrap());
        assert_eq!(table.lines().count(), ROWS.len() + 2, "all figures are recorded:\n{table}");
        let readme = std::fs::read_to_string(project.join("README.md")).unwrap();
        assert!(readme.contains(&table), "the README's table is to be:\n{table}");
    }
}
