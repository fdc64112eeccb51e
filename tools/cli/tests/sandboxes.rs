//! Sandboxes that do more than return an errno: the programs that run there, and the messages if none can run.

mod support;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use support::{anyring, built, denied};

/// Runs `anyring` with these arguments, in a sandbox that `deny.c` creates; `None` if the kernel cannot create it.
fn confined(sandbox: &str, arguments: &[&str]) -> Option<Output> {
    let output = Command::new(built("deny")).arg(sandbox).arg(anyring()).args(arguments).output().unwrap();
    if output.status.code() == Some(3) {
        anyring_tally::skipped("no PR_SET_MDWE (Linux 6.3)");
        return None;
    }
    Some(output)
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Returns the path of a program.
fn path(name: &str) -> String {
    built(name).to_str().unwrap().to_owned()
}

#[test]
fn a_filter_that_kills_kills_nobody_who_does_not_call() {
    for engine in ["auto", "kernel", "user"] {
        let output = confined("kill", &["run", "--engine", engine, "--", "true"]).unwrap();
        assert!(output.status.success(), "{engine}: {output:?}");
        let children =
            ["run", "--engine", engine, "--log", "off", "--", "sh", "-c", "true; (true); sh -c 'exit 7'"];
        let output = confined("kill", &children).unwrap();
        assert_eq!(output.status.code(), Some(7), "{engine}: {output:?}");
    }
}

#[test]
fn calls_through_the_c_library_are_answered_where_others_kill() {
    let expected =
        Command::new(anyring()).args(["run", "--engine", "user", &path("nop-libc")]).output().unwrap();
    let output = confined("kill", &["run", &path("nop-libc")]).unwrap();
    assert!(output.status.success() && output.stdout == expected.stdout, "{output:?}");
    assert!(text(&output).contains("a seccomp filter ends processes that make the calls"), "{output:?}");
    // The message is about one program; its children print none.
    let shell = format!("exec 2>&1; {} >/dev/null; echo done", path("nop-libc"));
    let output = confined("kill", &["run", "--", "sh", "-c", &shell]).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n");
}

/// Calls by the program's own instructions are patched before `main`, if possible.
#[test]
fn calls_by_instructions_are_patched_where_they_would_kill() {
    let program = path("nop-apart");
    let output = confined("kill", &["run", &program]).unwrap();
    assert!(output.status.success(), "{output:?}");
    let output = Command::new(built("deny"))
        .arg("kill")
        .arg(anyring())
        .args(["run", &program])
        .env("ANYRING_PATCH", "0")
        .output()
        .unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGSYS), "as without anyring: {output:?}");
}

/// The engine is chosen by the usability of a ring, not by its creation alone.
#[test]
fn one_call_alone_is_refused() {
    if !support::kernel_has_io_uring() {
        return;
    }
    let expected = Command::new(path("nop")).output().unwrap();
    for (sandbox, call) in [
        ("1,enter", "io_uring_enter"),
        ("38,enter", "io_uring_enter"),
        ("1,register", "io_uring_register"),
        ("13,register", "io_uring_register"),
    ] {
        for program in ["nop", "nop-libc", "nop-static"] {
            let output = confined(sandbox, &["run", "--log", "info", "--", &path(program)]).unwrap();
            assert!(text(&output).contains("engine=user rings=2"), "{sandbox}: {output:?}");
            assert_eq!(output.stdout, expected.stdout, "{sandbox}");
        }
        let report = confined(sandbox, &["doctor", "--json"]).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
        assert_eq!((&report["verdict"], &report["kernel"]["io_uring"]), (&"user".into(), &false.into()));
        assert_eq!(report["kernel"]["refused_call"], call);
        let why = report["kernel"]["why"].as_str().unwrap();
        assert!(why.contains(call) && why.contains("seccomp filter"), "{why}");
    }
    let report = confined("1", &["doctor", "--json"]).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert!(report["kernel"]["refused_call"].is_null(), "{report}");
    // Without memory files the user engine cannot make rings, so the kernel's rings are used, although they are
    // limited.
    let output = confined("1,register,nomemfd", &["run", "--log", "info", "--", &path("nop")]).unwrap();
    assert!(text(&output).contains("engine=kernel"), "{output:?}");
    assert_eq!(output.stdout, expected.stdout);
}

#[test]
fn static_programs_are_refused_or_go_without_where_calls_kill() {
    let program = path("nop-static");
    let output = confined("kill", &["run", "--engine", "user", &program]).unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(text(&output).contains("the engine cannot be had here"), "{output:?}");
    let output = confined("kill", &["run", "--engine", "auto", &program]).unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGSYS), "as without anyring: {output:?}");
    assert!(text(&output).contains("io_uring is left as it is"), "{output:?}");
}

/// A filter kills processes that create a memory file, which the engine needs for a ring. The engine must not get the
/// program killed, and must not report to the program that rings are available.
#[test]
fn a_filter_that_kills_files_in_memory_kills_nobody() {
    for program in ["nop", "nop-libc", "nop-static", "nop-static-pie"].map(path).iter() {
        let native = Command::new(built("deny")).args(["1,memfd", program]).output().unwrap();
        let output = confined("1,memfd", &["run", program]).unwrap();
        assert_eq!((output.status, &output.stdout), (native.status, &native.stdout), "{output:?}");
        let script = format!("{program}; echo $?");
        let output = confined("1,memfd", &["run", "--log", "off", "--", "sh", "-c", &script]).unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).ends_with("99\n"), "{output:?}");
        let output = confined("1,memfd", &["run", "--engine", "user", program]).unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(text(&output).contains("memfd_create"), "{output:?}");
    }
    let report = confined("1,memfd", &["doctor", "--json"]).unwrap();
    assert_eq!(report.status.code(), Some(1), "{report:?}");
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(
        (&report["verdict"], &report["static_programs"]["works"]),
        (&"none".into(), &false.into()),
        "{report}"
    );
    assert!(report["trap"]["why_not"].as_str().is_some_and(|why| why.contains("memfd_create")), "{report}");
}

#[test]
fn the_doctor_survives_a_filter_that_kills() {
    let output = confined("kill", &["doctor", "--json"]).unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["verdict"], "user", "{report}");
    assert_eq!(report["kernel"]["error"], "SIGSYS", "{report}");
    assert_eq!(
        (&report["trap"]["works"], &report["trap"]["loads"]),
        (&false.into(), &true.into()),
        "{report}"
    );
    assert!(text(&confined("kill", &["doctor"]).unwrap()).contains("through the C library"));
}

#[test]
fn no_memory_need_become_executable() {
    for sandbox in ["1,mdwe", "kill,mdwe"] {
        let Some(output) = confined(sandbox, &["run", "--engine", "user", &path("nop-libc")]) else {
            return;
        };
        assert!(output.status.success(), "{sandbox}: {output:?}");
    }
    for program in ["nop", "nop-static", "nop-static-pie", "nop-fixed"].map(path) {
        let output = confined("1,mdwe", &["run", "--engine", "user", &program]).unwrap();
        assert!(output.status.success(), "{program}: {output:?}");
        assert!(output.stderr.is_empty(), "{program}: {output:?}");
    }
    let report = confined("1,mdwe", &["doctor", "--json"]).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!((&report["verdict"], &report["trap"]["works"]), (&"user".into(), &true.into()), "{report}");
}

/// Requested settings that cannot be applied are an error before the program starts.
#[test]
fn nothing_is_replaced_silently() {
    let run = |name: &str, value: &str, arguments: &[&str]| {
        let mut command = Command::new(anyring());
        command.arg("run").args(arguments).args(["--", "sh", "-c", "echo started"]);
        command.env(name, value).output().unwrap()
    };
    let refused = |output: Output, what: &str| {
        assert_eq!(output.status.code(), Some(125), "{what}: {output:?}");
        assert!(text(&output).contains(what) && output.stdout.is_empty(), "{what}: {output:?}");
    };
    refused(run("ANYRING_ENGINE", "bogus", &[]), "ANYRING_ENGINE is \"bogus\"");
    refused(run("ANYRING_LOG", "bogus", &[]), "ANYRING_LOG is \"bogus\"");
    refused(run("ANYRING_PATCH", "yes", &[]), "ANYRING_PATCH is \"yes\"");
    refused(run("X", "", &["--log", "bogus"]), "ANYRING_LOG is \"bogus\"");
    refused(run("X", "", &["--log", "/nowhere/log"]), "cannot write the log to /nowhere/log");
    refused(run("X", "", &["--log", "/proc/self/fd/1"]), "no link");
    // A file that is not a library, and a library that is not anyring's.
    refused(run("ANYRING_PRELOAD", "/etc/passwd", &["--engine", "user"]), "/etc/passwd");
    refused(run("ANYRING_PRELOAD", &path("liburing.so.2"), &["--engine", "user"]), "does not load");
    // Programs that get the variables without `anyring run` are refused as well.
    let library = anyring().with_file_name("libanyring_preload.so");
    let mut command = Command::new("sh");
    command.args(["-c", "echo started"]).env("LD_PRELOAD", library).env("ANYRING_ENGINE", "bogus");
    refused(command.output().unwrap(), "ANYRING_ENGINE cannot be understood");
}

#[test]
fn a_relative_log_is_the_one_of_where_anyring_was_started() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("log-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let status = Command::new(anyring())
        .args(["run", "--engine", "user", "--log", "info,./own", "--", "sh", "-c", "cd / && exec true"])
        .current_dir(&directory)
        .status()
        .unwrap();
    assert!(status.success());
    let log = std::fs::read_to_string(directory.join("own")).unwrap();
    assert!(log.contains("engine=user"), "{log}");
    std::fs::remove_dir_all(&directory).unwrap();
}

/// The log's last line is printed once for the program, and needs no call that the program's own filter forbids.
#[test]
fn ends_are_the_programs_own() {
    for name in ["ends", "ends-static"] {
        let program = built(name);
        for what in ["children", "strict", "both"] {
            let native = Command::new(&program).arg(what).output().unwrap();
            let ours = ["run", "--engine", "user", "--log", "info"];
            let output = Command::new(anyring()).args(ours).arg(&program).arg(what).output().unwrap();
            let shown = (output.status, &output.stdout);
            assert_eq!(shown, (native.status, &native.stdout), "{name}: {output:?}");
            assert_eq!(native.status.code(), Some(7), "{native:?}");
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(log.matches("engine=user").count(), 1, "{log}");
        }
    }
}

/// Calls that an ancestor's filter traps are passed on to the kernel if a program is to use the kernel engine.
#[test]
fn the_kernel_is_reached_below_our_filter() {
    if !support::kernel_has_io_uring() {
        return;
    }
    for program in ["nop", "nop-static", "nop-static-pie", "nop-fixed"].map(path) {
        for engine in ["auto", "kernel"] {
            let script = format!("ANYRING_ENGINE={engine} {program}");
            let output = Command::new(anyring())
                .args(["run", "--engine", "user", "--", "sh", "-c", &script])
                .output()
                .unwrap();
            assert!(output.status.success(), "{program} {engine}: {output:?}");
        }
    }
}

#[test]
fn a_child_of_ours_is_nobodys_signal() {
    let script = "use POSIX; sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGCHLD)); exec @ARGV";
    let look = "use POSIX; my $s = POSIX::SigSet->new; sigpending($s); exit $s->ismember(SIGCHLD)";
    let mut command = Command::new("perl");
    command.args(["-e", script]).arg(anyring()).args(["run", "--engine", "user", "--", "perl", "-e", look]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// True if the test runs as root; reports the test as skipped otherwise.
fn is_root() -> bool {
    // SAFETY: a query only.
    let is = unsafe { libc::geteuid() } == 0;
    if !is {
        anyring_tally::skipped("not root");
    }
    is
}

/// After `unshare --pid`, the first child is the init process of a PID namespace, which ends with that process: the child
/// must be the program.
#[test]
fn the_first_child_is_the_programs() {
    if !is_root() {
        return;
    }
    let deny = built("deny");
    let unshared = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.arg("--pid").arg(&deny).arg("1").arg(anyring()).args(arguments).output().unwrap()
    };
    let program = built("namespace");
    for engine in ["auto", "user"] {
        let output = unshared(&["run", "--engine", engine, "--", program.to_str().unwrap()]);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "children: 1 1, exit 7\n",
            "{engine}: {output:?}"
        );
    }
    let report = unshared(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(
        (&report["verdict"], &report["kernel"]["error"]),
        (&"user".into(), &"EPERM".into()),
        "{report}"
    );
    // A tracer could not address the program by its number.
    let output = unshared(&["run", &path("nop-static")]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(text(&output).contains("in another PID namespace"), "{output:?}");
    let program = built("namespace-static");
    let script = format!("exec unshare --pid {}", program.display());
    let output = denied(1).args(["sh", "-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "children: 1 1, exit 7\n", "{output:?}");
    // The init process of a namespace has the engine, whatever `/proc` shows.
    for options in [["--pid", "--fork"].as_slice(), &["--pid", "--fork", "--mount-proc"]] {
        let program = path("nop-static");
        let output = denied(1).arg("unshare").args(options).arg(&program).output().unwrap();
        assert!(
            output.status.success() && text(&output).contains("anyring[1]: engine=user rings=2"),
            "{output:?}"
        );
    }
}

/// If no process can be started for a trial, no trial is made, and no process is killed.
#[test]
fn a_filter_that_kills_kills_nobody_behind_unshare() {
    if !is_root() {
        return;
    }
    let output = Command::new("unshare")
        .arg("--pid")
        .arg(built("deny"))
        .arg("kill")
        .arg(anyring())
        .args(["run", "true"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Runs a shell in a mount namespace in which an empty directory replaces that of anyring; `None` if that is not
/// possible.
fn elsewhere(root: &Path, script: &str) -> Option<Output> {
    if !is_root() {
        return None;
    }
    let hidden = anyring().parent().unwrap().display();
    let (root, rest) = (root.display(), "mount -t tmpfs none");
    let place = format!("mount --rbind / {root} && {rest} {root}{hidden} && cd {root} && {script}");
    Some(denied(1).args(["unshare", "-m", "sh", "-c", &place]).output().unwrap())
}

fn root(name: &str) -> std::path::PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&root).unwrap();
    root
}

/// Checks that a program has the engine: the output contains the program's lines, and none of the dynamic linker.
fn has_the_engine(output: &Output, times: usize) {
    let shown = String::from_utf8_lossy(&output.stdout).matches("three mappings: all there").count();
    assert!(output.status.success() && shown == times, "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("ld.so"), "{said}");
    assert_eq!(said.matches("rings=2").count(), times, "{said}");
}

/// Programs that cannot load the library by its path load it by a descriptor, and so do their children, even if the
/// descriptor was closed or is another file's.
#[test]
fn children_in_another_root_have_the_engine() {
    let (program, root) = (path("nop"), root("root"));
    for script in [
        format!("exec {program}"),
        format!("{program}; {program} | cat; {program}"),
        format!("exec 100</dev/null; bash -c '{program}; exec 100<&-; {program}; exec {program}'"),
        format!(
            "env -i {program}; env LD_PRELOAD= {program}; perl -e 'system(\"{program}\"); exec(\"{program}\")'"
        ),
    ] {
        let times = script.matches(&program).count();
        let entered = format!("exec chroot {} bash -c '{}'", root.display(), script.replace('\'', "'\\''"));
        let Some(output) = elsewhere(&root, &entered) else { return };
        has_the_engine(&output, times);
    }
    // The parent starts its children with all descriptors closed.
    let spawn = built("spawn");
    let entered = format!("exec chroot {} {} {program}", root.display(), spawn.display());
    has_the_engine(&elsewhere(&root, &entered).unwrap(), 3);
    // There is no room for a copy of the library; the program must run all the same.
    let entered = format!("exec chroot {} bash -c 'ulimit -f 1; exec true'", root.display());
    let output = elsewhere(&root, &entered).unwrap();
    assert!(output.status.success(), "{output:?}");
    std::fs::remove_dir(&root).unwrap();
}

/// Shells without an environment, which functions without an environment argument start, have the engine, and so have
/// their children.
#[test]
fn shells_without_an_environment_have_the_engine() {
    let program = built("shells");
    for nop in ["nop-libc", "nop-static-pie"] {
        let command = format!("{} >/dev/null && exit 4", path(nop));
        let output = denied(1).arg(&program).arg(&command).output().unwrap();
        let native = Command::new(&program).arg("exit 4").output().unwrap();
        assert_eq!(output.stdout, native.stdout, "{output:?}");
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(log.matches("rings=2").count(), 2, "{log}");
    }
}

#[test]
fn bubblewrap_may_hide_the_library() {
    if Command::new("bwrap").arg("--version").output().is_err() {
        anyring_tally::skipped("no bwrap (Debian: bubblewrap)");
        return;
    }
    let (program, hidden) = (path("nop"), anyring().parent().unwrap().to_str().unwrap());
    for arguments in [
        &["--dev-bind", "/", "/", "--tmpfs", hidden][..],
        &["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", hidden, "--unshare-all"],
    ] {
        let script = format!("{program}; {program}");
        let natively = Command::new("bwrap").args(arguments).args(["true"]).status().unwrap();
        if !natively.success() {
            anyring_tally::skipped("bwrap may not make this sandbox");
            continue;
        }
        has_the_engine(
            &denied(1).arg("bwrap").args(arguments).args(["sh", "-c", &script]).output().unwrap(),
            2,
        );
    }
}

/// A debugger stops at each signal: a program without rings gets no signal of anyring's.
#[test]
fn debuggers_see_no_signal_of_ours() {
    let watch = built("watch");
    let run = |sandbox: &[&str], program: &str| {
        let (first, rest) = sandbox.split_first().unwrap();
        let mut command = Command::new(first);
        command.args(rest).arg(&watch).arg(libc::SIGSYS.to_string()).arg(anyring());
        command.args(["run", "--engine", "user", "--"]).arg(program).output().unwrap()
    };
    let deny = built("deny");
    for sandbox in [&["env"][..], &[deny.to_str().unwrap(), "1"]] {
        let output = run(sandbox, "true");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "0 times\n", "{output:?}");
        assert!(output.status.success(), "{output:?}");
    }
    let fixed = built("ends-fixed");
    let output = run(&["env"], fixed.to_str().unwrap());
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("0 times\n"), "{output:?}");
}

/// valgrind is a static program, into which the engine is injected, and runs another program in its memory.
#[test]
fn one_front_end_answers_below_valgrind() {
    let Ok(version) = Command::new("valgrind").arg("--version").output() else {
        anyring_tally::skipped("no valgrind");
        return;
    };
    assert!(version.status.success());
    let output =
        denied(1).args(["valgrind", "-q", "--undef-value-errors=no"]).arg(path("nop")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("three mappings: all there"), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("stub page") && !said.contains("engine=kernel"), "{said}");
    assert_eq!(said.matches("rings=2").count(), 1, "{said}");
}

/// In a program that valgrind runs, the library is the only front end: valgrind does not support filters, so no call traps.
#[test]
fn the_library_answers_within_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        anyring_tally::skipped("no valgrind");
        return;
    }
    for program in ["nop-libc", "nop-apart"] {
        let output = Command::new("valgrind")
            .args(["-q", "--undef-value-errors=no", &path(program)])
            .env("LD_PRELOAD", anyring().with_file_name("libanyring_preload.so"))
            .env("ANYRING_ENGINE", "user")
            .output()
            .unwrap();
        assert!(output.status.success(), "{program}: {output:?}");
        assert!(text(&output).contains("three mappings: all there"), "{program}: {output:?}");
    }
}

/// The address sanitizer's runtime, which refuses to be loaded after another library, accepts anyring's, and detects as
/// many errors.
#[test]
fn programs_with_an_address_sanitizer_run() {
    let program = path("nop-sanitized");
    for arguments in
        [vec![program.as_str()], vec!["sh", "-c", &program], vec!["env", "-i", "sh", "-c", &program]]
    {
        let output = denied(1).args(&arguments).env("ASAN_OPTIONS", "exitcode=9").output().unwrap();
        has_the_engine(&output, 1);
    }
}

/// A program that gains privileges neither obeys nor passes on the variables of its parent.
#[test]
fn a_program_that_gains_privileges_takes_no_variables_along() {
    use std::os::unix::fs::PermissionsExt;
    if !is_root() {
        return;
    }
    // A directory that every user can enter.
    let place = std::env::temp_dir().join(format!("anyring-privileged-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    mode(&place, 0o755);
    let (starter, program) = (built("privileged"), place.join("program"));
    std::fs::copy(&starter, &program).unwrap();
    mode(&program, 0o4755);
    let library = place.join("libanyring_preload.so");
    std::fs::copy(anyring().with_file_name("libanyring_preload.so"), &library).unwrap();
    mode(&library, 0o755);
    let (etc, program) = (place.join("etc"), program.display());
    let script = format!(
        "cp -a /etc {etc} && echo {library} >{etc}/ld.so.preload && mount --bind {etc} /etc && exec {starter} start {program}",
        etc = etc.display(),
        library = library.display(),
        starter = starter.display(),
    );
    let output = Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap();
    std::fs::remove_dir_all(&place).unwrap();
    if output.status.code() == Some(77) {
        anyring_tally::skipped("no program gains privileges where temporary files lie");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(!shown.contains("ANYRING_"), "{output:?}");
}

/// overlayfs, the root of every container, has no non-blocking attempts: reads that miss the page cache are started differently.
#[test]
fn reads_that_miss_on_overlayfs_come_whoever_looks_for_them() {
    if !is_root() {
        return;
    }
    let place = std::env::temp_dir().join(format!("anyring-overlay-{}", std::process::id()));
    for directory in ["lower", "upper", "work", "merged"] {
        std::fs::create_dir_all(place.join(directory)).unwrap();
    }
    let content: Vec<u8> = (b'a'..=b'h').flat_map(|letter| vec![letter; 64 * 4096]).collect();
    std::fs::write(place.join("lower/file"), content).unwrap();
    std::fs::File::open(place.join("lower/file")).unwrap().sync_all().unwrap();
    let script = format!(
        "cd {} && mount -t overlay none -o lowerdir=lower,upperdir=upper,workdir=work merged || exit 77; exec \"$@\" merged/file",
        place.display(),
    );
    let program = path("cold");
    let run = |command: &[&str]| {
        Command::new("unshare").args(["-m", "sh", "-c", &script, "sh"]).args(command).output().unwrap()
    };
    let command = anyring();
    let output = run(&[command.to_str().unwrap(), "run", "--engine", "user", "--", &program]);
    std::fs::remove_dir_all(&place).unwrap();
    if output.status.code() == Some(77) {
        return anyring_tally::skipped("no overlayfs where temporary files lie");
    }
    assert_eq!(text(&output), "read, 0 pages cached\nall read\n");
}
