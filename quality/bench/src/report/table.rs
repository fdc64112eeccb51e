//! Tables, for the terminal and for the page.

use super::{Case, Outcome, Ratio, SideResult};

/// The columns' titles.
const TITLES: [&str; 9] =
    ["case", "side", "op/s", "time/op", "best..worst", "syscalls/op", "CPU/op", "CPU", "speed"];
/// The additional titles of a benchmark that measures memory.
const MEMORY_TITLES: [&str; 2] = ["memory/op", "kernel memory/op"];

/// The additional titles of a benchmark that measures latencies.
const LATENCY_TITLES: [&str; 3] = ["p50", "p99", "p99.9"];

/// Returns the titles of a benchmark's columns.
pub fn titles(outcome: &Outcome) -> Vec<&'static str> {
    let any = |has: fn(&SideResult) -> bool| outcome.cases.iter().flat_map(|case| &case.sides).any(has);
    let memory: &[&str] = if any(|side| side.memory_per_op.is_some()) { &MEMORY_TITLES } else { &[] };
    let latency: &[&str] = if any(|side| side.latency.is_some()) { &LATENCY_TITLES } else { &[] };
    TITLES.iter().chain(memory).chain(latency).copied().collect()
}

/// Returns the cells of one line, in the order of the titles.
fn cells(case: &str, side: &SideResult) -> Vec<String> {
    let rate = if side.ns_per_op > 0.0 { 1e9 / side.ns_per_op } else { 0.0 };
    let mut cells = vec![
        case.to_owned(),
        side.side.clone(),
        format!("{rate:.0}"),
        time(side.ns_per_op),
        format!("{}..{}", time(side.fastest_ns_per_op), time(side.slowest_ns_per_op)),
        side.syscalls_per_op.map_or_else(|| "-".into(), |count| format!("{count:.2}")),
        time(side.cpu_ns_per_op),
        spread(side.cpu),
        spread(side.speed),
    ];
    if let Some(memory) = side.memory_per_op {
        cells.extend([memory.resident, memory.kernel].map(|bytes| format!("{bytes:.0} B")));
    }
    if let Some(latency) = side.latency {
        cells.extend([latency.median, latency.p99, latency.p999].map(|ns| time(ns as f64)));
    }
    cells
}

/// Returns the lines of a benchmark.
pub fn lines(outcome: &Outcome) -> Vec<Vec<String>> {
    let of_case = |case: &Case| {
        let name = case.name.clone();
        let lines: Vec<_> = case.sides.iter().map(|side| cells(&name, side)).collect();
        lines
    };
    outcome.cases.iter().flat_map(of_case).collect()
}

/// Prints a benchmark's table to the terminal.
pub fn print(outcome: &Outcome) {
    let about = &outcome.about;
    anyring_say::say!("\n{}: {}", about.name, about.title);
    anyring_say::say!(
        "over `{}`: speed above 1 is faster, CPU below 1 is cheaper; median (lowest..highest) of the rounds",
        about.baseline
    );
    for skipped in &outcome.skipped {
        anyring_say::say!("not measured: {}: {}", skipped.side, skipped.reason);
    }
    for failed in &outcome.failed {
        anyring_say::say!("{failed}");
    }
    let mut lines = lines(outcome);
    let titles = titles(outcome);
    lines.insert(0, titles.iter().map(ToString::to_string).collect());
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..titles.len()).filter_map(width).collect();
    let mut last = String::new();
    for mut line in lines {
        if line[0] == last {
            line[0].clear();
        } else {
            last.clone_from(&line[0]);
        }
        let cells = line.iter().zip(&widths).enumerate();
        let text: Vec<String> = cells
            .map(|(column, (cell, &width))| match column {
                0 | 1 => format!("{cell:width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        anyring_say::say!("  {}", text.join("  ").trim_end());
    }
    for finding in &outcome.findings {
        anyring_say::say!("  {finding}");
    }
}

fn spread(ratio: Option<Ratio>) -> String {
    let Some(ratio) = ratio else { return "-".into() };
    match ratio.spread() {
        Some((lowest, highest)) => format!("{:.2} ({lowest:.2}..{highest:.2})", ratio.median),
        None => format!("{:.2}", ratio.median),
    }
}

/// Formats a time with about three significant digits.
fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e4 => format!("{:.2} µs", ns / 1e3),
        ns if ns < 1e5 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1e6 => format!("{:.0} µs", ns / 1e3),
        ns => format!("{:.2} ms", ns / 1e6),
    }
}
