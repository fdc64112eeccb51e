//! `anyring chaos`: planted bugs are found, shrunk to the faults that reveal them, and replayed; repaired programs pass.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyring_chaos_plan::Fault;
use serde_json::Value;
use support::{anyring, built};

/// The default number of seeds that a repaired program must pass.
const SEEDS: &str = "8";

fn planted() -> PathBuf {
    built("planted")
}

fn repaired() -> PathBuf {
    built("planted-repaired")
}

fn chaos(options: &[&str], program: &Path, case: &str) -> Output {
    Command::new(anyring()).arg("chaos").args(options).arg("--").arg(program).arg(case).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the path of a file that only this test uses.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos-{}-{name}.json", std::process::id()))
}

/// A bug: the case of the program with the bug, and the faults that reveal it.
struct Bug<'a> {
    case: &'a str,
    faults: &'a str,
    options: &'a [&'a str],
}

impl Bug<'_> {
    /// Finds the bug among 100 seeds, shrinks it to the few faults that reveal it, among them `shows`, and replays it.
    fn is_found(&self, shows: &str) {
        let record = file(self.case);
        let path = record.to_str().unwrap();
        let options = ["--seed", "1", "--runs", "100", "--shrink", "--faults", self.faults, "--record", path];
        let output = chaos(&[&options, self.options].concat(), &planted(), self.case);
        assert_eq!(output.status.code(), Some(1), "{}: {}", self.case, said(&output));
        let recorded: Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
        let replayed =
            Command::new(anyring()).args(["chaos", "--timeout", "60", "--replay", path]).output().unwrap();
        std::fs::remove_file(&record).unwrap();
        let failure = recorded["failure"].as_str().unwrap();
        // A program that harms memory in flight may end well.
        let ends_well = failure == "memory that was changed or freed in flight";
        let status: i32 =
            if ends_well { 0 } else { failure.trim_start_matches("exit status ").parse().unwrap() };
        let few = recorded["injected"].as_array().unwrap();
        assert!((1..=3).contains(&few.len()) && few.iter().any(|fault| fault["fault"] == shows), "{few:#?}");
        let replay_said = said(&replayed);
        let are_told = few.iter().all(|fault| replay_said.contains(fault["description"].as_str().unwrap()));
        assert!(
            are_told
                && replayed.status.code() == Some(status)
                && (!ends_well || replay_said.contains("memory of 1 request in flight")),
            "{few:#?}\nthe replay said:\n{replay_said}"
        );
    }
}

/// Checks that the program fails by the fault `shows`, one of `faults`, and that the repaired program passes `faults_of_repaired`.
fn is_told_from_its_repair(case: &str, faults: &str, shows: &str, faults_of_repaired: &str) {
    Bug { case, faults, options: &[] }.is_found(shows);
    is_repaired(case, faults_of_repaired);
}

/// Checks a bug that shows only while a thread or a completion is delayed, until the program has noticed and failed.
fn is_shown_by_a_delay(case: &str, fault: &str, faults_of_repaired: &str) {
    Bug { case, faults: fault, options: &["--delay", "600"] }.is_found(fault);
    is_repaired(case, faults_of_repaired);
}

/// Checks that the repaired program passes all seeds; `ANYRING_CHAOS_SEEDS` sets their number.
fn is_repaired(case: &str, faults: &str) {
    let seeds = std::env::var("ANYRING_CHAOS_SEEDS").unwrap_or_else(|_| SEEDS.to_owned());
    let options = ["--seed", "1", "--runs", &seeds, "--jobs", "2", "--rate", "0.1", "--faults", faults];
    let output = chaos(&options, &repaired(), case);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{case}:\n{said}");
    assert!(
        said.contains(&format!("{seeds} passed, 0 failed")) && !said.contains(" 0 faults"),
        "{case}:\n{said}"
    );
}

/// Checks a bug that the engine sees while a request is in flight. The request is delayed for longer than a busy machine delays
/// the program.
fn is_shown_in_flight(case: &str) {
    Bug { case, faults: "late", options: &["--delay", "0.5"] }.is_found("late");
    is_repaired(case, "ordinary");
}

macro_rules! planted {
    ($($name:ident: $case:literal, $faults:literal, $shows:literal;)*) => { $(
        #[test]
        fn $name() {
            is_told_from_its_repair($case, $faults, $shows, $faults);
        }
    )* };
}

macro_rules! shown_by_delays {
    ($($name:ident: $case:literal, $fault:literal, $faults_of_repaired:literal;)*) => { $(
        #[test]
        fn $name() {
            is_shown_by_a_delay($case, $fault, $faults_of_repaired);
        }
    )* };
}

macro_rules! shown_in_flight {
    ($($name:ident: $case:literal;)*) => { $(
        #[test]
        fn $name() {
            is_shown_in_flight($case);
        }
    )* };
}

planted! {
    short_reads: "short-read", "ordinary", "short";
    short_writes: "short-write", "ordinary", "short";
    interrupted_waits: "enter-interrupted", "ordinary", "enter-eintr";
    requests_that_would_wait: "would-wait", "ordinary", "eagain";
    buffer_groups_that_run_dry: "no-buffers", "ordinary", "dry";
    multishot_receives_that_end: "receive-ends", "ordinary", "multishot";
    multishot_polls_that_end: "poll-ends", "ordinary", "multishot";
    completions_looked_at_too_late: "completion-late", "ordinary", "cqe-rubbish";
    requests_looked_at_too_late: "request-late", "ordinary,sqe-rubbish", "sqe-rubbish";
    completions_out_of_order: "order", "late", "late";
    completions_kept_as_overflow: "overflow", "ordinary", "overflow";
    cancellations_too_late: "believes-cancel", "ordinary", "cancel";
    chains_that_a_short_read_breaks: "broken-chain", "ordinary,!eintr", "short";
    opens_that_fail: "open-fails", "emfile", "emfile";
    opens_that_fail_elsewhere: "open-fails", "ordinary,enfile", "enfile";
    reads_that_fail: "read-fails", "ordinary,eio", "eio";
    writes_that_fail: "write-fails", "ordinary,enospc", "enospc";
    connections_that_are_refused: "connect-fails", "ordinary,econnrefused", "econnrefused";
    connections_that_end_in_the_queue: "accept-fails", "ordinary", "econnaborted";
    bundles_that_are_not_full: "bundle", "ordinary", "short";
    reads_of_files_that_enter_refuses: "refused", "enter-eagain", "enter-eagain";
    reads_of_files_whose_completions_enter_wants_reaped: "refused", "enter-ebusy", "enter-ebusy";
    waits_for_reads_of_files_that_are_interrupted: "refused", "enter-eintr", "enter-eintr";
    chains_that_are_torn: "torn-chain", "ordinary,torn-chain", "torn-chain";
}

shown_in_flight! {
    memory_that_is_freed_in_flight: "freed";
    memory_that_is_reused_in_flight: "reused";
    memory_that_is_looked_at_in_flight: "looked-at";
    data_that_are_overwritten_in_flight: "overwritten";
}

shown_by_delays! {
    threads_that_come_before_a_submission: "read-too-late", "pause-before", "pause-before";
    threads_that_come_between_taking_and_issuing: "read-too-late", "pause-issue", "pause-issue";
    threads_that_come_before_a_wake_up: "eventfd-late", "pause-wake", "pause-wake";
    threads_that_come_before_a_return: "noted-late", "pause-after", "pause-after";
    notifications_that_are_late: "zero-copy", "notif", "ordinary";
}

#[test]
fn memory_that_an_address_sanitizer_knows_to_be_freed() {
    let run = |program: &str| {
        let output = chaos(
            &["--seed", "1", "--runs", "20", "--faults", "late", "--rate", "0.1"],
            &built(program),
            "dropped",
        );
        (output.status.code(), said(&output))
    };
    let (status, said) = run("planted-sanitized");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("READ #") && said.contains("its memory is freed or too short"), "{said}");
    let (status, said) = run("planted-sanitized-repaired");
    assert_eq!(status, Some(0), "{said}");
}

#[test]
fn waits_on_polled_rings_that_bring_nothing() {
    let mut plain = Command::new(anyring());
    plain.args(["run", "--engine", "user", "--"]).arg(planted()).arg("polled-wait");
    let output = plain.output().unwrap();
    if output.status.code() == Some(77) {
        anyring_tally::skipped("no polled reads where temporary files lie");
        return;
    }
    assert!(output.status.success(), "{}", said(&output));
    // The read is in flight while the program polls for it only if it is late, and later than any delay of the program.
    let options = &["--delay", "0.5", "--rate", "0.1"];
    let bug = Bug { case: "polled-wait", faults: "late,enter-nothing", options };
    bug.is_found("enter-nothing");
    is_repaired("polled-wait", "ordinary");
}

#[test]
fn a_single_run_has_the_status_of_the_program_and_repeats_itself() {
    let one = || chaos(&["--seed", "6"], &planted(), "short-read");
    let (first, second) = (one(), one());
    assert_eq!(first.status.code(), Some(1));
    assert_eq!(said(&first), said(&second));
    assert!(said(&first).contains("planted: data is missing"), "its own output: {}", said(&first));
    assert!(said(&first).contains("READ #") && said(&first).contains(": short ("), "{}", said(&first));
    let none = chaos(&["--seed", "6", "--rate", "0"], &planted(), "short-read");
    assert_eq!(none.status.code(), Some(0));
    assert!(said(&none).contains("no fault was injected"), "{}", said(&none));
}

#[test]
fn a_program_that_fails_without_faults_is_named() {
    let is_named = |program| {
        let output = chaos(&["--seed", "6", "--runs", "2"], Path::new(program), "ignored");
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        said(&output)
            .contains("without faults the program ends with exit status 1; a run that ends so passes")
    };
    assert!(is_named("false"));
    assert!(!is_named("true"));
}

#[test]
fn failures_are_what_was_asked_for() {
    let options = |more: &[&'static str]| {
        let mut options = vec!["--seed", "6", "--runs", "1", "--timeout", "10"];
        options.extend(more);
        options
    };
    let looks_for = |pattern| chaos(&options(&["--expect", pattern]), &planted(), "short-read");
    let output = looks_for("data is missing");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("anyring chaos --seed 6 --timeout 10 --expect 'data is missing' -- "));
    assert_eq!(looks_for("segmentation").status.code(), Some(0));
    assert_eq!(looks_for("(").status.code(), Some(125));
    // The program prints nothing on standard output.
    assert_eq!(chaos(&options(&["--compare"]), &repaired(), "short-read").status.code(), Some(0));
    let all = chaos(&["--seed", "1", "--runs", "12", "--keep-going"], &planted(), "would-wait");
    let counted = said(&all);
    let (before, _) = counted.split_once(" failed, ").unwrap();
    let failed = before.rsplit(' ').next().unwrap().parse::<usize>().unwrap();
    assert!(failed > 1, "{counted}");
    // All runs failed in the same way: one line has all seeds, and there is one command.
    let (_, seeds) = counted.split_once(&format!("anyring: {failed} seeds failed: ")).unwrap();
    let (_, seeds) = seeds.lines().next().unwrap().split_once(" injected: ").unwrap();
    assert_eq!(seeds.split(", ").count(), failed, "{counted}");
    assert_eq!(counted.matches("anyring chaos --seed ").count(), 1, "{counted}");
}

#[test]
fn a_program_that_does_not_end_is_killed() {
    let output = chaos(&["--seed", "1", "--timeout", "0.1"], Path::new("sleep"), "1000000");
    assert_eq!(output.status.code(), Some(124), "{}", said(&output));
    assert!(said(&output).contains("run of seed 1: a hang"), "{}", said(&output));
}

#[test]
fn the_page_lists_all_faults() {
    let page = include_str!("../../../docs/chaos.md");
    for fault in Fault::ALL {
        let source = fault.source().trim_end_matches('.');
        let row = format!("| `{}` | {} | {source} |\n", fault.name(), fault.about());
        assert!(page.contains(&row), "docs/chaos.md lacks\n{row}");
    }
}

#[test]
fn mistakes_are_told() {
    for (options, part) in [
        (&["--faults", "wind"][..], "known are"),
        (&["--rate", "7"], "--rate"),
        (&["--timeout", "0"], "--timeout"),
        (&["--delay", "0"], "--delay"),
        (&["--replay", "/no/such/file"], "/no/such/file"),
        (&["--jobs", "2"], "--runs"),
        (&["--runs", "2", "--seed", "6", "--record", "/no/such/directory/file"], "cannot write"),
    ] {
        let output = chaos(options, &planted(), "short-read");
        assert_eq!(output.status.code(), Some(125), "{options:?}");
        assert!(said(&output).contains(part), "{options:?}: {}", said(&output));
    }
    let never =
        Command::new(anyring()).args(["chaos", "--runs", "2", "--", "/no/such/program"]).output().unwrap();
    assert_eq!(never.status.code(), Some(125), "{}", said(&never));
    let listed = Command::new(anyring()).args(["chaos", "--list-faults"]).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    assert!(text.contains("short") && text.contains("io_uring_setup(2)"), "{text}");
}
