//! Runs schedules of every family of programs, and checks that a replay is exact, whatever ran before.

use std::process::{Command, Output};

/// The number of schedules of all families together; `ANYRING_SIMULATION_SCHEDULES` overrides it.
const SCHEDULES: u64 = 20_000;

fn simulation(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_anyring-simulation"))
        .args(["--jobs", "1"])
        .args(arguments)
        .output()
        .expect("the simulation starts")
}

/// Runs this percentage of the schedules with a family; all must pass.
fn passes(family: &str, hundredths: u64) {
    let all = std::env::var("ANYRING_SIMULATION_SCHEDULES")
        .map_or(SCHEDULES, |all| all.parse().expect("ANYRING_SIMULATION_SCHEDULES is a number of schedules"));
    let schedules = (all * hundredths / 100).to_string();
    let run = simulation(&["--program", family, "--schedules", &schedules]);
    assert!(run.status.success(), "{family}: {}", String::from_utf8_lossy(&run.stderr));
    print!("{family}: {}", String::from_utf8_lossy(&run.stdout));
}

#[test]
fn all_of_it() {
    passes("any", 20);
}

#[test]
fn messages() {
    passes("messages", 10);
}

#[test]
fn storage() {
    passes("storage", 10);
}

#[test]
fn quiet_programs() {
    passes("quiet", 10);
}

#[test]
fn cancellation() {
    passes("cancel", 10);
}

#[test]
fn streams() {
    passes("streams", 10);
}

#[test]
fn futexes() {
    passes("futexes", 10);
}

#[test]
fn overflow() {
    passes("overflow", 10);
}

#[test]
fn listeners() {
    passes("listeners", 10);
}

#[test]
fn rings() {
    passes("rings", 10);
}

/// A schedule's report ends with a hash of all its decisions, completions and calls, which is the same alone and after others.
#[test]
fn a_replay_is_exact() {
    let sum = |arguments: &[&str]| {
        let report = simulation(arguments);
        assert!(report.status.success());
        let text = String::from_utf8(report.stdout).expect("text");
        text.trim_end().rsplit_once("comes to ").expect("a sum").1.to_owned()
    };
    for seed in ["7", "40"] {
        let alone = sum(&["--replay", seed]);
        assert_eq!(alone, sum(&["--replay", seed]));
        assert_eq!(alone, sum(&["--schedules", seed]));
    }
}

/// The engine keeps no state of the system, the descriptors and the rings of earlier schedules.
#[test]
fn no_schedule_depends_on_those_before_it() {
    const FAMILIES: [&str; 9] =
        ["any", "messages", "storage", "quiet", "cancel", "streams", "overflow", "listeners", "futexes"];
    for family in FAMILIES {
        let run = simulation(&["--compare", "--program", family, "--schedules", "200"]);
        assert!(run.status.success(), "{family}: {}", String::from_utf8_lossy(&run.stderr));
    }
}
