//! When the reactor drives a ring, when it leaves that to the callers, and what is registered in a ring's epoll
//! instance. The tests look at every epoll instance of the process.

use std::fs;

use crate::common::prelude::*;

const DEFERRING: u32 = DEFER;

/// True if any ring's epoll instance is in another one, which is the reactor's.
fn reactor_drives() -> bool {
    let epolls = epolls();
    epolls.iter().any(|number| registered_in(number).iter().any(|target| epolls.contains(target)))
}

/// The epoll instances of this process, by their descriptors.
fn epolls() -> Vec<String> {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    let epoll = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        let is_epoll = fs::read_link(entry.path()).ok()?.as_os_str() == "anon_inode:[eventpoll]";
        is_epoll.then(|| entry.file_name().into_string().unwrap())
    };
    descriptors.filter_map(epoll).collect()
}

/// The descriptors that are registered in an epoll instance.
fn registered_in(epoll: &str) -> Vec<String> {
    let watched = fs::read_to_string(format!("/proc/self/fdinfo/{epoll}")).unwrap_or_default();
    let target = |line: &str| Some(line.strip_prefix("tfd:")?.split_whitespace().next()?.to_owned());
    watched.lines().filter_map(target).collect()
}

fn receive(user_data: u64, fd: i32, buffer: &mut [u8; 8]) -> Sqe {
    reading(IORING_OP_RECV, user_data, &fd, buffer)
}

/// Waits for a completion without coming in for it.
fn watch(ring: &mut Ring) -> Cqe {
    loop {
        if let Some(cqe) = ring.reap() {
            return cqe;
        }
        std::thread::yield_now();
    }
}

/// Waits until the reactor drives and sleeps for good.
fn wait_for_the_reactor() {
    while !(reactor_drives() && reactor_state() == Some('S')) {
        std::thread::yield_now();
    }
}

/// The state of the reactor's thread, if there is one, as in proc(5).
fn reactor_state() -> Option<char> {
    fs::read_dir("/proc/self/task").unwrap().find_map(|task| {
        let stat = fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        stat.split_once("(anyring-reactor) ")?.1.chars().next()
    })
}

/// True if this process has an SQ thread.
fn has_sq_thread() -> bool {
    let name = |task: std::io::Result<fs::DirEntry>| fs::read_to_string(task.ok()?.path().join("comm")).ok();
    fs::read_dir("/proc/self/task").unwrap().filter_map(name).any(|name| name.starts_with("iou-sqp"))
}

/// The reactor had gone to sleep for good, for it drove the ring.
#[by(ours(8, 0))]
fn what_still_waits_when_a_caller_leaves_is_driven_again(mut ring: Ring) {
    let (mut peer, socket) = UnixStream::pair().unwrap();
    let (mut other_peer, other) = UnixStream::pair().unwrap();
    let (mut buffer, mut other_buffer) = ([0; 8], [0; 8]);
    ring.submit(&[receive(1, socket.as_raw_fd(), &mut buffer)]);
    wait_for_the_reactor();
    ring.push(receive(2, other.as_raw_fd(), &mut other_buffer));
    let writer = std::thread::spawn(move || {
        // The caller sleeps in its place.
        while reactor_drives() {
            std::thread::yield_now();
        }
        peer.write_all(b"for the caller")
    });
    assert_eq!(ring.enter(1, 1), 1);
    writer.join().unwrap().unwrap();
    assert_eq!(ring.reap().map(|cqe| (cqe.user_data, cqe.res)), Some((1, 8)));
    other_peer.write_all(b"for the reactor").unwrap();
    let cqe = watch(&mut ring);
    assert_eq!((cqe.user_data, cqe.res), (2, 8));
}

/// The reactor takes a ring over at once where its eventfd is waited on. It sleeps for good, and has to look by and by at what is
/// registered for a file that is gone.
#[by(ours(8, 0))]
fn a_sleeping_reactor_that_takes_a_ring_over_looks_at_numbers_again(mut ring: Ring) {
    let eventfd = eventfd(0, libc::EFD_CLOEXEC);
    ring.register_eventfd(&eventfd);
    let ((reader, mut writer), (new_reader, mut new_writer)) =
        (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let mut buffer = [0; 8];
    let read = |buffer: &mut [u8; 8]| Sqe { off: u64::MAX, ..reading(IORING_OP_READ, 1, &reader, buffer) };
    ring.submit(&[read(&mut buffer)]);
    wait_for_the_reactor();
    let writes = std::thread::spawn(move || {
        // The caller sleeps in its place.
        while reactor_drives() {
            std::thread::yield_now();
        }
        writer.write_all(b"x")
    });
    assert_eq!(ring.enter_with(0, 1, IORING_ENTER_GETEVENTS), 0);
    writes.join().unwrap().unwrap();
    assert_eq!(ring.reap().map(|cqe| cqe.res), Some(1));
    replace(&reader, &new_reader);
    ring.submit(&[read(&mut buffer)]);
    new_writer.write_all(b"yz").unwrap();
    assert_eq!(watch_for_some_time(&mut ring).map(|cqe| cqe.res), Some(2));
}

/// The event that wakes the caller who sleeps must not be taken away by one who only looks.
#[test]
fn a_look_takes_no_wake_up_away() {
    const RESCUE: u64 = 9;
    static RESCUE_AFTER: [i64; 2] = [20, 0];
    for _ in 0..50 {
        let mut ring = Ring::new(Engine::User, 8, 0);
        let (_peer, socket) = UnixStream::pair().unwrap();
        let mut buffer = [0; 8];
        ring.submit(&[receive(1, socket.as_raw_fd(), &mut buffer), timeout(RESCUE, &RESCUE_AFTER)]);
        let (fd, (tell, told)) = (ring.fd, std::sync::mpsc::channel());
        let sleeper = std::thread::spawn(move || {
            tell.send(thread_id()).unwrap();
            enter(Engine::User, fd, 0, 1, IORING_ENTER_GETEVENTS, std::ptr::null(), 0)
        });
        asleep(told.recv().unwrap());
        ring.submit(&[sqe(IORING_OP_NOP, 5)]);
        for _ in 0..3 {
            ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
        }
        assert_eq!(sleeper.join().unwrap(), 0);
        let told: Vec<_> = ring.reap_all().iter().map(|cqe| cqe.user_data).collect();
        assert_eq!(told, [5], "the sleeper is woken by what it waits for");
    }
}

/// Every event would wake the reactor as well, only to find that somebody was there before.
#[by(ours(8, 0))]
fn who_comes_for_completions_takes_the_ring_back_even_without_sleeping(mut ring: Ring) {
    let (mut peer, socket) = UnixStream::pair().unwrap();
    let mut buffer = [0; 8];
    ring.submit(&[receive(1, socket.as_raw_fd(), &mut buffer)]);
    peer.write_all(b"for the reactor").unwrap();
    // Nobody comes in, so the reactor does it.
    watch(&mut ring);
    ring.submit_and_wait(
        &[receive(2, socket.as_raw_fd(), &mut buffer), receive(3, socket.as_raw_fd(), &mut buffer)],
        1,
    );
    wait_for_the_reactor();
    // It may take the ring over again where this thread does not run for two ticks.
    let taken_back = (0..100).any(|_| {
        ring.submit_and_wait(&[sqe(IORING_OP_NOP, 4)], 1);
        ring.reap_all();
        !reactor_drives()
    });
    assert!(taken_back, "the reactor went on driving a ring that its program comes to");
}

/// Where the callers do everything, and tell of the close, a program that has one thread keeps that one: in a child, for this
/// process has a reactor.
#[by(in_child)]
fn a_ring_that_defers_needs_no_reactor() -> impl Found {
    let mut ring = Ring::told(8, DEFERRING);
    let (mut peer, socket) = UnixStream::pair().unwrap();
    let mut buffer = [0; 8];
    for round in 0..5 {
        ring.submit(&[receive(round, socket.as_raw_fd(), &mut buffer)]);
        peer.write_all(b"message!").unwrap();
        assert_eq!(ring.enter(0, 1), 0);
        assert_eq!(ring.reap().map(|cqe| (cqe.user_data, cqe.res)), Some((round, 8)));
    }
    reactor_state().is_none()
}

/// The number was given to another file where nobody saw it, and that one makes no event by itself.
#[by(in_child)]
fn a_caller_of_a_ring_that_defers_looks_again_itself() -> impl Found {
    let mut ring = Ring::told(8, DEFERRING);
    let (mut peer, socket) = UnixStream::pair().unwrap();
    let (mut new_peer, new) = UnixStream::pair().unwrap();
    let mut buffer = [0; 8];
    ring.submit(&[receive(1, socket.as_raw_fd(), &mut buffer)]);
    peer.write_all(b"message!").unwrap();
    assert_eq!(ring.enter(0, 1), 0);
    // The next one waits by the registration that was made for this one.
    ring.submit_and_wait(&[receive(2, socket.as_raw_fd(), &mut buffer), sqe(IORING_OP_NOP, 3)], 1);
    peer.write_all(b"message!").unwrap();
    assert_eq!(ring.waited(3).len(), 3);
    replace(&socket, &new);
    new_peer.write_all(b"for the new one").unwrap();
    ring.submit_and_wait(&[receive(4, socket.as_raw_fd(), &mut buffer)], 1);
    assert_eq!(ring.reap().map(|cqe| (cqe.user_data, cqe.res)), Some((4, 8)));
    &buffer == b"for the " && reactor_state().is_none()
}

/// A connection is closed without taking it out of the ring's epoll instance, for as a rule it is gone with that. One
/// that is not shows it by its events, which are nobody's; and then none is left there any more.
#[by(in_child)]
fn connections_that_others_have_are_taken_out() -> impl Found {
    let mut ring = Ring::new(Engine::User, 8, DEFERRING);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut buffer = [0; 8];
    let mut left_behind = Vec::new();
    for _ in 0..2 {
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accept = Sqe { fd: listener.as_raw_fd(), ..sqe(IORING_OP_ACCEPT, 1) };
        let connection = ring.run(&[accept])[0].res;
        ring.submit(&[receive(2, connection, &mut buffer)]);
        client.write_all(b"short").unwrap();
        assert_eq!(ring.enter(0, 1), 0);
        assert_eq!(ring.reap().map(|cqe| (cqe.user_data, cqe.res)), Some((2, 5)));
        // SAFETY: a descriptor that is open; the copy is closed with the stream.
        let mut copy = unsafe { TcpStream::from_raw_fd(libc::dup(connection)) };
        assert_eq!(ring.run(&[Sqe { fd: connection, ..sqe(IORING_OP_CLOSE, 3) }])[0].res, 0);
        left_behind.push(epolls().iter().any(|epoll| registered_in(epoll).contains(&connection.to_string())));
        // Its event is nobody's, and the ring goes on.
        client.write_all(b"for the copy").unwrap();
        let time = [0i64, 1_000_000];
        assert_eq!(ring.run(&[timeout(4, &time)])[0].res, -libc::ETIME);
        let mut received = [0; 12];
        copy.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"for the copy");
    }
    left_behind == [true, false]
}

/// A worker ends a request and issues the one that is linked behind it, which waits for readiness: nobody is inside the
/// ring, so the worker has to find somebody who drives.
#[both(8, 0)]
fn what_a_worker_issues_is_driven(mut ring: Ring) -> impl Answer {
    let (from, mut source) = std::io::pipe().unwrap();
    let (_out, into) = std::io::pipe().unwrap();
    let (polled, mut end) = std::io::pipe().unwrap();
    let splice = Sqe { flags: LINK, ..splice(1, &from, &into, 8) };
    ring.submit(&[splice, poll(2, &polled, libc::POLLIN)]);
    source.write_all(b"a splice").unwrap();
    let spliced = watch_for_some_time(&mut ring);
    while !workers_sleep() {
        std::thread::yield_now();
    }
    end.write_all(b"a poll").unwrap();
    let polled = watch_for_some_time(&mut ring);
    [spliced, polled].map(|cqe| cqe.map(|cqe| (cqe.user_data, cqe.res)))
}

/// True if all workers have done what they had to do.
fn workers_sleep() -> bool {
    fs::read_dir("/proc/self/task").unwrap().all(|task| {
        let stat = task.and_then(|task| fs::read_to_string(task.path().join("stat"))).unwrap_or_default();
        let state = stat.split_once("(iou-wrk").and_then(|(_, rest)| rest.split_once(") "));
        state.is_none_or(|(_, state)| state.starts_with('S'))
    })
}

/// Waits for a completion without coming in for it; `None` where none comes.
fn watch_for_some_time(ring: &mut Ring) -> Option<Cqe> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(cqe) = ring.reap() {
            return Some(cqe);
        }
        std::thread::yield_now();
    }
    None
}

/// Makes a ring, lets `body` do something with it, closes it where no front end sees that, and waits until `peer`, of which only
/// the ring has the other end then, sees that end.
fn ends_unseen(engine: Engine, body: impl FnOnce(&mut Ring, i32)) {
    let (peer, other) = UnixStream::pair().unwrap();
    let mut ring = Ring::new(engine, 8, 0);
    body(&mut ring, other.as_raw_fd());
    drop(other);
    close_number(ring.forget());
    peer.set_nonblocking(true).unwrap();
    until("the other end is closed", || (&peer).read(&mut [0]).is_ok());
}

/// Whatever a ring was doing when nobody saw its close, and though no other ring is made: it ends.
#[test]
fn closes_that_nobody_sees_are_heard_of() {
    // In a child each: the parent has a reactor, perhaps.
    let alone = |body: &dyn Fn(Engine)| {
        in_child(|| {
            both(body);
        });
    };
    alone(&|engine| ends_unseen(engine, |ring, fd| ring.register_files(&[fd])));
    // A splice that waits for data has the pipe that it reads.
    alone(&|engine| {
        let (reads, writes) = std::io::pipe().unwrap();
        let (_kept, target) = std::io::pipe().unwrap();
        let mut ring = Ring::new(engine, 8, 0);
        ring.submit(&[splice(1, &reads, &target, 1)]);
        drop(reads);
        close_number(ring.forget());
        until("nobody can read the pipe", || shown(&writes, 0, 0) & libc::POLLERR != 0);
    });
    alone(&|engine| {
        let ring = Ring::new(engine, 8, IORING_SETUP_SQPOLL);
        until("its thread runs", has_sq_thread);
        close_number(ring.forget());
        until("its thread ends", || !has_sq_thread());
    });
}

/// The watch may be made after the reactor.
#[by(in_child)]
fn a_reactor_listens_to_a_later_watch() {
    let mut told = Ring::told(8, 0);
    let (other, _peer) = UnixStream::pair().unwrap();
    let mut buffer = [0; 8];
    told.submit(&[receive(1, other.as_raw_fd(), &mut buffer)]);
    until("the reactor drives it", reactor_drives);
    ends_unseen(Engine::User, |ring, fd| ring.register_files(&[fd]));
}

/// The kernel lets 500 epoll instances that are in another one, as the reactor drives rings, know the same file: of
/// what further rings wait for nothing may be lost either.
#[test]
fn more_rings_than_the_reactor_can_drive_wait_for_the_same_file() {
    const RINGS: usize = 520;
    in_child(|| {
        allow_files(1 << 16);
        let (_peer, silent) = UnixStream::pair().unwrap();
        let poll = |fd: &UnixStream, user_data| poll(user_data, fd, libc::POLLIN);
        let mut rings: Vec<Ring> = (0..RINGS).map(|_| Ring::new(Engine::User, 4, 0)).collect();
        let mut pairs: Vec<_> = (0..RINGS).map(|_| UnixStream::pair().unwrap()).collect();
        for (ring, (_, own)) in rings.iter_mut().zip(&pairs) {
            ring.submit(&[poll(own, 1)]);
        }
        // Others wait for what tells of the first ring, and of one that defers.
        let mut deferring = Ring::new(Engine::User, 4, DEFERRING);
        let time = libc::timespec { tv_sec: 0, tv_nsec: 60_000_000 };
        let timeout = timeout(3, &time);
        deferring.submit(&[timeout]);
        let events = [&rings[0], &deferring].map(|ring| {
            let event = eventfd(0, libc::EFD_CLOEXEC);
            ring.register_eventfd(&event);
            event
        });
        let driven = || epolls().iter().map(|number| registered_in(number).len()).max().unwrap_or(0) >= RINGS;
        until("the reactor drives all rings", driven);
        // The last ones find no room in the reactor's.
        for ring in rings.iter_mut().skip(1).chain([&mut deferring]) {
            ring.submit(&[poll(&silent, 2)]);
        }
        rings[0].push(poll(&silent, 2));
        assert_eq!(rings[0].enter(1, 0), 1);
        // Some looks of the reactor, so that it finds that nobody comes by any more.
        std::thread::sleep(Duration::from_millis(40));
        for (peer, _) in &mut pairs {
            peer.write_all(b"!").unwrap();
        }
        let told = events.iter().all(|event| shown(event, libc::POLLIN, PATIENCE_MS) != 0);
        told && rings.iter_mut().all(|ring| {
            let cqe = watch(ring);
            (cqe.user_data, cqe.res) == (1, 1) && ring.reap_all().is_empty()
        })
    });
}
