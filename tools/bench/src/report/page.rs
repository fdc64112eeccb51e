//! The page of results. Each benchmark has a section of its own between two marks, with the machine and
//! the command that gave it; writing replaces the sections that were measured and keeps the others.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::table::{lines, titles};
use super::{Outcome, Results};
use crate::failure::{Doing, Result};

const HEAD: &str = "# Benchmarks

Written by `tools/bench/run --write docs/benchmarks.md --svg docs/benchmarks`. In every benchmark all sides ran in the same run, in interleaved
rounds; a line shows medians over the rounds, and `speed` and `CPU` are the medians (with the lowest and the highest) of
the ratios within each round to the baseline that the section names: a speed above 1 is faster, CPU below 1 is cheaper.
CPU time is that of the measured process (of the server, where there are clients) with all its threads.
System calls are counted in runs of their own (`anyring bench --help` says how); calls that a filter traps are not among them.
";

/// Writes the results to the page at `path`, which shows the charts in `charts`.
pub fn write(path: &Path, charts: Option<&Path>, results: &Results) -> Result<()> {
    let mut page = match std::fs::read_to_string(path) {
        Ok(page) => page,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => HEAD.to_owned(),
        Err(error) => return Err(error).doing(|| format!("reading {}", path.display())),
    };
    for outcome in &results.benchmarks {
        let chart = charts.map(|directory| super::chart::file(directory, outcome));
        let chart = chart.map(|file| relative(&file, path));
        let text = section(results, outcome, chart.as_deref());
        page = with_section(&page, outcome.about.name, &text);
    }
    if let Some(directory) = path.parent().filter(|name| !name.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory).doing(|| format!("creating {}", directory.display()))?;
    }
    std::fs::write(path, page).doing(|| format!("writing {}", path.display()))
}

fn marks(name: &str) -> (String, String) {
    (format!("<!-- begin {name} -->"), format!("<!-- end {name} -->"))
}

/// The page with this section in place of the one that it had, or at its end.
fn with_section(page: &str, name: &str, section: &str) -> String {
    let (begin, end) = marks(name);
    let section = format!("{begin}\n{section}{end}");
    let old = page.find(&begin).and_then(|from| {
        let to = page[from..].find(&end)?;
        Some((&page[..from], &page[from + to + end.len()..]))
    });
    match old {
        Some((before, after)) => format!("{before}{section}{after}"),
        None => format!("{}\n\n{section}\n", page.trim_end()),
    }
}

/// The way from the page to a file: as it is, or less the page's directory.
fn relative(file: &Path, page: &Path) -> PathBuf {
    let beside = page.parent().and_then(|directory| file.strip_prefix(directory).ok());
    beside.unwrap_or(file).to_owned()
}

fn section(results: &Results, outcome: &Outcome, chart: Option<&Path>) -> String {
    let (about, machine) = (&outcome.about, &results.machine);
    let mut text = format!("## {}: {}\n\n{}\n\n", about.name, about.title, about.text);
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
    let _ = writeln!(text, "- Baseline: {}", about.baseline);
    for skipped in &outcome.skipped {
        let _ = writeln!(text, "- Not measured: {}: {}", skipped.side, skipped.reason);
    }
    for failed in &outcome.failed {
        let _ = writeln!(text, "- Failed: {}, {}", failed.side, failed.case);
    }
    if let Some(warning) = machine.warning() {
        let _ = writeln!(text, "- Warning: {warning}");
    }
    let titles = titles(outcome);
    let _ = writeln!(text, "\n| {} |", titles.join(" | "));
    let _ = writeln!(text, "|---|---|{}", "---:|".repeat(titles.len() - 2));
    for line in lines(outcome) {
        let _ = writeln!(text, "| {} |", line.join(" | "));
    }
    for finding in &outcome.findings {
        let _ = writeln!(text, "\n{finding}");
    }
    if let Some(chart) = chart {
        let _ = writeln!(text, "\n![{}]({})", about.title, chart.display());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{HEAD, with_section};

    #[test]
    fn a_section_is_added_then_replaced_and_its_neighbours_stay() {
        let page = with_section(HEAD, "a", "one\n");
        let page = with_section(&page, "b", "two\n");
        let page = with_section(&page, "a", "three\n");
        assert!(page.starts_with(HEAD.trim_end()));
        assert!(!page.contains("one"));
        let (a, b) = (page.find("three").unwrap(), page.find("two").unwrap());
        assert!(a < b);
    }
}
