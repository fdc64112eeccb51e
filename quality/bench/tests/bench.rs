//! Tests that `anyring-bench` measures every side it lists, and that its output can be read.

use std::path::Path;
use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_anyring-bench")).args(arguments).output().unwrap()
}

/// Returns the sides that `--list` names for a benchmark.
fn listed(name: &str) -> Vec<String> {
    let output = bench(&["--list", name]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("sides: ")).unwrap();
    line.split("; ").map(str::to_owned).collect()
}

/// True if every element is closed in order, as an XML parser demands first.
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
fn what_failed_is_named_beside_json() {
    let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-fails-{}", std::process::id()));
    std::fs::create_dir_all(&own).unwrap();
    std::os::unix::fs::symlink("/bin/false", own.join("find")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_anyring-bench"))
        .args(["--quick", "--rounds", "1", "--window-ms", "5", "--entries", "50", "--json"])
        .args(["--side", "find", "find"])
        .env("PATH", &own)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("FAILED: find, wide tree, hot: "), "{said}");
    let results: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results["benchmarks"][0]["failed"][0]["side"], "find");
    std::fs::remove_dir_all(own).unwrap();
}

/// Checks that a benchmark measures each of its sides or says why not, and that its chart and its page are made of that alone.
fn is_measured(name: &str) {
    let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{name}-{}", std::process::id()));
    let (charts, pages) = (own.join("charts"), own.join("pages"));
    let mut arguments = vec!["--quick", "--rounds", "1", "--window-ms", "5", "--entries", "500", "--json"];
    arguments.extend(["--svg", charts.to_str().unwrap(), "--write", pages.to_str().unwrap(), name]);
    let output = bench(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let read = |name: String| std::fs::read_to_string(pages.join(name)).unwrap();
    let benchmark = &results["benchmarks"][0];
    assert_eq!(benchmark["name"], name);
    let skipped = benchmark["skipped"].as_array().unwrap();
    for side in listed(name) {
        let absent = skipped.iter().any(|one| one["side"] == side.as_str());
        for case in benchmark["cases"].as_array().unwrap() {
            let measured = case["sides"].as_array().unwrap().iter().find(|one| one["side"] == side.as_str());
            assert!(
                absent || measured.is_some_and(|one| one["ns_per_op"].as_f64() > Some(0.0)),
                "{side}: {case}"
            );
        }
    }
    let svg = std::fs::read_to_string(charts.join(format!("{name}.svg"))).unwrap();
    assert!(well_formed(&svg), "{svg}");
    assert_eq!(read(format!("{name}.svg")), svg);
    let (page, first) = (read(format!("{name}.md")), read("README.md".into()));
    assert!(page.contains(&format!("]({name}.svg)")));
    assert!(first.contains(&format!("| [{name}]({name}.md): ")), "{first}");
    // The pages can be generated again from the records, without a difference.
    std::fs::remove_file(pages.join(format!("{name}.md"))).unwrap();
    let output = bench(&["--redraw", pages.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((page, first), (read(format!("{name}.md")), read("README.md".into())));
    std::fs::remove_dir_all(own).unwrap();
}

macro_rules! measured {
    ($($test:ident: $name:literal;)*) => { $(
        #[test]
        fn $test() {
            is_measured($name);
        }
    )* };
}

// Each starts some dozens of processes; as separate tests, they have enough time on a busy machine.
measured! {
    every_side_of_accept_is_measured_or_says_why_not: "accept";
    every_side_of_nop_is_measured_or_says_why_not: "nop";
    every_side_of_send_is_measured_or_says_why_not: "send";
    every_side_of_echo_is_measured_or_says_why_not: "echo";
    every_side_of_idle_is_measured_or_says_why_not: "idle";
    every_side_of_find_is_measured_or_says_why_not: "find";
    every_side_of_du_is_measured_or_says_why_not: "du";
}

/// The committed pages and charts are those that this program generates from the committed records.
#[test]
fn the_pages_in_the_documentation_are_made_of_their_records() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks");
    let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-pages-{}", std::process::id()));
    std::fs::create_dir_all(&own).unwrap();
    let files = || std::fs::read_dir(&committed).unwrap().map(|entry| entry.unwrap().path());
    for record in files().filter(|path| path.extension().is_some_and(|kind| kind == "json")) {
        std::fs::copy(&record, own.join(record.file_name().unwrap())).unwrap();
    }
    let output = bench(&["--redraw", own.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // `anyring-bench count --write` makes the page of counts.
    for path in files().filter(|path| !path.ends_with("counts.md")) {
        let name = path.file_name().unwrap();
        let (there, made) = (std::fs::read(&path).unwrap(), std::fs::read(own.join(name)).ok());
        assert!(
            made.is_some_and(|made| made == there),
            "{}: make it anew with `anyring-bench --redraw docs/benchmarks`",
            path.display()
        );
    }
    std::fs::remove_dir_all(own).unwrap();
}

#[test]
fn records_that_are_not_there_are_asked_for() {
    let output = bench(&["--redraw", "/proc/self/task"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no record in /proc/self/task"));
}

/// A busy machine is refused unless --busy is given.
#[test]
fn a_busy_machine_is_refused() {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    let load: f64 = load.split(' ').next().unwrap().parse().unwrap();
    if load <= 0.6 {
        eprintln!("skipped: this machine is quiet");
        return;
    }
    let short = ["nop", "--rounds", "1", "--window-ms", "1", "--case", "no such case"];
    let output = bench(&short);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("the machine was not quiet") && text.contains("--busy"), "{text}");
    assert!(bench(&[&short[..], &["--busy"]].concat()).status.success());
}

#[test]
fn the_help_teaches_by_example() {
    let output = bench(&["--help"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("anyring-bench accept") && text.contains("syscalls/op"), "{text}");
    let output = bench(&["no-such-benchmark"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there are: "));
}
