//! Walks through directory trees: by a tool of anyring, by common tools, and by a loop of plain calls.

use std::path::PathBuf;
use std::process::Command;

use super::{About, Benchmark, Run, Side, run_workload, side};
use crate::failure::Result;
use crate::harness::launch::{Context, On};
use crate::report::verdict::{Bound, Check, Figure};
use crate::report::{Case, Outcome};
use crate::workload::trees::Shape;

const DU: [Side; 4] = [
    side("du", On::Plain, &["du", "-s"]),
    side("anyring du", On::Plain, &["du", "-s"]),
    side("anyring du, user", On::Plain, &["du", "-s", "--engine", "user"]),
    side("anyring du, kernel", On::Kernel, &["du", "-s", "--engine", "kernel"]),
];

const FIND: [Side; 5] = [
    side("find", On::Plain, &["find"]),
    side("fd", On::Plain, &["fdfind", "--unrestricted", "."]),
    side("bfs", On::Plain, &["bfs"]),
    side("anyring find", On::Plain, &["find"]),
    side("anyring find, user", On::Plain, &["find", "--engine", "user"]),
];

/// Sides of the plain loop, with which every tool is compared.
const LOOPS: [Side; 7] = [
    side("loop, 1 thread", On::Plain, &["--threads", "1"]),
    side("loop, 2 threads", On::Plain, &["--threads", "2"]),
    side("loop, 4 threads", On::Plain, &["--threads", "4"]),
    side("loop, 8 threads", On::Plain, &["--threads", "8"]),
    side("loop, 16 threads", On::Plain, &["--threads", "16"]),
    side("loop, 32 threads", On::Plain, &["--threads", "32"]),
    side("loop, 64 threads", On::Plain, &["--threads", "64"]),
];

/// The shapes of the trees; each tree is read with hot and with cold caches.
const SHAPES: [Shape; 3] = [Shape::Wide, Shape::Huge, Shape::Deep];

/// A tool that walks through trees, and the sides it is compared with.
pub struct Trees {
    about: About,
    sides: Vec<Side>,
    attributes: bool,
    /// The trees' paths and numbers of entries, which are 0 before the trees are created.
    trees: [(PathBuf, u64); SHAPES.len()],
}

impl Trees {
    /// Returns the benchmark of `anyring du`.
    pub fn du() -> Self {
        let about = About {
            name: "du",
            title: "sizes of directory trees",
            text: "`du -s` of a wide tree (20 files per directory), of one directory with all files, and of 1000 nested directories; \
                   --entries says how many files. Hot: after a run that is not measured. Cold: the caches of the whole machine are \
                   emptied before each run, which needs root. An operation is an entry of the tree. The loop makes plain calls of \
                   openat, getdents64 with 64 KiB, fstatat for each entry, and close; its threads share the directories.",
            goal: "at most 1.15 of the loop's best number of threads hot, 1.2 cold; under 64 MiB for a million files",
            baseline: "du",
            sides: &[],
        };
        Self::of(about, &DU, true)
    }

    /// Returns the benchmark of `anyring find`.
    pub fn find() -> Self {
        let about = About {
            name: "find",
            title: "paths of directory trees",
            text: "All paths of the trees of `du`, hot and cold, printed to /dev/null. The loop makes plain calls of openat, \
                   getdents64 with 64 KiB, and close; its threads share the directories, and it prints nothing. `fd` is Debian's \
                   `fdfind`, with options by which it skips no file.",
            goal: "at most 1.15 of the loop's best number of threads hot, 1.2 cold; 1.5 times faster than the better of fd and bfs; under 64 MiB for a million files",
            baseline: "find",
            sides: &[],
        };
        Self::of(about, &FIND, false)
    }

    fn of(about: About, tools: &[Side], attributes: bool) -> Self {
        Self { about, sides: [tools, &LOOPS].concat(), attributes, trees: Default::default() }
    }

    /// Returns the name of the tool's side.
    fn ours(&self) -> String {
        format!("anyring {}", self.about.name)
    }

    /// Compares the tool in `case` with the fastest of the sides that `others` selects.
    fn over<'a>(&self, case: &'a Case, others: fn(&str) -> bool) -> Option<Over<'a>> {
        let ours = case.sides.iter().find(|side| side.side == self.ours())?;
        let others = case.sides.iter().filter(|side| others(&side.side));
        let best = others.min_by(|a, b| a.ns_per_op.total_cmp(&b.ns_per_op))?;
        Some(Over { time: ours.ns_per_op / best.ns_per_op, side: &best.side })
    }

    fn is_cold(group: usize) -> bool {
        group >= SHAPES.len()
    }

    fn command(&self, context: &Context, group: usize, side: usize) -> Command {
        let (root, entries) = &self.trees[group % SHAPES.len()];
        let mut command = context.workload(On::Plain, "tree");
        command.args(["--entries", &entries.to_string()]);
        if Self::is_cold(group) {
            command.arg("--cold");
        }
        command.arg("--");
        let Side { name, flags, .. } = self.sides[side];
        if is_loop(name) {
            let looped = context.workload(On::Plain, "tree-loop");
            command.arg(looped.get_program()).args(looped.get_args());
        } else if is_anyring(name) {
            command.arg(context.tool("anyring"));
        }
        command.args(flags);
        if is_loop(name) && self.attributes {
            command.arg("--attributes");
        }
        command.arg(root);
        command
    }
}

impl Benchmark for Trees {
    fn about(&self) -> About {
        self.about
    }

    fn sides(&self) -> &[Side] {
        &self.sides
    }

    fn groups(&self, quick: bool) -> Vec<String> {
        let named = |state| move |shape: &Shape| format!("{}, {state}", shape.text());
        let hot = SHAPES.iter().map(named("hot"));
        // Dropping caches disturbs the whole machine, so quick runs have no cold cases.
        let cold = SHAPES.iter().filter(|_| !quick).map(named("cold"));
        hot.chain(cold).collect()
    }

    fn obstacle(&self, context: &Context, side: usize) -> Result<Option<String>> {
        let Side { name, on, flags } = self.sides[side];
        if is_anyring(name) && !context.tool("anyring").exists() {
            return Ok(Some("anyring is not beside this program; name its directory with --tools".into()));
        }
        if !is_anyring(name) && !is_loop(name) && !is_installed(flags[0]) {
            return Ok(Some(format!("{} is not installed", flags[0])));
        }
        context.obstacle(on)
    }

    fn work_is_fixed(&self) -> bool {
        true
    }

    fn missing(&self, _context: &Context, group: usize) -> Option<String> {
        // SAFETY: no argument.
        let root = unsafe { libc::geteuid() } == 0;
        (Self::is_cold(group) && !root).then(|| "emptying the caches takes root".into())
    }

    fn prepare(&mut self, context: &Context, _usable: &[usize]) -> Result<()> {
        for (shape, (root, entries)) in SHAPES.iter().zip(&mut self.trees) {
            *root = context.scratch.join(format!("{}-{shape:?}", self.about.name));
            *entries = shape.make(root, context.entries)?;
        }
        Ok(())
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        if !Self::is_cold(group) {
            // This run fills the caches, so that the first side to be measured has no disadvantage.
            run_workload(context, self.command(context, group, 0), false)?;
        }
        run_workload(context, self.command(context, group, side), count)
    }

    fn entries(&self, context: &Context) -> Option<usize> {
        Some(context.entries)
    }

    fn checks(&self, outcome: &Outcome) -> Vec<Check> {
        let ours = self.ours();
        let over_loop = |state: &str| {
            let cases = outcome.cases.iter().filter(|case| case.name.ends_with(state));
            cases.filter_map(|case| Some(self.over(case, is_loop)?.time(case))).collect::<Vec<_>>()
        };
        let mut checks = vec![
            Check::new("time over the best loop's, hot", Bound::AtMost(1.15), over_loop("hot")),
            Check::new("time over the best loop's, cold", Bound::AtMost(1.2), over_loop("cold")),
        ];
        if self.sides.iter().any(|side| is_finder(side.name)) {
            let cases = outcome.cases.iter();
            let over = cases.filter_map(|case| Some(self.over(case, is_finder)?.speed(case)));
            checks.push(Check::new("speed over the better of fd and bfs", Bound::AtLeast(1.5), over));
        }
        let peak = outcome.peak_bytes.get(&ours).filter(|_| outcome.entries >= Some(1_000_000));
        let peak = peak.map(|&bytes| Figure::of(bytes.div_ceil(1 << 20) as f64, ours.clone()));
        checks.push(Check::new("memory for a million files", Bound::AtMost(64.0), peak).in_unit("MiB"));
        checks
    }

    fn findings(&self, outcome: &Outcome) -> Vec<String> {
        let peak = |name: &str| outcome.peak_bytes.get(name);
        let ours = self.ours();
        let mut findings = Vec::new();
        for case in &outcome.cases {
            let others = [self.over(case, is_loop), self.over(case, is_finder)];
            let ratios: Vec<_> = others
                .into_iter()
                .flatten()
                .map(|Over { time, side }| format!("{time:.2} of the time of {side}"))
                .collect();
            if !ratios.is_empty() {
                findings.push(format!("{}: {}.", case.name, ratios.join(", ")));
            }
        }
        let peaks: Vec<_> = [self.about.baseline, &ours, "fd", "bfs", "loop, 1 thread", "loop, 64 threads"]
            .into_iter()
            .filter_map(|name| Some(format!("{name} {} MiB", peak(name)?.div_ceil(1 << 20))))
            .collect();
        if !peaks.is_empty() {
            findings.push(format!("Memory at its highest: {}.", peaks.join(", ")));
        }
        findings
    }
}

/// The time of an anyring tool in a case, over that of the fastest other side.
struct Over<'a> {
    time: f64,
    side: &'a str,
}

impl Over<'_> {
    fn time(&self, case: &Case) -> Figure {
        Figure::of(self.time, format!("{}: over {}", case.name, self.side))
    }

    fn speed(&self, case: &Case) -> Figure {
        Figure::of(1.0 / self.time, format!("{}: over {}", case.name, self.side))
    }
}

fn is_anyring(side: &str) -> bool {
    side.starts_with("anyring ")
}

fn is_loop(side: &str) -> bool {
    side.starts_with("loop")
}

fn is_finder(side: &str) -> bool {
    ["fd", "bfs"].contains(&side)
}

/// True if there is a program of this name.
fn is_installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}
