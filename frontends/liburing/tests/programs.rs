//! Programs that were built against liburing run with our library by a change of `LD_LIBRARY_PATH` only: their output
//! must equal their output with liburing 2.15, with the kernel's `io_uring` and when it is denied.

mod support;

use std::process::Command;

use support::{By, Header, command, denied, kernel_has_io_uring, libraries, program, recorded, run, said};

/// Runs the program with our library, on both engines, and compares its output with the recorded one.
fn same(name: &str, header: Header, arguments: &[&str]) {
    let program = program(name, header);
    let record = [&[name][..], arguments, &[&format!("{header:?}").to_lowercase()]].concat().join(" ");
    let expected = recorded(&record, &program, arguments);
    let is_as_expected = |by| {
        let said = said(&program, arguments, by);
        assert!(said == expected, "{record}, by {by:?}:\n{said}\nover liburing:\n{expected}");
    };
    is_as_expected(By::Denied);
    anyring_tally::compared();
    if kernel_has_io_uring() {
        is_as_expected(By::Kernel);
        anyring_tally::handed_over();
    }
}

#[test]
fn a_program_of_debians_header() {
    same("files", Header::System, &[]);
}

#[test]
fn a_program_of_the_newest_header() {
    same("files", Header::Newest, &[]);
}

#[test]
fn rings_of_every_kind() {
    same("files", Header::System, &["kinds"]);
    same("files", Header::Newest, &["kinds"]);
}

#[test]
fn a_ring_is_polled() {
    same("files", Header::System, &["polled"]);
    same("files", Header::Newest, &["polled"]);
}

#[test]
fn the_rest_of_the_interface() {
    same("rest", Header::Newest, &[]);
}

/// Valgrind checks code that the sanitizers cannot instrument: a C program, and the library as it is installed. `rest.c` is left
/// out, because valgrind does not support signals that interrupt our system calls.
#[test]
fn memory_is_used_rightly() {
    let program = program("files", Header::Newest);
    for arguments in [&[][..], &["kinds"], &["polled"]] {
        let mut checked = Command::new("valgrind");
        checked.args(["-q", "--error-exitcode=99", "--leak-check=full"]).arg(&program).args(arguments);
        run(checked.env("LD_LIBRARY_PATH", libraries()).env("ANYRING_ENGINE", "user"));
    }
}

/// memcheck knows which memory requests in flight use.
#[test]
fn memory_in_flight_is_not_the_programs() {
    let program = program("flight", Header::System);
    let checked = |arguments: &[&str]| {
        let mut checked = Command::new("valgrind");
        checked.arg("-q").arg(&program).args(arguments);
        let output =
            checked.env("LD_LIBRARY_PATH", libraries()).env("ANYRING_ENGINE", "user").output().unwrap();
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat()
    };
    // valgrind may name a system call that it does not know.
    let right = checked(&[]);
    assert!(right.contains("over\n") && !right.contains("    at 0x"), "{right}");
    let looks = checked(&["looks"]);
    assert!(looks.contains("uninitialised value") && looks.contains("over\n"), "{looks}");
    let leaves = checked(&["leaves"]);
    assert!(leaves.contains("inside a block of size 4 free'd"), "{leaves}");
}

/// GETDENTS, which no kernel has, works with any `liburing.h` beside our header.
#[test]
fn directories_are_read() {
    for header in [Header::System, Header::Newest] {
        let program = program("getdents", header);
        said(&program, &[], By::Denied);
        if kernel_has_io_uring() {
            said(&program, &["absent"], By::Liburing);
            said(&program, &[], By::Kernel);
        }
    }
}

/// A ring that the kernel is too old for is the user engine's, among rings of the kernel.
#[test]
fn rings_beside_the_kernels() {
    if !kernel_has_io_uring() {
        return;
    }
    let program = program("beside", Header::System);
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
    let program = program("uepoll", Header::Newest);
    // Another liburing does not have the functions, and the loader says so.
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
        let program = program("private", header);
        for seed in ["1", "2", "3"] {
            said(&program, &["user", seed], By::Denied);
            if kernel_has_io_uring() {
                said(&program, &["kernel", seed], By::Kernel);
            }
        }
    }
}

/// The user engine answers if it must, and only then.
#[test]
fn the_engine_is_chosen() {
    let program = program("files", Header::Newest);
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

/// Rings work although the limit on file sizes, which the process cannot raise, is less than the offset at which programs map SQEs.
#[test]
fn a_ring_where_files_are_small() {
    let program = program("files", Header::Newest);
    for (record, arguments) in [("files newest", &[][..]), ("files kinds newest", &["kinds"])] {
        let expected = recorded(record, &program, arguments);
        assert_eq!(run(&mut denied("1,small", &program, arguments)), expected);
    }
}

/// The calls of the front end and of the engine that both can do without.
const DONE_WITHOUT: &[libc::c_long] = &[
    libc::SYS_capget,
    libc::SYS_dup3,
    libc::SYS_epoll_pwait2,
    libc::SYS_getdents64,
    libc::SYS_getresuid,
    libc::SYS_gettid,
    libc::SYS_inotify_init1,
    libc::SYS_kcmp,
    libc::SYS_mincore,
    libc::SYS_prlimit64,
    libc::SYS_readlinkat,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_tgkill,
];

/// The calls of `docs/system-calls.md`, "Calls that the front ends do without", are refused one by one.
#[test]
fn a_program_says_the_same_where_a_call_is_refused() {
    for arguments in [&[][..], &["kinds"]] {
        let program = program("files", Header::System);
        let expected = said(&program, arguments, By::Denied);
        for number in DONE_WITHOUT {
            for errno in [libc::ENOSYS, libc::EPERM] {
                let said = run(&mut denied(&format!("1,call={number}:{errno}"), &program, arguments));
                assert!(said == expected, "call {number} fails with {errno}:\n{said}\nnot:\n{expected}");
            }
        }
    }
}
