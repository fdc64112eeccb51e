//! `--stats-file`: the metrics of a process, in Prometheus's text format, while it runs.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{anyring, built};

/// The labels of a sample, in their order.
type Labels = Vec<(String, String)>;

/// The samples, by name and labels.
#[derive(Debug, Default)]
struct Samples(BTreeMap<(String, Labels), f64>);

impl Samples {
    /// Returns the value of the only sample with this name, and with this label if one is given.
    fn value(&self, name: &str, label: Option<(&str, &str)>) -> Option<f64> {
        let has = |labels: &Labels| {
            label.is_none_or(|(name, value)| labels.iter().any(|one| one.0 == name && one.1 == value))
        };
        let mut found = self.0.iter().filter(|((own, labels), _)| own == name && has(labels));
        let value = found.next().map(|(_, value)| *value);
        assert!(found.next().is_none(), "{name} has several samples: {self:#?}");
        value
    }

    fn of(&self, name: &str, operation: &str) -> Option<f64> {
        self.value(name, Some(("operation", operation)))
    }
}

fn is_name(name: &str) -> bool {
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts_well && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Parses a text by the rules of Prometheus's format, version 0.0.4.
fn parse(text: &str) -> Samples {
    assert!(text.ends_with('\n'), "the last line ends");
    let (mut samples, mut helped, mut typed) = (Samples::default(), BTreeSet::new(), BTreeMap::new());
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty() && helped.insert(name.to_owned()), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(typed.insert(name.to_owned(), kind).is_none(), "one type: {line}");
            current = name.to_owned();
        } else {
            let (name, labels, value) = sample(line);
            assert!(
                is_name(&name) && name == current && helped.contains(&name),
                "a group of its own: {line}"
            );
            assert!(samples.0.insert((name, labels), value).is_none(), "another value: {line}");
        }
    }
    samples
}

fn sample(line: &str) -> (String, Labels, f64) {
    let (name, rest) = line.split_once('{').unwrap_or_else(|| panic!("no labels: {line}"));
    let (mut labels, mut rest) = (Labels::new(), rest);
    loop {
        let (label, after) = rest.split_once("=\"").unwrap();
        assert!(is_name(label), "{line}");
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next().unwrap_or_else(|| panic!("an open quote: {line}")) {
                (at, '"') => break at,
                (_, '\\') => match characters.next().unwrap().1 {
                    'n' => value.push('\n'),
                    escaped @ ('"' | '\\') => value.push(escaped),
                    other => panic!("an unknown escape {other}: {line}"),
                },
                (_, other) => value.push(other),
            }
        };
        labels.push((label.to_owned(), value));
        rest = &after[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    let value = rest.strip_prefix("} ").unwrap_or_else(|| panic!("no value: {line}"));
    (name.to_owned(), labels, value.parse().unwrap())
}

/// Returns an empty directory that only this test uses.
fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("metrics-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A running program.
struct Running {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(options: &[&str], file: &Path, program: &Path, arguments: &[&str]) -> Running {
        let mut command = Command::new(anyring());
        command.args(["run", "--engine", "user", "--stats-interval", "1"]).args(options);
        command.arg("--stats-file").arg(file).arg("--").arg(program).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Running { child, output }
    }

    /// Waits for a line of the program.
    fn says(&mut self, word: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), word);
    }

    fn goes_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn ends(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Waits until the samples in the file satisfy a condition. Each version of the file is complete.
fn until(file: &Path, says: impl Fn(&Samples) -> bool) -> Samples {
    const PATIENCE: Duration = Duration::from_secs(60);
    let deadline = Instant::now() + PATIENCE;
    let mut last = None;
    while Instant::now() < deadline {
        if let Ok(text) = std::fs::read_to_string(file) {
            let samples = parse(&text);
            if says(&samples) {
                return samples;
            }
            last = Some(samples);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{} does not say it: {last:#?}", file.display());
}

#[test]
fn a_running_program_tells_what_it_does() {
    let directory = directory("running");
    let (file, program) = (directory.join("server.prom"), directory.join("a \"program\""));
    std::fs::copy(built("metrics"), &program).unwrap();
    let mut running = Running::start(&[], &file, &program, &[]);
    running.says("ready");
    // A file that was written during the last call counts the request, but not yet the thread that waits for it.
    let samples = until(&file, |samples| {
        samples.of("anyring_requests_total", "READ") == Some(2.0)
            && samples.value("anyring_enter_calls_total", None) == Some(9.0)
            && samples.value("anyring_submitted_total", None) == Some(9.0)
            && samples.value("anyring_threads", None) >= Some(1.0)
    });
    let value = |name| samples.value(name, None).unwrap();
    assert_eq!(samples.of("anyring_requests_total", "NOP"), Some(7.0));
    assert_eq!(samples.of("anyring_completions_total", "NOP"), Some(7.0));
    assert_eq!(samples.of("anyring_completions_total", "READ"), Some(1.0));
    assert_eq!(samples.of("anyring_request_errors_total", "READ"), Some(1.0));
    assert_eq!(samples.of("anyring_request_errors_total", "NOP"), Some(0.0));
    assert_eq!((value("anyring_rings"), value("anyring_rings_created_total")), (1.0, 1.0));
    assert_eq!((value("anyring_submitted_total"), value("anyring_completed_total")), (9.0, 8.0));
    assert_eq!((value("anyring_requests_in_flight"), value("anyring_completions_ready")), (1.0, 1.0));
    assert_eq!(value("anyring_completions_overflowed"), 0.0);
    assert_eq!(samples.value("anyring_info", Some(("engine", "user"))), Some(1.0));
    assert_eq!(samples.value("anyring_rings", Some(("program", "a \"program\""))), Some(1.0));
    running.ends();
    let left: Vec<_> =
        std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "no other file is left: {left:?}");
    parse(&std::fs::read_to_string(&file).unwrap());
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_program_that_ends_at_once_has_told_all() {
    let directory = directory("short");
    let file = directory.join("nop.prom");
    Running::start(&[], &file, &built("nop"), &[]).ends();
    let samples = parse(&std::fs::read_to_string(&file).unwrap());
    assert_eq!(samples.value("anyring_rings_created_total", None), Some(2.0));
    assert!(samples.of("anyring_requests_total", "NOP").unwrap() > 0.0);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn each_process_has_a_file_of_its_own() {
    let directory = directory("each");
    let mut running = Running::start(&[], &directory.join("%p.prom"), &built("metrics"), &["fork"]);
    running.says("child");
    let parent = running.child.id().to_string();
    // The child uses a ring that its parent made.
    let child = || {
        let entries = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        let mut files = entries.filter(|path| path.extension().is_some_and(|extension| extension == "prom"));
        files.find(|path| path.file_stem().unwrap().to_str() != Some(&parent))
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while child().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let file = child().expect("the child's file");
    until(&file, |samples| samples.of("anyring_requests_total", "NOP") == Some(1.0));
    running.goes_on();
    running.says("ready");
    let file = directory.join(format!("{parent}.prom"));
    until(&file, |samples| samples.of("anyring_requests_total", "NOP") == Some(7.0));
    running.ends();
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_process_that_gives_up_privileges_keeps_no_thread_that_has_them() {
    use std::os::unix::fs::PermissionsExt;
    // SAFETY: asks only.
    if unsafe { libc::geteuid() } != 0 {
        anyring_tally::skipped("not root");
        return;
    }
    // A directory that every user can enter, and write to.
    let directory = std::env::temp_dir().join(format!("anyring-metrics-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o777)).unwrap();
    let (file, program) = (directory.join("server.prom"), directory.join("program"));
    std::fs::copy(built("metrics"), &program).unwrap();
    let mut running = Running::start(&[], &file, &program, &["drop"]);
    running.says("begun");
    until(&file, |samples| samples.value("anyring_rings", None) == Some(1.0));
    running.goes_on();
    running.says("ready");
    until(&file, |samples| samples.of("anyring_requests_total", "NOP") == Some(7.0));
    running.ends();
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_cannot_be_written_is_told() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(anyring());
        command.arg("run").args(arguments).arg("--").arg(built("nop"));
        let output = command.stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, said) = run(&["--engine", "user", "--stats-file", "/no/such/directory/file"]);
    assert_eq!(
        (status, said.matches("cannot write the statistics to /no/such/directory/file").count()),
        (Some(0), 1),
        "{said}"
    );
    let (_, said) = run(&["--engine", "kernel", "--stats-file", "/no/such/directory/file"]);
    assert!(said.contains("the kernel serves the rings") && said.contains("is not written"), "{said}");
    let (status, said) = run(&["--stats-file", "/tmp/file", "--stats-interval", "0"]);
    assert_eq!(status, Some(125), "{said}");
}

#[test]
fn other_files_than_regular_ones_are_left_alone() {
    let directory = directory("irregular");
    let link = directory.join("link");
    std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    let output = Command::new(anyring())
        .args(["run", "--engine", "user", "--stats-file"])
        .arg(&link)
        .arg("--")
        .arg(built("nop"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(125) && said.contains("not a regular file"), "{said}");
    // The variable alone, without the option, is refused when the file is replaced.
    let output = Command::new(anyring())
        .env("ANYRING_STATS_FILE", &link)
        .args(["run", "--engine", "user", "--"])
        .arg(built("nop"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("cannot write the statistics"), "{said}");
    assert!(link.is_symlink());
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "no other file is left");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_program_with_little_room_for_files_or_without_rings_ends_well() {
    let directory = directory("limits");
    let file = directory.join("program.prom");
    let shell = |script: &str| {
        let mut command = Command::new(anyring());
        command.args(["run", "--engine", "user", "--stats-file"]).arg(&file);
        command.args(["--", "sh", "-c", script]).arg(built("nop")).status().unwrap()
    };
    assert!(shell("ulimit -S -f 1; \"$0\"").success());
    assert!(!std::fs::exists(&file).unwrap() || std::fs::metadata(&file).unwrap().len() <= 1024);
    std::fs::write(&file, "earlier").unwrap();
    assert!(shell("true").success());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "earlier", "a program without rings has no counts");
    std::fs::remove_dir_all(&directory).unwrap();
}
