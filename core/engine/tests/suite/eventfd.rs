//! Registered eventfds.

use crate::common::prelude::*;

fn counter() -> OwnedFd {
    eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)
}

fn register_fd(ring: &Ring, opcode: io_uring_register_op, fd: i32) -> i32 {
    ring.register(opcode, (&raw const fd).cast(), 1)
}

/// Takes the count of an eventfd, 0 where it has none.
fn take(event: &OwnedFd) -> u64 {
    let mut count = 0u64;
    // SAFETY: writes eight bytes of ours.
    unsafe { libc::read(event.as_raw_fd(), (&raw mut count).cast(), 8) };
    count
}

/// Waits until an eventfd has a count.
fn await_signal(event: &OwnedFd) {
    assert_eq!(shown(event, libc::POLLIN, -1), libc::POLLIN);
}

#[both(4, 0)]
fn registering(ring: Ring) -> impl Answer {
    let (event, other) = (counter(), counter());
    let file = File::open("/dev/null").unwrap();
    let none = std::ptr::null();
    let fd = event.as_raw_fd();
    [
        ring.register(IORING_UNREGISTER_EVENTFD, none, 0),
        register_fd(&ring, IORING_REGISTER_EVENTFD, -1),
        register_fd(&ring, IORING_REGISTER_EVENTFD, file.as_raw_fd()),
        ring.register(IORING_REGISTER_EVENTFD, (&raw const fd).cast(), 2),
        ring.register(IORING_REGISTER_EVENTFD, 8 as *const _, 1),
        register_fd(&ring, IORING_REGISTER_EVENTFD, fd),
        register_fd(&ring, IORING_REGISTER_EVENTFD_ASYNC, other.as_raw_fd()),
        ring.register(IORING_UNREGISTER_EVENTFD, none, 1),
        ring.register(IORING_UNREGISTER_EVENTFD, none, 0),
        register_fd(&ring, IORING_REGISTER_EVENTFD_ASYNC, other.as_raw_fd()),
    ]
}

#[both(8, 0)]
fn signalled_per_batch_and_seen_when_enter_returns(mut ring: Ring) -> impl Answer {
    let event = counter();
    ring.register_eventfd(&event);
    let nops = |n: u64| (0..n).map(|i| sqe(IORING_OP_NOP, i)).collect::<Vec<_>>();
    let mut counts = Vec::new();
    for n in [1, 3] {
        ring.push_all(nops(n));
        ring.enter(n as u32, 0);
        counts.push(take(&event));
        ring.reap_all();
    }
    ring.word(ring.params.cq_off.flags).store(IORING_CQ_EVENTFD_DISABLED, Ordering::Relaxed);
    ring.run(&nops(2));
    counts.push(take(&event));
    ring.word(ring.params.cq_off.flags).store(0, Ordering::Relaxed);
    ring.register(IORING_UNREGISTER_EVENTFD, std::ptr::null(), 0);
    ring.run(&nops(2));
    counts.push(take(&event));
    register_fd(&ring, IORING_REGISTER_EVENTFD_ASYNC, event.as_raw_fd());
    ring.run(&nops(2));
    counts.push(take(&event));
    counts
}

/// The count of an eventfd is at its limit, and a write to it would wait until somebody reads it: the ring's signal does not.
#[both(4, 0)]
fn a_full_eventfd_holds_nobody_up(mut ring: Ring) -> impl Answer {
    let event = eventfd(0, libc::EFD_CLOEXEC);
    // SAFETY: writes to a descriptor of ours.
    assert_eq!(unsafe { libc::eventfd_write(event.as_raw_fd(), u64::MAX - 1) }, 0);
    ring.register_eventfd(&event);
    let answer = results(&ring.run(&[sqe(IORING_OP_NOP, 1)]));
    assert!(take(&event) >= u64::MAX - 1);
    answer
}

/// A completion of what the call does itself is no news for an eventfd of asynchronous ones; a close does not change that.
#[both(8, 0)]
fn a_close_in_a_submission_is_no_news(mut ring: Ring) -> impl Answer {
    let event = counter();
    register_fd(&ring, IORING_REGISTER_EVENTFD_ASYNC, event.as_raw_fd());
    let mut counts = Vec::new();
    for _ in 0..2 {
        let fd = memory_file(b"x").into_raw_fd();
        let close = Sqe { fd, ..sqe(IORING_OP_CLOSE, 1) };
        counts.push((ring.run(&[close, sqe(IORING_OP_NOP, 2)]).len(), take(&event)));
    }
    counts
}

#[both]
fn signalled_while_nobody_is_inside(engine: Engine) {
    for flags in [0, DEFER, DEFER | IORING_SETUP_TASKRUN_FLAG] {
        let mut ring = Ring::new(engine, 8, flags);
        let (event, trigger) = (counter(), counter());
        ring.register_eventfd(&event);
        let poll = sqe(IORING_OP_POLL_ADD, 1);
        ring.submit(&[Sqe { fd: trigger.as_raw_fd(), op_flags: libc::POLLIN as u32, ..poll }]);
        assert_eq!(take(&event), 0);
        let one = 1u64;
        // SAFETY: reads eight bytes of ours.
        unsafe { libc::write(trigger.as_raw_fd(), (&raw const one).cast(), 8) };
        await_signal(&event);
        if flags & IORING_SETUP_DEFER_TASKRUN != 0 {
            assert_eq!(ring.reap(), None, "nothing is visible before enter fetches it");
            ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
        }
        assert_eq!(ring.reap().map(|cqe| cqe.res), Some(libc::POLLIN as i32));
    }
}

#[both]
fn signalled_for_a_timeout(engine: Engine) {
    for flags in [0, DEFER] {
        let mut ring = Ring::new(engine, 8, flags);
        let event = counter();
        ring.register_eventfd(&event);
        let time = [0i64, 1_000_000];
        ring.submit(&[timeout(1, &time)]);
        await_signal(&event);
        ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
        assert_eq!(ring.reap().map(|cqe| cqe.res), Some(-libc::ETIME));
    }
}

/// A completion that signalled before, and was fetched, must not keep a timeout from signalling.
#[both]
fn signalled_for_a_timeout_behind_something_else(engine: Engine) {
    // The reactor has gone back to sleep in some of these rounds, at least, before the program comes.
    for _ in 0..20 {
        let mut ring = Ring::new(engine, 8, DEFER);
        let (event, trigger) = (counter(), counter());
        ring.register_eventfd(&event);
        let time = [0i64, 20_000_000];
        ring.push(timeout(1, &time));
        let poll = sqe(IORING_OP_POLL_ADD, 2);
        ring.push(Sqe { fd: trigger.as_raw_fd(), op_flags: libc::POLLIN as u32, ..poll });
        assert_eq!(ring.enter(2, 0), 2);
        let one = 1u64;
        // SAFETY: reads eight bytes of ours.
        unsafe { libc::write(trigger.as_raw_fd(), (&raw const one).cast(), 8) };
        await_signal(&event);
        std::thread::yield_now();
        take(&event);
        let mut seen = Vec::new();
        while seen.len() < 2 {
            ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
            seen.extend(ring.reap_all().iter().map(|cqe| cqe.user_data));
            if seen.len() < 2 {
                await_signal(&event);
                take(&event);
            }
        }
        // Under load the timeout may be the first.
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
    }
}

/// A cancellation from outside the ring is told, too: only the ring's thread can post what was cancelled.
#[both]
fn signalled_for_a_cancellation(engine: Engine) {
    // The longer the ring is left alone before, the surer is that the reactor sleeps for good.
    for left_alone_ms in [0, 2, 5, 10, 20] {
        let mut ring = Ring::new(engine, 8, DEFER);
        let (event, trigger) = (counter(), counter());
        ring.register_eventfd(&event);
        ring.submit(&[poll(7, &trigger, libc::POLLIN)]);
        std::thread::sleep(Duration::from_millis(left_alone_ms));
        assert_eq!(ring.sync_cancel(7), 0);
        await_signal(&event);
        ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
        assert_eq!(ring.reap().map(|cqe| cqe.res), Some(-libc::ECANCELED));
    }
}

/// The kernel signals once more for the read itself, but after a grace period: only ours is predictable.
#[test]
fn a_read_of_the_rings_own_eventfd_finds_the_count_that_woke_it() {
    // The reactor looks at the ring in the middle of some of these rounds.
    for _ in 0..100 {
        let mut ring = Ring::new(Engine::User, 4, DEFER);
        let event = eventfd(0, libc::EFD_CLOEXEC);
        let (mut count, fd) = (0u64, event.as_raw_fd());
        ring.register_eventfd(&fd);
        let addr = (&raw mut count) as u64;
        let read = Sqe { fd, addr, len: 8, off: u64::MAX, ..sqe(IORING_OP_READ, 1) };
        for next in [read, sqe(IORING_OP_NOP, 2)] {
            ring.submit(&[next]);
        }
        assert_eq!(ring.enter(0, 2), 0);
        assert_eq!(count, 1);
    }
}

#[both]
fn a_completion_without_room_is_no_news(engine: Engine) -> impl Answer {
    let params = io_uring_params { cq_entries: 2, ..params(IORING_SETUP_CQSIZE) };
    let mut ring = Ring::with_params(engine, 2, params).unwrap();
    let event = counter();
    ring.register_eventfd(&event);
    let mut counts = Vec::new();
    for i in 0..4 {
        ring.submit(&[nop(i, 0)]);
        counts.push(take(&event));
    }
    ring.reap_all();
    ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
    counts.push(take(&event));
    counts
}
