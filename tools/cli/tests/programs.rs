//! Small programs, each in one way that programs use rings in, against their own native run.

mod support;

use std::ffi::OsStr;
use std::fmt::Debug;
use std::path::Path;
use support::{Counters, built, compare};

const NONE: [&str; 0] = [];

/// Sites of `sites-*.c` that are patched while threads run: those of the 24 that lie in one word, which half of x86-64's do.
const SITES: u64 = if cfg!(target_arch = "aarch64") { 24 } else { 12 };

/// Runs a program, which does what its record says and ends well.
#[track_caller]
fn ends_well<A: AsRef<OsStr> + Debug>(name: &str, arguments: &[A], patch: bool) -> Counters {
    let (outcome, counters) = compare(&built(name), arguments, patch);
    assert_eq!(outcome.code, Some(0), "{name} {arguments:?}, {patch}: {}", outcome.stdout);
    counters
}

/// Runs a program, which ends well whether its calls are patched or not.
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
    // 16 batches, two setups, five bad calls.
    assert_eq!((counters.traps, counters.sites), (23, 0));
    let counters = ends_well("nop", &NONE, true);
    assert!(counters.sites > 0 && counters.traps < 23, "{counters:?}");
}

/// A function that makes its calls in a loop has their number in a register; there may be another number.
#[test]
fn numbers_in_registers_are_patched() {
    let program = built("held");
    let (outcome, counters) = compare(&program, &NONE, false);
    // The setup, and twenty submissions.
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
    // Started by a program whose filter does not reach there.
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

/// Nobody sees what instructions of the program close: the engine finds out, and writes nothing to the files that have the numbers
/// then.
#[test]
fn descriptors_that_are_gone_are_made_anew() {
    ends_well_either_way("unknown", &["instruction"]);
}

/// A program may close, or replace, every descriptor that it does not know: its rings go on. A child in its memory closes its own.
#[test]
fn unknown_descriptors_are_closed() {
    for way in ["loop", "range", "part", "unshared", "number", "listed", "replaced", "from", "child", "epoll"]
    {
        ends_well("unknown", &[way], true);
    }
}

/// Rings end when they are closed, and only for those that instructions close, which nobody sees, is an inotify instance taken.
#[test]
fn rings_end_when_they_are_closed() {
    for (name, instances) in [("instances-inline", 1), ("instances-apart", 1), ("instances-libc", 0)] {
        let program = built(name);
        ends_well_either_way(name, &NONE);
        let output = support::denied(1).arg(&program).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(&format!("inotify instances: {instances}\n")), "{name}: {errors}");
    }
}

#[test]
fn sets_and_lists_end_where_they_end() {
    ends_well_either_way("bounds", &NONE);
}

/// Calls that a filter of the program's own does not allow, nobody does in its place: its handlers run, and programs are executed.
#[test]
fn filters_are_the_programs() {
    let program = built("filters");
    let executed = built("streams-static");
    for way in ["trap", "kill", "repair", "dies", "exec"] {
        let (outcome, _) = compare(&program, &[way, executed.to_str().unwrap()], true);
        assert_ne!(outcome.signal, Some(libc::SIGSYS), "{way}: {}", outcome.stdout);
    }
}

/// Where the engine lifts a limit for a moment, no other process begins with it, and no other program.
#[test]
fn lifted_limits_are_not_handed_over() {
    for way in
        ["fork", "_Fork", "number", "clone", "spawn", "popen", "system", "exec", "exec number", "first"]
    {
        ends_well("lifted", &[way], true);
    }
}

/// Nobody waits for a thread that loads a library, nor asks the dynamic linker in a signal handler.
#[test]
fn functions_are_found_when_the_program_begins() {
    let (outcome, _) = compare(&built("loads"), &[built("libloads.so")], true);
    assert_eq!(outcome.stdout, "loaded\n");
}

#[test]
fn nothing_is_left_of_what_is_executed() {
    ends_well("inherited", &[built("streams-static")], true);
}

/// `anyring run` opens nothing in the place of a standard stream that is closed.
#[test]
fn closed_streams_stay_closed() {
    for program in [built("streams"), built("streams-static")] {
        for closed in [[0].as_slice(), &[1], &[2], &[0, 1, 2]] {
            // A log would go to standard error.
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

/// A socket that is closed while pages of a zero-copy send are out is reset where that was asked for, unless another process has it, or
/// may have, for code of the program makes calls that nobody sees.
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
    // The kernel's keeps what the ring's creator had.
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

/// On which stack a handler runs, whether it interrupts calls, and what is given back of an action.
#[test]
fn actions_are_the_programs() {
    for way in ["stacks", "interrupting", "number"] {
        ends_well("actions", &[way], true);
    }
}

/// SIGSYS, SIGSEGV and SIGBUS are never blocked, and look as if they were.
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

/// Signals of instructions that are sent to the process: threads of the engine take none of them from it.
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

/// A log to standard error holds that open in those only that have something to say: others that read it wait for its end.
#[test]
fn children_let_standard_error_go() {
    let program = built("descends");
    ends_well("descends", &NONE, false);
    let output = support::denied(libc::EPERM).arg(&program).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    // The child with a ring, and the program that was started, though they have closed it.
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

/// A child of `vfork` that executes a program leaves nothing for good in its parent's memory.
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

/// The memory of a program without rings is not copied for a child that executes another one, whichever engine it would have.
#[test]
fn children_of_vfork_are_in_this_memory() {
    let program = built("vfork");
    prints_with_each_engine(&program, "seen: 1\n");
}

/// The program's own constructors, and those of its libraries, may do with its code what they like.
#[test]
fn code_that_cannot_be_read_is_left_alone() {
    prints_with_each_engine(&built("guards"), "guards: 0\n");
}

/// As PostgreSQL 18 does: every process has a ring that was made before it, and any may wait for what
/// another submitted.
#[test]
fn processes_finish_each_others_requests() {
    for name in ["backends", "backends-libc"] {
        ends_well_either_way(name, &NONE);
    }
}

/// A thread that is cancelled in a call leaves the ring to others, wherever it was.
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

/// A program that asks for the kernel's engine below one that runs on ours: the filter is still there.
#[test]
fn the_kernels_engine_below_ours() {
    let program = built("nop");
    let script = format!("ANYRING_ENGINE=kernel exec '{}'", program.display());
    let mut command = std::process::Command::new(support::anyring());
    let output = command.args(["run", "--engine", "user", "sh", "-c", &script]).output().unwrap();
    let native = std::process::Command::new(&program).output().unwrap();
    assert_eq!(support::Outcome::from(&output), support::Outcome::from(&native));
}

/// Where trapped calls go on to the kernel, their waits are interrupted as they would be.
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

/// However long the chain of programs, one filter serves it.
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
