//! POLL_ADD and POLL_REMOVE.

use std::sync::Barrier;
use std::sync::atomic::AtomicBool;

use crate::common::prelude::*;
use anyring_engine::Host;

const COUNTER: i32 = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
const IN: u32 = libc::POLLIN as u32;
const OUT: u32 = libc::POLLOUT as u32;
const PRI: u32 = libc::POLLPRI as u32;

fn poll(user_data: u64, fd: &impl AsRawFd, events: u32, flags: u32) -> Sqe {
    Sqe { fd: fd.as_raw_fd(), op_flags: events, len: flags, ..sqe(IORING_OP_POLL_ADD, user_data) }
}

fn remove(user_data: u64, target: u64) -> Sqe {
    Sqe { addr: target, ..sqe(IORING_OP_POLL_REMOVE, user_data) }
}

/// The completions that are there now, without waiting.
fn peek(ring: &mut Ring) -> Vec<Cqe> {
    ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
    ring.reap_all()
}

#[both(8, 0)]
fn ready_descriptors_complete_at_once(mut ring: Ring) -> impl Answer {
    let (reader, mut writer) = pipe();
    writer.write_all(b"x").unwrap();
    let (mut near, far) = UnixStream::pair().unwrap();
    near.write_all(b"x").unwrap();
    drop(near);
    ring.run(&[
        poll(1, &reader, IN, 0),
        poll(2, &writer, OUT | IN, 0),
        poll(3, &far, IN, 0),
        poll(4, &far, PRI, 0),
        poll(5, &reader, IN | libc::EPOLLEXCLUSIVE as u32, 0),
    ])
}

#[both(8, 0)]
fn a_poll_waits(mut ring: Ring) -> impl Answer {
    let (reader, mut writer) = pipe();
    let mut all = ring.collect_from(&[poll(1, &reader, IN, 0), poll(2, &reader, IN, 0)], 0);
    all.extend(peek(&mut ring));
    writer.write_all(b"x").unwrap();
    all.extend(ring.collect_from(&[], 2));
    drop(writer);
    (&reader).read_exact(&mut [0]).unwrap();
    all.extend(ring.collect_from(&[poll(3, &reader, IN, 0)], 1));
    by_user_data(all)
}

#[both(8, 0)]
fn a_waiting_caller_is_woken(mut ring: Ring) -> impl Answer {
    let (reader, mut writer) = pipe();
    ring.push(poll(1, &reader, IN, 0));
    let writing = std::thread::spawn(move || {
        writer.write_all(b"x").unwrap();
        writer
    });
    assert_eq!(ring.enter(1, 1), 1);
    drop(writing.join().unwrap());
    ring.reap_all()
}

#[both(8, IORING_SETUP_SUBMIT_ALL)]
fn files_that_cannot_be_polled(mut ring: Ring) -> impl Answer {
    let file = File::open("/proc/self/exe").unwrap();
    let multi = IORING_POLL_ADD_MULTI;
    ring.run(&[
        poll(1, &file, IN, 0),
        poll(2, &file, IN | OUT, multi),
        poll(3, &file, PRI, 0),
        poll(4, &file, PRI, multi),
        poll(5, &-1, IN, 0),
        poll(6, &999_999, IN, 0),
        poll(7, &-1, IN, multi),
    ])
}

#[both(32, IORING_SETUP_SUBMIT_ALL)]
fn bad_polls_are_refused(mut ring: Ring) -> impl Answer {
    let (reader, _writer) = pipe();
    let good = poll(0, &reader, IN, 0);
    ring.run(&[
        Sqe { buf_index: 1, ..good },
        Sqe { off: 1, ..good },
        Sqe { addr: 1, ..good },
        Sqe { ioprio: 1, ..good },
        Sqe { len: 1 << 9, ..good },
        Sqe { len: IORING_POLL_ADD_LEVEL, ..good },
        Sqe { len: IORING_POLL_ADD_LEVEL | IORING_POLL_ADD_MULTI, ..good },
        Sqe { len: IORING_POLL_UPDATE_EVENTS, ..good },
        Sqe { len: IORING_POLL_ADD_MULTI, flags: 1 << 6, ..good },
        Sqe { buf_index: 1, ..remove(0, 9) },
        Sqe { file_index: 1, ..remove(0, 9) },
        Sqe { len: 1 << 9, ..remove(0, 9) },
        Sqe { len: IORING_POLL_ADD_MULTI, ..remove(0, 9) },
        Sqe { off: 1, ..remove(0, 9) },
        Sqe { op_flags: IN, ..remove(0, 9) },
        remove(0, 9),
        Sqe { len: IORING_POLL_UPDATE_EVENTS, op_flags: IN, ..remove(0, 9) },
    ])
}

#[both(8, 0)]
fn multishot_polls_post_per_edge(mut ring: Ring) -> impl Answer {
    let (reader, mut writer) = pipe();
    let mut all = ring.collect_from(&[poll(1, &reader, IN, IORING_POLL_ADD_MULTI)], 0);
    for _ in 0..3 {
        writer.write_all(b"x").unwrap();
        all.extend(ring.collect_from(&[], 1));
        all.extend(peek(&mut ring));
    }
    // Not drained, no edge.
    all.extend(peek(&mut ring));
    drop(writer);
    all.extend(ring.collect_from(&[], 1));
    all.extend(ring.collect_from(&[remove(2, 1)], 2));
    all
}

#[both(8, 0)]
fn a_multishot_poll_on_a_ready_descriptor_posts_once(mut ring: Ring) -> impl Answer {
    let (reader, mut writer) = pipe();
    writer.write_all(b"x").unwrap();
    let multi = IORING_POLL_ADD_MULTI;
    let mut all = ring.collect_from(&[poll(1, &reader, IN, multi)], 1);
    all.extend(peek(&mut ring));
    all.extend(ring.collect_from(&[poll(2, &reader, IN, multi)], 1));
    all.extend(peek(&mut ring));
    all.extend(ring.collect_from(&[remove(3, 1), remove(4, 2)], 4));
    // A registration that was there before.
    all.extend(ring.collect_from(&[poll(5, &reader, IN, multi)], 1));
    std::thread::sleep(Duration::from_millis(20));
    all.extend(peek(&mut ring));
    all
}

#[both(1, 0)]
fn multishot_polls_end_where_the_ring_is_full(mut ring: Ring) -> impl Answer {
    let (reader, mut writer) = pipe();
    ring.collect_from(&[poll(1, &reader, IN, IORING_POLL_ADD_MULTI)], 0);
    for _ in 0..3 {
        writer.write_all(b"x").unwrap();
        ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
    }
    let mut all = ring.reap_all();
    all.extend(peek(&mut ring));
    all
}

#[both(8, 0)]
fn removing_and_updating(mut ring: Ring) -> impl Answer {
    let (reader, mut writer) = pipe();
    let (user_data, events) = (IORING_POLL_UPDATE_USER_DATA, IORING_POLL_UPDATE_EVENTS);
    let mut all = ring.collect_from(&[poll(1, &reader, IN, 0), remove(2, 1), remove(3, 1)], 3);
    let rename = Sqe { len: user_data, off: 5, ..remove(6, 4) };
    all.extend(ring.collect_from(&[poll(4, &reader, IN, 0), rename, remove(7, 4)], 2));
    let now_out = Sqe { len: events, op_flags: OUT, ..remove(9, 8) };
    all.extend(ring.collect_from(&[poll(8, &writer, PRI, 0), now_out], 2));
    let multi = poll(10, &reader, PRI, IORING_POLL_ADD_MULTI);
    let now_in = Sqe { len: events | IORING_POLL_ADD_MULTI, op_flags: IN, ..remove(11, 10) };
    all.extend(ring.collect_from(&[multi, now_in], 1));
    writer.write_all(b"x").unwrap();
    all.extend(ring.collect_from(&[], 2));
    by_user_data(all)
}

#[both(16, 0)]
fn polls_are_cancelled(mut ring: Ring) -> impl Answer {
    let (reader, _writer) = pipe();
    let (near, _far) = UnixStream::pair().unwrap();
    let cancel =
        |user_data, fd: i32, flags| Sqe { fd, op_flags: flags, ..sqe(IORING_OP_ASYNC_CANCEL, user_data) };
    let by_file = IORING_ASYNC_CANCEL_FD;
    let sqes = [
        poll(1, &reader, IN, 0),
        poll(2, &reader, IN, IORING_POLL_ADD_MULTI),
        poll(3, &near, IN, 0),
        cancel(4, reader.as_raw_fd(), by_file | IORING_ASYNC_CANCEL_ALL),
    ];
    let mut all = ring.collect_from(&sqes, 3);
    // A duplicate is the same file.
    let duplicate = near.try_clone().unwrap();
    all.extend(ring.collect_from(&[cancel(5, duplicate.as_raw_fd(), by_file)], 2));
    let sqes = [poll(6, &reader, IN, 0), poll(7, &near, IN, 0), cancel(8, -1, IORING_ASYNC_CANCEL_ANY)];
    all.extend(ring.collect_from(&sqes, 3));
    let poll_op = u32::from(IORING_OP_POLL_ADD as u8);
    let by_op = Sqe { len: poll_op, ..cancel(10, -1, IORING_ASYNC_CANCEL_OP) };
    all.extend(ring.collect_from(&[poll(9, &near, IN, 0), by_op], 2));
    by_user_data(all)
}

#[both(8, 0)]
fn a_poll_keeps_its_file_when_the_program_closes_it(mut ring: Ring) -> impl Answer {
    let (near, mut far) = UnixStream::pair().unwrap();
    ring.collect_from(&[poll(1, &near, IN, 0)], 0);
    let fd = near.as_raw_fd();
    frontend::closed(fd);
    drop(near);
    far.write_all(b"x").unwrap();
    ring.collect_from(&[], 1)
}

/// Of what the engine knows nothing it need not be told.
#[test]
fn the_end_of_a_descriptor_concerns_who_keeps_something_of_it() {
    let mut ring = Ring::new(Engine::User, 8, 0);
    let (near, _far) = UnixStream::pair().unwrap();
    let fd = near.as_raw_fd();
    frontend::closed(fd);
    assert!(!frontend::concerns_close(fd));
    ring.collect_from(&[poll(1, &near, IN, 0)], 0);
    assert!(frontend::concerns_close(fd) && frontend::concerns_close(ring.fd.as_raw_fd()));
}

#[both(8, 0)]
fn rings_can_be_polled(mut ring: Ring) -> impl Answer {
    let mut other = Ring::new(ring.engine, 8, 0);
    ring.collect_from(&[poll(1, &other.fd, IN, 0)], 0);
    let mut all = peek(&mut ring);
    other.run(&[sqe(IORING_OP_NOP, 9)]);
    all.extend(ring.collect_from(&[], 1));
    // Reaped meanwhile.
    ring.collect_from(&[poll(2, &other.fd, IN, 0)], 0);
    all.extend(peek(&mut ring));
    other.submit(&[sqe(IORING_OP_NOP, 9)]);
    all.extend(ring.collect_from(&[], 1));
    all
}

#[both(8, 0)]
fn a_ring_that_polls_itself_stops(mut ring: Ring) -> impl Answer {
    let fd = ring.fd;
    ring.collect_from(&[poll(1, &fd, IN, IORING_POLL_ADD_MULTI)], 0);
    let mut all = ring.collect_from(&[sqe(IORING_OP_NOP, 2)], 2);
    all.extend(peek(&mut ring));
    all
}

/// A cancellation by descriptor finds polls of rings, like those of any other file.
#[both(8, 0)]
fn a_poll_of_a_ring_is_cancelled_by_the_rings_descriptor(mut ring: Ring) -> impl Answer {
    let other = Ring::new(ring.engine, 4, 0);
    ring.submit(&[poll(1, &other.fd, IN, 0), poll(2, &ring.fd, libc::POLLPRI as u32, 0)]);
    let fds = [other.fd, ring.fd, other.fd];
    fds.map(|fd| {
        let by_descriptor = Sqe { fd, ..cancel(3, 0, IORING_ASYNC_CANCEL_FD) };
        let mut all = results(&ring.collect_from(&[by_descriptor], 1));
        all.extend(results(&peek(&mut ring)));
        all
    })
}

/// A ring that defers polls it, too, before its thread has fetched anything.
#[both]
fn a_poll_of_a_ring_outlives_that_ring(engine: Engine) -> impl Answer {
    [0, DEFER].map(|flags| {
        let mut polling = Ring::new(engine, 4, flags);
        let mut polled = Ring::new(engine, 4, 0);
        polling.submit(&[poll(1, &polled.fd, IN, 0)]);
        polled.close();
        results(&polling.collect_from(&[cancel(2, 1, 0)], 2))
    })
}

/// The end of a poll of a ring, after its submission.
#[derive(Clone, Copy)]
enum Ends {
    Cancel,
    Remove,
    Close,
}

/// A poll of a ring that is readable already completes at its submission, whatever comes before the program fetches the completion; one of a
/// ring that is not readable can be cancelled and removed from then on.
#[both]
fn a_poll_of_a_ring_begins_at_its_submission(engine: Engine) -> impl Answer {
    let of = |flags, readable, own, told: bool, ends| {
        let mut ring = Ring::new(engine, 8, flags);
        let mut other = Ring::new(engine, 4, 0);
        let event = eventfd(0, COUNTER);
        if told {
            ring.register_eventfd(&event);
        }
        if readable {
            if own { &mut ring } else { &mut other }.submit(&[sqe(IORING_OP_NOP, 9)]);
        }
        let polled = if own { ring.fd } else { other.fd };
        ring.submit(&[poll(1, &polled, IN, 0)]);
        match ends {
            Ends::Cancel => ring.submit(&[cancel(2, 1, 0)]),
            Ends::Remove => ring.submit(&[remove(2, 1)]),
            Ends::Close => other.close(),
        }
        by_user_data(peek(&mut ring))
    };
    let mut all = Vec::new();
    for flags in [0, DEFER] {
        for ends in [Ends::Cancel, Ends::Remove, Ends::Close] {
            for told in [false, true] {
                all.extend([true, false].map(|readable| of(flags, readable, false, told, ends)));
            }
        }
        all.extend([Ends::Cancel, Ends::Remove].map(|ends| of(flags, true, true, false, ends)));
    }
    all
}

/// A poll of a ring is found by what comes behind it in its submission, unless it is over; and sees what is completed there.
#[both]
fn a_poll_of_a_ring_is_there_in_its_submission(engine: Engine) -> impl Answer {
    let seconds = |fd| {
        let update = |len, off, op_flags| Sqe { len, off, op_flags, ..remove(2, 1) };
        let (events, user_data) = (IORING_POLL_UPDATE_EVENTS, IORING_POLL_UPDATE_USER_DATA);
        [
            remove(2, 1),
            cancel(2, 1, 0),
            Sqe { fd, ..cancel(2, 0, IORING_ASYNC_CANCEL_FD) },
            update(user_data, 7, 0),
            update(events, 0, OUT),
            update(events | user_data, 7, PRI),
            sqe(IORING_OP_NOP, 2),
        ]
    };
    let of = |flags, readable, own, second: usize| {
        let mut ring = Ring::new(engine, 8, flags);
        let mut other = Ring::new(engine, 4, 0);
        if readable {
            other.submit(&[sqe(IORING_OP_NOP, 9)]);
        }
        let polled = if own { ring.fd } else { other.fd };
        ring.submit(&[poll(1, &polled, IN, 0), seconds(polled)[second]]);
        let mut all = results(&peek(&mut ring));
        other.submit(&[sqe(IORING_OP_NOP, 9)]);
        all.extend(results(&peek(&mut ring)));
        ring.submit(&[remove(3, 1), remove(4, 7)]);
        all.extend(results(&peek(&mut ring)));
        all
    };
    let rings = [(false, false), (true, false), (false, true)];
    [0, DEFER].map(|flags| {
        rings.map(|(readable, own)| [0, 1, 2, 3, 4, 5, 6].map(|second| of(flags, readable, own, second)))
    })
}

/// A cancellation by descriptor concerns polls of the file that has the number now, not of one that had it.
#[both(8, 0)]
fn a_poll_of_a_ring_is_not_cancelled_by_the_next_ring_of_the_number(mut ring: Ring) -> impl Answer {
    let mut first = Ring::new(ring.engine, 4, 0);
    let number = first.fd;
    ring.submit(&[poll(1, &number, IN, 0)]);
    first.close();
    let next = Ring::new(ring.engine, 4, 0);
    ring.submit(&[poll(2, &next.fd, IN, 0)]);
    let by_descriptor = Sqe { fd: number, ..cancel(3, 0, IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_ALL) };
    let mut all = results(&ring.collect_from(&[by_descriptor], 1));
    all.extend(results(&peek(&mut ring)));
    all.extend(results(&ring.collect_from(&[cancel(4, 1, 0)], 1)));
    all.extend(results(&peek(&mut ring)));
    (next.fd == number, all)
}

#[both(512, 0)]
fn many_polls_of_the_ring_itself(mut ring: Ring) -> impl Answer {
    let fd = ring.fd;
    for round in 0..8 {
        let sqes: Vec<_> = (0..512).map(|i| poll(round * 512 + i, &fd, IN, 0)).collect();
        ring.collect_from(&sqes, 0);
    }
    let mut all = ring.collect_from(&[sqe(IORING_OP_NOP, 1 << 20)], 1);
    all.truncate(1);
    all
}

#[both(8, 0)]
fn a_multishot_poll_of_the_rings_own_eventfd_stops(mut ring: Ring) -> impl Answer {
    let event = eventfd(0, COUNTER);
    ring.register_eventfd(&event);
    ring.collect_from(&[poll(1, &event, IN, IORING_POLL_ADD_MULTI)], 0);
    let mut all = ring.collect_from(&[sqe(IORING_OP_NOP, 2)], 2);
    all.extend(peek(&mut ring));
    by_user_data(all)
}

/// The first event is the program's own, and its completion makes the next.
#[both(8, 0)]
fn a_multishot_poll_of_the_rings_own_eventfd_tells_the_program_first(mut ring: Ring) -> impl Answer {
    // Registered as asynchronous it tells, on the kernel, the one or the other from run to run.
    let event = File::from(eventfd(0, COUNTER));
    ring.register_eventfd(&event);
    ring.collect_from(&[poll(1, &event, IN, IORING_POLL_ADD_MULTI)], 0);
    let mut all = Vec::new();
    for _ in 0..2 {
        (&event).write_all(&1u64.to_ne_bytes()).unwrap();
        ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
        all.push(ring.reap_all());
    }
    all
}

/// An event of the ring's own eventfd that is taken back at once is told, and that completion makes the last event.
#[test]
fn a_multishot_poll_of_the_rings_own_eventfd_tells_what_is_over() {
    let unregister = IORING_UNREGISTER_EVENTFD;
    for flags in [0, DEFER] {
        both(|engine| {
            let mut ring = Ring::new(engine, 8, flags);
            let deadline = timeout(DEADLINE, &LONG);
            ring.collect_from(&[deadline], 0);
            let mut all = Vec::new();
            for round in 0..3 {
                let event = File::from(eventfd(0, COUNTER));
                ring.register_eventfd(&event);
                ring.collect_from(&[poll(round, &event, IN, IORING_POLL_ADD_MULTI)], 0);
                let mut told = Vec::new();
                for wanted in 1..=2 {
                    (&event).write_all(&1u64.to_ne_bytes()).unwrap();
                    (&event).read_exact(&mut [0; 8]).unwrap();
                    while told.len() < wanted {
                        // The end of a kernel's ring of this thread may end a wait with EINTR.
                        told.extend(ring.collect_from(&[], 1));
                        assert!(told.iter().all(|cqe| cqe.user_data == round), "{engine:?}: {told:?}");
                    }
                }
                told.extend(peek(&mut ring));
                all.push(told);
                assert_eq!(ring.register(unregister, std::ptr::null(), 0), 0);
            }
            all
        });
    }
}

#[both]
fn a_ring_that_asked_for_it_says_when_to_come_in(engine: Engine) -> impl Answer {
    let flags = DEFER | IORING_SETUP_TASKRUN_FLAG;
    let mut ring = Ring::new(engine, 4, flags);
    let event = eventfd(0, libc::EFD_NONBLOCK).into_raw_fd();
    let poll = Sqe { fd: event, op_flags: libc::POLLIN as u32, ..sqe(IORING_OP_POLL_ADD, 1) };
    ring.submit(&[poll]);
    let one = 1u64;
    // SAFETY: writes eight bytes of the test's.
    unsafe { libc::write(event, (&raw const one).cast(), 8) };
    let says = |ring: &Ring| {
        let word = ring.word(ring.params.sq_off.flags).load(Ordering::SeqCst);
        word & IORING_SQ_TASKRUN != 0
    };
    let before = (says(&ring), ring.reap());
    ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
    let after = (says(&ring), ring.reap());
    close_number(event);
    (before, after)
}

#[both]
fn what_a_call_completes_is_seen_in_a_ring_that_polls_that_one(engine: Engine) -> impl Answer {
    [0, DEFER, DEFER | IORING_SETUP_R_DISABLED].map(|flags| {
        let mut polled = Ring::new(engine, 4, flags);
        let mut polling = Ring::new(engine, 4, 0);
        polling.submit(&[poll(1, &polled.fd, IN, 0)]);
        assert_eq!(polling.reap(), None, "nothing has happened");
        if flags & IORING_SETUP_R_DISABLED != 0 {
            assert_eq!(polled.enable(), 0);
        }
        polled.submit(&[sqe(IORING_OP_NOP, 2)]);
        polling.reap_all()
    })
}

#[both(4, 0)]
fn what_happened_before_a_ring_is_closed_can_be_read(mut ring: Ring) -> impl Answer {
    let (read, mut write) = pipe();
    ring.submit(&[poll(1, &read, IN, 0)]);
    write.write_all(b"x").unwrap();
    ring.close();
    ring.reap()
}

#[both(8, 0)]
fn a_multishot_poll_of_an_epoll_set_that_holds_the_ring_ends(mut ring: Ring) -> impl Answer {
    // SAFETY: a new descriptor, owned from here.
    let set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    let member = match ring.engine {
        Engine::Kernel => ring.fd,
        Engine::User => frontend::readiness_fd(ring.fd).unwrap(),
    };
    let mut event = libc::epoll_event { events: IN, u64: 0 };
    // SAFETY: reads an event of ours.
    let added = unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, member, &mut event) };
    assert_eq!(added, 0);
    ring.collect_from(&[poll(1, &set, IN, IORING_POLL_ADD_MULTI)], 0);
    let mut all = ring.collect_from(&[sqe(IORING_OP_NOP, 2)], 2);
    all.extend(peek(&mut ring));
    by_user_data(all)
}

#[both]
fn readiness_is_seen_where_every_call_finds_something_else(engine: Engine) -> impl Answer {
    // Who never waits is told by somebody else, some time.
    [(0, 1, 100), (DEFER, 1, 100), (0, 0, usize::MAX)].map(|(setup, wanted, calls)| {
        let mut ring = Ring::new(engine, 8, setup);
        let (out, mut into) = pipe();
        ring.collect_from(&[poll(1, &out, IN, 0), sqe(IORING_OP_NOP, 2)], 1);
        into.write_all(b"x").unwrap();
        let mut one_more = || {
            ring.push(sqe(IORING_OP_NOP, 2));
            assert_eq!(ring.enter(1, wanted), 1);
            ring.reap_all().into_iter().find(|cqe| cqe.user_data == 1)
        };
        (0..calls).find_map(|_| one_more()).map(|cqe| cqe.res)
    })
}

fn close(user_data: u64, fd: impl IntoRawFd) -> Sqe {
    Sqe { fd: fd.into_raw_fd(), ..sqe(IORING_OP_CLOSE, user_data) }
}

const ROUNDS: u64 = 300;
const DEADLINE: u64 = 1 << 20;
static LONG: [i64; 2] = [20, 0];

/// Takes completions until what is there is enough.
fn peek_until(ring: &mut Ring, enough: impl Fn(&[Cqe]) -> bool) {
    let mut told = peek(ring);
    while !enough(&told) {
        assert!(told.iter().all(|cqe| cqe.user_data != DEADLINE), "{:?}: {told:?}", ring.engine);
        std::thread::yield_now();
        told.extend(peek(ring));
    }
}

/// Writes to the other end of what a multishot poll waits for at the moment when its descriptor is closed, with a
/// sleeper in the ring or without one.
fn write_at_a_close(ring: &mut Ring, id: u64, sleeps: bool) {
    let (near, mut far) = UnixStream::pair().unwrap();
    far.write_all(b"x").unwrap();
    let first = ring.collect_from(&[poll(id, &near, IN, IORING_POLL_ADD_MULTI)], 1);
    assert_eq!(first.iter().map(|cqe| cqe.user_data).collect::<Vec<_>>(), [id]);
    let (engine, fd, start) = (ring.engine, ring.fd, Barrier::new(2));
    std::thread::scope(|scope| {
        if sleeps {
            scope.spawn(|| enter(engine, fd, 0, 2, IORING_ENTER_GETEVENTS, std::ptr::null(), 0));
        }
        scope.spawn(|| {
            start.wait();
            far.write_all(b"x").unwrap();
        });
        ring.push(close(0, near));
        start.wait();
        assert_eq!(ring.enter(1, 0), 1);
    });
    let has = |told: &[Cqe], id| told.iter().any(|cqe| cqe.user_data == id);
    peek_until(ring, |told| has(told, 0) && has(told, id));
    let removal = DEADLINE + id;
    let ended = |cqe: &Cqe| cqe.user_data == id && cqe.flags & IORING_CQE_F_MORE == 0;
    ring.submit(&[remove(removal, id)]);
    peek_until(ring, |told| has(told, removal) && told.iter().any(ended));
}

#[both]
fn an_edge_at_a_close_is_not_lost(engine: Engine) {
    for sleeps in [false, true] {
        let mut ring = Ring::new(engine, 8, 0);
        let deadline = timeout(DEADLINE, &LONG);
        ring.collect_from(&[deadline], 0);
        (1..=ROUNDS).for_each(|round| write_at_a_close(&mut ring, round, sleeps));
    }
}

/// An event that a multishot poll was told of stays true when its descriptor is closed, and is not told again; what comes later is.
fn told_around_a_close(engine: Engine, flags: u32, waits: bool, early: bool) -> Vec<Vec<Cqe>> {
    let mut ring = Ring::new(engine, 8, flags);
    let (near, mut far) = UnixStream::pair().unwrap();
    let mut all = vec![ring.collect_from(&[poll(1, &near, IN, IORING_POLL_ADD_MULTI)], 0)];
    far.write_all(b"x").unwrap();
    all.push(ring.collect_from(&[], 1));
    if waits {
        // Long enough for the reactor to take the ring over.
        std::thread::sleep(Duration::from_millis(20));
    }
    if early {
        far.write_all(b"x").unwrap();
    }
    let fd = near.into_raw_fd();
    // SAFETY: a descriptor of the test's own.
    let kept = unsafe { OwnedFd::from_raw_fd(libc::dup(fd)) };
    frontend::closed(fd);
    close_number(fd);
    all.push(if early { ring.collect_from(&[], 1) } else { Vec::new() });
    all.push(peek(&mut ring));
    far.write_all(b"x").unwrap();
    all.push(ring.collect_from(&[], 1));
    UnixStream::from(kept).read_exact(&mut [0; 2]).unwrap();
    far.write_all(b"x").unwrap();
    all.push(ring.collect_from(&[], 1));
    drop(far);
    all.push(ring.collect_from(&[], 1));
    all.push(peek(&mut ring));
    all
}

#[test]
fn a_close_tells_a_multishot_poll_nothing_twice() {
    for flags in [0, DEFER] {
        for (waits, early) in [(false, false), (false, true), (true, false), (true, true)] {
            both(|engine| told_around_a_close(engine, flags, waits, early));
        }
    }
}

/// Input that came before the close wakes a receive beside a multishot poll, too, and is there when it is tried.
#[both(8, 0)]
fn a_receive_beside_a_multishot_poll_gets_what_came_before_the_close(mut ring: Ring) -> impl Answer {
    let (near, mut far) = UnixStream::pair().unwrap();
    let number = near.into_raw_fd();
    let mut buffer = [0u8; 1];
    let receive = Sqe { fd: number, addr: buffer.as_mut_ptr() as u64, len: 1, ..sqe(IORING_OP_RECV, 2) };
    // A call that waits leaves it to epoll to say what is worth a try.
    let poll = poll(1, &number, IN, IORING_POLL_ADD_MULTI);
    ring.submit_and_wait(&[poll, receive, sqe(IORING_OP_NOP, 3)], 1);
    assert_eq!(results(&ring.reap_all()), [(3, 0)]);
    far.write_all(b"x").unwrap();
    crate::common::close(ring.engine, number);
    results(&peek(&mut ring))
}

#[test]
fn two_polls_of_one_submission_are_told_once_each() {
    for flags in [0, DEFER] {
        both(|engine| {
            let mut ring = Ring::new(engine, 8, flags);
            let (near, mut far) = UnixStream::pair().unwrap();
            far.write_all(b"x").unwrap();
            let polls = [1, 2].map(|id| poll(id, &near, IN, IORING_POLL_ADD_MULTI));
            let mut all = ring.collect_from(&polls, 2);
            all.extend(peek(&mut ring));
            far.write_all(b"x").unwrap();
            let told = all.len();
            all.extend(ring.collect(2));
            all[..told].sort_by_key(|cqe| cqe.user_data);
            all[told..].sort_by_key(|cqe| cqe.user_data);
            (told, all)
        });
    }
}

/// A ring that defers leaves what does not fit for later: meanwhile a socket that was readable hangs up.
#[test]
fn what_comes_before_a_poll_tells_is_told() {
    let flags = DEFER | IORING_SETUP_CQSIZE;
    // SAFETY: integers.
    let params = io_uring_params { flags, cq_entries: 16, ..unsafe { std::mem::zeroed() } };
    let mut ring = Ring::with_params(Engine::User, 16, params).unwrap();
    let (idle, _peer) = UnixStream::pair().unwrap();
    let (last, mut far) = UnixStream::pair().unwrap();
    let mut pairs: Vec<_> = (0..11).map(|_| UnixStream::pair().unwrap()).collect();
    ring.push_all(pairs.iter().enumerate().map(|(id, (near, _))| poll(id as u64, near, IN, 0)));
    ring.push(poll(98, &idle, IN, 0));
    ring.push(poll(99, &last, IN, IORING_POLL_ADD_MULTI));
    assert_eq!(ring.enter(13, 0), 13);
    for (_, far) in &mut pairs {
        far.write_all(b"x").unwrap();
    }
    far.write_all(b"x").unwrap();
    ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
    // Not all were told, for the program has to be able to take them.
    drop(far);
    let first = peek(&mut ring);
    assert!(first.iter().all(|cqe| cqe.user_data != 99), "the last one waits for its turn");
    let told = peek(&mut ring).iter().filter(|cqe| cqe.user_data == 99).fold(0, |told, cqe| told | cqe.res);
    let all = i32::from(libc::POLLHUP | libc::POLLIN);
    assert_eq!(told & all, all, "both are told");
}

/// Lets the number of `old` be that of `new`, unseen by the engine.
fn replace_unseen(old: &impl AsRawFd, new: &impl AsRawFd) {
    // SAFETY: both are the test's.
    assert!(unsafe { libc::dup2(new.as_raw_fd(), old.as_raw_fd()) } >= 0);
}

/// A number was closed unseen, and is another file's, while the file that had it lives on by another number: what happens to that one
/// is none of the other's.
#[both(8, 0)]
fn a_poll_hears_nothing_of_the_file_that_had_the_number(mut ring: Ring) -> impl Answer {
    let (reader, mut writer) = pipe();
    let name = reader.try_clone().unwrap();
    let (other, mut others) = pipe();
    // Its registration is kept.
    writer.write_all(b"x").unwrap();
    let mut all = ring.run(&[poll(1, &reader, IN, 0)]);
    (&name).read_exact(&mut [0]).unwrap();
    all.extend(ring.collect_from(&[poll(2, &reader, IN, 0)], 0));
    writer.write_all(b"x").unwrap();
    all.extend(ring.collect(1));
    (&name).read_exact(&mut [0]).unwrap();
    replace_unseen(&reader, &other);
    for user_data in [3, 4] {
        all.extend(ring.collect_from(&[poll(user_data, &reader, IN, IORING_POLL_ADD_MULTI)], 0));
    }
    writer.write_all(b"x").unwrap();
    all.extend(peek(&mut ring));
    let early = all.len();
    others.write_all(b"x").unwrap();
    let mut told = ring.collect(2);
    told.sort_by_key(|cqe| cqe.user_data);
    all.extend(told);
    (early, all)
}

/// So it is where somebody waits for the file that had the number.
#[test]
fn a_poll_beside_one_of_the_file_that_had_the_number() {
    let mut ring = Ring::new(Engine::User, 8, 0);
    let (reader, mut writer) = pipe();
    let _name = reader.try_clone().unwrap();
    let (other, mut others) = pipe();
    ring.submit(&[poll(1, &reader, IN, 0)]);
    replace_unseen(&reader, &other);
    ring.submit(&[poll(2, &reader, IN, 0)]);
    writer.write_all(b"x").unwrap();
    let early = peek(&mut ring);
    assert!(early.iter().all(|cqe| cqe.user_data == 1), "{early:?}");
    others.write_all(b"x").unwrap();
    let told = ring.collect(2 - early.len());
    assert!(told.iter().any(|cqe| (cqe.user_data, cqe.res) == (2, IN as i32)), "{told:?}");
}

/// The program closes its descriptor of a file for which requests wait, and may have no other number than that.
#[both]
fn a_close_at_the_limit_of_descriptors(engine: Engine) -> impl Answer {
    ended(child(|| {
        let mut ring = Ring::new(engine, 8, 0);
        let (reader, mut writer) = pipe();
        let number = reader.as_raw_fd();
        ring.submit(&[poll(1, &reader, IN, 0), poll(2, &reader, IN, IORING_POLL_ADD_MULTI)]);
        std::mem::forget(reader);
        // SAFETY: descriptors and a limit of this process's own.
        unsafe {
            let lowest = libc::dup(2);
            libc::close(lowest);
            let limit = libc::rlimit { rlim_cur: lowest as u64, rlim_max: 1 << 10 };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        }
        crate::common::close(engine, number);
        writer.write_all(b"x").unwrap();
        let mut told = results(&ring.collect(2));
        told.sort_unstable();
        told == [(1, IN as i32), (2, IN as i32)]
    }))
}

/// At the limit of descriptors, the engine's own have any number: also one by which a request waits, whose file was closed unseen.
#[test]
fn the_engine_gets_the_number_of_a_file_that_was_closed_unseen() {
    let pid = child(|| {
        ends_after(60);
        let mut ring = Ring::new(Engine::User, 8, 0);
        let ((near, _far), (other, mut others)) = (pipe(), pipe());
        ring.submit(&[poll(1, &near, IN, 0), poll(2, &other, IN, 0)]);
        let few = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
        // SAFETY: reads a limit of ours.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &few) }, 0);
        let _files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        drop(near);
        // The engine keeps the file for the request.
        crate::common::close(Engine::User, other.into_raw_fd());
        others.write_all(b"x").unwrap();
        let mut told = results(&ring.collect(2));
        told.sort_unstable();
        told == [(1, -libc::EBADF), (2, IN as i32)]
    });
    assert_eq!(ended(pid), 0);
}

/// Holds a thread of the program's when it comes back from its sleep in the engine, before it does anything.
struct Holding;

/// The next sleep is held.
static HOLDS: AtomicBool = AtomicBool::new(false);
/// Three steps: the sleep begins; its thread has come back; that one may go on.
static STEP: Barrier = Barrier::new(2);

impl Host for Holding {
    as_seeing!();

    fn may_end_in(&self, call: &mut dyn FnMut(), _ended: &mut dyn FnMut()) {
        let holds = HOLDS.swap(false, Ordering::SeqCst);
        if holds {
            STEP.wait();
        }
        call();
        if holds {
            STEP.wait();
            STEP.wait();
        }
    }
}

/// A thread that sleeps in the ring hears that a file is ready, which is over before another thread submits a poll of that file.
fn told_of_what_is_over(engine: Engine, beside: bool) -> impl Answer {
    static HOLDING: &dyn Host = &Holding;
    let mut ring = Ring::new(engine, 8, 0);
    anyring_engine::install(&HOLDING);
    let step = || _ = (engine == Engine::User).then(|| STEP.wait());
    let (reader, mut writer) = pipe();
    ring.submit(&[poll(1, &reader, IN, 0)]);
    if !beside {
        // Nobody waits for the file any more, and its registration is kept.
        writer.write_all(b"x").unwrap();
        assert_eq!(results(&ring.collect(1)), [(1, IN as i32)]);
        (&reader).read_exact(&mut [0]).unwrap();
    }
    HOLDS.store(engine == Engine::User, Ordering::SeqCst);
    let fd = ring.fd;
    std::thread::scope(|scope| {
        scope.spawn(|| enter(engine, fd, 0, 1, IORING_ENTER_GETEVENTS, std::ptr::null(), 0));
        step();
        writer.write_all(b"x").unwrap();
        step();
        (&reader).read_exact(&mut [0]).unwrap();
        ring.submit(&[poll(2, &reader, IN, 0), sqe(IORING_OP_NOP, 3)]);
        step();
    });
    let early = results(&ring.reap_all());
    writer.write_all(b"x").unwrap();
    (early, results(&peek(&mut ring)))
}

#[test]
fn a_poll_is_not_told_of_what_was_over_before_it() {
    both(|engine| [true, false].map(|beside| told_of_what_is_over(engine, beside)));
}
