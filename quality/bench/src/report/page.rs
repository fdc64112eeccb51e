//! The pages of results: one per benchmark, with its chart, and one that shows them all. Pages are generated from the
//! records in the same directory.

use std::fmt::Write;
use std::path::Path;

use super::table::{lines, titles};
use super::{Outcome, Results, chart, overview, record};
use crate::failure::{Doing, Failure, Result};

/// Writes the results as records into `directory`, and generates the pages again.
pub fn write(directory: &Path, results: Results) -> Result<()> {
    record::write(directory, results)?;
    redraw(directory)
}

/// Generates the pages and the charts of the records in `directory`.
pub fn redraw(directory: &Path) -> Result<()> {
    let records = record::read(directory)?;
    if records.is_empty() {
        return Err(Failure::new(format!("there is no record in {}", directory.display()))
            .advice("a directory of --write has one for each benchmark, such as nop.json"));
    }
    for (results, outcome) in &records {
        let page = directory.join(format!("{}.md", outcome.about.name));
        std::fs::write(&page, section(results, outcome)).doing(|| format!("writing {}", page.display()))?;
        chart::write(directory, results, outcome)?;
    }
    let page = directory.join("README.md");
    std::fs::write(&page, overview::page(&records)).doing(|| format!("writing {}", page.display()))
}

fn section(results: &Results, outcome: &Outcome) -> String {
    let (about, machine) = (&outcome.about, &results.machine);
    let mut text = format!("# {}: {}\n\n{}\n\n", about.name, about.title, about.text);
    let _ = writeln!(text, "- Goal: {}", about.goal);
    let _ = writeln!(
        text,
        "- Machine: {}, {} CPUs, {} MiB, {}, {}",
        machine.processor, machine.cpus, machine.memory_mib, machine.file_system, machine.date
    );
    let _ = writeln!(text, "- Kernel: {}", machine.kernel);
    let _ = writeln!(
        text,
        "- Command: `{}` ({} rounds of {} ms)",
        results.command, outcome.rounds, outcome.window_ms
    );
    let _ = writeln!(text, "- Load average before the first round: {:.2}", machine.load_before);
    let _ = writeln!(text, "- Baseline: {}", about.baseline);
    for skipped in &outcome.skipped {
        let _ = writeln!(text, "- Not measured: {}: {}", skipped.side, skipped.reason);
    }
    for failed in &outcome.failed {
        let _ = writeln!(text, "- Failed: {}, {}", failed.side, failed.case);
    }
    let _ = writeln!(
        text,
        "\n[All benchmarks, and what the columns mean](README.md)\n\n![{}]({}.svg)",
        about.title, about.name
    );
    let titles = titles(outcome);
    let _ = writeln!(text, "\n| {} |", titles.join(" | "));
    let _ = writeln!(text, "|---|---|{}", "---:|".repeat(titles.len() - 2));
    for line in lines(outcome) {
        let _ = writeln!(text, "| {} |", line.join(" | "));
    }
    for finding in &outcome.findings {
        let _ = writeln!(text, "\n{finding}");
    }
    text
}
