//! `anyring chaos --power-cut`: planted bugs are found and shrunk, repaired programs pass.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use support::{anyring, built};

/// The default number of seeds that a repaired program must pass; `ANYRING_CHAOS_SEEDS` sets another one.
const SEEDS: &str = "12";

/// A directory that only this test uses, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("power-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs `anyring chaos` in a directory, in which each run makes its files anew.
fn chaos(directory: &Directory, options: &[&str]) -> Output {
    Command::new(anyring()).arg("chaos").args(options).current_dir(&directory.0).output().unwrap()
}

/// Runs a case of the program `power` with seeds.
fn power(directory: &Directory, program: &str, case: &str, options: &[&str]) -> Output {
    let program = built(program);
    let program = program.to_str().unwrap();
    let check = format!("{program} {case} check");
    let fixed = ["--seed", "1", "--power-cut", "--setup", "rm -rf ./*", "--check", &check];
    chaos(directory, &[&fixed[..], options, &["--", program, case, "write"]].concat())
}

/// Finds the bug of a case among 100 seeds, shrinks it to a moment and few losses, among them one that contains `shows`, and
/// replays it.
fn is_found(case: &str, model: &str, shows: &str) {
    let (directory, records) =
        (Directory::new(&format!("{case}-{model}")), Directory::new(&format!("{case}-{model}-record")));
    let record = records.0.join("few.json");
    let path = record.to_str().unwrap();
    let options = ["--runs", "100", "--shrink", "--crash-model", model, "--record", path];
    let output = power(&directory, "power", case, &options);
    assert_eq!(output.status.code(), Some(1), "{case}: {}", said(&output));
    let recorded: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    assert_eq!(recorded["failure"], "exit status 1", "{recorded:#?}");
    let few = recorded["injected"].as_array().unwrap();
    let is_loss = |fault: &Value| ["lost", "torn"].contains(&fault["fault"].as_str().unwrap());
    let losses: Vec<&Value> = few.iter().filter(|fault| is_loss(fault)).collect();
    assert!((1..=3).contains(&few.len()) && !losses.is_empty(), "{few:#?}");
    let description = |fault: &Value| fault["description"].as_str().unwrap().to_owned();
    assert!(losses.iter().any(|loss| description(loss).contains(shows)), "{case}: no {shows} in {few:#?}");
    let replayed = chaos(&directory, &["--replay", path]);
    let told = said(&replayed);
    assert_eq!(replayed.status.code(), Some(1), "{told}");
    assert!(few.iter().all(|fault| told.contains(&description(fault))), "{few:#?}\nthe replay said:\n{told}");
}

/// Checks that all seeds pass, and that the power was cut and something was lost.
fn passes(program: &str, case: &str, model: &str) {
    let seeds = std::env::var("ANYRING_CHAOS_SEEDS").unwrap_or_else(|_| SEEDS.to_owned());
    let directory = Directory::new(&format!("{program}-{case}-{model}"));
    let output = power(&directory, program, case, &["--runs", &seeds, "--crash-model", model]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{case} {model}:\n{said}");
    assert!(
        said.contains(&format!("{seeds} passed, 0 failed")) && !said.contains(" 0 faults"),
        "{case} {model}:\n{said}"
    );
    assert!(!said.contains("left alone"), "{said}");
}

macro_rules! planted {
    ($($name:ident: $case:literal, $model:literal, $shows:literal;)*) => { $(
        #[test]
        fn $name() {
            is_found($case, $model, $shows);
            for model in ["ext4", "xfs", "posix"] {
                passes("power-repaired", $case, model);
            }
        }
    )* };
}

planted! {
    a_file_is_not_synced: "file-sync", "ext4", "WRITE";
    a_sync_does_not_wait_for_its_write: "link", "xfs", "WRITE";
    a_directory_is_not_synced_after_a_creation: "create", "posix", "OPENAT";
    a_directory_is_not_synced_after_a_rename: "rename", "ext4", "RENAMEAT";
    a_file_is_replaced_by_one_without_data: "replace", "xfs", "WRITE";
    two_writes_come_in_the_wrong_order: "order", "ext4", "WRITE";
    a_header_is_torn: "torn", "ext4", "WRITE";
}

/// Some bugs are none on a certain file system: the programs rely on guarantees of ext4 and XFS that the manual pages
/// do not give.
#[test]
fn some_bugs_are_none_on_a_certain_file_system() {
    passes("power", "create", "ext4");
    passes("power", "create", "xfs");
    passes("power", "replace", "ext4");
}

/// A program that does a NOP more between its operations in each run: its requests have other numbers each time.
#[test]
fn other_requests_do_not_shift_the_moment() {
    let (directory, records) = (Directory::new("idle"), Directory::new("idle-record"));
    let (program, path) = (built("power"), records.0.join("few.json"));
    let (program, path) = (program.to_str().unwrap(), path.to_str().unwrap());
    let (setup, check) = ("rm -rf ./*; printf . >> .idle", format!("{program} file-sync check"));
    let power = ["--power-cut", "--setup", setup, "--check", &check];
    let write = ["--", program, "file-sync", "write"];
    let search = ["--seed", "1", "--runs", "100", "--shrink", "--tries", "1", "--record", path];
    let output = chaos(&directory, &[&search[..], &power, &write].concat());
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    for _ in 0..5 {
        let replayed = chaos(&directory, &["--replay", path]);
        let told = said(&replayed);
        assert_eq!(replayed.status.code(), Some(1), "{told}");
        assert!(told.contains(": moment ") && told.contains(": lost ("), "{told}");
    }
    // The command that is printed for a seed that failed.
    let search = ["--seed", "1", "--runs", "100"];
    let told = said(&chaos(&directory, &[&search[..], &power, &write].concat()));
    let words = told.lines().find_map(|line| line.strip_prefix("  anyring chaos ")).unwrap();
    let of = |option: &str| words.split_once(option).unwrap().1.split(' ').next().unwrap();
    let again = ["--seed", of("--seed "), "--cut-at", of("--cut-at ")];
    for _ in 0..5 {
        let output = chaos(&directory, &[&again[..], &power, &write].concat());
        assert_eq!(output.status.code(), Some(1), "{words}\n{}", said(&output));
    }
}

/// A program that does twice as much in the run without faults as in the others.
#[test]
fn a_moment_lies_within_what_the_run_does() {
    let directory = Directory::new("less");
    let program = built("power-repaired");
    let program = program.to_str().unwrap();
    let setup = "rm -rf ./*; test -e .once || touch more; touch .once";
    let both = format!("{program} file-sync write; test ! -e more || {program} rename write");
    let power = ["--power-cut", "--setup", setup, "--check", &format!("{program} file-sync check")];
    let search = ["--seed", "1", "--runs", "40"];
    let output = chaos(&directory, &[&search[..], &power, &["--", "sh", "-c", &both]].concat());
    let told = said(&output);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(told.contains("40 passed, 0 failed"), "{told}");
    let ended = told.lines().find_map(|line| {
        let (words, _) = line.split_once(" of them the power was cut when the program had ended")?;
        words.rsplit(' ').next()?.parse::<u32>().ok()
    });
    assert!(ended.is_none_or(|ended| ended < 4), "{told}");
}

/// The power is cut where it is asked for.
#[test]
fn a_moment_is_chosen() {
    let directory = Directory::new("chosen");
    for (moment, shows) in [
        ("3", "FSYNC #3 of ring 1: cut-before (the power is cut before an operation is done): moment 3"),
        (
            "4",
            "FSYNC #3 of ring 1: cut-after (the power is cut after an operation is done, before its completion): moment 4",
        ),
        ("0", "the power was cut when the program had ended"),
        ("1000", "the power was cut when the program had ended"),
    ] {
        let output = power(&directory, "power-repaired", "file-sync", &["--cut-at", moment]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(said(&output).contains(shows), "{moment}: {}", said(&output));
    }
}

#[test]
fn a_file_that_something_else_writes_is_left_alone() {
    let (directory, program) = (Directory::new("stranger"), built("power"));
    let program = program.to_str().unwrap();
    let both = format!("{program} file-sync write; printf more >> log");
    // Nothing is lost in this run, and the power is cut at the end.
    let record = serde_json::json!({
        "version": 1, "seed": 1, "rate": 0.0, "faults": [], "program": ["sh", "-c", both], "injected": [],
        "power_cut": { "model": "ext4", "setup": "rm -rf ./*", "check": "test $(stat -c %s log) = 804" },
    });
    let records = Directory::new("stranger-record");
    let path = records.0.join("end.json");
    fs::write(&path, record.to_string()).unwrap();
    let output = chaos(&directory, &["--replay", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let named = said(&output);
    assert!(named.contains("left alone: ") && named.contains("/log: something that was not seen"), "{named}");
}

/// The report says in how many of the runs that passed files were left alone.
#[test]
fn runs_that_left_files_alone_are_counted() {
    let (directory, program) = (Directory::new("counted"), built("power"));
    let program = program.to_str().unwrap();
    let both = format!("{program} file-sync write; printf more >> log");
    let options = ["--seed", "1", "--runs", "20", "--power-cut", "--setup", "rm -rf ./*", "--check", "true"];
    let output = chaos(&directory, &[&options[..], &["--", "sh", "-c", &both]].concat());
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    let told = lines.iter().position(|line| line.contains("of those that passed, files were left alone"));
    let told = told.unwrap_or_else(|| panic!("no line of files that were left alone:\n{said}"));
    let number = |line: &str| line.split(' ').find_map(|word| word.parse::<u32>().ok());
    let runs = number(lines[told]).unwrap();
    assert!((1..20).contains(&runs), "{said}");
    assert!(
        lines[told + 1].contains("/log: something that was not seen")
            && lines[told + 1].ends_with(&format!(", in {runs}")),
        "{said}"
    );
}

#[test]
fn mistakes_are_told() {
    let directory = Directory::new("mistakes");
    for (options, part) in [
        (&["--power-cut"][..], "--check"),
        (&["--check", "true"], "--power-cut"),
        (&["--power-cut", "--check", "true"], "--setup true"),
        (&["--power-cut", "--check", "true", "--setup", "true", "--cut-at", "65537"], "65536"),
        (&["--cut-at", "1"], "--power-cut"),
        (&["--power-cut", "--check", "true", "--crash-model", "fat"], "ext4, xfs or posix"),
        (&["--power-cut", "--check", "true", "--engine", "kernel"], "only anyring's own engine"),
        (&["--power-cut", "--check", "true", "--runs", "2", "--jobs", "2"], "the same files"),
        (&["--power-cut", "--check", "true", "--setup", "false"], "the setup ended with exit status 1"),
    ] {
        let output = chaos(&directory, &[options, &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(125), "{options:?}: {}", said(&output));
        assert!(said(&output).contains(part), "{options:?}: {}", said(&output));
    }
}
