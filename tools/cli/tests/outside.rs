//! `anyring top` and `anyring trace -p` see the rings of running processes as they are, and do not extend their lives.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{anyring, built, kernel_has_io_uring};

/// The maximum time to wait for a state.
const DEADLINE: Duration = Duration::from_secs(60);

/// True if this user may look at processes of its own.
fn may_look() -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    // SAFETY: asks only.
    let may = unsafe { libc::geteuid() } == 0 || matches!(scope.trim(), "" | "0");
    if !may {
        anyring_tally::skipped("kernel.yama.ptrace_scope");
    }
    may
}

fn engines() -> Vec<&'static str> {
    let mut engines = vec!["user"];
    engines.extend(kernel_has_io_uring().then_some("kernel"));
    if may_look() { engines } else { Vec::new() }
}

/// A program that has made its ring.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(engine: &str, words: &[&str]) -> Program {
        Program::of(&built("outside"), engine, words)
    }

    fn of(program: &Path, engine: &str, words: &[&str]) -> Program {
        let mut command = match engine {
            // The program runs without anyring.
            "kernel" => Command::new(program),
            _ => {
                let mut command = Command::new(anyring());
                command.args(["run", "--engine", engine, "--"]).arg(program);
                command
            }
        };
        let mut child = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        let mut program = Program { child, input, output: BufReader::new(output) };
        program.waits_until_ready();
        program
    }

    fn waits_until_ready(&mut self) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
    }

    fn id(&self) -> String {
        self.child.id().to_string()
    }

    fn go_on(&mut self) {
        self.input.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn end(mut self) {
        self.input = None;
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn top(words: &[&str]) -> Output {
    Command::new(anyring()).args(["top", "--once", "-d", "0.2"]).args(words).output().unwrap()
}

/// Returns the rings of a process, as the table shows them.
fn rings(process: &str) -> Vec<Value> {
    let output = top(&["--json", "-p", process]);
    assert!(output.status.success(), "{output:?}");
    let table: Value = serde_json::from_slice(&output.stdout).unwrap();
    table["rings"].as_array().unwrap().clone()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Returns the only ring of a process, once its row satisfies a condition.
fn ring_that(program: &Program, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let rows = rings(&program.id());
        let [row] = &rows[..] else { panic!("one ring: {rows:?}") };
        if is_wanted(row) {
            return row.clone();
        }
        assert!(began.elapsed() < DEADLINE, "{row}");
    }
}

#[test]
fn requests_are_counted_by_operation() {
    for engine in engines() {
        let program = Program::start(engine, &["busy"]);
        let row = ring_that(&program, |row| {
            let errors = row["errors_per_s"].as_f64().unwrap_or(0.0);
            row["operations"].as_array().unwrap().len() == 2 && errors > 0.0
        });
        assert_eq!(row["engine"], engine);
        assert_eq!(row["access"], "memory", "{row}");
        let seen = |name| {
            let mut all = row["operations"].as_array().unwrap().iter();
            all.find(|operation| operation["operation"] == name).map_or(0.0, |found| number(&found["seen"]))
        };
        let (nops, reads) = (seen("NOP"), seen("READ"));
        assert!(reads > 0.0 && nops > reads, "two of three are NOPs: {row}");
        let all = number(&row["submissions"]);
        assert_eq!(nops + reads, all - number(&row["submissions_missed"]), "{row}");
        assert!(number(&row["submissions_per_s"]) > 0.0 && number(&row["completions"]) > 0.0, "{row}");
        program.end();
    }
}

#[test]
fn what_is_stuck_is_seen() {
    for engine in engines() {
        let program = Program::start(engine, &["stuck"]);
        let row = ring_that(&program, |row| row["sq_full"] == 1.0);
        let same = ["in_flight", "cq_ready", "cq_entries", "sq_ready", "sq_entries", "overflows"]
            .map(|name| number(&row[name]));
        assert_eq!(same, [3.0, 5.0, 32.0, 16.0, 16.0, 0.0], "{engine}: {row}");
        program.end();
        let program = Program::start(engine, &["overflows"]);
        let row = ring_that(&program, |row| row["cq_ready"] == 32);
        assert_eq!(row["is_overflowing"], true, "{engine}: {row}");
        program.end();
    }
}

#[test]
fn the_table_is_text_where_there_is_no_terminal() {
    for engine in engines() {
        let program = Program::start(engine, &["stuck"]);
        let output = top(&["-p", &program.id()]);
        let text = String::from_utf8(output.stdout).unwrap();
        let row = text.lines().find(|line| line.contains(" outside ")).unwrap_or_else(|| panic!("{text}"));
        assert!(row.trim_start().starts_with(&program.id()) && row.contains(engine), "{text}");
        assert!(row.contains(" 5/32 ") && row.contains(" 100% "), "{text}");
        program.end();
    }
}

/// A running `anyring trace -p`, which writes to a file.
struct Trace {
    child: Child,
    path: PathBuf,
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.path);
    }
}

impl Trace {
    fn start(program: &Program, words: &[&str]) -> Trace {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("outside-{}", program.id()));
        // An earlier test that failed may have left the trace of a process that had this number.
        let _ = fs::remove_file(&path);
        let mut command = Command::new(anyring());
        command.args(["trace", "-p", &program.id(), "-o"]).arg(&path).args(words);
        Trace { child: command.spawn().unwrap(), path }
    }

    /// Returns the trace so far, once it contains this text.
    fn waits_for(&self, what: &str) -> String {
        let began = Instant::now();
        loop {
            let text = self.text();
            if text.contains(what) {
                return text;
            }
            assert!(began.elapsed() < DEADLINE, "{what} is missing in:\n{text}");
            std::thread::yield_now();
        }
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.path).unwrap_or_default()
    }

    fn end(mut self) -> String {
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        fs::read_to_string(&self.path).unwrap()
    }
}

/// The number of rings in a trace: those that were found, and those that a process has recorded while it made them.
fn begun(text: &str) -> usize {
    text.matches(" found: ").count() + text.matches("io_uring_setup(").count()
}

#[test]
fn requests_have_lines_until_the_process_ends() {
    for engine in engines() {
        let program = Program::start(engine, &["busy"]);
        let trace = Trace::start(&program, &[]);
        let line =
            trace.waits_for("READ(-1, 0x").lines().find(|line| line.contains("READ(")).unwrap().to_owned();
        assert!(line.contains("user_data=0x3)"), "{line}");
        let is_recorded = engine == "user";
        let latency = if is_recorded { "<" } else { "<up to " };
        trace.waits_for(&format!(" = -1 EBADF (Bad file descriptor) {latency}"));
        let id = program.id();
        program.end();
        let text = trace.end();
        assert!(text.contains(&format!("{engine} engine, 16 SQ entries, 32 CQ entries")), "{text}");
        let thread = if is_recorded { format!("[{id}/{id}]") } else { format!("[{id}]") };
        assert!(text.ends_with(" ended\n") && text.contains(&format!("{thread} ring 1 #")), "{text}");
        for way in ["worker", "caller", "readiness"] {
            assert!(
                !text.contains(way),
                "nothing has to wait, and nobody has seen how the kernel does it: {text}"
            );
        }
        assert_eq!(text.contains(" inline"), is_recorded, "{text}");
        assert_eq!(text.contains(" <up to "), !is_recorded, "{text}");
    }
}

/// A process on the user engine records each of its requests, with their numbers and the memory that they name.
#[test]
fn what_is_recorded_is_complete() {
    if !may_look() {
        return;
    }
    for build in ["outside", "outside-static"] {
        is_complete(Program::of(&built(build), "user", &["paced", "500"]));
    }
}

fn is_complete(mut program: Program) {
    let trace = Trace::start(&program, &[]);
    trace.waits_for("] ring 1 ");
    program.go_on();
    program.waits_until_ready();
    program.end();
    let text = trace.end();
    let numbers =
        text.lines().filter_map(|line| line.split_once(" ring 1 #")?.1.split(' ').next()?.parse().ok());
    let numbers: Vec<u64> = numbers.collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    assert_eq!(numbers.len(), 4 * 500, "four requests in each batch");
    for lost in ["not seen", "= ?", "up to", "at least"] {
        assert!(!text.contains(lost), "{lost}: {text}");
    }
}

/// Two watchers at a time: one gets the records, the other one looks. So does one that is asked to.
#[test]
fn records_have_one_reader() {
    if !may_look() {
        return;
    }
    let program = Program::start("user", &["busy"]);
    let first = Trace::start(&program, &[]);
    first.waits_for(" inline");
    let output = |words: &[&str]| {
        let mut command = Command::new(anyring());
        command.args(["trace", "-p", &program.id(), "--max-events", "9"]).args(words).output().unwrap()
    };
    let second = String::from_utf8(output(&[]).stderr).unwrap();
    assert!(second.contains("writes no records: its records have another reader"), "{second}");
    assert!(second.contains(" <up to ") && !second.contains(" inline"), "{second}");
    let sampled = String::from_utf8(output(&["--sampled"]).stderr).unwrap();
    assert!(sampled.contains(" <up to ") && !sampled.contains("anyring: "), "{sampled}");
    // The reader is killed; the process finds that out by itself, and the next one has a reader's place again.
    drop(first);
    let began = Instant::now();
    while String::from_utf8(output(&[]).stderr).unwrap().contains(" <up to ") {
        assert!(began.elapsed() < DEADLINE, "the records of a reader that is gone end");
    }
    // Nothing is left in the process.
    let maps = || fs::read_to_string(format!("/proc/{}/maps", program.id())).unwrap();
    while maps().contains("[anyring-trace]") {
        assert!(began.elapsed() < DEADLINE, "{}", maps());
        std::thread::yield_now();
    }
    program.end();
}

/// Requests that were in flight when the trace began are known from their entries in the queue.
#[test]
fn requests_of_before_the_trace_are_shown_when_they_complete() {
    for engine in engines() {
        let mut program = Program::start(engine, &["waits"]);
        let trace = Trace::start(&program, &[]);
        trace.waits_for(" found: ");
        program.go_on();
        // In any order: the trace may look between two of the completions.
        // The engine has noted by then that a pipe has no offset.
        let first =
            if engine == "user" { ", offset=-1) = 8 <at least " } else { ", offset=0) = 8 <at least " };
        let shown = [first, "user_data=0x1) = 8 <at least ", "user_data=0x2) = 8 <at least "];
        let text = shown.map(|one| trace.waits_for(one)).concat();
        assert_eq!(text.contains("\"eight by\""), engine == "user", "{text}");
        assert!(text.contains(" #1 ") && text.contains("<pipe:["), "{text}");
        program.end();
        trace.end();
    }
}

/// Number of batches that a program submits while its calls are counted.
const BATCHES: u32 = 500;

/// Returns the number of system calls that the thread makes which submits the batches, counted by strace, perhaps while it is watched.
fn calls(engine: &str, is_watched: bool) -> u32 {
    let mut program = Program::start(engine, &["paced", &BATCHES.to_string()]);
    let id = program.id();
    let table = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("outside-calls-{id}"));
    let mut strace = Command::new("strace");
    let mut strace = strace.args(["-c", "-o"]).arg(&table).args(["-p", &id]).spawn().unwrap();
    let began = Instant::now();
    let is_traced = || {
        let state = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        state.lines().any(|line| line == format!("TracerPid:\t{}", strace.id()))
    };
    while !is_traced() {
        assert!(began.elapsed() < DEADLINE, "strace does not attach");
        std::thread::yield_now();
    }
    let trace = is_watched.then(|| {
        let trace = Trace::start(&program, &[]);
        trace.waits_for("] ring 1 ");
        trace
    });
    program.go_on();
    program.waits_until_ready();
    program.end();
    assert_eq!(strace.wait().unwrap().code(), Some(0));
    if let Some(trace) = trace {
        assert!(trace.end().contains("NOP(user_data=0x"));
    }
    let text = fs::read_to_string(&table).unwrap();
    fs::remove_file(&table).unwrap();
    let total = text.lines().find(|line| line.ends_with(" total")).unwrap_or_else(|| panic!("{text}"));
    // The times stand before the number of calls.
    total.split_whitespace().nth(3).unwrap().parse().unwrap()
}

#[test]
fn a_watched_process_makes_as_many_calls_as_another_one() {
    if Command::new("strace").arg("-V").output().is_err() {
        anyring_tally::skipped("no strace");
        return;
    }
    for engine in engines() {
        let (alone, watched) = (calls(engine, false), calls(engine, true));
        assert!(alone >= BATCHES, "{alone}");
        // A watcher that cost a call for each batch would double the number. A few calls depend on time: while the ring is not used for some
        // milliseconds, another thread of the engine drives it.
        assert!(
            alone.abs_diff(watched) < BATCHES / 10,
            "{engine}: {alone} calls, {watched} while it is watched"
        );
    }
}

#[test]
fn a_trace_ends_after_so_many_results() {
    for engine in engines() {
        let program = Program::start(engine, &["busy"]);
        let trace = Trace::start(&program, &["-e", "read", "--max-events", "3"]);
        let text = trace.end();
        assert_eq!(text.lines().filter(|line| line.contains("READ(")).count(), 3, "{text}");
        program.end();
    }
}

/// The end of each ring closes a socket whose peer the program waits for: if the trace kept the ring alive, it would never end.
#[test]
fn rings_end_while_they_are_watched() {
    for engine in engines() {
        const ROUNDS: usize = 5;
        let mut program = Program::start(engine, &["closes", &ROUNDS.to_string()]);
        let trace = Trace::start(&program, &[]);
        let mut machine = Command::new(anyring());
        machine.args(["top", "--json", "-d", "0.05", "-p", &program.id()]).stdout(Stdio::null());
        let mut machine = machine.spawn().unwrap();
        // The first ring stays open.
        for ring in 2..=1 + ROUNDS {
            trace.waits_for(&format!("] ring {ring} "));
            program.go_on();
        }
        program.end();
        let text = trace.end();
        assert_eq!(begun(&text), 1 + ROUNDS, "{text}");
        assert_eq!(text.matches(" ring ended, requests under way: 0").count(), 1 + ROUNDS, "{text}");
        assert_eq!(machine.wait().unwrap().code(), Some(0));
    }
}

/// If the process executes another program, its rings end, and those of the new program are found.
#[test]
fn a_program_that_executes_another_one_is_watched_on() {
    for engine in engines() {
        let mut program = Program::start(engine, &["becomes another"]);
        // A process that is named twice is watched once.
        let trace = Trace::start(&program, &["-p", &program.id()]);
        trace.waits_for("] ring 1 ");
        program.go_on();
        trace.waits_for("] ring 2 ");
        program.end();
        let text = trace.end();
        assert_eq!((begun(&text), text.matches(" ring ended").count()), (2, 2), "{text}");
    }
}

/// A ring has ended for the watched process when it has closed the ring, even if a child still has it.
#[test]
fn a_ring_that_a_child_keeps_has_ended_for_its_parent() {
    for engine in engines() {
        let mut program = Program::start(engine, &["shares"]);
        let trace = Trace::start(&program, &[]);
        trace.waits_for("] ring 1 ");
        program.go_on();
        trace.waits_for("ring ended, requests under way: 0");
        program.end();
        assert!(trace.end().ends_with(" ended\n"));
    }
}

/// Processes that the process has started before the trace or starts later are watched, too, and theirs. A ring that they have inherited
/// is shown once.
#[test]
fn children_are_followed() {
    for engine in engines() {
        let mut program = Program::start(engine, &["starts", "2"]);
        program.go_on();
        program.waits_until_ready();
        program.waits_until_ready();
        let trace = Trace::start(&program, &["-f"]);
        trace.waits_for("] ring 1 ");
        let began = Instant::now();
        while begun(&trace.text()) < 3 {
            assert!(began.elapsed() < DEADLINE, "{}", trace.text());
        }
        program.go_on();
        program.waits_until_ready();
        trace.waits_for("NOP(user_data=0x2) = 0");
        let id = program.id();
        program.end();
        let text = trace.end();
        assert_eq!(begun(&text), 4, "{text}");
        assert_eq!(text.matches(&format!("[{id}] ring ")).count(), 2, "it is found, and ends: {text}");
        assert_eq!(text.lines().filter(|line| line.ends_with(" ended")).count(), 4, "{text}");
    }
    // Without -f, only the process itself is watched.
    for engine in engines() {
        let mut program = Program::start(engine, &["starts", "1"]);
        let trace = Trace::start(&program, &[]);
        trace.waits_for("] ring 1 ");
        program.go_on();
        program.waits_until_ready();
        program.waits_until_ready();
        program.end();
        assert_eq!(begun(&trace.end()), 1);
    }
}

/// A user who may not trace the process gets the reason. If the test runs as root, that user is `nobody`; otherwise the
/// process is one of root's.
#[test]
fn who_may_not_look_is_told_why() {
    // SAFETY: asks only.
    let is_root = unsafe { libc::geteuid() } == 0;
    let program = Program::start("user", &["stuck"]);
    let process = if is_root { program.id() } else { "1".into() };
    let run = |words: &[&str]| {
        let mut command = Command::new(anyring());
        command.args(words);
        if is_root {
            const NOBODY: u32 = 65534;
            command.uid(NOBODY).gid(NOBODY);
        }
        command.output()
    };
    let Ok(output) = run(&["trace", "-p", &process]) else {
        anyring_tally::skipped("another user cannot execute what was built");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    for part in
        ["pidfd_getfd", "Operation not permitted", "why: process", "another user", "do:  run anyring as root"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    let output = run(&["top", "--once", "-p", &process]).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("cannot list the descriptors of process") && said.contains("do:  "), "{said}");
    // Among all processes, those that may be looked at are shown, and the others are counted.
    let output = run(&["top", "--once", "--json", "-d", "0.1"]).unwrap();
    let table: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(number(&table["processes_denied"]) > 0.0, "{table}");
    program.end();
}

#[test]
fn a_process_that_is_not_there() {
    for words in [&["trace", "-p", "4194304"][..], &["top", "--once", "-p", "4194304"]] {
        let output = Command::new(anyring()).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("process 4194304") && said.contains("no such process"), "{said}");
    }
}
