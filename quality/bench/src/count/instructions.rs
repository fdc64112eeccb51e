//! Instructions in user space, counted by callgrind, with the engine linked into the workload and called as a function: valgrind
//! does not support what `anyring run` does to a program.

use std::path::Path;
use std::time::Duration;

use super::Counting;
use super::page::Row;
use crate::failure::{Doing, Failure, Result};
use crate::harness::launch::{Context, On};
use crate::harness::process::{Process, command};
use crate::workload::Report;
use crate::workload::meta::create_tree;

/// The lengths of the two runs; under valgrind, a program is about fifty times slower.
const WINDOWS: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(800)];

/// Workloads, names of their cases, and their arguments.
const WORKLOADS: &[(&str, &str, &[&str])] = &[
    ("nop", "1 per enter", &["--per-enter", "1"]),
    ("nop", "16 per enter", &["--per-enter", "16"]),
    ("meta", "depth 1", &["--depth", "1"]),
    ("meta", "depth 64", &["--depth", "64"]),
    ("meta", "chain of three, depth 1", &["--depth", "1", "--chain"]),
    ("meta", "chain of three, depth 64", &["--depth", "64", "--chain"]),
];

/// Counts the instructions of all workloads.
pub fn count(counting: &mut Counting<'_>) -> Result<()> {
    let tree = counting.context.scratch.join("instructions");
    create_tree(&tree)?;
    for &(workload, case, arguments) in WORKLOADS {
        let context = counting.context;
        counting.count(Row::new(workload, case, super::page::INSTRUCTIONS), || {
            let run = |window| run(context, workload, arguments, &tree, window);
            let ((few, few_ops), (many, many_ops)) = (run(WINDOWS[0])?, run(WINDOWS[1])?);
            if many_ops <= few_ops {
                return Err(Failure::new(format!(
                    "{workload}, {case}: four times the time, and no more operations"
                ))
                .advice("the machine is too busy to count on: try again"));
            }
            Ok(Some(many.saturating_sub(few) as f64 / (many_ops - few_ops) as f64))
        })?;
    }
    Ok(())
}

/// Runs a workload once; returns its instructions and operations.
fn run(
    context: &Context,
    workload: &str,
    arguments: &[&str],
    tree: &Path,
    window: Duration,
) -> Result<(u64, u64)> {
    let log = context.scratch.join("callgrind");
    let mut program = command(Path::new("valgrind"));
    program
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--log-file={}", log.display()));
    let own = context.workload(On::Linked, workload);
    program.arg(own.get_program()).args(own.get_args()).args(arguments);
    if workload == "meta" {
        program.arg("--tree").arg(tree);
    }
    program.args(["--window-ms", &window.as_millis().to_string()]);
    let finished = Process::start(program, &context.scratch, context.limit() * 10)?.finish()?;
    let report: Report =
        serde_json::from_str(&finished.output).doing(|| "understanding the report of a workload".into())?;
    let text = std::fs::read_to_string(&log).doing(|| "reading what callgrind wrote".into())?;
    let collected = text.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    match collected {
        Some(instructions) => Ok((instructions, report.total_ops)),
        None => Err(Failure::new(format!("callgrind does not say what it counted, but: {text}"))),
    }
}
