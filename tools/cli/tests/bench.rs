//! `anyring bench`: that it measures every side it names, and that what it writes can be read.

mod support;

use std::path::Path;
use std::process::{Command, Output};
use support::anyring;

fn bench(arguments: &[&str]) -> Output {
    anyring();
    Command::new(anyring()).arg("bench").args(arguments).output().unwrap()
}

/// The sides that `--list` names, by benchmark.
fn listed(name: &str) -> Vec<String> {
    let output = bench(&["--list", name]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("sides: ")).unwrap();
    line.split("; ").map(str::to_owned).collect()
}

/// Every element is closed in its order: what a reader of XML asks for first.
fn well_formed(svg: &str) -> bool {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let Some((tag, _)) = tag.split_once('>') else { return false };
        let name = tag.split([' ', '/']).find(|word| !word.is_empty()).unwrap_or_default();
        if tag.starts_with('/') {
            if open.pop() != Some(name) {
                return false;
            }
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    open.is_empty() && svg.starts_with("<svg ")
}

#[test]
fn every_side_is_measured_or_says_why_not() {
    let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{}", std::process::id()));
    let (charts, page) = (own.join("charts"), own.join("page.md"));
    let names = ["accept", "nop", "send", "echo", "idle", "find", "du"];
    let mut arguments = vec!["--quick", "--rounds", "1", "--window-ms", "5", "--entries", "500", "--json"];
    arguments.extend(["--svg", charts.to_str().unwrap(), "--write", page.to_str().unwrap()]);
    arguments.extend(names);
    let output = bench(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let page = std::fs::read_to_string(page).unwrap();
    for (benchmark, name) in results["benchmarks"].as_array().unwrap().iter().zip(names) {
        assert_eq!(benchmark["name"], name);
        let skipped = benchmark["skipped"].as_array().unwrap();
        for side in listed(name) {
            let absent = skipped.iter().any(|one| one["side"] == side.as_str());
            for case in benchmark["cases"].as_array().unwrap() {
                let measured =
                    case["sides"].as_array().unwrap().iter().find(|one| one["side"] == side.as_str());
                assert!(
                    absent || measured.is_some_and(|one| one["ns_per_op"].as_f64() > Some(0.0)),
                    "{side}: {case}"
                );
            }
        }
        let svg = std::fs::read_to_string(charts.join(format!("{name}.svg"))).unwrap();
        assert!(well_formed(&svg), "{svg}");
        assert!(
            page.contains(&format!("<!-- begin {name} -->"))
                && page.contains(&format!("(charts/{name}.svg)"))
        );
    }
    std::fs::remove_dir_all(own).unwrap();
}

#[test]
fn the_help_teaches_by_example() {
    let output = bench(&["--help"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("anyring bench accept") && text.contains("syscalls/op"), "{text}");
    let output = bench(&["no-such-benchmark"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there are: "));
}
