//! What a program's start takes under `anyring run`.

use std::process::Command;

use super::{About, Benchmark, Run, Side, run_workload, side};
use crate::failure::Result;
use crate::harness::launch::{Context, On};
use crate::report::Outcome;
use crate::report::verdict::{Bound, Check, Figure};

const ALONE: &str = "program alone";

/// With what stands before the program.
const SIDES: [Side; 3] = [
    side(ALONE, On::Plain, &[]),
    side("anyring run", On::Plain, &["run", "--"]),
    side("anyring run, user", On::Plain, &["run", "--engine", "user", "--"]),
];

const TRUE: &str = "true";
const SHELL: &str = "shell, 100 programs";

/// By its path the shell starts a program, rather than do it itself.
const SCRIPT: &str = "i=0; while [ $i -lt 100 ]; do /bin/true; i=$((i+1)); done";
const PROGRAMS: &str = "100";

/// Starts of programs that make no ring.
pub struct Start;

impl Benchmark for Start {
    fn about(&self) -> About {
        About {
            name: "start",
            title: "start and end of programs that make no ring",
            text: "`true`: from its start to its end, alone and under `anyring run`, by the engine of anyring's choice and by the user \
                   engine. `shell, 100 programs`: the same of a shell that runs `/bin/true` 100 times, per program; the shell's own \
                   start is shared among them. CPU time is that of all of these processes. The quantiles are those of single runs.",
            goal: "`anyring run` takes at most 3 ms more than the program alone; a further program at most 0.3 ms more",
            baseline: ALONE,
            sides: &SIDES,
        }
    }

    fn groups(&self, _quick: bool) -> Vec<String> {
        vec![TRUE.into(), SHELL.into()]
    }

    fn obstacle(&self, context: &Context, side: usize) -> Result<Option<String>> {
        context.obstacle(if SIDES[side].flags.is_empty() { On::Plain } else { On::Anyring })
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        let mut command = context.workload(On::Plain, "start");
        command.args(["--window-ms", &context.window().as_millis().to_string()]);
        if group == 1 {
            command.args(["--programs", PROGRAMS]);
        }
        command.arg("--");
        launch(&mut command, context, SIDES[side].flags);
        match group {
            0 => command.arg("true"),
            _ => command.args(["sh", "-c", SCRIPT]),
        };
        run_workload(context, command, count)
    }

    fn checks(&self, outcome: &Outcome) -> Vec<Check> {
        let more = |case| {
            let of = move |side: &Side| more(outcome, case, side.name);
            SIDES[1..].iter().filter_map(of).collect::<Vec<_>>()
        };
        vec![
            Check::new("time of `true` more than alone", Bound::AtMost(3000.0), more(TRUE)).in_unit("µs"),
            Check::new("time of a further program more than alone", Bound::AtMost(300.0), more(SHELL))
                .in_unit("µs"),
        ]
    }
}

fn launch(command: &mut Command, context: &Context, words: &[&str]) {
    if !words.is_empty() {
        command.arg(context.tool("anyring")).args(words);
    }
}

/// Microseconds of the median run that a side takes more than the program alone.
fn more(outcome: &Outcome, case: &str, side: &str) -> Option<Figure> {
    let median = |side| Some(outcome.side(case, side)?.latency?.median as f64 / 1e3);
    Some(Figure::of(median(side)? - median(ALONE)?, format!("{case}: {side}")))
}
