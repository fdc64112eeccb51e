//! The clock that is read without a system call says what the system call says.

use crate::common::prelude::*;
use anyring_engine::os::{clock_ns, monotonic_ns, vdso};

/// Takes the kernel's image away from this process, as valgrind does.
fn unmap_image() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
    let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
    let address = |digits| usize::from_str_radix(digits, 16).unwrap();
    let (start, end) = (address(start), address(end));
    // SAFETY: nobody but the C library's clock uses the image, which this process does not read any more.
    let unmapped = unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(start), end - start) };
    assert_eq!(unmapped, 0);
}

/// The clock by a system call.
fn by_call_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC as u32)
}

/// Notes where the image is, as front ends do.
fn note_image() {
    // SAFETY: only reads a value.
    vdso::note_image(unsafe { libc::getauxval(vdso::AUXILIARY as u64) } as usize);
}

#[test]
fn both_clocks_are_one() {
    // SAFETY: the child has this thread alone, and ends here.
    let child = unsafe { libc::fork() };
    if child == 0 {
        unmap_image();
        note_image();
        vdso::find_clock();
        let (before, between, after) = (by_call_ns(), monotonic_ns(), by_call_ns());
        // SAFETY: the child ends.
        unsafe { libc::_exit(i32::from(!(before <= between && between <= after))) };
    }
    let mut status = 0;
    // SAFETY: a child of ours, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "a process without the image");

    // Before it was looked for, the system call is made.
    let first = monotonic_ns();
    note_image();
    vdso::find_clock();
    for _ in 0..1000 {
        let (before, between, after) = (by_call_ns(), monotonic_ns(), by_call_ns());
        assert!(first <= before && before <= between && between <= after, "{before} {between} {after}");
    }
}

/// A program's filter kills for the call that reads the clock. Neither a caller that waits until a time nor the reactor, which begins later,
/// makes it.
#[test]
fn rings_read_the_clock_by_no_system_call() {
    note_image();
    assert_eq!(
        ended(child(|| {
            let mut ring = Ring::new(Engine::User, 8, 0);
            filter_calls(&mut [
                code(LOAD, 0, 0, 0),
                code(EQUAL, 0, 1, libc::SYS_clock_gettime as u32),
                code(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
                code(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
            ]);
            let (end, writer) = pipe();
            let (mut byte, ten_ms) = ([0_u8], [0_i64, 10_000_000]);
            ring.submit_and_wait(&[reading(IORING_OP_READ, 1, &end, &mut byte), timeout(2, &ten_ms)], 1);
            let timed_out = results(&ring.reap_all()) == [(2, -libc::ETIME)];
            // Nobody waits in the ring: the reactor sees that there is something to read.
            write_to(&writer, b"x");
            let mut seen = Vec::new();
            until("the read is done", || {
                seen.extend(ring.reap_all());
                !seen.is_empty()
            });
            timed_out && results(&seen) == [(1, 1)]
        })),
        0
    );
}
