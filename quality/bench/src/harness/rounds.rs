//! Interleaved rounds: every side once, then every side again, so that disturbances of the machine
//! affect all sides alike.

use std::collections::BTreeMap;

use super::launch::{Context, On};
use super::stats::{median, paired_ratio};
use crate::benchmarks::{Benchmark, Run};
use crate::failure::{Failure, Result};
use crate::report::{Case, Failed, MemoryPerOp, Outcome, SideResult, Skipped};
use crate::workload::ring::Engine;
use crate::workload::{Latency, Memory, Window};

/// The plan of a measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds per group of cases.
    pub rounds: usize,
    /// Reduces the number of cases of a benchmark that has many.
    pub quick: bool,
    /// Adds one run per side, in which system calls are counted.
    pub syscalls: bool,
    /// The sides to run, all if none is named.
    pub sides: Vec<String>,
    /// Texts of which a group's name must contain one; all groups run if there is none.
    pub cases: Vec<String>,
}

/// The results of the rounds of one group.
#[derive(Default)]
struct Gathered {
    /// Results by the side's number.
    sides: BTreeMap<usize, GatheredSide>,
    /// Failures by the side's number. A side that failed does not run again in the group.
    failed: BTreeMap<usize, Failure>,
}

#[derive(Default)]
struct GatheredSide {
    /// Windows by their position in the report, one per round.
    windows: BTreeMap<usize, Vec<Window>>,
    copied: Option<f64>,
    syscalls_per_op: Option<f64>,
}

/// Runs a benchmark. A side that fails is left out of the case in which it failed.
pub fn measure(benchmark: &mut dyn Benchmark, context: &Context, plan: &Plan) -> Result<Outcome> {
    let about = benchmark.about();
    let (usable, mut skipped) = usable_sides(benchmark, context, plan)?;
    benchmark.prepare(context, &usable)?;
    let (mut cases, mut failed) = (Vec::new(), Vec::new());
    for (group, label) in benchmark.groups(plan.quick).iter().enumerate() {
        if !plan.cases.is_empty() && !plan.cases.iter().any(|text| label.contains(text)) {
            continue;
        }
        if let Some(reason) = benchmark.missing(context, group) {
            skipped.push(Skipped { side: label.clone(), reason });
            continue;
        }
        anyring_say::say_error!("{}: {label}, {} rounds", about.name, plan.rounds);
        let gathered = run_group(benchmark, context, plan, group, &usable);
        cases.extend(to_cases(benchmark, label, &usable, &gathered));
        failed.extend(gathered.failed.iter().map(|(&side, failure)| Failed {
            side: benchmark.sides()[side].name.into(),
            case: label.clone(),
            how: failure.to_string(),
        }));
    }
    let window_ms = context.window().as_millis() as u64;
    let mut outcome = Outcome {
        about,
        rounds: plan.rounds,
        window_ms,
        skipped,
        failed,
        peak_bytes: peaks(&cases),
        cases,
        findings: Vec::new(),
        entries: benchmark.entries(context),
    };
    outcome.findings = benchmark.findings(&outcome);
    Ok(outcome)
}

/// Returns the highest memory use of each side.
fn peaks(cases: &[Case]) -> BTreeMap<String, u64> {
    let mut peaks = BTreeMap::new();
    for side in cases.iter().flat_map(|case| &case.sides) {
        if let Some(peak) = side.windows.iter().filter_map(|window| window.peak_bytes).max() {
            let entry = peaks.entry(side.side.clone()).or_insert(peak);
            *entry = peak.max(*entry);
        }
    }
    peaks
}

fn usable_sides(
    benchmark: &dyn Benchmark,
    context: &Context,
    plan: &Plan,
) -> Result<(Vec<usize>, Vec<Skipped>)> {
    let (mut usable, mut skipped) = (Vec::new(), Vec::new());
    for (index, side) in benchmark.sides().iter().enumerate() {
        if !plan.sides.is_empty() && !plan.sides.iter().any(|name| name == side.name) {
            continue;
        }
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
    plan: &Plan,
    group: usize,
    usable: &[usize],
) -> Gathered {
    let mut gathered = Gathered::default();
    for round in 0..plan.rounds {
        for turn in 0..usable.len() {
            // Each round begins with a different side, so that no side always follows the same other side.
            let side = usable[(turn + round) % usable.len()];
            if gathered.failed.contains_key(&side) {
                continue;
            }
            match run_checked(benchmark, context, group, side, false) {
                Ok(run) => gathered.add(side, run),
                Err(failure) => gathered.fail(side, failure),
            }
        }
    }
    for &side in usable.iter().filter(|_| plan.syscalls) {
        let Some(entry) = gathered.sides.get_mut(&side) else { continue };
        match syscalls_per_op(benchmark, context, group, side) {
            Ok(count) => entry.syscalls_per_op = count,
            Err(failure) => gathered.fail(side, failure),
        }
    }
    gathered
}

/// Returns the system calls of one operation: the additional calls of a longer run over its additional operations, so that start and end of
/// the process and of its connections do not count. If the work is fixed, all calls over all operations.
pub fn syscalls_per_op(
    benchmark: &dyn Benchmark,
    context: &Context,
    group: usize,
    side: usize,
) -> Result<Option<f64>> {
    let counted = |window| {
        let run = context.with_window(window, || run_checked(benchmark, context, group, side, true))?;
        Ok::<_, Failure>(run.syscalls.map(|count| (count as f64, run.report.total_ops as f64)))
    };
    let Some((all_calls, all_ops)) = counted(context.window())? else { return Ok(None) };
    if benchmark.work_is_fixed() {
        return Ok(Some(all_calls / all_ops.max(1.0)));
    }
    let Some((calls, ops)) = counted(context.window() / 4)? else { return Ok(None) };
    Ok(Some(match all_ops - ops {
        more if more > 0.0 => ((all_calls - calls) / more).max(0.0),
        _ => all_calls / all_ops.max(1.0),
    }))
}

impl Gathered {
    fn add(&mut self, side: usize, run: Run) {
        let entry = self.sides.entry(side).or_default();
        entry.copied = run.report.copied;
        for (number, window) in run.report.windows.into_iter().enumerate() {
            entry.windows.entry(number).or_default().push(window);
        }
    }

    /// Records a failure. Removes the side's rounds, which would be compared with the wrong rounds of other sides.
    fn fail(&mut self, side: usize, failure: Failure) {
        self.sides.remove(&side);
        self.failed.insert(side, failure);
    }
}

/// Runs one side and checks that it ran on the expected engine.
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
        (On::Kernel | On::KernelTraced, Some(engine)) => engine == Engine::Kernel,
        (On::Anyring | On::AnyringTrap | On::AnyringTraced | On::Linked, Some(engine)) => {
            engine == Engine::User
        }
        (On::Plain | On::Denied, Some(_)) => false,
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

fn to_cases(benchmark: &dyn Benchmark, group: &str, usable: &[usize], gathered: &Gathered) -> Vec<Case> {
    let sides = benchmark.sides();
    let baseline = usable.iter().find(|&&side| sides[side].name == benchmark.about().baseline);
    let baseline = baseline.and_then(|side| gathered.sides.get(side));
    let Some(first) = gathered.sides.values().next() else { return Vec::new() };
    let to_case = |(number, windows): (&usize, &Vec<Window>)| {
        let against = baseline.and_then(|side| side.windows.get(number));
        let label = windows.first().map_or("", |window| window.label.as_str());
        let of_side = |(&index, side): (&usize, &GatheredSide)| {
            let windows = side.windows.get(number)?;
            Some(to_side(sides[index].name, windows, against, side))
        };
        Case {
            name: if label.is_empty() { group.to_owned() } else { format!("{label}, {group}") },
            sides: gathered.sides.iter().filter_map(of_side).collect(),
        }
    };
    first.windows.iter().map(to_case).collect()
}

fn to_side(
    name: &str,
    windows: &[Window],
    against: Option<&Vec<Window>>,
    gathered: &GatheredSide,
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
        syscalls_per_op: gathered.syscalls_per_op,
        copied: gathered.copied,
        memory_per_op: memory_per_op(windows),
        latency: latency(windows),
        windows: windows.to_vec(),
    }
}

fn wall_per_op(window: &Window) -> f64 {
    window.wall_ns as f64 / window.ops.max(1) as f64
}

fn cpu_per_op(window: &Window) -> f64 {
    window.cpu_ns as f64 / window.ops.max(1) as f64
}

fn latency(windows: &[Window]) -> Option<Latency> {
    let middle = |of: fn(&Latency) -> u64| {
        let values: Option<Vec<f64>> =
            windows.iter().map(|window| Some(of(window.latency.as_ref()?) as f64)).collect();
        values.map(|values| median(values) as u64)
    };
    Some(Latency {
        median: middle(|latency| latency.median)?,
        p99: middle(|latency| latency.p99)?,
        p999: middle(|latency| latency.p999)?,
    })
}

fn memory_per_op(windows: &[Window]) -> Option<MemoryPerOp> {
    let per_op = |of: fn(&Memory) -> u64| {
        let values: Option<Vec<f64>> = windows
            .iter()
            .map(|window| Some(of(window.memory.as_ref()?) as f64 / window.ops.max(1) as f64))
            .collect();
        values.map(median)
    };
    let (resident, kernel) = (per_op(|memory| memory.resident)?, per_op(|memory| memory.kernel)?);
    Some(MemoryPerOp { resident, kernel })
}
