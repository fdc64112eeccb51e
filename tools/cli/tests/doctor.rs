//! `anyring doctor -- PROGRAM`: each kind of program, and the way in which the engine gets into it.

mod support;

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{built, built_by_musl, denied_to};

/// Returns the doctor's report on a program in a sandbox of `deny.c`.
fn examined(sandbox: &str, program: &Path) -> Value {
    let output =
        denied_to(sandbox, &["doctor", "--json", "--"]).arg(program).arg("an argument").output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let program = report["program"].clone();
    assert_eq!(output.status.success(), program["works"] == true, "{program}");
    assert_eq!(program["works"] == true, program["command"].is_string(), "{program}");
    assert_eq!(program["works"] == true, program["why_not"].is_null(), "{program}");
    program
}

/// Checks that a program has this linkage, and that the engine gets into it in this way if `io_uring` is denied.
fn is(program: &Path, kind: &str, way: &str) -> Value {
    let report = examined("1", program);
    assert_eq!((&report["kind"], &report["way"]), (&kind.into(), &way.into()), "{report}");
    report
}

fn directory() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("examined");
    fs::create_dir_all(&directory).unwrap();
    directory
}

fn script(name: &str, text: &str, mode: u32) -> PathBuf {
    let path = directory().join(format!("{name}-{}", std::process::id()));
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    path
}

/// Returns a copy of a program whose first bytes are changed.
fn copy(program: &Path, name: &str, change: impl Fn(&mut [u8])) -> PathBuf {
    let path = directory().join(format!("{name}-{}", std::process::id()));
    let mut bytes = fs::read(program).unwrap();
    change(&mut bytes);
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

#[test]
fn dynamic_programs_are_preloaded() {
    let report = is(&built("nop"), "dynamic-glibc", "preload");
    assert!(report["dynamic_linker"].as_str().unwrap().contains("ld-linux"), "{report}");
    let command = report["command"].as_str().unwrap();
    assert!(command.starts_with("anyring run ") && command.ends_with("/nop 'an argument'"), "{command}");
    is(&built("nop-fixed"), "dynamic-glibc", "preload");
    // The command that the report names must work.
    let line = format!("PATH=\"$1:$PATH\"; {command} >/dev/null");
    let commands = support::anyring().parent().unwrap();
    let deny = built("deny");
    let output = Command::new(deny).args(["1", "sh", "-c", &line, "sh"]).arg(commands).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("engine=user rings=2"), "{output:?}");
}

#[test]
fn static_programs_get_it_by_ptrace() {
    let program = built("nop-static");
    let report = is(&program, "static", "inject");
    let calls = &report["calls"];
    let [found, patched] = ["instructions", "patched"].map(|name| calls[name].as_u64().unwrap());
    assert!(found > patched && patched > 0, "{report}");
    assert_eq!(calls["unpatched"].as_array().unwrap().len(), 0, "{report}");
    let report = examined("1,ptrace", &program);
    assert!(report["calls"].is_null(), "{report}");
    assert!(report["works"] == false && report["why_not"].as_str().unwrap().contains("ptrace"), "{report}");
    assert!(report["remedy"].as_str().unwrap().contains("SYS_PTRACE"), "{report}");
    is(&built("nop-static-pie"), "static-pie", "inject");
    // In a sandbox that kills processes for the calls, the calls cannot trap.
    let report = examined("kill", &program);
    assert!(
        report["works"] == false && report["why_not"].as_str().unwrap().contains("takes precedence"),
        "{report}"
    );
}

#[test]
fn the_c_library_is_told() {
    if let Some(program) = built_by_musl("nop-dynamic-musl") {
        is(&program, "dynamic-musl", "preload");
    }
}

#[test]
fn scripts_are_what_their_interpreters_are() {
    let report = is(&script("shell", "#!/bin/sh\n", 0o755), "dynamic-glibc", "preload");
    assert_eq!(report["interpreters"], serde_json::json!(["/bin/sh"]));
    assert!(report["linkage"].as_str().unwrap().starts_with("script, run by /bin/sh"), "{report}");
    let report = is(&script("lost", "#!/nowhere/shell\n", 0o755), "no-interpreter", "none");
    assert!(report["why_not"].as_str().unwrap().contains("/nowhere/shell"), "{report}");
    let report = is(&script("text", "echo\n", 0o755), "unknown", "none");
    assert!(report["remedy"].as_str().unwrap().contains("#!/bin/sh"), "{report}");
    let program = built("nop-lost");
    let report = is(&program, "no-interpreter", "none");
    assert!(report["why_not"].as_str().unwrap().contains("/nowhere/ld-linux.so.9"), "{report}");
}

#[test]
fn what_cannot_be_executed() {
    is(Path::new("no-such-program-anywhere"), "not-found", "none");
    is(Path::new("/nowhere/program"), "not-found", "none");
    is(&script("plain", "#!/bin/sh\n", 0o644), "not-executable", "none");
    is(Path::new("/"), "not-executable", "none");
    let other = if std::env::consts::ARCH == "x86_64" { 183 } else { 62 };
    let program = copy(&built("nop"), "foreign", |bytes| bytes[18] = other);
    let report = is(&program, "foreign", "none");
    assert!(report["linkage"].as_str().unwrap().contains("64"), "{report}");
}

#[test]
fn programs_that_gain_privileges_are_left_alone() {
    // SAFETY: asks only.
    if unsafe { libc::geteuid() } != 0 {
        anyring_tally::skipped("not root");
        return;
    }
    for (mode, words) in [(0o4755, "set-user-ID"), (0o2755, "set-group-ID")] {
        let program = copy(&built("nop"), "privileged", |_| {});
        std::os::unix::fs::chown(&program, Some(1), Some(1)).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(mode)).unwrap();
        let report = is(&program, "privileged", "none");
        assert_eq!(report["linkage"], words);
    }
}

/// If no library can be preloaded, the program may still load anyring's `liburing.so.2` instead of the other one.
#[test]
fn programs_of_liburing_have_another_way() {
    let of_liburing = built("nop-of-liburing");
    let report = is(&of_liburing, "dynamic-glibc", "preload");
    assert_eq!(report["loads_liburing"], true);
    assert_eq!(is(&built("nop"), "dynamic-glibc", "preload")["loads_liburing"], false);
    // A library that does not load, with anyring's liburing.so.2 beside it.
    let broken = directory().join("broken");
    fs::create_dir_all(&broken).unwrap();
    fs::write(broken.join("libanyring_preload.so"), "no library").unwrap();
    fs::copy(built("liburing.so.2"), broken.join("liburing.so.2")).unwrap();
    let mut command = denied_to("1", &["doctor", "--json", "--"]);
    let output = command
        .arg(&of_liburing)
        .env("ANYRING_PRELOAD", broken.join("libanyring_preload.so"))
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["program"]["way"], &report["program"]["works"]), (&"liburing".into(), &true.into()));
    assert!(report["program"]["command"].as_str().unwrap().starts_with("LD_LIBRARY_PATH="), "{report}");
}

#[test]
fn people_are_told_the_same() {
    let output = denied_to("1", &["doctor", "--"]).arg(built("nop")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for words in [
        "linked            dynamic (glibc)",
        "will work         yes, over anyring's own",
        "run it by         anyring run",
    ] {
        assert!(text.contains(words), "{text}");
    }
    let output = denied_to("1", &["doctor", "--", "no-such-program-anywhere"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("will work         no"), "{output:?}");
    assert_eq!(output.status.code(), Some(1));
}
