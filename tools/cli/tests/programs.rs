//! Small programs, each of which uses rings in one way, compared with their native run.

mod support;

use std::ffi::OsStr;
use std::fmt::Debug;
use std::path::Path;
use support::{Counters, built, compare};

const NONE: [&str; 0] = [];

/// The number of the 24 sites in `sites-*.c` that are patched while threads run: those that are within one word. On x86-64
/// these are half.
const SITES: u64 = if cfg!(target_arch = "aarch64") { 24 } else { 12 };

/// Runs a program, which must behave as in its record and exit with 0.
#[track_caller]
fn ends_well<A: AsRef<OsStr> + Debug>(name: &str, arguments: &[A], patch: bool) -> Counters {
    let (outcome, counters) = compare(&built(name), arguments, patch);
    assert_eq!(outcome.code, Some(0), "{name} {arguments:?}, {patch}: {}", outcome.stdout);
    counters
}

/// Runs a program, which must exit with 0 whether its calls are patched or not.
#[track_caller]
fn ends_well_either_way<A: AsRef<OsStr> + Debug>(name: &str, arguments: &[A]) {
    for patch in [false, true] {
        ends_well(name, arguments, patch);
    }
}

#[test]
fn inline_calls_trap_or_are_patched() {
    let counters = ends_well("nop", &NONE, false);
    assert_eq!(counters.rings, 2);
    // The program makes 16 batches, two setups and five invalid calls.
    assert_eq!((counters.traps, counters.sites), (23, 0));
    let counters = ends_well("nop", &NONE, true);
    assert!(counters.sites > 0 && counters.traps < 23, "{counters:?}");
}

/// A function that makes calls in a loop has their number in a register. The register may hold the number of another
/// call instead.
#[test]
fn numbers_in_registers_are_patched() {
    let program = built("held");
    let (outcome, counters) = compare(&program, &NONE, false);
    // The program makes one setup and twenty submissions.
    assert_eq!((outcome.code, counters.traps), (Some(0), 21), "{}", outcome.stdout);
    let (outcome, counters) = compare(&program, &NONE, true);
    assert_eq!((outcome.code, counters.traps), (Some(0), 0), "{}", outcome.stdout);
}

#[test]
fn library_calls_do_not_trap() {
    let counters = ends_well("nop-libc", &NONE, false);
    assert_eq!((counters.rings, counters.traps), (2, 0));
}

#[test]
fn programs_at_a_fixed_address() {
    let program = built("nop-fixed");
    let counters = ends_well("nop-fixed", &NONE, false);
    assert_eq!(counters.traps, 23);
    // A program whose filter does not cover this program starts it.
    let output = support::denied(1).args(["sh", "-c"]).arg(format!("'{}'; true", program.display())).output();
    let output = output.unwrap();
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("nops, three mappings: all there"),
        "{output:?}"
    );
}

#[test]
fn ring_descriptors_can_be_polled() {
    for name in ["readiness", "readiness-fortified"] {
        ends_well(name, &NONE, true);
    }
}

/// Closes by the program's own instructions are not seen where these are not patched: the engine detects them, and writes nothing to files that reuse the
/// numbers.
#[test]
fn descriptors_that_are_gone_are_made_anew() {
    ends_well_either_way("unknown", &["instruction"]);
}

/// The C library closes descriptors by other functions than `close`, and the program by instructions.
#[test]
fn closes_by_other_functions_are_seen() {
    ends_well_either_way("hidden-libc", &NONE);
    // Closes by instructions that are not patched are seen too late.
    ends_well("hidden", &NONE, true);
}

/// The engine does not check registrations for unseen closes while it sees all closes. It checks them once code was loaded whose closes it may not
/// see. Then a request that waits for a file whose descriptor is closed unseen does not hang.
#[test]
fn registrations_are_checked_while_closes_may_be_unseen() {
    let closes = built("libtrusted.so");
    let harmless = built("libloads.so");
    let run = |name: &str, arguments: &[&OsStr], patch: &str| {
        let mut command = support::denied(1);
        let output = command.arg(built(name)).args(arguments).env("ANYRING_PATCH", patch).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{name} {arguments:?}, {patch}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let (first, apart) = (OsStr::new("first"), OsStr::new("apart"));
    for (name, patch) in [("trusted-libc", "0"), ("trusted", "1")] {
        let again = "no checks\nafter a harmless library was loaded: no checks\n";
        assert_eq!(run(name, &[harmless.as_os_str(), OsStr::new("later")], patch), again);
        let then = "no checks\nafter a library was loaded that closes: checks\nthe request has ended\n";
        assert_eq!(run(name, &[closes.as_os_str(), OsStr::new("later")], patch), then);
    }
    assert_eq!(run("trusted-waiting-static", &[], "1"), "no checks\n");
    let never = "with a library that closes: checks\nthe request has ended\n";
    assert_eq!(run("trusted-libc", &[closes.as_os_str(), first], "0"), never);
    assert_eq!(run("trusted-libc", &[OsStr::new("libc.so.6"), first, apart], "0"), never);
    // Closes by the program's own instructions are not seen.
    assert_eq!(run("trusted", &[closes.as_os_str(), first], "0"), never);
    // The search of the code opens no file if the program's filter may kill the process for that.
    assert_eq!(run("trusted-libc", &[OsStr::new("filtered")], "0"), "filtered: alive\n");
}

/// A program may close or replace unknown descriptors: its rings keep working. A child that shares the memory closes its own.
#[test]
fn unknown_descriptors_are_closed() {
    for way in ["loop", "range", "part", "unshared", "number", "listed", "replaced", "from", "child", "epoll"]
    {
        ends_well("unknown", &[way], true);
    }
}

/// Rings end when they are closed. An inotify instance is used only for closes by instructions that are not patched, and so are not seen.
#[test]
fn rings_end_when_they_are_closed() {
    for name in ["instances-inline", "instances-apart", "instances-libc"] {
        let program = built(name);
        ends_well_either_way(name, &NONE);
        for (patch, instances) in [("1", 0), ("0", u32::from(name != "instances-libc"))] {
            let output = support::denied(1).env("ANYRING_PATCH", patch).arg(&program).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(
                errors.contains(&format!("inotify instances: {instances}\n")),
                "{name} {patch}: {errors}"
            );
        }
        if name != "instances-libc" {
            ends_well(name, &[built("libtrusted.so").to_str().unwrap()], true);
        }
    }
}

#[test]
fn sets_and_lists_end_where_they_end() {
    ends_well_either_way("bounds", &NONE);
}

/// Calls that the program's own filter refuses are not made on its behalf: its handlers run, and it can execute
/// programs.
#[test]
fn filters_are_the_programs() {
    let program = built("filters");
    let executed = built("streams-static");
    for way in ["trap", "kill", "repair", "dies", "exec"] {
        let (outcome, _) = compare(&program, &[way, executed.to_str().unwrap()], true);
        assert_ne!(outcome.signal, Some(libc::SIGSYS), "{way}: {}", outcome.stdout);
    }
}

/// While the engine lifts a limit temporarily, no child and no executed program inherits it.
#[test]
fn lifted_limits_are_not_handed_over() {
    for way in
        ["fork", "_Fork", "number", "clone", "spawn", "popen", "system", "exec", "exec number", "first"]
    {
        ends_well("lifted", &[way], true);
    }
}

/// No thread waits for another one that loads a library, and no signal handler calls the dynamic linker.
#[test]
fn functions_are_found_when_the_program_begins() {
    let (outcome, _) = compare(&built("loads"), &[built("libloads.so")], true);
    assert_eq!(outcome.stdout, "loaded\n");
}

#[test]
fn nothing_is_left_of_what_is_executed() {
    ends_well("inherited", &[built("streams-static")], true);
}

/// `anyring run` opens nothing in place of a closed standard stream.
#[test]
fn closed_streams_stay_closed() {
    for program in [built("streams"), built("streams-static")] {
        for closed in [[0].as_slice(), &[1], &[2], &[0, 1, 2]] {
            // A log would use standard error.
            let mut command = support::denied_to("1", &["run", "--engine", "user", "--"]);
            command.arg(&program);
            let streams: Vec<i32> = closed.to_vec();
            // SAFETY: closes descriptors only.
            unsafe {
                std::os::unix::process::CommandExt::pre_exec(&mut command, move || {
                    streams.iter().for_each(|&stream| _ = libc::close(stream));
                    Ok(())
                })
            };
            let expected = closed.iter().fold(7, |open, stream| open & !(1 << stream));
            assert_eq!(command.status().unwrap().code(), Some(expected), "{}: {closed:?}", program.display());
        }
    }
}

#[test]
fn rings_are_not_handed_over() {
    ends_well("rights", &NONE, true);
}

/// If a socket is closed while pages of a zero-copy send are in flight, the connection is reset if the program requested that, unless
/// another process has the socket, or may have it because the program makes calls that are not seen.
#[test]
fn closed_sockets_are_reset_where_nobody_has_them() {
    for (name, arguments) in [("closed-libc", NONE.as_slice()), ("closed-inline", &["instruction"])] {
        let (outcome, _) = compare(&built(name), arguments, true);
        assert_eq!(outcome.code, Some(0), "{name}: {}", outcome.stdout);
    }
}

#[test]
fn credentials_are_the_submitters() {
    for way in ["setuid", "personality", "capset", "fsuid"] {
        ends_well("credentials", &[way], true);
    }
}

#[test]
fn sq_threads_give_up_what_the_process_does() {
    let program = built("credentials");
    let output = support::denied(1).arg(program).arg("sqpoll").output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    // The kernel's ring keeps the credentials of its creator.
    let expected = ["before: 0\nafter: -13\n", "not root: nothing to give up\n"];
    assert!(expected.contains(&stdout.as_str()), "{stdout}");
}

#[test]
fn signals_are_the_programs() {
    for name in ["signals", "signals-libc"] {
        let program = built(name);
        ends_well_either_way(name, &NONE);
        let (outcome, _) = compare(&program, &["fault"], true);
        assert_eq!(outcome.signal, Some(libc::SIGSEGV));
    }
}

/// Checks on which stack a handler runs, whether it interrupts calls, and the returned old action.
#[test]
fn actions_are_the_programs() {
    for way in ["stacks", "interrupting", "number"] {
        ends_well("actions", &[way], true);
    }
}

/// SIGSYS, SIGSEGV and SIGBUS are never really blocked, but appear so.
#[test]
fn the_engines_signals_may_be_blocked_sent_and_awaited() {
    for name in ["masks", "masks-libc"] {
        let program = built(name);
        for patch in [false, true] {
            let (outcome, _) = compare(&program, &NONE, patch);
            assert_eq!(outcome.signal, Some(libc::SIGSYS), "{}", outcome.stdout);
        }
    }
}

/// Sends the process signals that instructions cause: threads of the engine must not take them.
#[test]
fn signals_that_are_sent_reach_the_program() {
    let program = built("sent");
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGSYS] {
        let number = signal.to_string();
        let (outcome, _) = compare(&program, &["dies", &number], true);
        assert_eq!(outcome.signal, Some(signal), "{}", outcome.stdout);
        ends_well_either_way("sent", &["late", &number]);
    }
}

/// The log keeps standard error open only in processes that have a line to write: readers wait for its end.
#[test]
fn children_let_standard_error_go() {
    let program = built("descends");
    ends_well("descends", &NONE, false);
    let output = support::denied(libc::EPERM).arg(&program).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    // The child with a ring and the started program print lines, although they have closed standard error.
    assert_eq!((log.matches("rings=1").count(), log.lines().count()), (1, 2), "{log}");
}

#[test]
fn children_have_rings_too() {
    let program = built("processes");
    for patch in [false, true] {
        let (outcome, _) = compare(&program, &NONE, patch);
        assert_eq!(outcome.code, Some(34), "{}", outcome.stdout);
    }
}

/// A child of `vfork` that executes a program leaks nothing in its parent's memory.
#[test]
fn children_in_this_memory_leave_nothing() {
    let (outcome, _) = compare(&built("leaves"), &NONE, true);
    assert_eq!(outcome.stdout, "grown by a MiB: 0\n");
}

fn prints_with_each_engine(program: &Path, expected: &str) {
    for engine in ["auto", "kernel", "user"] {
        let mut command = std::process::Command::new(support::anyring());
        let output = command.args(["run", "--engine", engine]).arg(program).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{engine}: {output:?}");
    }
}

/// The memory of a program without rings is not copied for a child that executes another program, with any engine.
#[test]
fn children_of_vfork_are_in_this_memory() {
    let program = built("vfork");
    prints_with_each_engine(&program, "seen: 1\n");
}

/// The program's constructors, and those of its libraries, may change its code.
#[test]
fn code_that_cannot_be_read_is_left_alone() {
    prints_with_each_engine(&built("guards"), "guards: 0\n");
}

/// Works as PostgreSQL 18: every process has a ring that was created before it, and each may wait for
/// requests that another submitted.
#[test]
fn processes_finish_each_others_requests() {
    for name in ["backends", "backends-libc"] {
        ends_well_either_way(name, &NONE);
    }
}

/// A thread that is cancelled in a call leaves the ring usable, wherever it was.
#[test]
fn threads_are_cancelled_in_calls() {
    for name in ["cancel", "cancel-libc"] {
        ends_well_either_way(name, &NONE);
    }
}

#[test]
fn threads_take_what_they_wait_for_with_them() {
    for name in ["threads", "threads-libc"] {
        ends_well_either_way(name, &NONE);
    }
}

/// A program that requests the kernel engine, started by one on the user engine: the filter remains.
#[test]
fn the_kernels_engine_below_ours() {
    let program = built("nop");
    let script = format!("ANYRING_ENGINE=kernel exec '{}'", program.display());
    let mut command = std::process::Command::new(support::anyring());
    let output = command.args(["run", "--engine", "user", "sh", "-c", &script]).output().unwrap();
    let native = std::process::Command::new(&program).output().unwrap();
    assert_eq!(support::Outcome::from(&output), support::Outcome::from(&native));
}

/// Waits that trapped calls pass on to the kernel are interrupted by signals as without the trap.
#[test]
fn signals_interrupt_waits_that_are_passed_on() {
    for name in ["signals", "signals-libc"] {
        let program = built(name);
        let script = format!("ANYRING_ENGINE=kernel exec timeout -s KILL 240 '{}'", program.display());
        let mut command = std::process::Command::new(support::anyring());
        let output = command.args(["run", "--engine", "user", "sh", "-c", &script]).output().unwrap();
        let native = std::process::Command::new(&program).output().unwrap();
        assert_eq!(support::Outcome::from(&output), support::Outcome::from(&native));
    }
}

/// One filter serves a chain of programs, however long.
#[test]
fn filters_do_not_pile_up() {
    let count = |script: &str| -> u32 {
        let script = format!("{script} && sed -n 's/^Seccomp_filters:\t//p' /proc/self/status");
        let output = support::denied(1).args(["sh", "-c", &script]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or(0)
    };
    let one = count("true");
    assert_eq!(count("sh -c 'sh -c true'"), one);
    let nested = "sh -c \"sh -c 'true && sed -n /^Seccomp_filters/p /proc/self/status'\"";
    let output = support::denied(1).args(["sh", "-c", nested]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("Seccomp_filters:\t{one}\n"));
}

#[test]
fn sites_are_patched_under_running_threads() {
    let library = built("libsites.so");
    for patch in [true, false] {
        let counters = ends_well("stress", &[&library], patch);
        if patch {
            assert!(counters.sites >= SITES, "{counters:?}");
        }
    }
}

#[test]
fn what_only_looks_like_a_site_is_left_alone() {
    if cfg!(target_arch = "aarch64") {
        anyring_tally::skipped("instructions are words here, and none is part of another");
        return;
    }
    let (outcome, counters) = compare(&built("operand"), &NONE, true);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "no descriptor: -9\n"));
    assert_eq!((counters.sites, counters.traps), (0, 1));
}

#[test]
fn rings_in_pages_that_go_away() {
    for name in ["pages", "pages-libc"] {
        ends_well(name, &NONE, true);
    }
}
