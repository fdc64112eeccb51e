//! `anyring trace`: programs behave as without it, and none of their requests are missing.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyring_both::by;
use serde_json::Value;
use support::{anyring, kernel_has_io_uring, over_the_kernel};

const KILLED: i32 = 128 + libc::SIGKILL;

fn program() -> PathBuf {
    support::built("traced")
}

fn trace(options: &[&str], arguments: &[&str]) -> Output {
    let mut command = Command::new(anyring());
    command.arg("trace").args(options).arg("--").arg(program()).args(arguments).output().unwrap()
}

fn text(options: &[&str], arguments: &[&str]) -> String {
    String::from_utf8(trace(options, arguments).stderr).unwrap()
}

/// Runs a program, and returns the lines of its trace as JSON.
fn json(arguments: &[&str]) -> (Vec<Value>, Output) {
    let output = trace(&["--json"], arguments);
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")));
    (lines.collect(), output)
}

fn of_type<'a>(lines: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    lines.iter().filter(move |line| line["type"] == kind)
}

#[test]
fn each_request_is_shown_as_it_was_submitted() {
    let (lines, output) = json(&["shapes"]);
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stdout));
    let shown: Vec<(String, &str, i64)> = of_type(&lines, "request")
        .map(|line| {
            let result = line["result"]["res"].as_i64().unwrap_or(i64::MAX);
            (line["operation"].as_str().unwrap().to_owned(), line["state"].as_str().unwrap(), result)
        })
        .collect();
    let expected = [
        ("WRITE", "done", 7),
        ("READ", "done", 7),
        ("NOP", "done", 0),
        ("READ", "done", -i64::from(libc::EBADF)),
        ("NOP", "done", -i64::from(libc::ECANCELED)),
    ];
    let same = |shown: &[(String, &str, i64)]| {
        shown.iter().zip(expected).all(|(shown, expected)| (shown.0.as_str(), shown.1, shown.2) == expected)
    };
    assert!(shown[0].0 == "OPENAT" && same(&shown[1..6]), "{shown:#?}");
    // Memory that the program has changed since is shown as it was.
    let all = text(&[], &["shapes"]);
    for line in
        ["\"/etc/hostname\"", "\"written\", 7", "\"written\", 64", "(chain broken by #5)", "<unfinished ...>"]
    {
        assert!(all.contains(line), "{line} is missing in:\n{all}");
    }
    assert!(!all.contains("xxxxx") && !all.contains("yyyyy"), "{all}");
}

#[test]
fn what_a_registration_is_given_is_shown() {
    for engine in engines() {
        let text = text(&["--engine", engine], &["registers"]);
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("io_uring_register(")).collect();
        let [buffers, files, number, by_number, nowhere] = lines[..] else { panic!("{engine}: {text}") };
        assert!(buffers.contains("_BUFFERS, [{iov_base=0x"), "{engine}: {text}");
        assert!(buffers.contains(", iov_len=4096}, {iov_base=0x"), "{engine}: {text}");
        assert!(files.contains("_FILES, [0, -1, 1], 3) = 0"), "{engine}: {text}");
        assert!(
            number.contains("_RING_FDS, [{offset=0, data=0x"),
            "as the call has filled it: {engine}: {text}"
        );
        let opcode = "IORING_UNREGISTER_FILES|IORING_REGISTER_USE_REGISTERED_RING, NULL, 0) = 0";
        assert!(by_number.contains(opcode), "{engine}: {text}");
        assert!(nowhere.contains("_FILES, 0x8, 3) = -1 EFAULT"), "{engine}: {text}");
    }
}

#[test]
fn multishots_have_a_line_for_each_completion() {
    let all = text(&["-e", "poll_add"], &["shapes"]);
    let lines: Vec<&str> = all.lines().filter(|line| line.contains("POLL_ADD(")).collect();
    let [first, last] = lines[..] else { panic!("{all}") };
    assert!(first.contains("= 1 (POLLIN) F_MORE") && last.contains("ended after 1"), "{all}");
}

#[test]
fn only_a_cancellation_that_finds_a_request_is_shown_with_it() {
    let canceled = |lines: &[Value], operation| {
        let of_operation = of_type(lines, "request").filter(|line| line["operation"] == operation);
        let steps = of_operation.flat_map(|line| line["steps"].as_array().unwrap());
        steps.filter(|step| step["step"] == "canceled").count()
    };
    let (lines, output) = json(&["woken"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    let results: Vec<(&str, i64)> = of_type(&lines, "request")
        .map(|line| (line["operation"].as_str().unwrap(), line["result"]["res"].as_i64().unwrap()))
        .collect();
    let expected = [("FUTEX_WAKE", 1), ("ASYNC_CANCEL", -i64::from(libc::ENOENT)), ("FUTEX_WAIT", 0)];
    assert_eq!(results, expected, "{lines:#?}");
    assert_eq!(canceled(&lines, "FUTEX_WAIT"), 0, "{lines:#?}");
    assert_eq!(canceled(&json(&["shapes"]).0, "POLL_ADD"), 1);
}

#[test]
fn children_of_fork_are_shown() {
    let (lines, _) = json(&["shapes"]);
    let started: Vec<&Value> = of_type(&lines, "process_started").collect();
    let [parent, child] = started[..] else { panic!("{started:#?}") };
    assert_eq!(child["parent"], parent["process"]);
    let of_child = |line: &&Value| line["process"] == child["process"];
    let requests: Vec<&Value> = of_type(&lines, "request").filter(of_child).collect();
    assert!(matches!(requests[..], [one] if one["user_data"] == "0xa"), "{requests:#?}");
}

/// The events do not fit into the buffer, so the program waits.
#[test]
fn nothing_is_lost() {
    const COUNT: usize = 30_000;
    let output = trace(&[], &["many", &COUNT.to_string()]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().filter(|line| line.contains(" NOP(")).count(), COUNT);
    let numbers =
        |line: &str| line.split_once('#').and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    let mut serials: Vec<usize> =
        text.lines().filter(|line| line.contains(" NOP(")).filter_map(numbers).collect();
    serials.sort_unstable();
    assert!(serials.iter().copied().eq(1..=COUNT), "each is shown once");
}

#[test]
fn what_a_killed_program_told_is_shown() {
    let output = trace(&[], &["killed", "3000"]);
    assert_eq!(output.status.code(), Some(KILLED));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().filter(|line| line.contains(" NOP(")).count(), 3000);
    assert!(text.contains("#3000 "), "the last, too");
}

#[test]
fn tables_and_summaries() {
    let table = text(&["-c"], &["many", "320"]);
    let line = table.lines().find(|line| line.ends_with(" NOP")).unwrap_or_else(|| panic!("{table}"));
    assert!(line.trim_start().starts_with("320"), "{table}");
    assert!(!table.contains("NOP("), "no lines: {table}");
    let summary = text(&["--summary-only"], &["shapes"]);
    assert!(summary.contains("never completed"), "{summary}");
}

#[test]
fn completions_that_a_ring_leaves_behind() {
    let summary = text(&["--summary-only"], &["left", "5"]);
    assert!(summary.contains("never reaped: 2") && summary.contains("#4 NOP"), "{summary}");
    assert!(!text(&["--summary-only"], &["many", "5"]).contains("never reaped"));
}

#[test]
fn a_process_that_ends_tells_what_it_leaves_in_its_rings() {
    for engine in engines() {
        let text = text(&["--summary", "--engine", engine], &["open", "5"]);
        assert_eq!(
            text.matches("ring ended, requests under way: 0, CQEs not reaped: 2\n").count(),
            1,
            "{text}"
        );
        assert!(text.contains("never reaped: 2\n"), "{text}");
        assert_eq!(text.matches(" ended\n").count(), 2, "{text}");
    }
    let killed = text(&[], &["killed", "32"]);
    assert!(killed.contains("] 0.") && killed.contains(" gone without a word"), "{killed}");
    let (lines, _) = json(&["killed", "32"]);
    assert_eq!(of_type(&lines, "process_ended").map(|line| &line["silent"]).collect::<Vec<_>>(), [true]);
}

#[test]
fn which_worker_did_it() {
    let mut command = Command::new(anyring());
    command.args(["trace", "--json", "--"]).arg(program()).arg("worker");
    let output = command.current_dir(env!("CARGO_TARGET_TMPDIR")).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let line = text.lines().find(|line| line.contains("OPENAT")).unwrap_or_else(|| panic!("{text}"));
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["way"], "worker", "{text}");
    let worker = line["worker_thread"].as_u64().unwrap_or_else(|| panic!("{text}"));
    assert!(worker != 0 && line["thread"] != worker, "{text}");
}

/// The kernel's tracepoint says which requests its workers do; where it cannot be read, the trace says so.
#[by(over_the_kernel)]
fn which_requests_the_kernels_workers_did() {
    let mut command = Command::new(anyring());
    command.args(["trace", "--engine", "kernel", "--"]).arg(program()).arg("worker");
    let output = command.current_dir(env!("CARGO_TARGET_TMPDIR")).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let line = text.lines().find(|line| line.contains("OPENAT")).unwrap_or_else(|| panic!("{text}"));
    let is_refused = text.contains("cannot read the tracepoint io_uring_queue_async_work");
    assert_eq!(line.ends_with("> worker"), !is_refused, "{text}");
    if is_refused {
        anyring_tally::skipped("tracepoints of io_uring");
    }
    let nops = self::text(&["--engine", "kernel"], &["many", "3"]);
    assert!(nops.contains("NOP") && !nops.contains("> worker"), "{nops}");
}

#[test]
fn files_and_failures() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("trace-{}", std::process::id()));
    let name = path.to_str().unwrap();
    let output = trace(&["-o", name, "-e", "errors"], &["shapes"]);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(text.contains("EBADF") && !text.contains("OPENAT("), "{text}");

    for (options, said) in
        [(["-e", "nonsense"], "nonsense"), (["-o", "/no/such/directory/file"], "cannot write")]
    {
        let output = trace(&options, &["shapes"]);
        assert_eq!(output.status.code(), Some(125));
        assert!(String::from_utf8_lossy(&output.stderr).contains(said), "{options:?}");
    }
    let output = Command::new(anyring()).args(["trace", "--", "/no/such/program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
}

/// Returns the engines that work here.
fn engines() -> &'static [&'static str] {
    if kernel_has_io_uring() { &["user", "kernel"] } else { &["user"] }
}

/// Returns the trace of `lent.c` with its summary.
fn lent(engine: &str, way: &str) -> String {
    let program = support::built("lent");
    let mut command = Command::new(anyring());
    command.args(["trace", "--summary", "-s", "64", "--engine", engine, "--"]).arg(program).arg(way);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{}{text}", String::from_utf8_lossy(&output.stdout));
    text
}

/// Returns which of the lines about requests with results contain this text.
fn says(text: &str, what: &str) -> Vec<u32> {
    let lines = text.lines().take_while(|line| !line.starts_with("health"));
    let user_data = |line: &str| line.split_once("user_data=0x")?.1.split(')').next()?.parse().ok();
    let mut found: Vec<u32> = lines.filter(|line| line.contains(what)).filter_map(user_data).collect();
    found.dedup();
    found
}

#[test]
fn memory_that_is_changed_or_unmapped_too_early() {
    for engine in engines() {
        let text = lent(engine, "harm");
        // The moment when the kernel begins a linked request is not seen.
        let changed: &[u32] = if *engine == "user" { &[1, 2, 4, 7] } else { &[1, 2, 4] };
        // If a look finds a completion late, the program may already use the memory again: the memory is not judged.
        let late = says(&text, "[found late]");
        let judged = |all: &[u32]| all.iter().copied().filter(|one| !late.contains(one)).collect::<Vec<_>>();
        let (changed, unmapped) = (judged(changed), judged(&[3, 5]));
        assert_eq!(says(&text, "[data changed in flight]"), changed, "{engine}: {text}");
        assert_eq!(says(&text, "[memory unmapped in flight]"), unmapped, "{engine}: {text}");
        for (what, all) in [("data was changed", changed), ("memory was unmapped", unmapped)] {
            let count = format!("{what} before they gave it back: {}\n", all.len());
            assert!(all.is_empty() || text.contains(&count), "{engine}: {text}");
        }
        let care = lent(engine, "care");
        assert!(!care.contains("in flight]") && !care.contains("gave it back"), "{engine}: {care}");
    }
}

#[test]
fn memory_that_a_sanitizer_says_is_freed() {
    let traced = |what: &str| {
        let mut command = Command::new(anyring());
        command.args(["trace", "--summary", "--"]).arg(support::built("followed-sanitized")).arg(what);
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let text = traced("leaves");
    assert!(text.contains("READ(") && text.contains("[memory freed in flight]"), "{text}");
    assert!(
        text.contains("memory was freed before they gave it back, or was too short for them: 1\n"),
        "{text}"
    );
    let right = traced("handed");
    assert!(!right.contains("in flight]") && !right.contains("gave it back"), "{right}");
}

#[test]
fn what_vectors_messages_and_provided_buffers_were_filled_with() {
    for engine in engines() {
        let text = lent(engine, "filled");
        for (user_data, data) in [
            (1, "[{iov_base=\"vect\", iov_len=4}, {iov_base=\"ored\", iov_len=32}]"),
            (2, "{iov_base=\"a message\", iov_len=32}"),
            (4, "\"of a list\""),
            (4, "\"of a ring\""),
            (5, "\"shot one\""),
            (5, "\"shot two\""),
            (6, "\"behind it\""),
        ] {
            assert_eq!(says(&text, data), [user_data], "{engine}: {data} in {text}");
        }
    }
}

#[test]
fn static_programs_are_traced_on_each_engine() {
    let program = support::built("traced-static");
    for engine in engines() {
        let mut command = Command::new(anyring());
        command.args(["trace", "--engine", engine, "--"]).arg(&program).args(["many", "3"]);
        let text = String::from_utf8(command.output().unwrap().stderr).unwrap();
        assert_eq!(text.matches(" NOP(").count(), 3, "{engine}: {text}");
    }
}

#[test]
fn who_submits_is_shown_with_k() {
    for name in [
        "callers-debug",
        "callers-debug-libc",
        "callers-debug-compressed",
        "callers-plain",
        "callers-debug-static",
    ] {
        let program = support::built(name);
        for engine in engines() {
            let mut command = Command::new(anyring());
            let output =
                command.args(["trace", "-k", "--engine", engine, "--"]).arg(&program).output().unwrap();
            let text = String::from_utf8(output.stderr).unwrap();
            let frames = |nop: usize| {
                let behind = text.lines().skip_while(move |line| !line.contains(&format!("#{nop} "))).skip(1);
                behind.map_while(|line| line.strip_prefix("    > ")).collect::<Vec<_>>()
            };
            for (nop, outer) in [(1, "by_one"), (2, "by_another")] {
                let frames = frames(nop);
                let place = |name: &str| frames.iter().position(|frame| frame.starts_with(name));
                let places = ["innermost", outer, "main"].map(place);
                assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{name} {engine}: {text}");
                let ours = frames.iter().any(|frame| frame.contains("anyring"));
                assert!(!ours, "{name} {engine}: {text}");
                let has_lines = frames.iter().any(|frame| frame.contains("(callers.c:"));
                assert_eq!(has_lines, name.contains("debug"), "{name} {engine}: {text}");
            }
        }
    }
    assert!(!text(&[], &["shapes"]).contains("    > "), "nobody asked");
}

fn stats(option: &str, program: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(anyring());
    command.args(["run", "--engine", "user", option, "--"]).arg(program).args(arguments);
    String::from_utf8(command.output().unwrap().stderr).unwrap()
}

#[test]
fn processes_tell_what_they_did() {
    let text = stats("--stats", &program(), &["shapes"]);
    for line in ["traced: engine=user rings=1 submitted=9", "  NOP 2, 1 failed", "  RECV 1\n"] {
        assert!(text.contains(line), "{line} is missing in:\n{text}");
    }
    let json = stats("--stats=json", &program(), &["many", "64"]);
    let value: Value = serde_json::from_str(&json).unwrap_or_else(|_| panic!("{json}"));
    assert_eq!((&value["program"], &value["enters"]), (&"traced".into(), &2.into()));
    let operations = serde_json::json!([{ "name": "NOP", "requests": 64, "errors": 0, "refused": 0 }]);
    assert_eq!(value["operations"], operations);
}

#[test]
fn who_made_no_ring_is_told_why_perhaps() {
    let text = stats("--stats", Path::new("/bin/sh"), &["-c", "/bin/true; true"]);
    assert_eq!(text.matches("no ring was made").count(), 1, "{text}");
}

/// Returns the lines about requests.
fn requests(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.contains('#')).collect()
}

#[test]
fn options_of_strace() {
    let clocks = [("-t", "00:00:00".len()), ("-tt", "00:00:00.000000".len())];
    for (option, length) in clocks {
        let text = text(&[option], &["many", "3"]);
        let time = requests(&text)[0].split(' ').nth(4).unwrap_or_else(|| panic!("{text}"));
        assert_eq!((time.len(), time.matches(':').count()), (length, 2), "{text}");
    }
    let text_of = |options: &[&str]| text(options, &["many", "30"]);
    assert_eq!(requests(&text_of(&["--max-events", "7"])).len(), 7);
    let of_path = text(&["-P", "/etc/hostname", "-f"], &["shapes"]);
    let lines = requests(&of_path);
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains("/etc/hostname")), "{of_path}");
}

#[test]
fn options_without_an_effect_are_refused() {
    let refused: [&[&str]; 6] = [
        &["-ttt", "--", "true"],
        &["-ff", "--", "true"],
        &["-t", "--json", "--", "true"],
        &["-r", "--json", "--", "true"],
        &["-tt", "-c", "--", "true"],
        &["-s", "9", "-p", "4194304"],
    ];
    for words in refused {
        let output = Command::new(anyring()).arg("trace").args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(2 | 125)), "{words:?}: {output:?}");
        assert!(
            said.contains("-t") || said.contains("-r") || said.contains("-f") || said.contains("-s"),
            "{said}"
        );
        assert!(!said.contains("no such process"), "{words:?}: {said}");
    }
}

#[test]
fn each_process_has_a_file_of_its_own() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("each");
    let output = trace(&["-ff", "-o", path.to_str().unwrap()], &["shapes"]);
    assert!(output.stderr.is_empty(), "{output:?}");
    let files = std::fs::read_dir(env!("CARGO_TARGET_TMPDIR")).unwrap().flatten();
    let files: Vec<_> = files
        .filter(|file| file.file_name().to_string_lossy().starts_with("each."))
        .map(|file| (file.path(), std::fs::read_to_string(file.path()).unwrap()))
        .collect();
    files.iter().for_each(|(path, _)| std::fs::remove_file(path).unwrap());
    assert_eq!(files.len(), 2, "the program and its child");
    for (path, text) in files {
        let process = path.extension().unwrap().to_str().unwrap();
        let begin = format!("[{process}/");
        assert!(text.lines().all(|line| line.starts_with(&begin) || line.starts_with(' ')), "{text}");
    }
    let output = trace(&["-ff", "-o", "/nonexistent/trace"], &["shapes"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("cannot write the trace"), "{said}");
    let output = trace(&["-ff", "-o", path.to_str().unwrap(), "-c"], &["shapes"]);
    assert_eq!(output.status.code(), Some(125));
}
