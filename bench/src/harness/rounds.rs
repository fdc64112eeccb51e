//! Interleaved rounds: every side once, then every side again, so that what the machine does meanwhile
//! hits them alike.

use std::collections::BTreeMap;

use super::launch::{Context, On};
use super::stats::{median, paired_ratio};
use crate::benchmarks::{Benchmark, Run};
use crate::failure::{Failure, Result};
use crate::report::{Case, Outcome, SideResult, Skipped};
use crate::workload::Window;
use crate::workload::ring::Engine;

/// How often and what else.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Rounds per group of cases.
    pub rounds: usize,
    /// Fewer cases where a benchmark has many.
    pub quick: bool,
    /// One more run per side to count system calls.
    pub syscalls: bool,
}

/// What the rounds of one group gave for one side.
#[derive(Default)]
struct Gathered {
    /// By label of the window, one per round.
    windows: BTreeMap<usize, Vec<Window>>,
    syscalls_per_op: Option<f64>,
}

/// Runs a benchmark.
pub fn measure(benchmark: &mut dyn Benchmark, context: &Context, plan: Plan) -> Result<Outcome> {
    let about = benchmark.about();
    let (usable, skipped) = usable_sides(benchmark, context)?;
    let groups = benchmark.groups(plan.quick);
    benchmark.prepare(context, &usable)?;
    let mut cases = Vec::new();
    for (group, label) in groups.iter().enumerate() {
        eprintln!("{}: {label}, {} rounds", about.name, plan.rounds);
        let gathered = run_group(benchmark, context, plan, group, &usable)?;
        cases.extend(to_cases(benchmark, label, &usable, &gathered));
    }
    Ok(Outcome { about, rounds: plan.rounds, window_ms: context.window.as_millis() as u64, skipped, cases })
}

fn usable_sides(benchmark: &dyn Benchmark, context: &Context) -> Result<(Vec<usize>, Vec<Skipped>)> {
    let (mut usable, mut skipped) = (Vec::new(), Vec::new());
    for (index, side) in benchmark.sides().iter().enumerate() {
        match benchmark.obstacle(context, index)? {
            None => usable.push(index),
            Some(reason) => skipped.push(Skipped { side: side.name.into(), reason }),
        }
    }
    Ok((usable, skipped))
}

fn run_group(
    benchmark: &dyn Benchmark,
    context: &Context,
    plan: Plan,
    group: usize,
    usable: &[usize],
) -> Result<BTreeMap<usize, Gathered>> {
    let mut gathered: BTreeMap<usize, Gathered> = BTreeMap::new();
    for round in 0..plan.rounds {
        for turn in 0..usable.len() {
            // Another side begins each round, so that none always follows the same one.
            let side = usable[(turn + round) % usable.len()];
            let run = run_checked(benchmark, context, group, side, false)?;
            let entry = gathered.entry(side).or_default();
            for (number, window) in run.report.windows.into_iter().enumerate() {
                entry.windows.entry(number).or_default().push(window);
            }
        }
    }
    for &side in usable.iter().filter(|_| plan.syscalls) {
        let run = run_checked(benchmark, context, group, side, true)?;
        let ops = run.report.total_ops.max(1) as f64;
        gathered.entry(side).or_default().syscalls_per_op = run.syscalls.map(|count| count as f64 / ops);
    }
    Ok(gathered)
}

/// Runs one side and makes sure that it ran on the engine that it stands for.
fn run_checked(
    benchmark: &dyn Benchmark,
    context: &Context,
    group: usize,
    side: usize,
    count: bool,
) -> Result<Run> {
    let run = benchmark.run(context, group, side, count)?;
    let side = &benchmark.sides()[side];
    let fits = match (side.on, run.report.engine) {
        (_, None) => true,
        (On::Kernel, Some(engine)) => engine == Engine::Kernel,
        (On::Anyring | On::AnyringTrap | On::Linked, Some(engine)) => engine == Engine::User,
        (On::Plain, Some(_)) => false,
    };
    if !fits {
        return Err(Failure::new(format!(
            "side `{}` ran on the wrong engine: {:?}",
            side.name, run.report.engine
        ))
        .advice("its numbers would mean nothing; `anyring doctor` shows what a ring is here"));
    }
    Ok(run)
}

fn to_cases(
    benchmark: &dyn Benchmark,
    group: &str,
    usable: &[usize],
    gathered: &BTreeMap<usize, Gathered>,
) -> Vec<Case> {
    let sides = benchmark.sides();
    let about = benchmark.about();
    let baseline = usable.iter().find(|&&side| sides[side].name == about.baseline);
    let baseline = baseline.and_then(|side| gathered.get(side));
    let Some(first) = gathered.values().next() else {
        return Vec::new();
    };
    first
        .windows
        .iter()
        .map(|(number, windows)| {
            let against = baseline.and_then(|gathered| gathered.windows.get(number));
            let label = windows.first().map_or("", |window| window.label.as_str());
            Case {
                name: match label {
                    "" => group.to_owned(),
                    label => format!("{label}, {group}"),
                },
                sides: usable
                    .iter()
                    .filter_map(|side| {
                        let gathered = gathered.get(side)?;
                        let windows = gathered.windows.get(number)?;
                        Some(to_side(sides[*side].name, windows, against, gathered.syscalls_per_op))
                    })
                    .collect(),
            }
        })
        .collect()
}

fn to_side(
    name: &str,
    windows: &[Window],
    against: Option<&Vec<Window>>,
    syscalls_per_op: Option<f64>,
) -> SideResult {
    let wall = || windows.iter().map(wall_per_op);
    let cpu = || windows.iter().map(cpu_per_op);
    SideResult {
        side: name.to_owned(),
        ns_per_op: median(wall()),
        fastest_ns_per_op: wall().fold(f64::INFINITY, f64::min),
        slowest_ns_per_op: wall().fold(0.0, f64::max),
        cpu_ns_per_op: median(cpu()),
        speed: against.map(|other| paired_ratio(other.iter().map(wall_per_op), wall())),
        cpu: against.map(|other| paired_ratio(cpu(), other.iter().map(cpu_per_op))),
        syscalls_per_op,
        windows: windows.to_vec(),
    }
}

fn wall_per_op(window: &Window) -> f64 {
    window.wall_ns as f64 / window.ops.max(1) as f64
}

fn cpu_per_op(window: &Window) -> f64 {
    window.cpu_ns as f64 / window.ops.max(1) as f64
}
