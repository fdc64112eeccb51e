//! The first page: one line per benchmark, with what was asked, what came out and whether that is enough.

use std::fmt::Write;

use super::verdict::Check;
use super::{Outcome, Results};
use crate::benchmarks;

const HEAD: &str = "# Benchmarks

What anyring costs, beside what it is compared to. Each line links to a page with all figures, how they were measured and the command
that measures them again. The pages are made of the records in this directory (`NAME.json`): `tools/bench/run --write docs/benchmarks`
measures and writes them, `--redraw docs/benchmarks` makes them anew of the records.

- **Result** is the worst figure that the goal is about, a median over the rounds, with its case and side. A speed above 1 is faster
  than what it is compared to; CPU time, time and memory below the bound are better.
- **Verdict** is `met`, or by how much the bound was missed. `within the spread` means that some rounds reached it: the
  machine's noise is larger than the miss.
- **Load** is the load average when the measurement began. Above 0.5 the machine was not quiet: look at ratios, not at times. All
  sides of a benchmark ran in the same run, in interleaved rounds, and a ratio compares sides of the same round.
";

const TAIL: &str = "
## What the tables of the benchmarks say

- A line is a median over the rounds; `best..worst` are the fastest and the slowest round.
- `speed` and `CPU` are the medians (with the lowest and the highest) of the ratios within each round to the baseline that the
  page names: a speed above 1 is faster, CPU below 1 is cheaper.
- CPU time is that of the measured process (of the server, where there are clients) with all its threads.
- System calls are counted in runs of their own (`anyring bench --help` says how); calls that a filter traps are not among them.
- In the charts blue is the kernel's io_uring, orange and its neighbours are anyring, green is epoll, grey are plain calls, purple are
  other tools.
";

/// The page of all records.
pub fn page(records: &[(Results, Outcome)]) -> String {
    let mut text = HEAD.to_owned();
    let mut machines: Vec<String> = Vec::new();
    for (results, _) in records {
        let machine = machine(results);
        if !machines.contains(&machine) {
            machines.push(machine);
        }
    }
    for name in machines {
        let _ = writeln!(
            text,
            "\n## On {name}\n\n\
             | benchmark | goal | result | verdict | measured | chart |\n|---|---|---|---|---|---|"
        );
        for (results, outcome) in records.iter().filter(|(results, _)| machine(results) == name) {
            let _ = writeln!(text, "{}", line(results, outcome));
        }
    }
    let missing: Vec<String> = benchmarks::all()
        .iter()
        .map(|one| one.about())
        .filter(|about| records.iter().all(|(_, outcome)| outcome.about.name != about.name))
        .map(|about| format!("`{}` ({}; goal: {})", about.name, about.title, about.goal))
        .collect();
    if !missing.is_empty() {
        let _ = writeln!(text, "\nNot recorded yet: {}.", missing.join(", "));
    }
    text.push_str(TAIL);
    text
}

fn machine(results: &Results) -> String {
    let machine = &results.machine;
    format!("{}, {} CPUs, {} MiB", machine.processor, machine.cpus, machine.memory_mib)
}

fn line(results: &Results, outcome: &Outcome) -> String {
    let (about, machine) = (&outcome.about, &results.machine);
    let benchmark = benchmarks::all().into_iter().find(|one| one.about().name == about.name);
    let checks = benchmark.map(|one| one.checks(outcome)).unwrap_or_default();
    let cell = |of: fn(&Check) -> String| numbered(checks.iter().map(of).collect());
    format!(
        "| [{name}]({name}.md): {title} | {goal} | {result} | {verdict} | {date}, {kernel}, load {load:.2} | [chart]({name}.svg) |",
        name = about.name,
        title = about.title,
        goal = cell(Check::goal),
        result = cell(Check::result),
        verdict = cell(Check::verdict),
        date = machine.date,
        kernel = machine.kernel,
        load = machine.load_before,
    )
}

/// Several in one cell get numbers, the same ones in each column.
fn numbered(texts: Vec<String>) -> String {
    match &texts[..] {
        [only] => only.clone(),
        many => {
            let lines: Vec<_> =
                many.iter().enumerate().map(|(at, text)| format!("{}. {text}", at + 1)).collect();
            lines.join("<br>")
        }
    }
}
