//! Tests `anyring-deny` as a command: the answers that a program under it gets.

use std::process::{Command, Output};

/// The prefix of the line with the answers that the program got.
const ANSWERS: &str = "answers:";

fn errno_of(number: libc::c_long) -> i32 {
    // SAFETY: neither call does anything with null pointers but refuse them.
    let result = unsafe { libc::syscall(number, 0, 0, 0, 0, 0, 0) };
    assert!(result < 0, "refused, one way or other");
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// Is not a test, but the program under the filter: prints the answers of io_uring, openat2, kcmp and futex_waitv.
#[test]
fn asks() {
    let calls = [libc::SYS_io_uring_setup, libc::SYS_openat2, libc::SYS_kcmp, libc::SYS_futex_waitv];
    println!("{ANSWERS} {:?}", calls.map(errno_of));
}

fn deny(arguments: &[&str]) -> Output {
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_anyring-deny"));
    command.args(arguments).arg(own).args(["--exact", "asks", "--nocapture"]);
    command.output().unwrap()
}

fn answers(arguments: &[&str]) -> [i32; 4] {
    let output = deny(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, said) = text.split_once(ANSWERS).expect("it has asked");
    let (_, said) = said.split_once('[').expect("a list");
    let (said, _) = said.split_once(']').expect("the end of the list");
    let numbers = said.split(", ").map(|errno| errno.parse().unwrap());
    numbers.collect::<Vec<i32>>().try_into().expect("four answers")
}

#[test]
fn io_uring_is_denied_as_is_asked_for() {
    use libc::{ENOSYS, EPERM};
    let native = errno_of(libc::SYS_openat2);
    let first_two = |arguments| answers(arguments)[..2].to_vec();
    for (arguments, expected) in [
        (&[][..], (EPERM, native)),
        (&["--enosys"], (ENOSYS, native)),
        // This kernel has no io_uring yet.
        (&["--like", "4.18"], (ENOSYS, ENOSYS)),
        (&["--like", "5.4"], (EPERM, ENOSYS)),
        (&["--like=5.4", "--enosys"], (ENOSYS, ENOSYS)),
        (&["--like", "5.10"], (EPERM, native)),
        (&["--like", "5.15", "--"], (EPERM, native)),
        (&["--enosys", "--like", "6.1"], (ENOSYS, native)),
    ] {
        assert_eq!(first_two(arguments), [expected.0, expected.1], "{arguments:?}");
    }
}

#[test]
fn a_container_refuses_what_its_profile_does_not_list() {
    use libc::{ENOSYS, EPERM};
    let native = errno_of(libc::SYS_openat2);
    assert_eq!(answers(&["--container"]), [ENOSYS, native, EPERM, ENOSYS]);
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
