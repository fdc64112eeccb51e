//! Small programs, each in one way that programs use rings in, against their own native run.

mod support;

use std::path::Path;
use support::arch::{HAS_OPERANDS, SITES};
use support::{compare, compile};

const NONE: [&str; 0] = [];

#[test]
fn inline_calls_trap_or_are_patched() {
    let program = compile("nop-inline", "nop.c", &[]);
    let (outcome, counters) = compare(&program, &NONE, false);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
    assert_eq!(counters.rings, 2);
    // 16 batches, two setups, five bad calls, a mapping of the completion ring.
    assert_eq!((counters.traps, counters.sites), (24, 0));
    let (outcome, counters) = compare(&program, &NONE, true);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
    assert!(counters.sites > 0 && counters.traps < 24, "{counters:?}");
}

#[test]
fn library_calls_do_not_trap() {
    let program = compile("nop-libc", "nop.c", &["-DBY_LIBC"]);
    let (outcome, counters) = compare(&program, &NONE, false);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
    // The mapping of the completion ring does.
    assert_eq!((counters.rings, counters.traps), (2, 1));
}

#[test]
fn programs_at_a_fixed_address() {
    let program = compile("nop-fixed", "nop.c", &["-no-pie"]);
    let (outcome, counters) = compare(&program, &NONE, false);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
    assert_eq!(counters.traps, 24);
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
    for (name, options) in [
        ("readiness", ["-pthread"].as_slice()),
        ("readiness-fortified", &["-pthread", "-D_FORTIFY_SOURCE=2"]),
    ] {
        let (outcome, _) = compare(&compile(name, "readiness.c", options), &NONE, true);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
    }
}

/// Rings end when they are closed, and only for those that instructions close, which nobody sees, is an inotify instance taken.
#[test]
fn rings_end_when_they_are_closed() {
    for (name, options, instances) in [
        ("instances-inline", ["-O2"].as_slice(), 1),
        ("instances-apart", &["-O2", "-DAPART"], 1),
        ("instances-libc", &["-DBY_LIBC"], 0),
    ] {
        let program = compile(name, "instances.c", options);
        for patch in [false, true] {
            let (outcome, _) = compare(&program, &NONE, patch);
            assert_eq!(outcome.code, Some(0), "{name}: {}", outcome.stdout);
        }
        let output = support::denied(1).arg(&program).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(&format!("inotify instances: {instances}\n")), "{name}: {errors}");
    }
}

#[test]
fn rings_are_not_handed_over() {
    let (outcome, _) = compare(&compile("rights", "rights.c", &[]), &NONE, true);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
}

#[test]
fn credentials_are_the_submitters() {
    let program = compile("credentials", "credentials.c", &["-pthread"]);
    for way in ["setuid", "personality", "capset", "fsuid"] {
        let (outcome, _) = compare(&program, &[way], true);
        assert_eq!(outcome.code, Some(0), "{way}: {}", outcome.stdout);
    }
}

#[test]
fn sq_threads_give_up_what_the_process_does() {
    let program = compile("credentials", "credentials.c", &["-pthread"]);
    let output = support::denied(1).arg(program).arg("sqpoll").output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    // The kernel's keeps what the ring's creator had.
    let expected = ["before: 0\nafter: -13\n", "not root: nothing to give up\n"];
    assert!(expected.contains(&stdout.as_str()), "{stdout}");
}

#[test]
fn signals_are_the_programs() {
    for (name, options) in [("signals-inline", vec![]), ("signals-libc", vec!["-DBY_LIBC"])] {
        let program = compile(name, "signals.c", &options);
        for patch in [false, true] {
            let (outcome, _) = compare(&program, &NONE, patch);
            assert_eq!(outcome.code, Some(0), "{name}, {patch}: {}", outcome.stdout);
        }
        let (outcome, _) = compare(&program, &["fault"], true);
        assert_eq!(outcome.signal, Some(libc::SIGSEGV));
    }
}

/// SIGSYS, SIGSEGV and SIGBUS are never blocked, and look as if they were.
#[test]
fn the_engines_signals_may_be_blocked_sent_and_awaited() {
    for (name, options) in [("masks-inline", vec!["-pthread"]), ("masks-libc", vec!["-pthread", "-DBY_LIBC"])]
    {
        let program = compile(name, "masks.c", &options);
        for patch in [false, true] {
            let (outcome, _) = compare(&program, &NONE, patch);
            assert_eq!(outcome.signal, Some(libc::SIGSYS), "{}", outcome.stdout);
        }
    }
}

/// Signals of instructions that are sent to the process: threads of the engine take none of them from it.
#[test]
fn signals_that_are_sent_reach_the_program() {
    let program = compile("sent", "sent.c", &["-pthread"]);
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGSYS] {
        let number = signal.to_string();
        let (outcome, _) = compare(&program, &["dies", &number], true);
        assert_eq!(outcome.signal, Some(signal), "{}", outcome.stdout);
        for patch in [false, true] {
            let (outcome, _) = compare(&program, &["late", &number], patch);
            assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
        }
    }
}

/// A log to standard error holds that open in those only that have something to say: others that read it wait for its end.
#[test]
fn children_let_standard_error_go() {
    let program = compile("descends", "descends.c", &[]);
    let (outcome, _) = compare(&program, &NONE, false);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
    let output = support::denied(libc::EPERM).arg(&program).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    // The child with a ring, and the program that was started, though they have closed it.
    assert_eq!((log.matches("rings=1").count(), log.lines().count()), (1, 2), "{log}");
}

#[test]
fn children_have_rings_too() {
    let program = compile("processes", "processes.c", &[]);
    for patch in [false, true] {
        let (outcome, _) = compare(&program, &NONE, patch);
        assert_eq!(outcome.code, Some(34), "{}", outcome.stdout);
    }
}

/// A child of `vfork` that executes a program leaves nothing for good in its parent's memory.
#[test]
fn children_in_this_memory_leave_nothing() {
    let (outcome, _) = compare(&compile("leaves", "leaves.c", &[]), &NONE, true);
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
    let program = compile("vfork", "vfork.c", &[]);
    prints_with_each_engine(&program, "seen: 1\n");
}

/// The program's own constructors, and those of its libraries, may do with its code what they like.
#[test]
fn code_that_cannot_be_read_is_left_alone() {
    let library = compile("libguards.so", "guards.c", &["-shared", "-fPIC"]);
    let program =
        compile("guards", "guards.c", &["-DPROGRAM", library.to_str().unwrap(), "-Wl,-z,separate-code"]);
    prints_with_each_engine(&program, "guards: 0\n");
}

/// As PostgreSQL 18 does: every process has a ring that was made before it, and any may wait for what
/// another submitted.
#[test]
fn processes_finish_each_others_requests() {
    for (name, options) in
        [("backends-inline", ["-pthread"].as_slice()), ("backends-libc", &["-pthread", "-DBY_LIBC"])]
    {
        let program = compile(name, "backends.c", options);
        for patch in [false, true] {
            let (outcome, _) = compare(&program, &NONE, patch);
            assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
        }
    }
}

#[test]
fn threads_take_what_they_wait_for_with_them() {
    for (name, options) in
        [("threads-inline", ["-pthread"].as_slice()), ("threads-libc", &["-pthread", "-DBY_LIBC"])]
    {
        let program = compile(name, "threads.c", options);
        for patch in [false, true] {
            let (outcome, _) = compare(&program, &NONE, patch);
            assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
        }
    }
}

/// A program that asks for the kernel's engine below one that runs on ours: the filter is still there.
#[test]
fn the_kernels_engine_below_ours() {
    let program = compile("nop-inline", "nop.c", &[]);
    let script = format!("ANYRING_ENGINE=kernel exec '{}'", program.display());
    let mut command = std::process::Command::new(support::anyring());
    let output = command.args(["run", "--engine", "user", "sh", "-c", &script]).output().unwrap();
    let native = std::process::Command::new(&program).output().unwrap();
    assert_eq!(support::Outcome::from(&output), support::Outcome::from(&native));
}

/// Where trapped calls go on to the kernel, their waits are interrupted as they would be.
#[test]
fn signals_interrupt_waits_that_are_passed_on() {
    for (name, options) in [("signals-inline", [].as_slice()), ("signals-libc", &["-DBY_LIBC"])] {
        let program = compile(name, "signals.c", options);
        let script = format!("ANYRING_ENGINE=kernel exec timeout -s KILL 30 '{}'", program.display());
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
    let source = format!("sites-{}.c", std::env::consts::ARCH);
    let library = compile("libsites.so", &source, &["-shared", "-fPIC"]);
    let program = compile("stress", "stress.c", &["-pthread", "-ldl"]);
    for patch in [true, false] {
        let (outcome, counters) = compare(&program, &[&library], patch);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
        if patch {
            assert!(counters.sites >= SITES, "{counters:?}");
        }
    }
}

#[test]
fn what_only_looks_like_a_site_is_left_alone() {
    if !HAS_OPERANDS {
        eprintln!("not tested: instructions are words here, and none is part of another");
        return;
    }
    let (outcome, counters) = compare(&compile("operand", "operand.c", &[]), &NONE, true);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "no descriptor: -9\n"));
    assert_eq!((counters.sites, counters.traps), (0, 1));
}

#[test]
fn rings_in_pages_that_go_away() {
    for (name, options) in [("pages-inline", vec![]), ("pages-libc", vec!["-DBY_LIBC"])] {
        let (outcome, _) = compare(&compile(name, "pages.c", &options), &NONE, true);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
    }
}
