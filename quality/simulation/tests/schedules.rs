//! Some seconds of simulation, and that a replay is exact.

use std::process::{Command, Output};

fn simulation(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_anyring-simulation"))
        .args(arguments)
        .output()
        .expect("the simulation starts")
}

fn passes(family: &str, seed: u64, schedules: u64) {
    let (seed, schedules) = (seed.to_string(), schedules.to_string());
    // An attempt to accept blocks with its ring's lock held where the number becomes another listener's meanwhile.
    let arguments = ["--keep-listeners", "--program", family, "--seed", &seed, "--schedules", &schedules];
    let run = simulation(&arguments);
    assert!(run.status.success(), "{family}: {}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn all_of_it() {
    passes("any", 1, 2000);
}

#[test]
fn messages() {
    passes("messages", 1, 50);
}

#[test]
fn storage() {
    passes("storage", 1, 1000);
}

#[test]
fn quiet_programs() {
    passes("quiet", 1, 400);
}

#[test]
fn cancellation() {
    passes("cancel", 345, 750);
}

#[test]
fn streams() {
    passes("streams", 996, 1000);
}

#[test]
fn overflow() {
    passes("overflow", 1, 500);
}

/// The report of a schedule ends with what all its decisions, completions and calls come to.
#[test]
fn a_replay_is_exact() {
    for seed in ["7", "11"] {
        let [first, second] = [(); 2].map(|()| {
            let report = simulation(&["--replay", seed]);
            assert!(report.status.success());
            let text = String::from_utf8(report.stdout).expect("text");
            text.lines().find(|line| line.contains("decisions, which")).expect("a sum").to_owned()
        });
        assert_eq!(first, second);
    }
}
