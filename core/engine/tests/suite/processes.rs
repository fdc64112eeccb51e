//! Rings made before `fork` and used after it, by parent and child.

use std::ops::Range;

use super::lacking_calls::refuse;
use crate::common::prelude::*;

fn nop(user_data: u64) -> Sqe {
    sqe(IORING_OP_NOP, user_data)
}

fn read(file: &File, buffer: &mut [u8], user_data: u64) -> Sqe {
    reading(IORING_OP_READ, user_data, file, buffer)
}

fn submit(ring: &mut Ring, sqes: &[Sqe]) -> i32 {
    ring.follow();
    sqes.iter().for_each(|&sqe| ring.push(sqe));
    ring.enter(sqes.len() as u32, 0)
}

/// Waits until `count` completions are there, by their user data.
fn wait_for(ring: &mut Ring, count: usize) -> Vec<(u64, i32)> {
    let mut all = Vec::new();
    while all.len() < count {
        let entered = ring.enter(0, 1);
        assert!(entered >= 0, "{entered}");
        all.extend(ring.reap_all().iter().map(|cqe| (cqe.user_data, cqe.res)));
    }
    all.sort_unstable();
    all
}

/// Lets the other side of a pipe go on.
fn signal(file: &mut File) {
    file.write_all(&[1]).unwrap();
}

fn await_signal(file: &mut File) {
    file.read_exact(&mut [0]).unwrap();
}

/// Returns the user data of the next completions, in their order.
fn in_order(ring: &mut Ring, count: usize) -> Vec<u64> {
    let mut all = Vec::new();
    while all.len() < count {
        let entered = ring.enter(0, 1);
        assert!(entered >= 0, "{entered}");
        all.extend(ring.reap_all().iter().map(|cqe| cqe.user_data));
    }
    all
}

/// Results of a child's requests outlive it, in their order, though the queue had no room; and come in front of what is done then.
#[both(4, 0)]
fn what_found_no_room_outlives_its_process(mut ring: Ring) -> impl Answer {
    const ALL: u64 = 3000;
    let pid = child(|| (1..ALL).all(|user_data| submit(&mut ring, &[nop(user_data)]) == 1));
    let ended = ended(pid);
    let sent = submit(&mut ring, &[nop(ALL)]);
    let found = in_order(&mut ring, ALL as usize);
    let entered = ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
    (ended, sent, found.into_iter().eq(1..=ALL), entered, ring.overflowed())
}

/// Two processes fill a queue without room together; there is one order for both.
#[both(4, 0)]
fn what_found_no_room_has_one_order(mut ring: Ring) -> impl Answer {
    const ALL: u64 = 600;
    let [mut to_parent, mut to_child] = [pipe(), pipe()];
    let pid = child(|| {
        (1..ALL).step_by(2).all(|user_data| {
            await_signal(&mut to_child.0);
            let sent = submit(&mut ring, &[nop(user_data)]) == 1;
            signal(&mut to_parent.1);
            sent
        })
    });
    let sent = (0..ALL).step_by(2).all(|user_data| {
        let sent = submit(&mut ring, &[nop(user_data)]) == 1;
        signal(&mut to_child.1);
        await_signal(&mut to_parent.0);
        sent
    });
    let found = in_order(&mut ring, ALL as usize);
    (ended(pid), sent, found.into_iter().eq(0..ALL), ring.overflowed())
}

/// Nor is it lost with a third process, which looks at the ring when it has said already that it ends.
#[both(4, 0)]
fn what_found_no_room_outlives_who_reads_of_it(mut ring: Ring) -> impl Answer {
    let full = ring.params.cq_entries as u64;
    assert!((1..=full).all(|user_data| submit(&mut ring, &[nop(user_data)]) == 1));
    let [mut to_parent, mut to_child] = [pipe(), pipe()];
    let reader = child(|| {
        frontend::exits();
        signal(&mut to_parent.1);
        await_signal(&mut to_child.0);
        let entered = ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
        // SAFETY: ends the child, which has said so.
        unsafe { libc::_exit(entered) }
    });
    await_signal(&mut to_parent.0);
    let writer = child(|| submit(&mut ring, &[nop(full + 1)]) == 1);
    assert_eq!(ended(writer), 0);
    signal(&mut to_child.1);
    assert_eq!(ended(reader), 0);
    let flagged = ring.overflowed();
    (wait_for(&mut ring, full as usize + 1).len(), flagged, ring.overflowed())
}

#[both(8, 0)]
fn each_side_reaps_what_the_other_submitted(mut ring: Ring) -> impl Answer {
    assert_eq!(submit(&mut ring, &[nop(1)]), 1);
    let [mut to_parent, mut to_child] = [pipe(), pipe()];
    let pid = child(|| {
        await_signal(&mut to_child.0);
        let first = wait_for(&mut ring, 3) == [(1, 0), (2, 0), (3, 0)];
        let second = submit(&mut ring, &[nop(4), nop(5)]) == 2;
        signal(&mut to_parent.1);
        first && second
    });
    assert_eq!(submit(&mut ring, &[nop(2), nop(3)]), 2);
    signal(&mut to_child.1);
    await_signal(&mut to_parent.0);
    let cqes = wait_for(&mut ring, 2);
    let status = ended(pid);
    let after = submit(&mut ring, &[nop(6)]);
    (cqes, status, after, wait_for(&mut ring, 1))
}

#[both(8, 0)]
fn a_sleeping_process_is_woken_by_what_another_posts(mut ring: Ring) -> impl Answer {
    let pid = child(|| wait_for(&mut ring, 3) == [(1, 0), (2, 0), (3, 0)]);
    let mut own = [0; 3];
    for user_data in 1..=3u64 {
        asleep(pid);
        own[user_data as usize - 1] = submit(&mut ring, &[nop(user_data)]);
    }
    (own, ended(pid))
}

#[both(8, 0)]
fn what_is_in_flight_completes_while_only_others_wait(mut ring: Ring) -> impl Answer {
    let (source, mut sink) = pipe();
    let mut before = [0; 1];
    assert_eq!(submit(&mut ring, &[read(&source, &mut before, 1)]), 1);
    let pid = child(|| wait_for(&mut ring, 1) == [(1, 1)] && wait_for(&mut ring, 1) == [(2, 2)]);
    asleep(pid);
    sink.write_all(b"x").unwrap();
    // The child has reaped it: the memory is ours alone.
    while ring.word(ring.params.cq_off.head).load(Ordering::Acquire) < 1 {
        std::thread::yield_now();
    }
    let mut after = [0; 2];
    assert_eq!(submit(&mut ring, &[read(&source, &mut after, 2)]), 1);
    asleep(pid);
    sink.write_all(b"yz").unwrap();
    (ended(pid), before, after)
}

/// Where the program has closed the file, the request waits on a duplicate, which is the child's to close.
#[both(8, 0)]
fn a_child_lets_go_of_files_that_its_parent_waits_for(mut ring: Ring) -> impl Answer {
    let ((source, mut sink), mut buffer) = (pipe(), [0; 1]);
    assert_eq!(submit(&mut ring, &[read(&source, &mut buffer, 1)]), 1);
    close(ring.engine, source.into_raw_fd());
    let status = ended(child(|| true));
    sink.write_all(b"x").unwrap();
    (status, wait_for(&mut ring, 1), buffer)
}

#[both(8, 0)]
fn a_childs_requests_use_its_own_memory_and_files(mut ring: Ring) -> impl Answer {
    let (source, mut sink) = pipe();
    ring.register_files(&[source.as_raw_fd()]);
    let mut buffer = [0u8; 4];
    let pid = child(|| {
        let (own_source, mut own_sink) = pipe();
        own_sink.write_all(b"own").unwrap();
        let fixed = Sqe { fd: 0, flags: FIXED, ..read(&source, &mut buffer, 1) };
        let taken = submit(&mut ring, &[fixed]) == 1 && wait_for(&mut ring, 1) == [(1, 4)];
        let first = buffer == *b"past";
        let taken = taken && submit(&mut ring, &[read(&own_source, &mut buffer, 2)]) == 1;
        taken && first && wait_for(&mut ring, 1) == [(2, 3)] && buffer == *b"ownt"
    });
    sink.write_all(b"past").unwrap();
    (ended(pid), buffer)
}

#[both(16, 0)]
fn a_child_cancels_what_its_parent_submitted(mut ring: Ring) -> impl Answer {
    let (source, _sink) = pipe();
    let mut buffers = [[0u8; 1]; 5];
    for (index, buffer) in buffers.iter_mut().enumerate() {
        let flags = if index == 0 { ASYNC } else { 0 };
        let user_data = if index < 3 { index as u64 } else { 3 };
        assert_eq!(submit(&mut ring, &[Sqe { flags, ..read(&source, buffer, user_data) }]), 1);
    }
    let all = IORING_ASYNC_CANCEL_ALL;
    let pid = child(|| {
        let canceled = -libc::ECANCELED;
        submit(&mut ring, &[cancel(10, 1, 0)]) == 1
            && wait_for(&mut ring, 2) == [(1, canceled), (10, 0)]
            && submit(&mut ring, &[cancel(11, 3, all)]) == 1
            && wait_for(&mut ring, 3) == [(3, canceled), (3, canceled), (11, 2)]
            && submit(&mut ring, &[cancel(12, 3, 0)]) == 1
            && wait_for(&mut ring, 1) == [(12, -libc::ENOENT)]
            && submit(&mut ring, &[cancel(13, 0, IORING_ASYNC_CANCEL_ANY)]) == 1
            && wait_for(&mut ring, 3) == [(0, canceled), (2, canceled), (13, 2)]
    });
    ended(pid)
}

#[both(8, 0)]
fn a_child_that_ends_leaves_its_timeouts_and_links_behind(mut ring: Ring) -> impl Answer {
    let idle = Ring::new(ring.engine, 8, 0);
    let soon = [0, 20_000_000];
    let long = [1000, 0];
    let pid = child(|| {
        let poll = Sqe { fd: idle.fd, op_flags: 1, flags: LINK, ..sqe(IORING_OP_POLL_ADD, 1) };
        submit(&mut ring, &[poll, timeout(2, &long), timeout(3, &soon)]) == 3
    });
    (ended(pid), wait_for(&mut ring, 3))
}

#[both(16, 0)]
fn a_child_that_ends_leaves_timeouts_of_all_kinds_behind(mut ring: Ring) -> impl Answer {
    const CQE_SKIP: u8 = 1 << 6;
    let soon = [0, 20_000_000];
    let later = [0, 60_000_000];
    // However slow the child is, these are not over before it ends.
    let long = [1000, 0];
    let pid = child(|| {
        let flags = |op_flags, sqe| Sqe { op_flags, ..sqe };
        let sqes = [
            Sqe { flags: CQE_SKIP, ..flags(IORING_TIMEOUT_ETIME_SUCCESS, timeout(1, &soon)) },
            Sqe { flags: CQE_SKIP, ..timeout(2, &soon) },
            Sqe { off: 1000, ..timeout(3, &long) },
            Sqe { off: 2, ..flags(IORING_TIMEOUT_MULTISHOT, timeout(4, &long)) },
            flags(IORING_TIMEOUT_BOOTTIME, timeout(5, &soon)),
            Sqe { flags: LINK, ..timeout(6, &long) },
            nop(7),
            timeout(8, &later),
        ];
        submit(&mut ring, &sqes) == sqes.len() as i32
    });
    let (status, mut all) = (ended(pid), Vec::new());
    while !all.iter().any(|&(user_data, _)| user_data == 8) {
        all.extend(wait_for(&mut ring, 1));
    }
    all.sort();
    let (others, simple): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|&(user_data, _)| [3, 4, 6, 7].contains(&user_data));
    if ring.engine == Engine::User {
        // Those that count, come again or are linked end with their process here.
        assert_eq!(others, [3, 4, 6, 7].map(|user_data| (user_data, -libc::ECANCELED)));
    }
    (status, simple)
}

#[both(8, 0)]
fn a_child_that_executes_another_program_leaves_nothing_in_flight(mut ring: Ring) -> impl Answer {
    let long = [1000, 0];
    let (source, sink) = pipe();
    let mut buffer = [0; 1];
    let own = read(&source, &mut [0; 1], 9);
    assert_eq!(submit(&mut ring, &[own]), 1);
    let pid = child(|| {
        let first = Sqe { flags: LINK, ..timeout(1, &long) };
        assert_eq!(submit(&mut ring, &[first, nop(2), read(&source, &mut buffer, 3)]), 3);
        if ring.engine == Engine::User {
            frontend::executes();
        }
        let arguments = [c"true".as_ptr(), std::ptr::null()];
        // SAFETY: replaces the child.
        unsafe { libc::execv(c"/bin/true".as_ptr(), arguments.as_ptr()) };
        false
    });
    let status = ended(pid);
    let ended = wait_for(&mut ring, 3);
    // The parent's own goes on.
    drop(sink);
    (status, ended, wait_for(&mut ring, 1))
}

#[both]
fn a_single_issuer_is_a_thread_of_one_process(engine: Engine) -> impl Answer {
    let status = |ring: &mut Ring, enables: bool| {
        let pid = child(|| {
            if enables {
                return ring.enable() == 0 && submit(ring, &[nop(1)]) == 1 && wait_for(ring, 1) == [(1, 0)];
            }
            submit(ring, &[nop(1)]) == -libc::EEXIST
        });
        ended(pid)
    };
    let mut plain = Ring::new(engine, 8, IORING_SETUP_SINGLE_ISSUER);
    assert_eq!(submit(&mut plain, &[nop(1)]), 1);
    let mut defers = Ring::new(engine, 8, DEFER);
    let disabled = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_R_DISABLED;
    let mut by_child = Ring::new(engine, 8, disabled);
    let mut by_parent = Ring::new(engine, 8, disabled);
    let enabled = by_parent.enable();
    let statuses = [
        status(&mut plain, false),
        status(&mut defers, false),
        status(&mut by_child, true),
        status(&mut by_parent, false),
    ];
    (statuses, enabled, submit(&mut by_child, &[nop(2)]))
}

#[both]
fn a_child_uses_its_parents_sq_thread(engine: Engine) -> impl Answer {
    // Asleep at once, so that it has to be woken.
    let mut params = params(IORING_SETUP_SQPOLL);
    params.sq_thread_idle = 1;
    let mut ring = Ring::with_params(engine, 8, params).expect("a ring");
    let pid = child(|| {
        (1..4).all(|user_data| {
            while ring.word(ring.params.sq_off.flags).load(Ordering::SeqCst) & IORING_SQ_NEED_WAKEUP == 0 {
                std::thread::yield_now();
            }
            ring.follow();
            ring.push(nop(user_data));
            ring.enter_with(1, 1, IORING_ENTER_SQ_WAKEUP | IORING_ENTER_GETEVENTS) == 1
                && wait_for(&mut ring, 1) == [(user_data, 0)]
        })
    });
    ended(pid)
}

#[both(8, 0)]
fn what_finds_the_ring_full_comes_when_the_other_side_makes_room(mut ring: Ring) -> impl Answer {
    for batch in 0..4u64 {
        let sqes: Vec<Sqe> = (0..8).map(|index| nop(batch * 8 + index)).collect();
        assert_eq!(submit(&mut ring, &sqes), 8);
    }
    assert!(ring.overflowed());
    let pid = child(|| wait_for(&mut ring, 32).iter().map(|cqe| cqe.0).eq(0..32) && !ring.overflowed());
    (ended(pid), ring.overflowed())
}

/// Two processes, one lock that the program keeps: everything arrives once.
#[both(8, 0)]
fn two_processes_take_turns(mut ring: Ring) -> impl Answer {
    const ROUNDS: u64 = 2000;
    let [mut to_parent, mut to_child] = [pipe(), pipe()];
    let pid = child(|| {
        (0..ROUNDS).all(|round| {
            await_signal(&mut to_child.0);
            let got = wait_for(&mut ring, 1) == [(round, 0)];
            let sent = submit(&mut ring, &[nop(ROUNDS + round)]) == 1;
            signal(&mut to_parent.1);
            got && sent
        })
    });
    let good = (0..ROUNDS).all(|round| {
        let sent = submit(&mut ring, &[nop(round)]) == 1;
        signal(&mut to_child.1);
        await_signal(&mut to_parent.0);
        sent && wait_for(&mut ring, 1) == [(ROUNDS + round, 0)]
    });
    (good, ended(pid))
}

/// How a child has ended, if it does in time; it is killed otherwise.
fn ended_within(pid: libc::pid_t, time: Duration) -> Option<i32> {
    let deadline = Instant::now() + time;
    let has_ended = || {
        let mut about: libc::siginfo_t = zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: looks at a child of ours, which is waited for later.
        unsafe { libc::waitid(libc::P_PID, pid as u32, &mut about, options) == 0 && about.si_pid() == pid }
    };
    while !has_ended() {
        if Instant::now() > deadline {
            // SAFETY: a child of ours.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            ended(pid);
            return None;
        }
        std::thread::yield_now();
    }
    Some(ended(pid))
}

/// From here on whoever writes to a file is killed: an eventfd is signalled so.
fn die_of_writing() {
    filter_calls(&mut [
        code(LOAD, 0, 0, 0),
        code(EQUAL, 0, 1, libc::SYS_write as u32),
        code(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        code(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]);
}

/// A process that posts a completion and is killed before it tells of it: who sleeps for it in another process finds it,
/// whether it drives the ring or sleeps beside a thread that does, and so does a process that watches an eventfd of its own.
#[test]
fn what_a_killed_process_told_nobody_is_found() {
    let engine = Engine::User;
    let mut ring = Ring::new(engine, 8, 0);
    let [mut to_parent, mut to_watcher] = [pipe(), pipe()];
    let waiter = child(|| wait_for(&mut ring, 2) == [(1, 0), (2, 0)]);
    asleep(waiter);
    let watcher = child(|| {
        let mut eventfd = File::from(eventfd(0, 0));
        ring.register_eventfd(&eventfd);
        let mut count = [0; 8];
        signal(&mut to_parent.1);
        eventfd.read_exact(&mut count).unwrap();
        signal(&mut to_parent.1);
        eventfd.read_exact(&mut count).unwrap();
        await_signal(&mut to_watcher.0);
        true
    });
    await_signal(&mut to_parent.0);
    let killed = child(|| {
        submit(&mut ring, &[nop(1)]);
        await_signal(&mut to_parent.0);
        asleep(waiter);
        asleep(watcher);
        die_of_writing();
        submit(&mut ring, &[nop(2)]);
        true
    });
    assert_eq!(ended(killed), -libc::SIGSYS);
    let done = |pid| ended_within(pid, PATIENCE);
    assert_eq!(done(waiter), Some(0), "who waits sleeps on");
    signal(&mut to_watcher.1);
    assert_eq!(done(watcher), Some(0), "who watches sleeps on");
}

/// The end of a request, whose process lets go of the ring, is told to those who watch from outside.
#[by(ours(8, 0))]
fn the_end_of_a_childs_request_is_told(mut ring: Ring) {
    let (quiet, _writer) = pipe();
    let event = eventfd(0, 0);
    ring.register_eventfd(&event);
    let pid = child(|| {
        let submitted = submit(&mut ring, &[poll(1, &quiet, libc::POLLIN)]);
        ring.close();
        submitted == 1
    });
    let told = shown(&event, libc::POLLIN, PATIENCE_MS);
    ring.follow();
    assert_eq!((told, ended(pid)), (libc::POLLIN, 0));
    assert_eq!(results(&ring.reap_all()), [(1, -libc::ECANCELED)]);
}

/// Whatever a process was at when it was killed, the others go on.
#[both(8, 0)]
fn a_killed_process_wedges_nobody(mut ring: Ring) -> impl Answer {
    let mut killed = 0;
    for round in 0..30u32 {
        let (mut started, mut start) = pipe();
        let pid = child(|| {
            signal(&mut start);
            loop {
                submit(&mut ring, &[nop(1)]);
                ring.reap_all();
            }
        });
        await_signal(&mut started);
        for _ in 0..round * 1000 {
            std::hint::spin_loop();
        }
        // SAFETY: a child of ours.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        killed += i32::from(ended(pid) == -libc::SIGKILL);
        ring.follow();
        // What it left behind is whatever it was.
        ring.enter(8, 0);
        ring.reap_all();
        assert_eq!(submit(&mut ring, &[nop(2)]), 1);
        assert_eq!(wait_for(&mut ring, 1), [(2, 0)]);
    }
    killed
}

#[both]
fn the_parents_end_does_not_harm_the_child(engine: Engine) -> impl Answer {
    let (mut result, mut tell) = pipe();
    let pid = child(|| {
        let mut ring = Ring::new(engine, 8, 0);
        let (mut wait, hold) = pipe();
        child(|| {
            drop(hold);
            // Ends when the parent has.
            let mut rest = Vec::new();
            wait.read_to_end(&mut rest).unwrap();
            let good = submit(&mut ring, &[nop(1)]) == 1 && wait_for(&mut ring, 1) == [(1, 0)];
            tell.write_all(&[u8::from(good)]).unwrap();
            good
        });
        std::mem::forget(ring);
        true
    });
    let mut good = [0];
    result.read_exact(&mut good).unwrap();
    (ended(pid), good)
}

#[both]
fn a_thread_that_sleeps_when_its_process_forks_is_woken_by_the_child(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 8, 0);
    let fd = ring.fd;
    let told = std::sync::mpsc::channel();
    let waiter = std::thread::spawn(move || {
        told.0.send(thread_id()).unwrap();
        enter(engine, fd, 0, 1, IORING_ENTER_GETEVENTS, std::ptr::null(), 0)
    });
    asleep(told.1.recv().unwrap());
    let pid = child(|| submit(&mut ring, &[nop(1)]) == 1);
    (ended(pid), waiter.join().unwrap(), ring.reap_all().len())
}

#[both]
fn eventfds_tell_of_what_another_process_posts(engine: Engine) -> impl Answer {
    let mut counts = Vec::new();
    for before in [true, false] {
        let mut ring = Ring::new(engine, 8, 0);
        let eventfd = eventfd(0, libc::EFD_CLOEXEC).into_raw_fd();
        let fd = ring.fd;
        let watch = || {
            let opcode = IORING_REGISTER_EVENTFD as u32;
            assert_eq!(register(engine, fd, opcode, std::ptr::from_ref(&eventfd).cast(), 1), 0);
        };
        if before {
            watch();
        }
        let [mut to_child, mut to_parent] = [pipe(), pipe()];
        let pid = child(|| {
            await_signal(&mut to_child.0);
            let good = submit(&mut ring, &[nop(1)]) == 1;
            signal(&mut to_parent.1);
            good
        });
        if !before {
            watch();
        }
        signal(&mut to_child.1);
        let mut file = File::from(owned(eventfd));
        let mut count = [0; 8];
        file.read_exact(&mut count).unwrap();
        counts.push(u64::from_ne_bytes(count));
        await_signal(&mut to_parent.0);
        assert_eq!(ended(pid), 0);
    }
    counts
}

#[both(8, DEFER)]
fn a_message_reaches_a_ring_that_only_the_parent_may_drive(mut ring: Ring) -> impl Answer {
    let pid = child(|| {
        let mut own = Ring::new(ring.engine, 8, 0);
        let message = Sqe { fd: ring.fd, len: 7, off: 42, ..sqe(IORING_OP_MSG_RING, 1) };
        submit(&mut own, &[message]) == 1 && wait_for(&mut own, 1) == [(1, 0)]
    });
    let cqes = wait_for(&mut ring, 1);
    (cqes, ended(pid))
}

/// Sends messages with these numbers by a ring of the calling process to `target`, so many at a time; returns how many are taken before one
/// is refused, and its result.
fn send_messages(target: &Ring, numbers: Range<u64>, at_once: u32) -> (u64, Option<i32>) {
    let mut own = Ring::new(target.engine, at_once, 0);
    let mut taken = 0;
    for first in numbers.clone().step_by(at_once as usize) {
        let batch: Vec<u64> = (first..numbers.end).take(at_once as usize).collect();
        let message = |&off: &u64| Sqe { fd: target.fd, off, ..sqe(IORING_OP_MSG_RING, off) };
        let sqes: Vec<Sqe> = batch.iter().map(message).collect();
        own.submit(&sqes);
        let mut results = own.collect(sqes.len());
        results.sort_unstable_by_key(|cqe| cqe.user_data);
        let refused = results.iter().position(|cqe| cqe.res != 0);
        taken += refused.unwrap_or(sqes.len()) as u64;
        if let Some(refused) = refused {
            return (taken, Some(results[refused].res));
        }
    }
    (taken, None)
}

/// The messages of a child arrive in their order, though their sender ends before anybody fetches them.
#[both(8, DEFER)]
fn messages_to_a_parent_outlive_the_child(mut ring: Ring) -> impl Answer {
    const ALL: u64 = 3000;
    let pid = child(|| send_messages(&ring, 0..ALL, 8) == (ALL, None));
    let ended = ended(pid);
    (ended, in_order(&mut ring, ALL as usize).into_iter().eq(0..ALL))
}

/// Messages arrive in their order while some are sent and others fetched, too; the sender has one thread.
#[both(8, DEFER)]
fn messages_to_a_parent_stay_in_order(mut ring: Ring) -> impl Answer {
    const BEFORE: u64 = 2500;
    const ALL: u64 = 12000;
    let mut to_parent = pipe();
    let pid = child(|| {
        let first = send_messages(&ring, 0..BEFORE, 64);
        signal(&mut to_parent.1);
        let rest = send_messages(&ring, BEFORE..ALL, 64);
        let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
        (first, rest) == ((BEFORE, None), (ALL - BEFORE, None)) && threads == 1
    });
    await_signal(&mut to_parent.0);
    let arrived = in_order(&mut ring, ALL as usize);
    (arrived.into_iter().eq(0..ALL), ended(pid), ring.reap().is_none())
}

/// Messages of several processes, and of rings of the receiver's own process, have one order. So they have on a ring whose thread does not
/// have to fetch.
#[both]
fn messages_of_several_processes_have_one_order(engine: Engine) -> impl Answer {
    [0, DEFER].map(|flags| {
        let mut ring = Ring::new(engine, 16, flags);
        let mut own = Ring::new(engine, 8, 0);
        let mut send = |off| {
            let message = Sqe { fd: ring.fd, off, ..sqe(IORING_OP_MSG_RING, off) };
            results(&own.run(&[message])) == [(off, 0)]
        };
        let mut is_sent = [send(0), false, false, false, false];
        is_sent[1] = ended(child(|| send_messages(&ring, 1..3, 2) == (2, None))) == 0;
        is_sent[2] = send(3);
        is_sent[3] = ended(child(|| send_messages(&ring, 4..6, 2) == (2, None))) == 0;
        is_sent[4] = send(6);
        (is_sent, in_order(&mut ring, 7))
    })
}

/// No message is lost for which there is no room: its sender learns of that.
#[test]
fn messages_to_a_parent_that_does_not_fetch_are_refused_at_last() {
    // A ring that does not defer has its CQ, too.
    for (flags, room) in [(DEFER, 1 << 16), (0, (1 << 16) + 16)] {
        let mut ring = Ring::new(Engine::User, 8, flags);
        let pid = child(|| send_messages(&ring, 0..room + 5, 64) == (room, Some(-libc::EOVERFLOW)));
        assert_eq!(ended(pid), 0);
        assert!(in_order(&mut ring, room as usize).into_iter().eq(0..room) && ring.reap().is_none());
        // There is room again.
        let pid = child(|| send_messages(&ring, 0..9, 8) == (9, None));
        assert_eq!((ended(pid), in_order(&mut ring, 9)), (0, (0..9).collect()));
    }
}

/// Whatever waits when the ring is forked is in front of what the child does.
#[both(8, 0)]
fn any_number_may_wait_at_a_fork(mut ring: Ring) -> impl Answer {
    const BEFORE: u64 = (1 << 16) + 800;
    let sent = (0..BEFORE).step_by(8).all(|first| {
        let sqes: Vec<Sqe> = (first..first + 8).map(nop).collect();
        submit(&mut ring, &sqes) == 8
    });
    let pid = child(|| (BEFORE..BEFORE + 3).all(|user_data| submit(&mut ring, &[nop(user_data)]) == 1));
    let ended = ended(pid);
    (sent, ended, in_order(&mut ring, BEFORE as usize + 3).into_iter().eq(0..BEFORE + 3), ring.overflowed())
}

/// Where there is no memory for many messages, the processes share room for a few.
#[cfg(not(anyring_sanitizer))]
#[both]
fn messages_arrive_where_little_memory_can_be_shared(engine: Engine) -> impl Answer {
    let pid = child(|| {
        let mut senders = Ring::new(engine, 8, 0);
        // The processes know of each other from here on, which takes memory files, too.
        let first = ended(child(|| true));
        let mut ring = Ring::new(engine, 8, DEFER);
        refuse(libc::SYS_memfd_create, None, libc::ENOSYS);
        let pid = child(|| {
            let message = |off| Sqe { fd: ring.fd, off, ..sqe(IORING_OP_MSG_RING, off) };
            results(&senders.run(&[message(1), message(2)])) == [(1, 0), (2, 0)]
        });
        first == 0 && ended(pid) == 0 && in_order(&mut ring, 2) == [1, 2]
    });
    ended(pid)
}

/// An epoll instance that a ring is put into after the `fork`, and an eventfd that is registered then, hear of each message, the last as well.
#[both(8, DEFER)]
fn observers_from_after_a_fork_hear_of_messages(mut ring: Ring) -> impl Answer {
    const ALL: u64 = 300;
    const FETCHED: u64 = 7;
    let engine = ring.engine;
    let [mut to_child, mut to_parent] = [pipe(), pipe()];
    let pid = child(|| {
        (0..ALL).all(|number| {
            await_signal(&mut to_child.0);
            let sent = send_messages(&ring, number..number + 1, 1) == (1, None);
            signal(&mut to_parent.1);
            sent
        })
    });
    // SAFETY: a new descriptor.
    let set = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
    let event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
    let add = Sqe {
        fd: set.as_raw_fd(),
        len: libc::EPOLL_CTL_ADD as u32,
        off: ring.fd as u64,
        addr: (&raw const event).addr() as u64,
        ..sqe(IORING_OP_EPOLL_CTL, 1)
    };
    let added = results(&Ring::new(engine, 4, 0).run(&[add]));
    let eventfd = eventfd(0, libc::EFD_CLOEXEC);
    let number = eventfd.as_raw_fd();
    assert_eq!(ring.register(IORING_REGISTER_EVENTFD, (&raw const number).cast(), 1), 0);
    let mut arrived = Vec::new();
    for number in 0..ALL {
        signal(&mut to_child.1);
        if number % FETCHED == 0 {
            // The message is waited for by its event alone. In the kernel, no message wakes an epoll instance.
            if engine == Engine::User {
                frontend::before_epoll_wait();
                let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
                // SAFETY: room for two.
                let count = unsafe { libc::epoll_wait(set.as_raw_fd(), events.as_mut_ptr(), 2, 20_000) };
                assert_eq!(count, 1, "in time");
            }
            let mut poll = libc::pollfd { fd: eventfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry.
            assert_eq!(unsafe { libc::poll(&mut poll, 1, 20_000) }, 1, "in time");
        }
        await_signal(&mut to_parent.0);
        if number % FETCHED == FETCHED - 1 {
            ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
            arrived.extend(ring.reap_all().iter().map(|cqe| cqe.user_data));
            // SAFETY: writes eight bytes of ours.
            assert_eq!(unsafe { libc::read(eventfd.as_raw_fd(), [0_u64].as_mut_ptr().cast(), 8) }, 8);
        }
    }
    ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
    arrived.extend(ring.reap_all().iter().map(|cqe| cqe.user_data));
    (added, ended(pid), arrived.into_iter().eq(0..ALL))
}

#[both(8, 0)]
fn a_duplicate_that_nobody_told_of_is_the_ring(ring: Ring) -> impl Answer {
    // SAFETY: a new descriptor.
    let own = unsafe { libc::syscall(libc::SYS_dup, ring.fd) } as i32;
    let entered = enter(ring.engine, own, 0, 0, IORING_ENTER_GETEVENTS, std::ptr::null(), 0);
    close(ring.engine, own);
    (entered, ring.enter(0, 0))
}

#[both(8, 0)]
fn a_duplicate_is_the_ring_when_another_ring_has_its_first_number(mut ring: Ring) -> impl Answer {
    // SAFETY: a new descriptor.
    let second = unsafe { libc::syscall(libc::SYS_dup, ring.fd) } as i32;
    let first = std::mem::replace(&mut ring.fd, second);
    close_number(first);
    let mut other = Ring::new(ring.engine, 8, 0);
    let answers = [&mut ring, &mut other].map(|ring| results(&ring.run(&[sqe(IORING_OP_NOP, 1)])));
    (answers, other.fd == first)
}

#[both(8, 0)]
fn a_duplicate_is_the_ring_though_another_ring_had_its_number(mut ring: Ring) -> impl Answer {
    let gone = Ring::new(ring.engine, 8, 0);
    let (number, first) = (gone.fd, ring.fd);
    close_number(number);
    // SAFETY: a new descriptor.
    ring.fd = unsafe { libc::syscall(libc::SYS_dup, ring.fd) } as i32;
    let took_over = ring.fd == number;
    let answer = results(&ring.run(&[sqe(IORING_OP_NOP, 1)]));
    close(ring.engine, ring.fd);
    ring.fd = first;
    std::mem::forget(gone);
    (answer, took_over)
}

/// The kernel does not let a ring's descriptor be sent; here it arrives, and says that it is no ring.
#[test]
fn a_ring_from_a_stranger_is_none() {
    let (sender, receiver) = UnixStream::pair().unwrap();
    let pid = child(|| {
        let ring = Ring::new(Engine::User, 8, 0);
        send_descriptor(sender.as_raw_fd(), ring.fd);
        true
    });
    let received = receive_descriptor(receiver.as_raw_fd());
    let answer = enter(Engine::User, received, 0, 0, 0, std::ptr::null(), 0);
    let sized = register(Engine::User, received, 0, std::ptr::null(), 0);
    close_number(received);
    assert_eq!((answer, sized, ended(pid)), (-libc::EOPNOTSUPP, -libc::EOPNOTSUPP, 0));
}

fn send_descriptor(socket: i32, fd: i32) {
    with_control_message(|header, control| {
        // SAFETY: the buffer has room for one descriptor.
        unsafe {
            (*control).cmsg_level = libc::SOL_SOCKET;
            (*control).cmsg_type = libc::SCM_RIGHTS;
            (*control).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(control).cast::<i32>().write_unaligned(fd);
            assert_eq!(libc::sendmsg(socket, header, 0), 1);
        }
        0
    });
}

fn receive_descriptor(socket: i32) -> i32 {
    with_control_message(|header, _| {
        // SAFETY: reads what the kernel wrote, which is there.
        unsafe {
            assert_eq!(libc::recvmsg(socket, header, libc::MSG_CMSG_CLOEXEC), 1);
            let control = libc::CMSG_FIRSTHDR(header);
            assert!(!control.is_null());
            libc::CMSG_DATA(control).cast::<i32>().read_unaligned()
        }
    })
}

fn with_control_message(body: impl FnOnce(&mut libc::msghdr, *mut libc::cmsghdr) -> i32) -> i32 {
    let (byte, mut buffer) = ([0u8], [0u64; 8]);
    let vectors = [vector(&byte)];
    let mut header = message_of(&vectors);
    header.msg_control = buffer.as_mut_ptr().cast();
    // SAFETY: arithmetic.
    header.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as _;
    let control = buffer.as_mut_ptr().cast();
    body(&mut header, control)
}

/// Children come and go; in between the ring is its maker's alone again.
#[both(8, 0)]
fn a_ring_is_shared_again_after_a_time_alone(mut ring: Ring) -> impl Answer {
    (0..3u64)
        .map(|round| {
            let pid = child(|| wait_for(&mut ring, 1) == [(round, 0)]);
            asleep(pid);
            let submitted = submit(&mut ring, &[nop(round)]);
            let status = ended(pid);
            let alone = (0..300).filter(|_| ring.enter(0, 0) == 0).count();
            (submitted, status, alone)
        })
        .collect::<Vec<_>>()
}

/// A thread that submits and ends.
fn by_thread(ring: &mut Ring, body: impl FnOnce(&mut Ring) + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            body(ring);
            frontend::thread_ends();
        });
    });
}

#[both]
fn a_thread_that_ends_leaves_only_timeouts_behind(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 16, 0);
    let ((source, mut sink), mut buffers) = (pipe(), [[0u8; 1]; 2]);
    let idle = Ring::new(engine, 8, 0);
    let soon = [0, 20_000_000];
    let [first, second] = &mut buffers;
    let sqes = [
        read(&source, first, 1),
        Sqe { fd: source.as_raw_fd(), op_flags: 1, ..sqe(IORING_OP_POLL_ADD, 2) },
        Sqe { fd: idle.fd, op_flags: 1, ..sqe(IORING_OP_POLL_ADD, 3) },
        timeout(4, &soon),
        Sqe { flags: LINK, ..timeout(5, &soon) },
        nop(6),
    ];
    by_thread(&mut ring, |ring| assert_eq!(submit(ring, &sqes), 6));
    let own = submit(&mut ring, &[read(&source, second, 7)]);
    let ended = wait_for(&mut ring, 4);
    sink.write_all(b"x").unwrap();
    // What the ended thread wanted is not taken.
    (own, ended, wait_for(&mut ring, 3), buffers)
}

#[both]
fn the_place_of_a_single_issuer_that_ended_is_not_taken(engine: Engine) -> impl Answer {
    let flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_R_DISABLED;
    let mut ring = Ring::new(engine, 8, flags);
    by_thread(&mut ring, |ring| {
        assert_eq!(ring.enable(), 0);
    });
    let mut again = 0;
    // A thread that may well have the memory, and so the identity, of the other.
    by_thread(&mut ring, |ring| again = submit(ring, &[nop(1)]));
    (again, submit(&mut ring, &[nop(2)]))
}
