//! `anyring-deny` as a command: what a program under it is told.

use std::process::{Command, Output};

/// Which answers the program under the filter has got.
const ANSWERS: &str = "answers:";

fn errno_of(number: libc::c_long) -> i32 {
    // SAFETY: neither call does anything with null pointers but refuse them.
    let result = unsafe { libc::syscall(number, 0, 0, 0, 0, 0, 0) };
    assert!(result < 0, "refused, one way or other");
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// Not a test of its own, but the program that is run under the filter: it says what io_uring and openat2 answer.
#[test]
fn asks() {
    println!("{ANSWERS} {} {}", errno_of(libc::SYS_io_uring_setup), errno_of(libc::SYS_openat2));
}

fn deny(arguments: &[&str]) -> Output {
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_anyring-deny"));
    command.args(arguments).arg(own).args(["--exact", "asks", "--nocapture"]);
    command.output().unwrap()
}

fn answers(arguments: &[&str]) -> (i32, i32) {
    let output = deny(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, said) = text.split_once(ANSWERS).expect("it has asked");
    let said: Vec<i32> = said.split_whitespace().take(2).map(|errno| errno.parse().unwrap()).collect();
    (said[0], said[1])
}

#[test]
fn io_uring_is_denied_as_is_asked_for() {
    use libc::{ENOSYS, EPERM};
    let native = errno_of(libc::SYS_openat2);
    for (arguments, expected) in [
        (&[][..], (EPERM, native)),
        (&["--enosys"], (ENOSYS, native)),
        // There is no io_uring yet.
        (&["--like", "4.18"], (ENOSYS, ENOSYS)),
        (&["--like", "5.4"], (EPERM, ENOSYS)),
        (&["--like=5.4", "--enosys"], (ENOSYS, ENOSYS)),
        (&["--like", "5.10"], (EPERM, native)),
        (&["--like", "5.15", "--"], (EPERM, native)),
        (&["--enosys", "--like", "6.1"], (ENOSYS, native)),
    ] {
        assert_eq!(answers(arguments), expected, "{arguments:?}");
    }
}

#[test]
fn an_unknown_kernel_is_an_error() {
    for version in ["5.3", "4", "6.18", ""] {
        let output = deny(&["--like", version]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains("4.18, 5.4, 5.10, 5.15, 6.1"), "{message}");
    }
}
