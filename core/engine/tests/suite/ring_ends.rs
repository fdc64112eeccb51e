//! The end of rings whose numbers the program closes where nobody sees it, or takes for other files.

use crate::common::prelude::*;
use crate::same_files::refuse;

/// Mappings of rings' memory, the engine's and the program's.
fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().matches("[io_uring]").count()
}

/// A ring that lost its last descriptor has ended at the latest when others are made.
fn ends(what: &str, lose: impl Fn()) {
    drop(Ring::new(Engine::User, 8, 0));
    let left = |before| {
        drop(Ring::new(Engine::User, 8, 0));
        mappings() > before
    };
    until("rings from before end", || !left(0));
    for _ in 0..3 {
        lose();
        until(what, || !left(0));
    }
}

/// Closes the number, and makes a ring that takes it.
fn take_over(number: i32) {
    close_number(number);
    let other = Ring::new(Engine::User, 8, 0);
    assert_eq!(other.fd, number);
}

fn close_all() {
    (3..4096).for_each(close_number);
}

#[test]
fn a_ring_ends_when_another_one_has_its_number() {
    ends("a ring", || take_over(Ring::new(Engine::User, 8, 0).unmap()));
}

#[test]
fn a_ring_that_shows_its_readiness_ends_when_another_one_has_its_number() {
    ends("a ring that is shown", || {
        let ring = Ring::new(Engine::User, 8, 0);
        frontend::show_readiness(ring.fd).unwrap();
        let number = ring.unmap();
        // The kernel has told of the end of the memory's descriptor by now.
        drop(Ring::new(Engine::User, 8, 0));
        take_over(number);
    });
}

#[test]
fn a_ring_ends_when_all_numbers_are_closed() {
    ends("a ring", || {
        Ring::new(Engine::User, 8, 0).unmap();
        close_all();
    });
}

#[test]
fn a_ring_ends_when_another_file_has_its_number() {
    ends("a ring whose closes are told", || {
        let number = Ring::told(8, 0).unmap();
        close_number(number);
        let file = File::open("/dev/null").unwrap();
        assert_eq!(file.as_raw_fd(), number);
        closes(Engine::User, number);
    });
}

#[both(8, 0)]
fn a_registered_ring_goes_on_when_all_numbers_are_closed(mut ring: Ring) -> impl Answer {
    let engine = ring.engine;
    let mut update = io_uring_rsrc_update { offset: u32::MAX, resv: 0, data: ring.fd as u64 };
    assert_eq!(ring.register(IORING_REGISTER_RING_FDS, (&raw mut update).cast(), 1), 1);
    close_all();
    let submit = |count| {
        let number = update.offset as i32;
        enter(engine, number, count, 0, IORING_ENTER_REGISTERED_RING, std::ptr::null(), 0)
    };
    let nothing = submit(1);
    ring.push(sqe(IORING_OP_NOP, 1));
    let one = submit(1);
    ring.unmap();
    (nothing, one)
}

#[both(8, 0)]
fn a_ring_goes_on_where_nothing_can_be_asked_of_files(mut ring: Ring) -> impl Answer {
    // In a thread, whose filter ends with it.
    std::thread::scope(|scope| {
        let asks = || {
            refuse(&[(libc::SYS_fstat, None, libc::EPERM)]);
            let nothing = ring.enter(1, 0);
            ring.push(sqe(IORING_OP_NOP, 1));
            (nothing, ring.enter(1, 0))
        };
        scope.spawn(asks).join().unwrap()
    })
}
