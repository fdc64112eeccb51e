//! The first page: one line per benchmark, with its goal, its result and the verdict.

use std::fmt::Write;

use super::verdict::Check;
use super::{Outcome, Results, costs};
use crate::benchmarks;

const HEAD: &str = "# Benchmarks

The speed and cost of anyring, compared with the kernel's io_uring, epoll and plain system calls. Each line links to a page with all figures, how
they were measured, and the command that measures them again. The pages are made from the records in this directory (`NAME.json`):
`quality/bench/run --write docs/benchmarks` measures and writes records and pages, `--redraw docs/benchmarks` makes the pages again from the records.

- **Result** is the worst of the figures to which the goal applies, as a median over the rounds, with its case and side. A *side* is one of the programs
  or engines that are compared. A speed above 1 means faster than the other side; CPU time, time and memory are better if they are below the bound.
- **Verdict** is `met`, or says by how much the goal was missed. `within the spread` means that some rounds reached the goal: the rounds
  differ by more than the miss. [Why goals are missed](../missed-goals.md) is said in system calls and instructions.
- **Load** is the load average when the measurement began. Above 0.5, other work was running on the machine: then compare ratios, not times. All
  sides of a benchmark ran in the same run, in interleaved rounds, and a ratio compares sides of the same round.
";

const TAIL: &str = "
## Reads that miss the page cache on older kernels

From Linux 6.12 on, the attempt of a read that does not wait begins the read. Before that, the engine begins it by a call more (`fadvise64`).
`quality/bench/cold-in-qemu bookworm trixie` boots both kernels with a disk that answers 200 reads in a second, and runs fio there: reads of
4 KiB at depth 32, one per submission. It fails unless all 32 are at the device at once, and a read takes at most 3 calls.

| kernel | reads in flight at most | at least 31 in flight | calls per read | of these |
|---|---|---|---|---|
| 6.1 (Debian 12) | 32 | 99% of the looks | 3.0 | `preadv2` 2.0, `fadvise64` 1.0 |
| 6.12 (Debian 13) | 32 | 99% | 2.0 | `preadv2` 2.0 |

## How to read the tables of the benchmarks

- Each line has medians over the rounds; `best..worst` are the fastest and the slowest round.
- `speed` and `CPU` are ratios to the baseline that the page names, computed within each round; shown is the median, with the lowest and the
  highest. A speed above 1 is faster than the baseline, and CPU below 1 takes less CPU time.
- CPU time is that of the measured process (if there are clients, of the server) with all its threads.
- System calls are counted in separate runs (`anyring-bench --help` says how); calls that a filter traps are not counted.
- In the charts, blue is the kernel's io_uring, shades of orange are anyring, green is epoll, grey are plain calls, and purple are
  other tools.
";

/// Returns the page of all records.
pub fn page(records: &[(Results, Outcome)]) -> String {
    let mut text = HEAD.to_owned();
    text.push_str("\n## In short\n\nRatios of speed, as medians: above 1, anyring is faster.\n\n");
    text.push_str(&costs::table(records));
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

/// Joins the texts of a cell. Several texts get numbers, which are the same in each column.
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
