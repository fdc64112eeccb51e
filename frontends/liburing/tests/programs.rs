//! Programs that were built against liburing, run over our library by changing `LD_LIBRARY_PATH` only: what they
//! say must be what they say over liburing 2.15, with the kernel's `io_uring` and where it is denied.

mod support;

use std::process::Command;

use support::{By, Header, command, compile, kernel_has_io_uring, libraries, run, said};

/// Runs the program with its own library and with ours, on both engines.
fn same(source: &str, header: Header, arguments: &[&str]) {
    let program = compile(source, header, "uring");
    let denied = said(&program, arguments, By::Denied);
    if !kernel_has_io_uring() {
        eprintln!("no io_uring on this machine to compare with");
        return;
    }
    let expected = said(&program, arguments, By::Liburing);
    for (by, said) in [(By::Kernel, said(&program, arguments, By::Kernel)), (By::Denied, denied)] {
        assert!(
            said == expected,
            "{source} {arguments:?} {header:?}, by {by:?}:\n{said}\nover liburing:\n{expected}"
        );
    }
}

#[test]
fn a_program_of_debians_header() {
    same("files.c", Header::System, &[]);
}

#[test]
fn a_program_of_the_newest_header() {
    same("files.c", Header::Newest, &[]);
}

#[test]
fn rings_of_every_kind() {
    same("files.c", Header::System, &["kinds"]);
    same("files.c", Header::Newest, &["kinds"]);
}

#[test]
fn a_ring_is_polled() {
    same("files.c", Header::System, &["polled"]);
    same("files.c", Header::Newest, &["polled"]);
}

#[test]
fn the_rest_of_the_interface() {
    same("rest.c", Header::Newest, &[]);
}

/// What the sanitizers cannot look into: a program of C, and the library as it is installed. Valgrind knows no
/// signals that interrupt system calls of ours, which `rest.c` sends.
#[test]
fn memory_is_used_rightly() {
    let program = compile("files.c", Header::Newest, "uring");
    for arguments in [&[][..], &["kinds"], &["polled"]] {
        let mut checked = Command::new("valgrind");
        checked.args(["-q", "--error-exitcode=99", "--leak-check=full"]).arg(&program).args(arguments);
        run(checked.env("LD_LIBRARY_PATH", libraries()).env("ANYRING_ENGINE", "user"));
    }
}

/// GETDENTS, with any header beside ours; a kernel has it not.
#[test]
fn directories_are_read() {
    for header in [Header::System, Header::Newest] {
        let program = compile("getdents.c", header, "uring");
        said(&program, &[], By::Denied);
        if kernel_has_io_uring() {
            said(&program, &["absent"], By::Liburing);
            said(&program, &[], By::Kernel);
        }
    }
}

/// A ring that the kernel is too old for is our engine's, among others of the kernel's.
#[test]
fn rings_beside_the_kernels() {
    if !kernel_has_io_uring() {
        return;
    }
    let program = compile("beside.c", Header::System, "uring");
    let run_by = |engine: &str| {
        let mut command = command(&program, &[], By::Kernel);
        run(command.env("ANYRING_ENGINE", engine).env("ANYRING_LOG", "info"))
    };
    let (user, auto) = (run_by("user"), run_by("auto"));
    let lines =
        |said: &str| said.lines().filter(|line| !line.contains("engine=")).collect::<Vec<_>>().join("\n");
    assert_eq!(lines(&auto), lines(&user));
    let both = auto.contains("engine=kernel+user rings=3 ");
    assert_eq!(both, lines(&run_by("kernel")) == "refused", "{auto}");
}

/// epoll whose events are read from memory, with every feeder, by a program that maps the ring itself.
#[test]
fn events_are_read_from_memory() {
    let program = compile("uepoll.c", Header::Newest, "anyring");
    // Another liburing has not the functions: the loader says so.
    let refused = command(&program, &[], By::Liburing).output().unwrap();
    let reason = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && reason.contains("version `ANYRING_1' not found"), "{reason}");
    said(&program, &[], By::Denied);
    if kernel_has_io_uring() {
        said(&program, &[], By::Kernel);
    }
}

/// Private operations among the kernel's, on rings of every kind.
#[test]
fn private_operations_on_rings_of_the_kernel() {
    for header in [Header::System, Header::Newest] {
        let program = compile("private.c", header, "uring");
        for seed in ["1", "2", "3"] {
            said(&program, &["user", seed], By::Denied);
            if kernel_has_io_uring() {
                said(&program, &["kernel", seed], By::Kernel);
            }
        }
    }
}

/// It is our engine that answers, and only where it must.
#[test]
fn the_engine_is_chosen() {
    let program = compile("files.c", Header::Newest, "uring");
    let log = |by, engine: Option<&str>| {
        let mut command = command(&program, &["kinds"], by);
        command.env("ANYRING_LOG", "info");
        if let Some(engine) = engine {
            command.env("ANYRING_ENGINE", engine);
        }
        run(&mut command)
    };
    assert!(log(By::Denied, None).contains("engine=user rings=6"));
    if kernel_has_io_uring() {
        assert!(log(By::Kernel, None).contains("engine=kernel"));
        assert!(log(By::Kernel, Some("user")).contains("engine=user rings=6"));
    }
}
