//! Static programs: ptrace brings the engine into them, whichever program starts them.

mod support;

use std::path::PathBuf;
use std::process::{Command, Output};
use support::{
    Outcome, anyring, built, built_by_musl, compare, counters, denied, denied_by, denied_to, is_as_recorded,
};

const NONE: [&str; 0] = [];

/// Returns the static builds of a program, of each kind.
fn builds(name: &str) -> Vec<PathBuf> {
    let mut builds = vec![built(&format!("{name}-static")), built(&format!("{name}-static-pie"))];
    builds.extend(built_by_musl(&format!("{name}-musl")));
    builds
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Calls enter the engine at their sites. The only trap is the mapping of the completion ring.
#[test]
fn calls_enter_at_their_sites() {
    for program in [builds("nop"), builds("nop-libc")].concat() {
        let (outcome, counters) = compare(&program, &NONE, true);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
        assert_eq!((counters.rings, counters.traps), (2, 1), "{}", program.display());
        assert!(counters.sites > 0);
    }
}

/// The engine runs on a stack of its own, also while signals come.
#[test]
fn a_stack_without_room_is_left_alone() {
    for program in builds("narrow") {
        let (outcome, counters) = compare(&program, &NONE, true);
        assert_eq!((outcome.code, counters.traps), (Some(0), 0), "{}", outcome.stdout);
    }
}

/// One or two signals come at each instruction of a call, at once or one after the other. Their handlers run when the thread is outside the engine,
/// and the call has its result and changes no other register.
fn signals_come_at_every_instruction(program: &std::path::Path) {
    let (outcome, counters) = compare(program, &NONE, true);
    assert_eq!((outcome.code, counters.traps), (Some(0), 0), "{}", outcome.stdout);
}

#[test]
fn signals_come_at_every_instruction_of_a_program() {
    signals_come_at_every_instruction(&built("stepped-static"));
}

#[test]
fn signals_come_at_every_instruction_at_any_address() {
    signals_come_at_every_instruction(&built("stepped-static-pie"));
}

#[test]
fn signals_come_at_every_instruction_with_musl() {
    built_by_musl("stepped-musl").iter().for_each(|program| signals_come_at_every_instruction(program));
}

/// A stack of the engine is released even if handlers that interrupted each other jump from it to the program.
#[test]
fn handlers_jump_out_of_one_another() {
    for program in builds("both") {
        let (outcome, counters) = compare(&program, &NONE, true);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
        assert_eq!(counters.traps, 0);
    }
}

/// The engine sees closes and waits without a trap.
#[test]
fn descriptors_are_the_programs() {
    for program in [builds("shut"), builds("readiness")].concat() {
        let (outcome, counters) = compare(&program, &NONE, true);
        assert_eq!((outcome.code, counters.traps), (Some(0), 0), "{}", outcome.stdout);
    }
}

/// Calls of threads that find no free stack of the engine trap. A child has all stacks for itself.
#[test]
fn more_threads_than_stacks() {
    for program in builds("crowd") {
        let output = denied(libc::EPERM).arg(&program).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let traps: Vec<_> = log.lines().map(|line| counters(line).traps).collect();
        // The child ends first.
        let [child, parent] = traps[..] else { panic!("{log}") };
        assert!(parent > 0 && child < 100 && parent <= 200, "{log}");
    }
}

#[test]
fn signals_are_the_programs() {
    for program in builds("signals") {
        let (outcome, _) = compare(&program, &NONE, false);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
        let (outcome, _) = compare(&program, &["fault"], false);
        assert_eq!(outcome.signal, Some(libc::SIGSEGV));
    }
}

#[test]
fn actions_are_the_programs() {
    for program in builds("actions") {
        for way in ["stacks", "interrupting", "number"] {
            let (outcome, _) = compare(&program, &[way], false);
            assert_eq!(outcome.code, Some(0), "{way}: {}", outcome.stdout);
        }
    }
}

#[test]
fn signals_that_are_sent_reach_the_program() {
    for program in builds("sent") {
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGSYS] {
            let number = signal.to_string();
            let (outcome, _) = compare(&program, &["dies", &number], false);
            assert_eq!(outcome.signal, Some(signal), "{}", outcome.stdout);
            let (outcome, _) = compare(&program, &["late", &number], false);
            assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
        }
    }
}

#[test]
fn the_engines_signals_may_be_blocked_and_sent() {
    for program in builds("masks") {
        let (outcome, _) = compare(&program, &NONE, false);
        assert_eq!(outcome.signal, Some(libc::SIGSYS), "{}", outcome.stdout);
    }
}

#[test]
fn children_let_standard_error_go() {
    for program in builds("descends") {
        let (outcome, _) = compare(&program, &NONE, false);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
        let output = denied(libc::EPERM).arg(&program).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        // The child with a ring and the started program print lines, although they have closed standard error.
        assert_eq!((log.matches("rings=1").count(), log.lines().count()), (1, 2), "{log}");
    }
}

#[test]
fn children_by_clone3() {
    let (outcome, _) = compare(&built("clones-static"), &NONE, false);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
}

/// Threads, and other children that share the memory, begin behind the call, on a stack of their own.
#[cfg(target_arch = "x86_64")]
#[test]
fn threads_by_clone3() {
    for program in builds("threads3") {
        let (outcome, counters) = compare(&program, &NONE, true);
        assert_eq!((outcome.code, counters.traps), (Some(0), 0), "{}", outcome.stdout);
    }
}

/// Threads that wait for locks of files hold nothing that calls of other threads need, and signals come meanwhile.
#[test]
fn locks_are_waited_for_outside() {
    for program in builds("locks") {
        let (outcome, counters) = compare(&program, &NONE, true);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
        assert_eq!(counters.traps, 0);
    }
}

/// Whatever function of the C library closes a descriptor, a request that waits for its file goes on.
#[test]
fn closes_by_other_functions_are_seen() {
    for program in ["hidden-static", "hidden-static-pie"].map(built) {
        let (outcome, counters) = compare(&program, &NONE, true);
        assert_eq!((outcome.code, counters.traps), (Some(0), 0), "{}", outcome.stdout);
    }
}

#[test]
fn filters_are_the_programs() {
    for program in builds("filters") {
        for way in ["trap", "kill", "repair", "dies"] {
            let (outcome, _) = compare(&program, &[way, "/"], false);
            assert_ne!(outcome.signal, Some(libc::SIGSYS), "{way}: {}", outcome.stdout);
        }
    }
}

/// Calls that would close or replace descriptors of the engine trap.
#[test]
fn unknown_descriptors_are_closed() {
    for program in builds("unknown") {
        for way in ["loop", "range", "part", "unshared", "listed", "replaced", "child"] {
            let (outcome, _) = compare(&program, &[way], true);
            assert_eq!(outcome.code, Some(0), "{way}: {}", outcome.stdout);
        }
    }
}

/// A program forks, and executes itself in every way: all of these processes have rings.
#[test]
fn children_have_rings_too() {
    for program in builds("processes") {
        let (outcome, _) = compare(&program, &NONE, false);
        assert_eq!(outcome.code, Some(34), "{}", outcome.stdout);
    }
}

/// A child of `vfork` that executes a program leaks nothing in its parent's memory.
#[test]
fn children_in_this_memory_leave_nothing() {
    for program in builds("leaves") {
        let (outcome, _) = compare(&program, &NONE, true);
        assert_eq!(outcome.stdout, "grown by a MiB: 0\n", "{}", program.display());
    }
}

/// Children of a program with rings, and programs that they execute, begin in the right state, and do not change their parent's. Forks and executions
/// of programs do not trap.
#[test]
fn children_are_made_at_their_sites() {
    for program in builds("children") {
        let (outcome, _) = compare(&program, &NONE, true);
        assert_eq!(outcome.code, Some(9), "{}", outcome.stdout);
        let mut command = denied_to("1", &["run", "--engine", "user", "--log", "debug", "--"]);
        let output = command.arg(&program).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        // No child of `vfork` has written its parent's line, or ended its parent's ring.
        let last = log.lines().rfind(|line| line.contains("engine=user")).unwrap_or_default();
        assert!(last.contains("rings=1 submitted=8 "), "{log}");
        let others = |line: &str| line.split_once(" other calls trapped")?.0.rsplit(' ').next()?.parse().ok();
        let others: Vec<u64> = log.lines().filter_map(others).collect();
        // The three children that execute no program: their ends trap. An executed program also makes a call for
        // pending signals, which traps.
        let few = others.iter().filter(|&&count| count <= 1).count();
        assert!(few >= 3, "{log}");
    }
}

#[test]
fn processes_finish_each_others_requests() {
    for program in builds("backends") {
        let (outcome, _) = compare(&program, &NONE, false);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
    }
}

#[test]
fn credentials_are_the_submitters() {
    for program in builds("credentials") {
        for way in ["setuid", "personality", "capset", "fsuid"] {
            let (outcome, _) = compare(&program, &[way], false);
            assert_eq!(outcome.code, Some(0), "{way}: {}", outcome.stdout);
        }
    }
}

/// A dynamic shell starts static programs by `fork`, by `exec` and in a pipe, and a static program starts a shell that
/// starts another program.
#[test]
fn below_other_programs() {
    for program in builds("nop") {
        let program = program.display();
        let script = format!("'{program}' && '{program}' | cat; exec '{program}'");
        let output = denied(libc::EPERM).args(["sh", "-c", &script]).output().unwrap();
        assert_eq!(stdout(&output).matches("all there").count(), 6, "{output:?}");
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(log.matches("rings=2").count(), 3, "{log}");
    }
    // A program that starts others: the way in which the engine got into it makes no difference to them.
    let script = format!("'{}'; echo $?", built("processes-static-pie").display());
    let output = denied(libc::EPERM).args(["sh", "-c", &script]).output().unwrap();
    let native = || Outcome::from(&Command::new("sh").args(["-c", &script]).output().unwrap());
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    is_as_recorded("processes below a shell", &Outcome::from(&output), native, &log);
}

/// A program begins in the same state as without anyring.
#[test]
fn programs_begin_alone() {
    let dynamic = built("alone");
    for program in [vec![dynamic], builds("alone")].concat() {
        // A log to standard error would keep a descriptor; another test covers that.
        let unlogged = || denied_to("1", &["run", "--engine", "user", "--"]);
        let arguments = ["a b", "", "--x"];
        let output = unlogged().arg(&program).args(arguments).output().unwrap();
        let native = Command::new(&program).args(arguments).output().unwrap();
        assert_eq!(Outcome::from(&output), Outcome::from(&native), "{output:?}");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        for before in ["trap '' PIPE INT", "true"] {
            let script = format!("{before}; export THE_SHELLS=$$; '{}' 1 2; true", program.display());
            let output = unlogged().args(["sh", "-c", &script]).output().unwrap();
            let native = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(Outcome::from(&output), Outcome::from(&native), "{output:?}");
        }
    }
}

#[test]
fn the_process_stays_the_same() {
    let program = built("alone-static");
    let mut command = Command::new(anyring());
    command.args(["run", "--engine", "user", "--log", "info"]).arg(&program);
    let child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mark = format!("anyring[{}]: engine=user", child.id());
    let output = child.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains(&mark), "{output:?}");
}

#[test]
fn where_ptrace_is_denied() {
    for program in builds("nop") {
        let output = denied_by("1,ptrace").arg(&program).output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("statically linked") && said.contains("ptrace"), "{said}");
        // The kernel engine changes nothing in the program.
        let mut command = Command::new(anyring());
        let output = command.args(["run", "--engine", "kernel"]).arg(&program).output().unwrap();
        assert_ne!(output.status.code(), Some(125), "{output:?}");
    }
    // A child runs without the engine. At a fixed address, its calls get the result that they would get without
    // anyring.
    let program = built("nop-static");
    let script = format!("'{}'; echo $?", program.display());
    let output = denied_by("38,ptrace").args(["sh", "-c", &script]).output().unwrap();
    assert!(stdout(&output).contains("errno") && stdout(&output).ends_with("99\n"), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("without the engine"), "{output:?}");
}

#[test]
fn what_cannot_be_executed() {
    let program = built("nop-static");
    let copy = program.with_file_name("not-executable");
    std::fs::copy(&program, &copy).unwrap();
    std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let output = Command::new(anyring()).args(["run", "--engine", "user"]).arg(&copy).output().unwrap();
    assert_eq!(output.status.code(), Some(126), "{output:?}");
    let script = format!("'{}'; echo $?", copy.display());
    let output = denied(1).args(["sh", "-c", &script]).output().unwrap();
    assert_eq!(stdout(&output), "126\n");
}

/// Programs with a low limit of descriptors have all of them, and rings; with a log, too.
#[test]
fn few_descriptors_are_the_programs() {
    let dynamic = built("few");
    for program in [builds("few"), vec![dynamic]].concat() {
        for limit in 4..8 {
            let run = |words: &[&str]| {
                let script = format!("ulimit -n {limit}; exec \"$@\"");
                Command::new("sh").args(["-c", &script, "sh"]).args(words).arg(&program).output().unwrap()
            };
            let native = || Outcome::from(&run(&["env"]));
            for log in ["off", "info"] {
                let output = run(&[anyring().to_str().unwrap(), "run", "--engine", "user", "--log", log]);
                let outcome = Outcome::from(&output);
                assert_eq!(outcome.code, Some(0), "{limit}: {output:?}");
                let log = String::from_utf8_lossy(&output.stderr);
                is_as_recorded(&format!("few of {limit}"), &outcome, native, &log);
            }
        }
    }
}

/// One filter serves all programs at fixed addresses of a chain, however long.
#[test]
fn filters_do_not_pile_up() {
    let program = built("chain-static");
    let count = |arguments: &[&str]| {
        let output = denied(libc::EPERM).args(arguments).output().unwrap();
        stdout(&output).trim().parse::<u32>().unwrap_or_else(|_| panic!("{output:?}"))
    };
    let path = program.to_str().unwrap();
    assert_eq!(count(&[path, "1"]), count(&[path, "4"]));
    let copy = format!("{path}.copy");
    std::fs::copy(path, &copy).unwrap();
    assert_eq!(count(&[path, "1"]), count(&[&copy, "3", "without a file"]));
}
