//! Refusals of the user engine as each kernel that it emulates: equal to those of the kernels, which were queried in the
//! same way (`refusals/`), except for those that `refusals/reasons.toml` explains.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Time limits in milliseconds, after which a request counts as waiting: first short ones, then longer ones for questions whose
/// answers differ, because on a busy machine a request may only seem to wait. An answer that agrees once is accepted.
const LIMITS_MS: [u32; 4] = [30, 30, 300, 1000];

fn directory() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/refusals"))
}

/// Returns the answers by question.
fn answers(page: &str) -> BTreeMap<String, String> {
    let lines = page.lines().map(|line| line.split_once(" | ").expect("a question and its answer"));
    lines.map(|(question, answer)| (question.to_owned(), answer.to_owned())).collect()
}

/// Returns the questions to which a version's kernel has a different answer than the engine that emulates it.
fn differences(version: &str, explained: &BTreeSet<String>) -> BTreeSet<String> {
    let kernel = answers(&fs::read_to_string(directory().join(format!("{version}.txt"))).unwrap());
    let mut differ: BTreeSet<String> = kernel.keys().cloned().collect();
    for limit_ms in LIMITS_MS {
        let output = Command::new(env!("CARGO_BIN_EXE_anyring-conformance"))
            .args(["refusals", "--engine", "user", "--abi", version, "--limit", &limit_ms.to_string()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{version}: {}", String::from_utf8_lossy(&output.stderr));
        let engine = answers(&String::from_utf8(output.stdout).unwrap());
        assert!(engine.keys().eq(kernel.keys()), "{version}: other questions: record the kernels anew");
        differ.retain(|question| engine[question] != kernel[question]);
        if differ.is_subset(explained) {
            break;
        }
    }
    differ
}

/// Returns the questions with explained differences for a version.
fn reasons(version: &str) -> BTreeSet<String> {
    let page = fs::read_to_string(directory().join("reasons.toml")).unwrap();
    let page: toml::Table = page.parse().unwrap();
    let mut questions = BTreeSet::new();
    for reason in page["reason"].as_array().unwrap() {
        assert!(!reason["why"].as_str().unwrap().is_empty());
        let list = |key: &str| {
            let list = reason[key].as_array().unwrap().iter();
            list.map(|entry| entry.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        if list("versions").iter().any(|of| of == version) {
            questions.extend(list("questions"));
        }
    }
    questions
}

fn check(version: &str) {
    let explained = reasons(version);
    let differ = differences(version, &explained);
    let unexplained: Vec<_> = differ.difference(&explained).collect();
    assert!(unexplained.is_empty(), "{version}: other answers than that kernel's: {unexplained:#?}");
    let needless: Vec<_> = explained.difference(&differ).collect();
    assert!(needless.is_empty(), "{version}: explained, and the same: {needless:#?}");
}

#[test]
fn as_linux_6_1() {
    check("6.1");
}

#[test]
fn as_linux_6_12() {
    check("6.12");
}

#[test]
fn as_linux_6_18() {
    check("6.18");
}

#[test]
fn as_linux_7_2() {
    check("7.2");
}
