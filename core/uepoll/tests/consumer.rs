//! A C program that knows only the structures takes the events.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use anyring_uepoll::Ring;
use anyring_uepoll::insert::Raised;

#[test]
fn a_program_takes_events_by_the_structures_alone() {
    let name = format!("uepoll-consumer-{}", std::process::id());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/consumer.c");
    let built = Command::new("cc").args(["-O2", "-Wall", "-Werror", "-o"]).arg(&program).arg(source).status();
    assert!(built.unwrap().success());
    // More items than fit on one page, and positions that wrap around.
    let ring = Ring::create(1000, u32::MAX - 3).unwrap();
    for item in 0..1000 {
        ring.item(item).data.store(u64::from(item) << 32, Ordering::Relaxed);
    }
    for item in [3, 999, 0, 500, 7] {
        assert_eq!(ring.raise(item, 1 + item), Raised::Visible);
    }
    assert_eq!(ring.raise(999, 0x2000), Raised::Already);
    // Item 0 was removed.
    ring.item(0).ready_events.store(0, Ordering::Relaxed);
    // SAFETY: touches no memory.
    assert_eq!(unsafe { libc::fcntl(ring.fd(), libc::F_SETFD, 0) }, 0);
    let child = Command::new(&program)
        .args([ring.fd().to_string(), "1002".to_owned()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // While the program takes them, raise another event repeatedly, as soon as the one before was taken.
    for round in 0..998 {
        while ring.item(11).ready_events.load(Ordering::Acquire) != 0 {
            std::thread::yield_now();
        }
        assert_eq!(ring.raise(11, 1 << (round % 16)), Raised::Visible);
    }
    let output = child.wait_with_output().unwrap();
    std::fs::remove_file(&program).unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    let named = |item: u64, events: u32| format!("{events:x} {}", item << 32);
    let first = [named(3, 4), named(999, 0x23e8), named(500, 501), named(7, 8)];
    assert_eq!(lines[0], "1000 items");
    assert_eq!(lines[1..5], first);
    assert_eq!(lines.len(), 1 + 4 + 998);
    for (round, line) in lines[5..].iter().enumerate() {
        assert_eq!(*line, named(11, 1 << (round % 16)));
    }
    assert!(ring.is_empty());
}
