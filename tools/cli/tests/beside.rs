//! `--engine auto` where the kernel's `io_uring` works, but is too old for a ring: that one is anyring's.

mod support;

use std::path::Path;
use std::process::Command;

use support::{Outcome, anyring, compile, kernel_has_io_uring};

/// `IORING_SETUP_SQE_MIXED`, of Linux 6.19.
const SQE_MIXED: u32 = 1 << 19;
const FLAGGED: &str = "-DSETUP_FLAGS=1u<<19";

/// What the kernel says to a ring with these flags.
fn kernel_makes(flags: u32) -> bool {
    let mut params = [0_u32; 30];
    params[2] = flags;
    // SAFETY: the structure is 120 bytes long; the ring is closed again.
    unsafe {
        let fd = libc::syscall(libc::SYS_io_uring_setup, 8, params.as_mut_ptr());
        fd >= 0 && libc::close(fd as i32) == 0
    }
}

/// Runs the program by an engine; what came of it, and the log.
fn by(engine: &str, program: &Path, arguments: &[&str]) -> (Outcome, String) {
    let mut command = Command::new(anyring());
    command.args(["run", "--log", "info", "--engine", engine, "--"]).arg(program).args(arguments);
    let output = command.output().unwrap();
    (Outcome::from(&output), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// By which engines `auto` does it.
fn expected() -> &'static str {
    if kernel_makes(SQE_MIXED) { "engine=kernel program=" } else { "engine=kernel+user" }
}

#[test]
fn a_ring_is_ours_among_the_kernels() {
    if !kernel_has_io_uring() {
        return;
    }
    for (name, options) in [
        ("beside-inline", ["-pthread"].as_slice()),
        ("beside-apart", &["-pthread", "-DAPART"]),
        ("beside-libc", &["-pthread", "-DBY_LIBC"]),
    ] {
        let program = compile(name, "beside.c", options);
        let (ours, _) = by("user", &program, &[]);
        assert_eq!(ours.code, Some(0), "{}", ours.stdout);
        let (auto, log) = by("auto", &program, &[]);
        assert_eq!(auto, ours, "{name}: left: auto\n{log}");
        assert!(log.contains(expected()), "{name}: {log}");
        // The kernel's engine was asked for: nothing is done about what it refuses.
        let (kernel, log) = by("kernel", &program, &[]);
        assert_eq!(kernel.code, Some(i32::from(!kernel_makes(SQE_MIXED))), "{}", kernel.stdout);
        assert!(log.contains("engine=kernel program="), "{log}");
    }
}

/// Programs that know nothing of it, all of whose rings are such.
#[test]
fn programs_do_what_they_do_on_the_kernel() {
    if !kernel_has_io_uring() {
        return;
    }
    for (source, code, way) in [
        ("signals.c", 0, "APART"),
        ("signals.c", 0, "BY_LIBC"),
        ("processes.c", 34, "APART"),
        ("processes.c", 34, "BY_LIBC"),
        ("backends.c", 0, "APART"),
        ("backends.c", 0, "BY_LIBC"),
        ("readiness.c", 0, "BY_LIBC"),
    ] {
        let name = format!("beside-{}-{way}", source.trim_end_matches(".c"));
        let program = compile(&name, source, &["-pthread", FLAGGED, &format!("-D{way}")]);
        let (auto, log) = by("auto", &program, &[]);
        assert_eq!((auto.code, auto.signal), (Some(code), None), "{name}: {}\n{log}", auto.stdout);
        assert!(log.contains(expected()), "{name}: {log}");
    }
}

#[test]
fn a_process_that_asks_for_nothing_new_is_the_kernels() {
    if !kernel_has_io_uring() {
        return;
    }
    let (outcome, log) = by("auto", &compile("nop", "nop.c", &[]), &[]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stdout);
    assert!(log.contains("engine=kernel program="), "{log}");
}

/// Whether the kernel makes rings is tried where the program does not notice.
#[test]
fn a_program_without_rings_is_not_interrupted() {
    if !kernel_has_io_uring() {
        return;
    }
    let program = compile("beside-calm", "calm.c", &[]);
    for _ in 0..5 {
        let (auto, log) = by("auto", &program, &[]);
        assert_eq!((auto.code, auto.signal), (Some(0), None), "{}\n{log}", auto.stdout);
    }
}
