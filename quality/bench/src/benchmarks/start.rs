//! The cost of a program's start under `anyring run`.

use std::path::PathBuf;
use std::process::Command;

use super::{About, Benchmark, Run, Side, run_workload, side};
use crate::failure::{Doing, Result};
use crate::harness::launch::{Context, On};
use crate::report::Outcome;
use crate::report::verdict::{Bound, Check, Figure};

const ALONE: &str = "program alone";

/// The sides, each with the words that precede the program's command.
const SIDES: [Side; 3] = [
    side(ALONE, On::Plain, &[]),
    side("anyring run", On::Plain, &["run", "--"]),
    side("anyring run, user", On::Plain, &["run", "--engine", "user", "--"]),
];

const TRUE: &str = "true";
const SHELL: &str = "shell, 100 programs";

/// The path makes the shell start the program instead of its builtin `true`.
const SCRIPT: &str = "i=0; while [ $i -lt 100 ]; do /bin/true; i=$((i+1)); done";
const PROGRAMS: &str = "100";

/// Measured from the end of the last read to the end of the process.
const END: &str = "end of a program that read";
const END_DIRECT: &str = "end of a program that read with O_DIRECT";
const END_LATER: &str = "end of a program that read with O_DIRECT half a second before";
const HALF_A_SECOND: [&str; 2] = ["--pause-ms", "500"];

/// Starts of programs that create no ring, and ends of programs that have used one.
#[derive(Default)]
pub struct Start {
    file: PathBuf,
}

impl Benchmark for Start {
    fn about(&self) -> About {
        About {
            name: "start",
            title: "start and end of programs",
            text: "`true`: from its start to its end, alone and under `anyring run`, by the engine of anyring's choice and by the user \
                   engine. `shell, 100 programs`: the same of a shell that runs `/bin/true` 100 times, per program; the shell's own \
                   start is shared among them. `end of a program that read`: from the completion of 32 reads by a ring to the end of the \
                   process; alone, that ring is the kernel's. Linux takes some 40 ms to end a process with a context of Linux AIO, which a ring \
                   of the user engine keeps for a quarter of a second after O_DIRECT transfers. CPU time is that of all of these processes. The quantiles are those of \
                   single runs.",
            goal: "`anyring run` takes at most 3 ms more than the program alone; a further program at most 0.3 ms more; a process that \
                   used O_DIRECT half a second ago ends at most 2 ms later than another",
            baseline: ALONE,
            sides: &SIDES,
        }
    }

    fn groups(&self, _quick: bool) -> Vec<String> {
        [TRUE, SHELL, END, END_DIRECT, END_LATER].map(String::from).into()
    }

    fn obstacle(&self, context: &Context, side: usize) -> Result<Option<String>> {
        context.obstacle(if SIDES[side].flags.is_empty() { On::Plain } else { On::Anyring })
    }

    fn prepare(&mut self, context: &Context, _usable: &[usize]) -> Result<()> {
        self.file = context.scratch.join("read");
        std::fs::write(&self.file, vec![1; 1 << 20]).doing(|| format!("writing {}", self.file.display()))
    }

    fn run(&self, context: &Context, group: usize, side: usize, count: bool) -> Result<Run> {
        let mut command = context.workload(On::Plain, "start");
        command.args(["--window-ms", &context.window().as_millis().to_string()]);
        match group {
            0 => {}
            1 => drop(command.args(["--programs", PROGRAMS])),
            _ => drop(command.arg("--from-printed")),
        }
        command.arg("--");
        launch(&mut command, context, SIDES[side].flags);
        match group {
            0 => drop(command.arg("true")),
            1 => drop(command.args(["sh", "-c", SCRIPT])),
            _ => {
                command.arg(&context.program).args(["workload", "read", "--file"]).arg(&self.file);
                if group >= 3 {
                    command.arg("--direct");
                }
                if group == 4 {
                    command.args(HALF_A_SECOND);
                }
            }
        }
        run_workload(context, command, count)
    }

    fn checks(&self, outcome: &Outcome) -> Vec<Check> {
        let later = |side: &Side| {
            let median = |case| Some(outcome.side(case, side.name)?.latency?.median as f64 / 1e3);
            Some(Figure::of(median(END_LATER)? - median(END)?, side.name.to_owned()))
        };
        let more = |case| {
            let of = move |side: &Side| more(outcome, case, side.name);
            SIDES[1..].iter().filter_map(of).collect::<Vec<_>>()
        };
        vec![
            Check::new("time of `true` more than alone", Bound::AtMost(3000.0), more(TRUE)).in_unit("µs"),
            Check::new("time of a further program more than alone", Bound::AtMost(300.0), more(SHELL))
                .in_unit("µs"),
            Check::new(
                "time by which a process that used O_DIRECT half a second ago ends later",
                Bound::AtMost(2000.0),
                SIDES.iter().filter_map(later).collect::<Vec<_>>(),
            )
            .in_unit("µs"),
        ]
    }
}

fn launch(command: &mut Command, context: &Context, words: &[&str]) {
    if !words.is_empty() {
        command.arg(context.tool("anyring")).args(words);
    }
}

/// Returns how many microseconds longer a side's median run takes than that of the program alone.
fn more(outcome: &Outcome, case: &str, side: &str) -> Option<Figure> {
    let median = |side| Some(outcome.side(case, side)?.latency?.median as f64 / 1e3);
    Some(Figure::of(median(side)? - median(ALONE)?, format!("{case}: {side}")))
}
