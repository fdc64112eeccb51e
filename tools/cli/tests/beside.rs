//! `--engine auto` if the kernel's `io_uring` works, but is too old for a ring: anyring provides that ring.

mod support;

use std::path::Path;
use std::process::Command;

use anyring_both::by;
use support::{Outcome, anyring, built, kernel_makes, over_the_kernel};

/// `IORING_SETUP_SQE_MIXED`, of Linux 6.19.
const SQE_MIXED: u32 = 1 << 19;

/// Runs the program on an engine; returns its outcome and the log.
fn run(engine: &str, program: &Path, arguments: &[&str]) -> (Outcome, String) {
    let mut command = Command::new(anyring());
    command.args(["run", "--log", "info", "--engine", engine, "--"]).arg(program).args(arguments);
    let output = command.output().unwrap();
    (Outcome::from(&output), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Returns the log's text about the engines that `auto` uses.
fn expected() -> &'static str {
    if kernel_makes(SQE_MIXED) { "engine=kernel program=" } else { "engine=kernel+user" }
}

#[by(over_the_kernel)]
fn a_ring_is_ours_among_the_kernels() {
    for name in ["beside-inline", "beside-apart", "beside-libc"] {
        let program = built(name);
        let (ours, _) = run("user", &program, &[]);
        assert_eq!(ours.code, Some(0), "{}", ours.stdout);
        let (auto, log) = run("auto", &program, &[]);
        assert_eq!(auto, ours, "{name}: left: auto\n{log}");
        assert!(log.contains(expected()), "{name}: {log}");
        // The kernel engine was requested, so anyring does not provide the rings that the kernel refuses.
        let (kernel, log) = run("kernel", &program, &[]);
        assert_eq!(kernel.code, Some(i32::from(!kernel_makes(SQE_MIXED))), "{}", kernel.stdout);
        assert!(log.contains("engine=kernel program="), "{log}");
    }
}

/// Ordinary programs behave as on the kernel, if all of their rings have such flags.
#[by(over_the_kernel)]
fn programs_do_what_they_do_on_the_kernel() {
    for (name, code) in [
        ("signals-new-apart", 0),
        ("signals-new-libc", 0),
        ("processes-new-apart", 34),
        ("processes-new-libc", 34),
        ("backends-new-apart", 0),
        ("backends-new-libc", 0),
        ("readiness-new-libc", 0),
    ] {
        let (auto, log) = run("auto", &built(name), &[]);
        assert_eq!((auto.code, auto.signal), (Some(code), None), "{name}: {}\n{log}", auto.stdout);
        assert!(log.contains(expected()), "{name}: {log}");
    }
}

#[by(over_the_kernel)]
fn a_process_that_asks_for_nothing_new_is_the_kernels() {
    let (outcome, log) = run("auto", &built("nop"), &[]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
    assert!(log.contains("engine=kernel program="), "{log}");
}

/// The check whether the kernel creates rings is invisible to the program.
#[by(over_the_kernel)]
fn a_program_without_rings_is_not_interrupted() {
    let program = built("calm");
    for _ in 0..5 {
        let (auto, log) = run("auto", &program, &[]);
        assert_eq!((auto.code, auto.signal), (Some(0), None), "{}\n{log}", auto.stdout);
    }
}
