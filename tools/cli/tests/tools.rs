//! Tools that follow a program with a ring (`programs/followed.c`), on the kernel's `io_uring` and on the user engine. Each row of
//! `docs/tools.md` has its test here. A test whose tool this machine lacks is counted as skipped.

mod support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::{anyring, built, denied_to, kernel_has_io_uring};

const RUN: [&str; 4] = ["run", "--engine", "user", "--"];

/// True if the machine has the tool; otherwise the test is counted as skipped.
fn has(tool: &str) -> bool {
    let has = Command::new(tool).arg("--version").output().is_ok();
    if !has {
        anyring_tally::skipped(&format!("no {tool}"));
    }
    has
}

/// A directory of a test, with the file `data`.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tools-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("data"), "seen by nobody\n").unwrap();
        Place(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns what a command prints, on both streams.
fn said(command: &mut Command) -> String {
    let Output { stdout, stderr, .. } = command.output().unwrap();
    [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat()
}

/// Returns the command line of a tool for `followed.c`.
fn by(tool: &[&str], build: &str, arguments: &[&str]) -> Vec<String> {
    let program = built(&format!("followed-{build}")).to_str().unwrap().to_owned();
    let tool = tool.iter().map(|word| (*word).to_owned());
    tool.chain([program]).chain(arguments.iter().map(|word| (*word).to_owned())).collect()
}

/// Runs a command line on the kernel's `io_uring`, if there is one.
fn on_the_kernel(line: &[String]) -> Option<String> {
    kernel_has_io_uring().then(|| said(Command::new(&line[0]).args(&line[1..])))
}

/// Runs a command line below `anyring run`.
fn on_the_engine(line: &[String]) -> String {
    said(Command::new(anyring()).args(RUN).args(line))
}

/// Runs a command line with the preload library, for tools that run the program within themselves.
fn with_the_library(line: &[String]) -> String {
    let library = anyring().with_file_name("libanyring_preload.so");
    said(Command::new(&line[0]).args(&line[1..]).env("LD_PRELOAD", library).env("ANYRING_ENGINE", "user"))
}

/// Waits for a condition to become true.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts `followed waits` without descriptors that this process has inherited, and returns it when its read is in flight.
fn waiting(mut command: Command, build: &str, mark: &str, out: &str) -> Child {
    command.arg(built(&format!("followed-{build}"))).args(["waits", mark]);
    command.stdin(Stdio::null()).stdout(fs::File::create(out).unwrap()).stderr(Stdio::null());
    let close_others = || {
        // SAFETY: a system call without memory; the descriptors end at the `exec`.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(close_others) };
    let child = command.spawn().unwrap();
    until("a read in flight", || Path::new(mark).exists());
    child
}

#[test]
fn strace_shows_the_calls_of_requests() {
    if !has("strace") {
        return;
    }
    let place = Place::new("strace");
    let data = place.file("data");
    let line = by(&["strace", "-f"], "debug", &["file", &data]);
    let (open, read) = (format!("openat(AT_FDCWD, \"{data}\""), "\"seen by nobody\\n\"");
    let shows_read = |said: &str| said.lines().any(|line| line.contains("read") && line.contains(read));
    let user = on_the_engine(&line);
    assert!(user.contains(&open) && shows_read(&user), "{user}");
    if let Some(kernel) = on_the_kernel(&line) {
        assert!(kernel.contains("io_uring_enter") && kernel.contains("write(1, "), "{kernel}");
        assert!(!kernel.contains(&open) && !shows_read(&kernel), "{kernel}");
    }
}

/// Attaches strace to a process whose read is in flight; returns what strace shows of the read's end.
fn attached(command: Command, build: &str, place: &Place) -> Option<String> {
    let (mark, out) = (place.file("mark"), place.file("out"));
    let mut child = waiting(command, build, &mark, &out);
    let process = child.id();
    let mut strace = Command::new("strace");
    let log = place.file("strace");
    let mut strace = strace.args(["-f", "-o", &log, "-p", &process.to_string()]).spawn().unwrap();
    let is_traced = || {
        let mut tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap().map(Result::unwrap);
        tasks.all(|task| {
            !fs::read_to_string(task.path().join("status")).unwrap_or_default().contains("TracerPid:\t0")
        })
    };
    let mut has_failed = false;
    until("strace attached", || {
        has_failed = strace.try_wait().unwrap().is_some();
        has_failed || is_traced()
    });
    fs::remove_file(mark).unwrap();
    assert!(child.wait().unwrap().success());
    strace.wait().unwrap();
    assert_eq!(fs::read_to_string(out).unwrap(), "over\n");
    if has_failed {
        anyring_tally::skipped("strace may not attach");
        return None;
    }
    Some(fs::read_to_string(log).unwrap())
}

#[test]
fn strace_attaches_to_a_static_program() {
    if !has("strace") {
        return;
    }
    let place = Place::new("attached");
    let shows_read = |log: &str| log.lines().any(|line| line.contains("read") && line.contains("\"over\""));
    let mut command = Command::new(anyring());
    command.args(RUN);
    let Some(user) = attached(command, "debug-static", &place) else { return };
    assert!(shows_read(&user), "{user}");
    if kernel_has_io_uring() {
        let kernel = attached(Command::new("env"), "debug-static", &place).expect("strace attached before");
        assert!(kernel.contains("io_uring_enter") && !shows_read(&kernel), "{kernel}");
    }
}

#[test]
fn a_filter_of_system_calls_applies_to_requests() {
    let place = Place::new("filter");
    let victim = place.file("victim");
    let filter = format!("allow,call={}:{}", libc::SYS_unlinkat, libc::EACCES);
    let program = built("followed-debug");
    let removes = |command: &mut Command| {
        fs::write(&victim, "").unwrap();
        let said = said(command.arg(&program).args(["removes", &victim]));
        (said, Path::new(&victim).exists())
    };
    let user = removes(&mut denied_to(&filter, &RUN));
    assert_eq!(user, ("Permission denied\n".to_owned(), true));
    if kernel_has_io_uring() {
        let kernel = removes(Command::new(built("deny")).arg(&filter));
        assert_eq!(kernel, ("removed\n".to_owned(), false));
    }
}

#[test]
fn gdb_stops_at_the_call_of_a_request() {
    if !has("gdb") {
        return;
    }
    let place = Place::new("gdb");
    let script = place.file("script");
    let commands =
        "handle SIGSYS nostop noprint pass\nbreak read_into\nrun\ncatch syscall preadv2\ncontinue\nbt\n";
    fs::write(&script, commands).unwrap();
    let tool = ["gdb", "-q", "-nx", "-batch", "-x", &script, "--args"];
    let line = by(&tool, "debug-libc", &["file", &place.file("data")]);
    let user = on_the_engine(&line);
    let stack = user.split("Catchpoint 2 (call to syscall preadv2)").nth(1).unwrap_or_default();
    assert!(stack.contains(" read_into (") && stack.contains(" main ("), "{user}");
    if let Some(kernel) = on_the_kernel(&line) {
        assert!(kernel.contains(", read_into (") && kernel.contains("exited normally"), "{kernel}");
        assert!(!kernel.contains("call to syscall"), "{kernel}");
    }
}

#[test]
fn perf_counts_the_calls_of_requests() {
    if !has("perf") {
        return;
    }
    let place = Place::new("perf");
    let events = "syscalls:sys_enter_preadv2,io_uring:io_uring_submit_req";
    let line = by(&["perf", "stat", "-x,", "-e", events], "debug", &["file", &place.file("data")]);
    let counts = |said: &str| -> Option<Vec<u64>> {
        let lines = said.lines().filter(|line| line.contains(",,syscalls:") || line.contains(",,io_uring:"));
        let counts: Vec<u64> = lines.filter_map(|line| line.split(',').next()?.parse().ok()).collect();
        (counts.len() == 2).then_some(counts)
    };
    let said = on_the_engine(&line);
    let Some(user) = counts(&said) else {
        anyring_tally::skipped("perf has no tracepoints");
        return;
    };
    assert!(user[0] >= 1 && user[1] == 0, "{said}");
    if let Some(said) = on_the_kernel(&line) {
        assert_eq!(counts(&said), Some(vec![0, 2]), "{said}");
    }
}

#[test]
fn bpftrace_sees_the_calls_of_requests() {
    if !has("bpftrace") {
        return;
    }
    let place = Place::new("bpftrace");
    let data = place.file("data");
    let probe = "tracepoint:syscalls:sys_enter_openat /comm == \"followed-debug\"/ \
        { printf(\"opens %s\\n\", str(args->filename)); }";
    let program = built("followed-debug");
    let run = |before: &str| {
        let line = format!("{before}{} file {data}", program.display());
        said(Command::new("bpftrace").args(["-e", probe, "-c", &line]))
    };
    let user = run(&format!("{} {} ", anyring().display(), RUN.join(" ")));
    if !user.contains("Attach") {
        anyring_tally::skipped("bpftrace cannot attach");
        return;
    }
    let opens = format!("opens {data}\n");
    assert!(user.contains(&opens), "{user}");
    if kernel_has_io_uring() {
        let kernel = run("");
        assert!(kernel.contains("opens ") && !kernel.contains(&opens), "{kernel}");
    }
}

#[test]
fn memcheck_sees_what_requests_do_to_memory() {
    if !has("valgrind") {
        return;
    }
    let run = |what: &str| by(&["valgrind", "-q"], "debug", &[what]);
    let freed = with_the_library(&run("freed"));
    assert!(
        freed.contains("unaddressable byte(s)") && freed.contains("inside a block of size 64 free'd"),
        "{freed}"
    );
    let unset = with_the_library(&run("unset"));
    assert!(unset.contains("points to uninitialised byte(s)"), "{unset}");
    assert_eq!(with_the_library(&run("branches")), "nothing\n");
    if let Some(kernel) = on_the_kernel(&run("freed")) {
        assert_eq!(kernel, "64 bytes\n");
        assert_eq!(on_the_kernel(&run("unset")).unwrap(), "64 bytes\n");
        let kernel = on_the_kernel(&run("branches")).unwrap();
        assert!(kernel.contains("uninitialised value"), "{kernel}");
    }
}

#[test]
fn memcheck_sees_what_is_done_to_memory_in_flight() {
    if !has("valgrind") {
        return;
    }
    let run = |what: &str| by(&["valgrind", "-q"], "debug", &[what]);
    let looks = with_the_library(&run("looks"));
    assert!(looks.contains("uninitialised value") && looks.contains("\nover\n"), "{looks}");
    let leaves = with_the_library(&run("leaves"));
    let told = "anyring: READ #1 of ring 1 was still in flight when its memory was freed";
    assert!(leaves.contains(told) && leaves.contains("inside a block of size 4 free'd"), "{leaves}");
    let unset = with_the_library(&run("unset"));
    assert!(unset.contains("anyring: WRITE #1 of ring 1 is to write these bytes"), "{unset}");
    let right = with_the_library(&run("handed"));
    assert!(right.contains("done\n") && !right.contains("    at 0x"), "{right}");
    if let Some(kernel) = on_the_kernel(&run("leaves")) {
        assert_eq!(kernel, "done\n");
        assert_eq!(on_the_kernel(&run("unset")).unwrap(), "64 bytes\n");
    }
}

#[test]
fn a_thread_sanitizer_sees_races_with_requests() {
    let run = |what: &str| by(&["env", "TSAN_OPTIONS=exitcode=9"], "threads", &[what]);
    let native = said(Command::new(built("followed-threads")).arg("none"));
    if native.contains("ThreadSanitizer") {
        anyring_tally::skipped("ThreadSanitizer does not start on this kernel");
        return;
    }
    for what in ["races", "early"] {
        let user = on_the_engine(&run(what));
        assert!(user.contains("data race") && user.contains("'READ #1 of ring 1'"), "{what}: {user}");
        assert!(user.contains(" touches "), "{what}: {user}");
    }
    assert_eq!(on_the_engine(&run("handed")), "done\n");
    for what in ["races", "early", "handed"] {
        if let Some(kernel) = on_the_kernel(&run(what)) {
            assert_eq!(kernel, "done\n", "{what}");
        }
    }
}

#[test]
fn helgrind_sees_a_race_with_a_request() {
    if !has("valgrind") {
        return;
    }
    let suppressions = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/helgrind.supp");
    let suppressed = format!("--suppressions={}", suppressions.display());
    // A race within the engine, whose locks helgrind does not know: a thread of the engine completes the read, and then the program
    // enters the engine.
    let is_the_engines = |race: &str| {
        let place = race.lines().find(|line| line.contains(" at 0x")).unwrap_or_default();
        !["followed.c", "ring.h"].iter().any(|program| place.contains(program))
    };
    let races_within =
        |said: &str| said.split("Possible data race").skip(1).filter(|race| is_the_engines(race)).count();
    let within = with_the_library(&by(&["valgrind", "-q", "--tool=helgrind"], "debug", &["alone"]));
    assert!(races_within(&within) > 0 && within.contains("done\n"), "{within}");
    let tool = ["valgrind", "-q", "--tool=helgrind", &suppressed];
    let quiet = with_the_library(&by(&tool, "debug", &["alone"]));
    assert!(races_within(&quiet) == 0 && quiet.contains("done\n"), "{quiet}");
    // Races of the program itself are still reported. This one is a false report, because helgrind does not know the
    // atomics of the program.
    let handed = with_the_library(&by(&tool, "debug", &["handed"]));
    assert!(handed.contains("Possible data race") && handed.contains("touches (followed.c"), "{handed}");
    let line = by(&["valgrind", "-q", "--tool=helgrind"], "debug", &["races"]);
    let user = with_the_library(&line);
    assert!(user.contains("Possible data race") && user.contains("data symbol \"shared\""), "{user}");
    if let Some(kernel) = on_the_kernel(&line) {
        assert_eq!(kernel, "done\n");
    }
}

#[test]
fn an_address_sanitizer_finds_the_same_errors() {
    let run = |what: &str| by(&["env", "ASAN_OPTIONS=exitcode=9"], "sanitized", &[what]);
    let user = on_the_engine(&run("stale"));
    assert!(user.contains("heap-use-after-free"), "{user}");
    assert_eq!(on_the_engine(&run("freed")), "64 bytes\n");
    if let Some(kernel) = on_the_kernel(&run("stale")) {
        assert!(kernel.contains("heap-use-after-free"), "{kernel}");
        assert_eq!(on_the_kernel(&run("freed")).unwrap(), "64 bytes\n");
    }
}

/// True if there is CRIU, version 4 or later, and the kernel has what CRIU needs.
fn has_criu() -> bool {
    if !has("criu") {
        return false;
    }
    let version = said(Command::new("criu").arg("--version"));
    let digits = version.trim_start_matches(|c: char| !c.is_ascii_digit());
    let is_new =
        digits.split('.').next().is_some_and(|major| major.parse().is_ok_and(|major: u32| major >= 4));
    let works = is_new && Command::new("criu").arg("check").output().unwrap().status.success();
    if !works {
        anyring_tally::skipped("no CRIU 4 that works here");
    }
    works
}

/// Runs CRIU on the images in `place`; returns whether it succeeded, and its log.
fn criu(what: &str, place: &Place, arguments: &[&str]) -> (bool, String) {
    let mut criu = Command::new("criu");
    criu.args([what, "-D", &place.file("images"), "-o", "log", "--shell-job"]).args(arguments);
    let is_done = criu.output().unwrap().status.success();
    (is_done, fs::read_to_string(place.file("images/log")).unwrap_or_default())
}

/// Dumps a process whose read is in flight in such a sandbox, and restores it; the read completes then.
fn restores(sandbox: &str, build: &str, place: &Place) {
    let (mark, out) = (place.file("mark"), place.file("out"));
    let mut child = waiting(denied_to(sandbox, &RUN), build, &mark, &out);
    let (is_dumped, log) = criu("dump", place, &["-t", &child.id().to_string()]);
    assert!(is_dumped, "{build}: {log}");
    child.wait().unwrap();
    let (is_restored, log) = criu("restore", place, &["-d"]);
    assert!(is_restored, "{build}: {log}");
    fs::remove_file(&mark).unwrap();
    until("the read's data", || fs::read_to_string(&out).unwrap() == "over\n");
}

#[test]
fn criu_restores_a_process_with_a_ring() {
    if !has_criu() {
        return;
    }
    let place = Place::new("criu");
    fs::create_dir_all(place.file("images")).unwrap();
    restores("1", "debug", &place);
    // In a static program the engine has an inotify instance, if it gets one: CRIU does not dump it.
    restores(&format!("1,call={}:{}", libc::SYS_inotify_init1, libc::EMFILE), "debug-static", &place);
    if kernel_has_io_uring() {
        let (mark, out) = (place.file("mark"), place.file("out"));
        let mut child = waiting(Command::new("env"), "debug", &mark, &out);
        let (is_dumped, log) = criu("dump", &place, &["-t", &child.id().to_string()]);
        fs::remove_file(&mark).unwrap();
        child.wait().unwrap();
        assert!(!is_dumped && log.contains("anon_inode:[io_uring]"), "{log}");
    }
}

#[test]
fn qemu_user_runs_a_program_with_a_ring() {
    let qemu = format!("qemu-{}", std::env::consts::ARCH);
    if !has(&qemu) {
        return;
    }
    let place = Place::new("qemu");
    let run = |options: &[&str]| {
        let tool: Vec<&str> = std::iter::once(qemu.as_str()).chain(options.iter().copied()).collect();
        let line = by(&tool, "debug-libc", &["file", &place.file("data")]);
        said(Command::new(&line[0]).args(&line[1..]))
    };
    let library = format!("LD_PRELOAD={}", anyring().with_file_name("libanyring_preload.so").display());
    let user = run(&["-E", &library, "-E", "ANYRING_ENGINE=user"]);
    assert!(user.contains("seen by nobody"), "{user}");
    let emulated = run(&[]);
    assert!(emulated.contains("not so: ring_open"), "{emulated}");
}

#[test]
fn each_row_of_the_page_has_its_test() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tools.md");
    let page = fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_suffix("` |")?.rsplit_once('`'));
    let mut named: Vec<&str> = rows.map(|(_, name)| name).collect();
    let mut tests: Vec<&str> = include_str!("tools.rs")
        .split("#[test]\nfn ")
        .skip(1)
        .map(|rest| rest.split('(').next().unwrap())
        .filter(|name| *name != "each_row_of_the_page_has_its_test")
        .collect();
    named.sort_unstable();
    tests.sort_unstable();
    assert_eq!(named, tests, "docs/tools.md (left) and the tests");
}
