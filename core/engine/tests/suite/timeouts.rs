//! TIMEOUT, TIMEOUT_REMOVE, LINK_TIMEOUT.

use crate::common::prelude::*;

type Time = [i64; 2];
const SHORT: Time = [0, 1_000_000];
const LONG: Time = [1000, 0];

/// A TIMEOUT of `time`, which must live until submission.
fn timeout(user_data: u64, time: &Time, count: u64, flags: u32) -> Sqe {
    Sqe { off: count, op_flags: flags, ..crate::common::timeout(user_data, time) }
}

fn link_timeout(user_data: u64, time: &Time, flags: u32) -> Sqe {
    Sqe { opcode: IORING_OP_LINK_TIMEOUT as u8, ..timeout(user_data, time, 0, flags) }
}

fn remove(user_data: u64, target: u64) -> Sqe {
    Sqe { addr: target, ..sqe(IORING_OP_TIMEOUT_REMOVE, user_data) }
}

fn update(user_data: u64, target: u64, time: &Time, flags: u32) -> Sqe {
    Sqe { off: time.as_ptr() as u64, op_flags: IORING_TIMEOUT_UPDATE | flags, ..remove(user_data, target) }
}

fn with(sqe: Sqe, flags: u8) -> Sqe {
    Sqe { flags, ..sqe }
}

#[both(8, 0)]
fn relative_and_absolute_on_every_clock(mut ring: Ring) -> impl Answer {
    let mut all = ring.collect_from(&[timeout(1, &SHORT, 0, 0)], 1);
    all.extend(ring.collect_from(&[timeout(2, &SHORT, 0, IORING_TIMEOUT_BOOTTIME)], 1));
    all.extend(ring.collect_from(&[timeout(3, &SHORT, 0, IORING_TIMEOUT_REALTIME)], 1));
    for (id, flag) in [
        (libc::CLOCK_MONOTONIC, 0),
        (libc::CLOCK_BOOTTIME, IORING_TIMEOUT_BOOTTIME),
        (libc::CLOCK_REALTIME, IORING_TIMEOUT_REALTIME),
    ] {
        let mut until = clock(id);
        // Not normalised: the kernel takes that too.
        until[1] += 1_002_000_000;
        until[0] -= 1;
        all.extend(ring.collect_from(&[timeout(4, &until, 0, IORING_TIMEOUT_ABS | flag)], 1));
    }
    all.extend(ring.collect_from(&[timeout(5, &[0, 0], 0, IORING_TIMEOUT_ABS)], 1));
    all.extend(ring.collect_from(&[timeout(6, &[0, 0], 0, 0)], 1));
    all
}

#[both(8, 0)]
fn earlier_deadlines_expire_first(mut ring: Ring) -> impl Answer {
    let times: [Time; 3] = [[0, 30_000_000], [0, 10_000_000], [0, 20_000_000]];
    let sqes: Vec<_> = (0..3).map(|i| timeout(i as u64, &times[i], 0, 0)).collect();
    ring.collect_from(&sqes, 3)
}

#[both(32, IORING_SETUP_SUBMIT_ALL)]
fn bad_timeouts_are_refused(mut ring: Ring) -> impl Answer {
    let good = timeout(0, &LONG, 0, 0);
    let sqes = [
        Sqe { len: 0, ..good },
        Sqe { len: 2, ..good },
        Sqe { buf_index: 1, ..good },
        Sqe { file_index: 1, ..good },
        Sqe { ioprio: 1, ..good },
        Sqe { op_flags: 1 << 20, ..good },
        Sqe { op_flags: IORING_TIMEOUT_UPDATE, ..good },
        Sqe { op_flags: IORING_TIMEOUT_CLOCK_MASK, ..good },
        Sqe { op_flags: IORING_TIMEOUT_ABS | IORING_TIMEOUT_MULTISHOT, ..good },
        Sqe { addr: 8, ..good },
        timeout(0, &[-1, 0], 0, 0),
        timeout(0, &[0, -1], 0, 0),
        link_timeout(0, &LONG, 0),
        Sqe { off: 1, ..link_timeout(0, &LONG, 0) },
        Sqe { len: 1, ..remove(0, 99) },
        Sqe { op_flags: IORING_TIMEOUT_ABS, ..remove(0, 99) },
        update(0, 99, &LONG, IORING_TIMEOUT_CLOCK_MASK),
        update(0, 99, &LONG, IORING_TIMEOUT_REALTIME),
        update(0, 99, &[-1, 0], 0),
        Sqe { off: 8, ..update(0, 99, &LONG, 0) },
        update(0, 99, &LONG, 0),
        remove(0, 99),
    ];
    ring.run(&sqes)
}

#[both(16, 0)]
fn counting_timeouts_wait_for_other_completions(mut ring: Ring) -> impl Answer {
    let batch = [timeout(1, &LONG, 2, 0), nop(2, 0), nop(3, 0), nop(4, 0)];
    let mut all = ring.collect_from(&batch, 4);
    // Sorted by what they wait for; timeouts' own completions do not count.
    let batch = [timeout(5, &LONG, 3, 0), timeout(6, &LONG, 1, 0), nop(7, 0)];
    all.extend(ring.collect_from(&batch, 2));
    all.extend(ring.collect_from(&[nop(8, 0)], 1));
    all.extend(ring.collect_from(&[nop(9, 0)], 2));
    // By time all the same.
    all.extend(ring.collect_from(&[timeout(10, &SHORT, 1000, 0)], 1));
    all.extend(ring.collect_from(&[timeout(11, &LONG, 0xffff_ffff, 0), nop(12, 0), remove(13, 11)], 3));
    all
}

#[both(16, 0)]
fn a_removed_timeout_counts_as_a_completion(mut ring: Ring) -> impl Answer {
    let batch = [timeout(1, &LONG, 2, 0), timeout(2, &LONG, 0, 0), remove(3, 2)];
    let mut all = ring.collect_from(&batch, 2);
    for user_data in 10.. {
        if all.iter().any(|cqe| cqe.user_data == 1) {
            break;
        }
        all.extend(ring.collect_from(&[nop(user_data, 0)], 1));
        ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
        all.extend(ring.reap_all());
    }
    all
}

#[both(16, 0)]
fn expiry_fails_the_link_unless_told_not_to(mut ring: Ring) -> impl Answer {
    let mut all = ring.collect_from(&[with(timeout(1, &SHORT, 0, 0), LINK), nop(2, 0)], 2);
    let success = timeout(3, &SHORT, 0, IORING_TIMEOUT_ETIME_SUCCESS);
    all.extend(ring.collect_from(&[with(success, LINK), nop(4, 0)], 2));
    all.extend(ring.collect_from(&[with(timeout(5, &SHORT, 0, 0), HARDLINK), nop(6, 0)], 2));
    all.extend(ring.collect_from(&[with(success, SKIP | LINK), nop(8, 0)], 1));
    all
}

#[both(16, 0)]
fn removing_and_updating(mut ring: Ring) -> impl Answer {
    let mut all = ring.collect_from(&[timeout(1, &LONG, 0, 0), remove(2, 1), remove(3, 1)], 4 - 1);
    all.extend(ring.collect_from(&[timeout(4, &LONG, 0, 0), update(5, 4, &SHORT, 0)], 2));
    let now = clock(libc::CLOCK_MONOTONIC);
    all.extend(ring.collect_from(&[timeout(6, &LONG, 0, 0), update(7, 6, &now, IORING_TIMEOUT_ABS)], 2));
    // An updated one counts no more.
    all.extend(ring.collect_from(&[timeout(8, &LONG, 1, 0), update(9, 8, &SHORT, 0)], 2));
    all
}

#[both(16, 0)]
fn multishot_timeouts(mut ring: Ring) -> impl Answer {
    let mut all = ring.collect_from(&[timeout(1, &SHORT, 3, IORING_TIMEOUT_MULTISHOT)], 3);
    let endless = timeout(2, &SHORT, 0, IORING_TIMEOUT_MULTISHOT);
    let mut some = ring.collect_from(&[endless], 3);
    some.truncate(3);
    all.extend(some);
    let removed = ring.collect_from(&[remove(3, 2)], 2);
    all.extend(removed.into_iter().filter(|cqe| cqe.res != -libc::ETIME));
    let long = timeout(4, &LONG, 2, IORING_TIMEOUT_MULTISHOT);
    let now = clock(libc::CLOCK_MONOTONIC);
    all.extend(ring.collect_from(&[long, update(5, 4, &now, IORING_TIMEOUT_ABS)], 2));
    // From now on it has no last round.
    let mut some = ring.collect_from(&[update(6, 4, &SHORT, 0)], 4);
    some.truncate(4);
    all.extend(some);
    all
}

#[both(16, 0)]
fn a_cancelled_multishot_timeout_fails_its_links(mut ring: Ring) -> impl Answer {
    let flags = IORING_TIMEOUT_MULTISHOT | IORING_TIMEOUT_ETIME_SUCCESS;
    ring.submit(&[with(timeout(1, &SHORT, 0, flags), LINK), nop(2, 0)]);
    let first = ring.wait();
    ring.submit(&[remove(3, 1)]);
    let ends = std::iter::repeat_with(|| ring.wait()).filter(|cqe| cqe.res != -libc::ETIME);
    (first, by_user_data(ends.take(3).collect()))
}

#[both(16, 0)]
fn link_timeouts(mut ring: Ring) -> impl Answer {
    // In time, not in time, and the rest of the chain.
    let mut all = ring.collect_from(&[nop(1, LINK), with(link_timeout(2, &LONG, 0), LINK), nop(3, 0)], 3);
    let slow = with(timeout(4, &LONG, 0, 0), LINK);
    all.extend(ring.collect_from(&[slow, with(link_timeout(5, &SHORT, 0), LINK), nop(6, 0)], 3));
    let hard = with(timeout(7, &LONG, 0, 0), HARDLINK);
    all.extend(ring.collect_from(&[hard, with(link_timeout(8, &SHORT, 0), LINK), nop(9, 0)], 3));
    let quick = with(timeout(10, &SHORT, 0, IORING_TIMEOUT_ETIME_SUCCESS), LINK);
    all.extend(ring.collect_from(&[quick, with(link_timeout(11, &LONG, 0), LINK), nop(12, 0)], 3));
    // A chain that fails before its turn.
    let failing = Sqe { op_flags: IORING_NOP_INJECT_RESULT, len: -5i32 as u32, ..nop(13, LINK) };
    all.extend(ring.collect_from(&[failing, nop(14, LINK), link_timeout(15, &LONG, 0)], 3));
    all
}

#[both(16, 0)]
fn link_timeouts_are_updated_but_not_removed(mut ring: Ring) -> impl Answer {
    let slow = with(timeout(1, &LONG, 0, 0), LINK);
    let sqes = [
        slow,
        link_timeout(2, &LONG, 0),
        remove(3, 2),
        update(4, 2, &LONG, 0),
        update(5, 2, &SHORT, IORING_LINK_TIMEOUT_UPDATE),
    ];
    ring.collect_from(&sqes, 5)
}

#[both]
fn misplaced_link_timeouts(engine: Engine) -> impl Answer {
    let mut all = Vec::new();
    let slow = |user_data| with(timeout(user_data, &LONG, 0, 0), LINK);
    let double = [slow(1), with(link_timeout(2, &LONG, 0), LINK), link_timeout(3, &LONG, 0)];
    let bad = [slow(4), Sqe { len: 7, ..link_timeout(5, &LONG, 0) }];
    for sqes in [&double[..], &bad[..]] {
        let mut ring = Ring::new(engine, 16, IORING_SETUP_SUBMIT_ALL);
        all.extend(ring.collect_from(sqes, sqes.len()));
    }
    all
}

#[both(16, 0)]
fn link_timeouts_can_skip_their_completions(mut ring: Ring) -> impl Answer {
    let mut all = ring.collect_from(&[nop(1, LINK), with(link_timeout(2, &LONG, 0), SKIP), nop(3, 0)], 2);
    let slow = with(timeout(4, &LONG, 0, 0), LINK);
    all.extend(ring.collect_from(&[slow, with(link_timeout(5, &SHORT, 0), SKIP)], 1));
    all
}

#[both]
fn a_deadline_added_by_another_thread_wakes_the_sleeper(engine: Engine) {
    for _ in 0..20 {
        let mut ring = Ring::new(engine, 8, 0);
        ring.submit(&[timeout(1, &LONG, 0, 0)]);
        let fd = ring.fd;
        let waiter =
            std::thread::spawn(move || enter(engine, fd, 0, 1, IORING_ENTER_GETEVENTS, std::ptr::null(), 0));
        ring.submit(&[timeout(2, &SHORT, 0, 0)]);
        assert_eq!(waiter.join().unwrap(), 0);
        assert_eq!(ring.reap().map(|cqe| cqe.user_data), Some(2));
    }
}

/// The results of a wait for four that one timeout ends. None if the timeout had fired before the wait began, as it
/// may on a busy machine when the SQ thread arms it: such a one ends no wait, and the limit does.
fn wait_that_a_timeout_ends(engine: Engine, ring_flags: u32) -> Option<(i32, Vec<i32>)> {
    let mut ring = Ring::new(engine, 8, ring_flags);
    ring.push(timeout(1, &[0, 100_000_000], 0, 0));
    let limit: Time = [3, 0];
    let mut arg: io_uring_getevents_arg = zeroed();
    arg.ts = limit.as_ptr() as u64;
    // An SQ thread begins asleep.
    let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG | IORING_ENTER_SQ_WAKEUP;
    let start = Instant::now();
    let result = enter(engine, ring.fd, 1, 4, flags, (&raw const arg).cast(), size_of_val(&arg));
    let in_time = start.elapsed() < Duration::from_secs(3);
    in_time.then(|| (result, ring.reap_all().iter().map(|cqe| cqe.res).collect()))
}

#[both]
fn a_timeout_ends_the_wait_for_more(engine: Engine) -> impl Answer {
    let mut all = Vec::new();
    for flags in [0, DEFER, IORING_SETUP_SQPOLL] {
        all.extend(std::iter::repeat_with(|| wait_that_a_timeout_ends(engine, flags)).flatten().next());
    }
    all
}

#[both(8, 0)]
fn expiry_is_seen_without_entering(mut ring: Ring) -> impl Answer {
    ring.submit(&[timeout(1, &SHORT, 0, 0)]);
    loop {
        if let Some(cqe) = ring.reap() {
            return cqe;
        }
        std::thread::yield_now();
    }
}

#[both(8, DEFER)]
fn a_deferring_ring_shows_expiry_only_on_entering(mut ring: Ring) -> impl Answer {
    ring.submit(&[timeout(1, &SHORT, 0, 0)]);
    let until = Instant::now() + Duration::from_millis(20);
    while Instant::now() < until {
        assert_eq!(ring.reap(), None);
    }
    let mut seen = None;
    while seen.is_none() {
        ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
        seen = ring.reap();
    }
    seen
}

/// Its timer has gone off, whoever tells of it and when.
#[test]
fn a_timeout_whose_time_has_come_is_neither_removed_nor_renewed() {
    const NOW: Time = [0, 0];
    const SOON: Time = [0, 1_000_000];
    // The kernel's timer goes off by an interrupt, which may come after the update or the removal.
    let interrupted_first = |cqes: &Vec<Cqe>| cqes[1].res != 0 && cqes[3].res != 0;
    both_where(interrupted_first, |engine| {
        let mut ring = Ring::new(engine, 8, 0);
        let sqes = [timeout(1, &NOW, 0, 0), update(2, 1, &SOON, 0), timeout(3, &NOW, 0, 0), remove(4, 3)];
        by_user_data(ring.collect_from(&sqes, 4))
    });
}

#[both(8, 0)]
fn an_update_says_anew_from_when_on(mut ring: Ring) -> impl Answer {
    let now = || {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes a time of ours.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
        now.tv_sec
    };
    let mut all = Vec::new();
    let (passed, far): (Time, Time) = ([now() - 1, 0], [now() + 1000, 0]);
    for flags in [0, IORING_TIMEOUT_ABS] {
        // What has passed long ago is far away where it is counted from now on.
        let first = timeout(1, if flags == 0 { &LONG } else { &far }, 0, flags);
        all.extend(ring.collect_from(&[first, update(2, 1, &LONG, 0)], 1));
        all.extend(ring.collect_from(&[update(3, 1, &far, IORING_TIMEOUT_ABS)], 1));
        all.extend(ring.collect_from(&[nop(4, 0)], 1));
        all.extend(ring.collect_from(&[update(5, 1, &passed, IORING_TIMEOUT_ABS)], 2));
    }
    all
}

#[both(8, 0)]
fn all_that_are_due_at_one_moment_end(mut ring: Ring) -> impl Answer {
    loop {
        let mut due = clock(libc::CLOCK_MONOTONIC);
        due[1] += 20_000_000;
        let sqes: Vec<_> = (1..=4).map(|id| timeout(id, &due, 0, IORING_TIMEOUT_ABS)).collect();
        let mut all = ring.collect_from(&sqes, 0);
        // One of them is taken away from among the others.
        all.extend(ring.collect_from(&[remove(5, 2)], 5 - all.len()));
        all.sort_by_key(|cqe| cqe.user_data);
        // Unless this thread came so late that none was left.
        if all[4].res == 0 {
            return all;
        }
    }
}
