//! MSG_RING, registered ring descriptors, restrictions, EPOLL_CTL and EPOLL_WAIT: what rings do to
//! each other and to themselves.

use crate::common::prelude::*;

const NONE: *const std::ffi::c_void = std::ptr::null();

fn message(user_data: u64, target: i32, data: u64, value: u32) -> Sqe {
    Sqe { fd: target, off: data, len: value, ..sqe(IORING_OP_MSG_RING, user_data) }
}

fn counter() -> OwnedFd {
    eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)
}

/// The messages that a ring has received.
fn received(ring: &mut Ring) -> Vec<Cqe> {
    ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
    ring.reap_all()
}

#[both(8, IORING_SETUP_SUBMIT_ALL)]
fn messages(mut ring: Ring) -> impl Answer {
    let mut all = Vec::new();
    for flags in [0, DEFER] {
        let mut target = Ring::new(ring.engine, 4, flags);
        let good = message(1, target.fd, 77, 5);
        let pass = Sqe { op_flags: IORING_MSG_RING_FLAGS_PASS, file_index: 0x42, ..good };
        all.extend(ring.run(&[good, pass, Sqe { len: -3i32 as u32, ..good }]));
        all.extend(received(&mut target));
        // More than there is room for.
        for _ in 0..4 {
            all.extend(ring.run(&[good; 3]));
        }
        let mut late = 0;
        while late < 12 {
            let some = received(&mut target);
            late += some.len();
            all.extend(some);
        }
    }
    let own = ring.fd;
    all.extend(ring.run(&[message(9, own, 10, 11)]));
    all.extend(received(&mut ring));
    all
}

/// True if a thread of this process sleeps in a splice.
fn is_splicing() -> bool {
    // splice(2) on the machine's own processor, whichever is emulated: x86-64, aarch64.
    const SPLICE: [libc::c_long; 2] = [275, 76];
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let mut numbers = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
    numbers.any(|thread| sleeps_in(thread).is_some_and(|call| SPLICE.contains(&call)))
}

/// A ring that is closed when its message becomes due, to one that counts completions; while a thread works for it, or not.
#[both]
fn the_message_of_a_ring_that_ends_keeps_no_file(engine: Engine) -> impl Answer {
    [false, true].map(|is_busy| {
        let (mut ring, mut target) = (Ring::new(engine, 8, 0), Ring::new(engine, 8, 0));
        let (empty, other) = (pipe(), pipe());
        if is_busy {
            ring.submit(&[splice(1, &empty.0, &other.1, 1)]);
            until("a thread works", || engine == Engine::Kernel || is_splicing());
        }
        target.register_files(&[-1]);
        target.submit(&[Sqe { off: 5, ..timeout(1, &[100i64, 0]) }]);
        let (read, write) = pipe();
        ring.register_files(&[write.as_raw_fd()]);
        drop(write);
        let (waits, wakes) = pipe();
        let passes = Sqe { fd: target.fd, addr: 1, file_index: 1, ..sqe(IORING_OP_MSG_RING, 3) };
        ring.submit(&[Sqe { flags: LINK, ..poll(2, &waits, libc::POLLIN) }, passes]);
        write_to(&wakes, b"x");
        drop(ring);
        drop(target);
        shown(&read, 0, PATIENCE_MS)
    })
}

#[both(8, IORING_SETUP_IOPOLL)]
fn polled_rings_exchange_messages(mut ring: Ring) -> impl Answer {
    let mut target = Ring::new(ring.engine, 8, IORING_SETUP_IOPOLL);
    let mut all = ring.run(&[message(1, target.fd, 77, 5)]);
    all.extend(received(&mut target));
    // To itself, which the kernel leaves to a thread.
    ring.submit(&[message(2, ring.fd, 78, 6)]);
    let mut own = Vec::new();
    while own.len() < 2 {
        own.extend(received(&mut ring));
    }
    own.sort_by_key(|cqe| cqe.user_data);
    (all, own)
}

/// A ring that polls devices shows a message at once, also if it defers.
#[both(8, 0)]
fn a_message_to_a_polled_ring_is_not_deferred(mut ring: Ring) -> impl Answer {
    [IORING_SETUP_IOPOLL, IORING_SETUP_IOPOLL | DEFER, DEFER].map(|flags| {
        let mut target = Ring::new(ring.engine, 8, flags);
        let sent = ring.run(&[message(1, target.fd, 2, 3)]);
        let at_once = target.reap();
        target.enter_with(0, 0, IORING_ENTER_GETEVENTS);
        (sent, at_once, target.reap())
    })
}

#[both]
fn a_waiting_target_is_woken(engine: Engine) {
    for flags in [0, IORING_SETUP_SQPOLL] {
        let mut ring = Ring::new(engine, 8, 0);
        let mut target = Ring::new(engine, 8, flags);
        let fd = target.fd;
        let waiter =
            std::thread::spawn(move || enter(engine, fd, 0, 1, IORING_ENTER_GETEVENTS, std::ptr::null(), 0));
        ring.run(&[message(1, target.fd, 2, 3)]);
        assert_eq!(waiter.join().unwrap(), 0);
        assert_eq!(target.reap().map(|cqe| cqe.user_data), Some(2));
    }
}

#[both(32, IORING_SETUP_SUBMIT_ALL)]
fn bad_messages_are_refused(mut ring: Ring) -> impl Answer {
    let target = Ring::new(ring.engine, 4, 0);
    let disabled = Ring::new(ring.engine, 4, IORING_SETUP_R_DISABLED);
    let file = File::open("/dev/null").unwrap();
    let good = message(0, target.fd, 1, 0);
    let send_file = Sqe { addr: 1, ..good };
    let own = ring.fd;
    ring.run(&[
        message(0, -1, 1, 1),
        message(0, file.as_raw_fd(), 1, 1),
        message(0, disabled.fd, 1, 1),
        Sqe { buf_index: 1, ..good },
        Sqe { ioprio: 1, ..good },
        Sqe { addr: 2, ..good },
        Sqe { addr3: 1, ..good },
        Sqe { file_index: 1, ..good },
        Sqe { op_flags: IORING_MSG_RING_CQE_SKIP, ..good },
        Sqe { op_flags: 1 << 9, ..good },
        Sqe { len: 1, ..send_file },
        Sqe { fd: own, ..send_file },
        Sqe { fd: disabled.fd, ..send_file },
        send_file,
    ])
}

#[both(8, 0)]
fn files_are_passed_on(mut ring: Ring) -> impl Answer {
    let mut target = Ring::new(ring.engine, 8, 0);
    let event = counter();
    ring.register_files(&[event.as_raw_fd()]);
    target.register_files(&[-1; 3]);
    let send = Sqe { addr: 1, file_index: 2, ..message(1, target.fd, 33, 0) };
    let quiet = Sqe { op_flags: IORING_MSG_RING_CQE_SKIP, file_index: u32::MAX, ..send };
    let mut all = ring.one_by_one(&[send, quiet, Sqe { file_index: 9, ..send }, Sqe { addr3: 4, ..send }]);
    all.extend(received(&mut target));
    let nop = |user_data, slot| Sqe {
        fd: slot,
        op_flags: IORING_NOP_FILE | IORING_NOP_FIXED_FILE,
        ..sqe(IORING_OP_NOP, user_data)
    };
    all.extend(target.one_by_one(&[nop(1, 0), nop(2, 1), nop(3, 2)]));
    all
}

/// Each of so many rings sends to the next, all at the same time, as `body` says. Waits for them.
fn in_a_circle(engine: Engine, rings: usize, body: fn(&mut Ring, i32)) {
    let mut all: Vec<Ring> = (0..rings).map(|_| Ring::new(engine, 8, 0)).collect();
    let event = counter();
    for ring in &all {
        ring.register_files(&[event.as_raw_fd(), -1]);
    }
    let fds: Vec<i32> = all.iter().map(|ring| ring.fd).collect();
    let (done, ends) = std::sync::mpsc::channel();
    for (index, mut ring) in all.drain(..).enumerate() {
        let (done, target) = (done.clone(), fds[(index + 1) % rings]);
        std::thread::spawn(move || {
            (0..10_000).for_each(|_| body(&mut ring, target));
            // No ring ends before all have sent.
            done.send(ring).unwrap();
        });
    }
    let deadline = PATIENCE;
    let ended: Vec<Ring> = (0..rings).map_while(|_| ends.recv_timeout(deadline).ok()).collect();
    assert_eq!(ended.len(), rings, "{engine:?}: rings that send to each other come to an end");
}

/// Each waited for the other's lock with its own held, for ever.
#[both]
fn rings_that_pass_files_to_each_other_end(engine: Engine) {
    for rings in [2, 3] {
        in_a_circle(engine, rings, |ring, target| {
            let quiet = IORING_MSG_RING_CQE_SKIP;
            let send = Sqe { addr: 1, file_index: 2, op_flags: quiet, ..message(1, target, 0, 0) };
            assert_eq!(ring.run(&[send]).iter().map(|cqe| cqe.res).collect::<Vec<_>>(), [0]);
        });
    }
}

#[both]
fn rings_that_send_messages_to_each_other_end(engine: Engine) {
    for rings in [1, 2, 3] {
        in_a_circle(engine, rings, |ring, target| {
            ring.submit(&[message(1, target, 2, 0)]);
            let mut cqes = ring.reap_all();
            while !cqes.iter().any(|cqe| cqe.user_data == 1) {
                ring.enter(0, 1);
                cqes.extend(ring.reap_all());
            }
            assert!(cqes.iter().all(|cqe| cqe.res == 0));
        });
    }
}

/// A TIMEOUT of the target that waits for completions counts a message, even if somebody sleeps there who waits for more,
/// or nobody does, and what is linked behind it begins.
#[both]
fn messages_count_for_timeouts(engine: Engine) -> impl Answer {
    let time = [60i64, 0];
    let count = Sqe { off: 2, flags: 4, ..timeout(10, &time) };
    let mut all = Vec::new();
    for flags in [0, IORING_SETUP_SQPOLL, DEFER] {
        let mut ring = Ring::new(engine, 8, 0);
        let mut target = Ring::new(engine, 8, flags);
        target.push(count);
        target.push(sqe(IORING_OP_NOP, 11));
        let wakes = if flags == IORING_SETUP_SQPOLL { IORING_ENTER_SQ_WAKEUP } else { 0 };
        assert_eq!(target.enter_with(2, 0, wakes), 2);
        if flags == IORING_SETUP_SQPOLL {
            until("the SQ thread has taken all", || target.sq_taken() == 2);
        }
        all.extend(ring.run(&[message(1, target.fd, 20, 0), message(2, target.fd, 21, 0)]));
        let mut seen = Vec::new();
        until("two messages, the timeout and its link", || {
            // A look at the ring alone does: the kernel does not need to be asked.
            if flags == DEFER {
                target.enter_with(0, 0, IORING_ENTER_GETEVENTS);
            }
            seen.extend(target.reap_all());
            seen.len() == 4
        });
        all.extend(seen);
    }
    all
}

#[both]
fn a_message_that_a_timeout_counts_ends_a_wait(engine: Engine) {
    let time = [60i64, 0];
    let count = Sqe { off: 1, ..timeout(10, &time) };
    let mut ring = Ring::new(engine, 8, 0);
    let (sender, tell) = std::sync::mpsc::channel();
    let (done, ends) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut target = Ring::new(engine, 8, 0);
        target.submit(&[count]);
        sender.send((target.fd, thread_id())).unwrap();
        // The timeout ends a wait for more than there will be.
        let waited = target.enter(0, 4);
        done.send((waited, target.reap_all())).unwrap();
    });
    let (target, thread) = tell.recv().unwrap();
    waits_for_events(thread);
    assert_eq!(ring.run(&[message(1, target, 20, 0)])[0].res, 0);
    let (waited, cqes) = ends.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{engine:?}: the wait ends"));
    assert_eq!(waited, 0);
    assert_eq!(cqes.iter().map(|cqe| cqe.user_data).collect::<Vec<_>>(), [20, 10]);
}

/// A message to the ring itself counts among those of its submission.
#[both(8, 0)]
fn a_message_to_itself_counts_for_timeouts(mut ring: Ring) -> impl Answer {
    let time = [60i64, 0];
    let count = |user_data, off| Sqe { off, ..timeout(user_data, &time) };
    ring.submit(&[count(1, 1), message(2, ring.fd, 3, 0), count(4, 1)]);
    by_user_data(ring.collect(4))
}

#[both]
fn messages_without_a_ring(engine: Engine) -> impl Answer {
    let mut target = Ring::new(engine, 8, 0);
    let send =
        |sqe: Sqe, fd| register(engine, fd, IORING_REGISTER_SEND_MSG_RING as u32, (&raw const sqe).cast(), 1);
    let good = message(0, target.fd, 7, 8);
    let results = [
        send(good, -1),
        send(Sqe { addr: 1, ..good }, -1),
        send(Sqe { flags: 4, ..good }, -1),
        send(Sqe { fd: -1, ..good }, -1),
        send(good, target.fd),
        register(engine, -1, IORING_REGISTER_PROBE as u32, NONE, 0),
    ];
    (results, received(&mut target))
}

#[both]
fn registered_rings(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 8, 0);
    let update = |offset, data| io_uring_rsrc_update { offset, resv: 0, data };
    let ring_fd = ring.fd;
    let call = |opcode: io_uring_register_op, updates: &mut [io_uring_rsrc_update]| {
        register(engine, ring_fd, opcode as u32, updates.as_mut_ptr().cast(), updates.len() as u32)
    };
    let (on, off) = (IORING_REGISTER_RING_FDS, IORING_UNREGISTER_RING_FDS);
    let fd = ring.fd as u64;
    let mut first = [update(u32::MAX, fd), update(5, fd), update(u32::MAX, fd)];
    let mut results = vec![
        call(on, &mut []),
        call(on, &mut [update(16, fd)]),
        call(on, &mut [update(0, 0)]),
        call(on, &mut [update(0, 999_999)]),
        call(on, &mut [io_uring_rsrc_update { resv: 1, ..update(0, fd) }]),
        call(on, &mut first),
        call(on, &mut [update(5, fd)]),
        call(on, &mut [update(6, fd), update(5, fd)]),
        call(off, &mut [update(16, 0)]),
        call(off, &mut [update(1, 1)]),
        call(off, &mut [update(1, 0)]),
        call(off, &mut [update(1, 0)]),
    ];
    results.extend(first.iter().map(|update| update.offset as i32));
    ring.push(sqe(IORING_OP_NOP, 1));
    let registered = IORING_ENTER_REGISTERED_RING;
    let by = |index, submit| enter(engine, index, submit, 0, registered, NONE, 0);
    results.extend([by(5, 1), by(1, 0), by(16, 0), by(-1, 0)]);
    results.extend(ring.reap_all().iter().map(|cqe| cqe.res));
    let by_index = IORING_REGISTER_USE_REGISTERED_RING as u32;
    let event = counter();
    let event_fd = event.as_raw_fd();
    let opcode = IORING_REGISTER_EVENTFD as u32 | by_index;
    results.push(register(engine, 5, opcode, (&raw const event_fd).cast(), 1));
    results.push(ring.register(IORING_UNREGISTER_EVENTFD, NONE, 0));
    // Another thread has none of them.
    let other = std::thread::spawn(move || {
        let ring = Ring::new(engine, 1, 0);
        assert!(ring.fd >= 0);
        enter(engine, 5, 0, 0, registered, NONE, 0)
    });
    other.join().unwrap();
    results.push(call(off, &mut [update(0, 0), update(5, 0), update(6, 0)]));
    results
}

#[both(8, 0)]
fn a_registered_ring_outlives_its_descriptor(mut ring: Ring) -> impl Answer {
    let mut update = io_uring_rsrc_update { offset: 3, resv: 0, data: ring.fd as u64 };
    let registered = ring.register(IORING_REGISTER_RING_FDS, (&raw mut update).cast(), 1);
    ring.push(sqe(IORING_OP_NOP, 1));
    ring.close();
    let entered = enter(ring.engine, 3, 1, 0, IORING_ENTER_REGISTERED_RING, NONE, 0);
    let by_index = IORING_REGISTER_USE_REGISTERED_RING as u32;
    let seen = ring.reap_all();
    update.data = 0;
    let opcode = IORING_UNREGISTER_RING_FDS as u32 | by_index;
    let unregistered = register(ring.engine, 3, opcode, (&raw mut update).cast(), 1);
    (registered, entered, seen, unregistered)
}

#[both]
fn restrictions(engine: Engine) -> impl Answer {
    let restriction =
        |kind: io_uring_register_restriction_op, argument: u32| [kind as u32 | argument << 16, 0, 0, 0];
    use io_uring_register_restriction_op::*;
    let open = Ring::new(engine, 4, 0);
    let restrict = |ring: &Ring, list: &[[u32; 4]]| {
        ring.register(IORING_REGISTER_RESTRICTIONS, list.as_ptr().cast(), list.len() as u32)
    };
    let mut ring = Ring::new(engine, 8, IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL);
    let list = [
        restriction(IORING_RESTRICTION_SQE_OP, IORING_OP_NOP as u32),
        restriction(IORING_RESTRICTION_SQE_FLAGS_ALLOWED, 4),
        restriction(IORING_RESTRICTION_REGISTER_OP, IORING_REGISTER_EVENTFD as u32),
    ];
    let event = counter();
    let fd = event.as_raw_fd();
    let mut results = vec![
        restrict(&open, &list),
        ring.register(IORING_REGISTER_RESTRICTIONS, NONE, 0),
        restrict(&ring, &[[9, 0, 0, 0]]),
        restrict(&ring, &[restriction(IORING_RESTRICTION_SQE_OP, 200)]),
        restrict(&ring, &list),
        restrict(&ring, &list),
        ring.enter(0, 0),
        ring.register(IORING_REGISTER_EVENTFD, (&raw const fd).cast(), 1),
        ring.register(IORING_UNREGISTER_EVENTFD, NONE, 0),
        ring.enable(),
        ring.register(IORING_REGISTER_EVENTFD, (&raw const fd).cast(), 1),
        ring.register(IORING_UNREGISTER_EVENTFD, NONE, 0),
    ];
    let nop = sqe(IORING_OP_NOP, 1);
    let all =
        ring.run(&[nop, Sqe { flags: 4, ..nop }, Sqe { flags: 2, ..nop }, message(2, open.fd, 1, 1), nop]);
    results.extend(all.iter().map(|cqe| cqe.res));
    results
}

#[both(32, IORING_SETUP_SUBMIT_ALL)]
fn epoll_instances(mut ring: Ring) -> impl Answer {
    // SAFETY: a new descriptor, owned from here.
    let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    let event = counter();
    let wanted = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 99 };
    let mut got = [libc::epoll_event { events: 0, u64: 0 }; 4];
    let control = |operation: i32, fd: i32| Sqe {
        fd: epoll.as_raw_fd(),
        len: operation as u32,
        off: fd as u64,
        addr: (&raw const wanted) as u64,
        ..sqe(IORING_OP_EPOLL_CTL, 1)
    };
    let wait =
        Sqe { fd: epoll.as_raw_fd(), len: 4, addr: got.as_mut_ptr() as u64, ..sqe(IORING_OP_EPOLL_WAIT, 2) };
    let fd = event.as_raw_fd();
    let (add, delete) = (libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_DEL);
    let mut all = ring.run(&[
        control(delete, fd),
        control(add, fd),
        control(add, fd),
        control(add, -1),
        control(77, fd),
        Sqe { addr: 8, ..control(add, fd) },
        Sqe { buf_index: 1, ..control(add, fd) },
        Sqe { file_index: 1, ..control(add, fd) },
        wait,
        Sqe { off: 1, ..wait },
        Sqe { op_flags: 1, ..wait },
        Sqe { len: 0, ..wait },
        Sqe { fd, ..wait },
        Sqe { fd: -1, ..wait },
    ]);
    let first = got[0];
    let mut count = 0u64;
    // SAFETY: reads and writes eight bytes of ours.
    unsafe {
        libc::read(fd, (&raw mut count).cast(), 8);
        ring.submit(&[wait]);
        assert_eq!(ring.reap(), None);
        libc::write(fd, (&raw const count).cast(), 8);
    }
    ring.enter(0, 1);
    all.extend(ring.reap_all());
    ({ first.u64 }, all)
}

/// Messages that found the target busy were sent by whichever thread came first.
#[test]
fn messages_arrive_in_their_order() {
    const MESSAGES: u64 = 4000;
    both(|engine| {
        let (mut ring, mut target) = (Ring::new(engine, 8, 0), Ring::new(engine, 8, 0));
        let fd = target.fd;
        let mut next = 1;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for first in (1..=MESSAGES).step_by(8) {
                    let messages: [Sqe; 8] =
                        std::array::from_fn(|index| message(0, fd, first + index as u64, 0));
                    assert!(ring.run(&messages).iter().all(|cqe| cqe.res == 0));
                }
            });
            while next <= MESSAGES {
                // Keeps it busy.
                target.push(sqe(IORING_OP_NOP, 0));
                target.enter_with(1, 1, IORING_ENTER_GETEVENTS);
                for cqe in target.reap_all().into_iter().filter(|cqe| cqe.user_data != 0) {
                    assert_eq!(cqe.user_data, next);
                    next += 1;
                }
            }
        });
        next
    });
}

/// A ring whose only name is a registered descriptor ends with the thread that registered it, and what it reads is let go.
#[both]
fn a_registered_ring_ends_with_its_thread(engine: Engine) {
    let (reads, writes) = std::io::pipe().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut buffer = [0u8; 8];
            let mut ring = Ring::new(engine, 4, 0);
            let mut update = io_uring_rsrc_update { offset: u32::MAX, resv: 0, data: ring.fd as u64 };
            let registered = ring.register(IORING_REGISTER_RING_FDS, (&raw mut update).cast(), 1);
            assert_eq!(registered, 1);
            let fd = reads.as_raw_fd();
            ring.submit(&[Sqe { off: u64::MAX, ..reading(IORING_OP_READ, 1, &fd, &mut buffer) }]);
            drop(ring);
            closes(engine, reads.as_raw_fd());
            drop(reads);
            if engine == Engine::User {
                frontend::thread_ends();
            }
        });
    });
    until("the pipe has no reader", || shown(&writes, 0, 0) & libc::POLLERR != 0);
}
