//! The record of what the kernel answered (`tests/record`), and how answers are laid out in it.

use std::collections::BTreeSet;

use crate::common::record::{self, Oracle, oracle};
use crate::common::text::{difference, lay_out};

/// Entries of a test that is gone, or has another name, would be read by nobody.
#[test]
fn has_tests_of_this_program_only() {
    if oracle() != Oracle::Record {
        return;
    }
    let list =
        std::process::Command::new("/proc/self/exe").args(["--list", "--format=terse"]).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let tests: BTreeSet<String> =
        list.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect();
    let recorded: BTreeSet<String> = record::tests().into_iter().collect();
    assert!(!recorded.is_empty(), "there is a record");
    let gone: Vec<_> = recorded.difference(&tests).collect();
    assert!(gone.is_empty(), "the record has answers of {gone:?}, which are no tests: make record");
}

#[test]
fn a_comparison_that_is_not_recorded_fails() {
    if oracle() != Oracle::Record {
        return;
    }
    let refused = record::compare(&1, || panic!("the kernel is not asked")).unwrap_err();
    assert!(refused.contains("records.txt, a_comparison_that_is_not_recorded_fails 1"), "{refused}");
    assert!(refused.contains("make record"), "{refused}");
}

#[test]
fn short_answers_take_a_line() {
    assert_eq!(lay_out(&()), "()\n");
    assert_eq!(lay_out(&(Some(-22), "a, b", [1u8; 2])), "(Some(-22), \"a, b\", [1, 1])\n");
    assert_eq!(lay_out(&[("(", ']'), ("\\\"", '\'')]), "[(\"(\", ']'), (\"\\\\\\\"\", '\\'')]\n");
}

#[test]
fn what_repeats_or_counts_up_is_told_together() {
    assert_eq!(lay_out(&[0; 1000]), "[0 (x 1000)]\n");
    assert_eq!(lay_out(&[7, 7, 7, 8]), "[7, 7, 7, 8]\n");
    let bytes: Vec<u8> = [5, 1].into_iter().chain(0..=250).chain(0..=250).chain([0; 5]).collect();
    assert_eq!(lay_out(&bytes), "[5, 1, 0..=250, 0..=250, 0 (x 5)]\n");
    assert_eq!(lay_out(&(-3..4).collect::<Vec<_>>()), "[-3..=3]\n");
    assert_eq!(lay_out(&vec![(1, [2]); 5]), "[(1, [2]) (x 5)]\n");
}

#[test]
fn long_answers_take_a_line_for_each_part() {
    let long = "a word ".repeat(20);
    let expected = format!("(\n [\n  {long:?},\n  \"\",\n ],\n 9,\n)\n");
    assert_eq!(lay_out(&([long.as_str(), ""], 9)), expected);
}

#[test]
fn a_difference_shows_what_is_not_common() {
    assert_eq!(difference("a\nb\nc\n", "a\nx\nc\n"), "- b\n+ x");
    assert_eq!(difference("a\n", "a\nb\n"), "+ b");
    assert_eq!(difference("", ""), "");
}
