//! Calls made by instructions of the program itself, which `anyring::everywhere!(trap)` answers, too.

use linux_raw_sys::general::{__NR_io_uring_enter, __NR_io_uring_setup};
use linux_raw_sys::io_uring::io_uring_params;
use std::process::Command;

anyring::everywhere!(trap);

const TEST: &str = "ANYRING_TEST";

/// Runs this test again in a separate process, which begins with `engine`. Returns its log.
fn again(engine: &str) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["calls_by_instructions_trap", "--exact", "--nocapture"]);
    command.env(TEST, engine).env("ANYRING_ENGINE", engine).env("ANYRING_LOG", "info");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{engine}: {}\n{text}", output.status);
    text
}

#[test]
fn calls_by_instructions_trap() {
    let Some(engine) = std::env::var_os(TEST) else {
        let text = again("user");
        assert!(text.contains("engine=user rings=1 "), "{text}");
        assert!(!text.contains("traps=0 "), "{text}");
        let text = again("kernel");
        assert!(text.contains("engine=kernel"), "{text}");
        return;
    };
    // SAFETY: a structure of integers.
    let mut params: io_uring_params = unsafe { std::mem::zeroed() };
    let arguments = [1, (&raw mut params).expose_provenance(), 0, 0, 0, 0];
    // SAFETY: the call reads and writes the parameters.
    let fd = unsafe { anyring_linked::syscall(__NR_io_uring_setup as usize, arguments) };
    if fd < 0 {
        assert_eq!(engine, "kernel", "{fd}");
        return;
    }
    // SAFETY: the call submits nothing.
    let entered =
        unsafe { anyring_linked::syscall(__NR_io_uring_enter as usize, [fd as usize, 0, 0, 0, 0, 0]) };
    assert_eq!(entered, 0);
    // The filter does not affect other programs.
    let output = Command::new("sh").args(["-c", "echo $((6 * 7))"]).output().unwrap();
    assert_eq!(output.stdout, b"42\n");
}
