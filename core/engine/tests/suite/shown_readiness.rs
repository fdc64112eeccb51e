//! A ring's descriptor that shows readiness, for a front end that does not see what the program polls: it must be
//! readable when the kernel's would be.

use crate::common::prelude::*;

/// Whether the descriptor is readable, now or within the time.
fn readable(fd: i32, timeout_ms: i32) -> bool {
    let mut list = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    // SAFETY: a list of one.
    unsafe { libc::poll(list.as_mut_ptr(), 1, timeout_ms) == 1 }
}

/// The program has looked for completions, and found none.
fn look(ring: &Ring) {
    if ring.engine == Engine::User {
        assert!(!frontend::sync_readiness(ring.fd));
    }
}

fn shown(engine: Engine) -> Ring {
    let ring = Ring::new(engine, 8, 0);
    if engine == Engine::User {
        frontend::show_readiness(ring.fd).unwrap();
    }
    ring
}

#[both]
fn it_is_readable_while_there_are_completions(engine: Engine) -> impl Answer {
    let mut ring = shown(engine);
    let mut seen = vec![readable(ring.fd, 0)];
    for round in 0..3 {
        ring.submit(&[sqe(IORING_OP_NOP, round)]);
        seen.push(readable(ring.fd, 0));
        assert_eq!(ring.reap().unwrap().user_data, round);
        look(&ring);
        seen.push(readable(ring.fd, 0));
    }
    seen
}

/// Nobody is inside when it happens, and nobody comes.
#[both]
fn it_becomes_readable_by_itself(engine: Engine) -> impl Answer {
    let mut ring = shown(engine);
    let time = [0_i64, 3_000_000];
    let addr = time.as_ptr() as u64;
    let mut seen = vec![];
    for _ in 0..3 {
        ring.submit(&[Sqe { fd: -1, addr, len: 1, ..sqe(IORING_OP_TIMEOUT, 1) }]);
        let became = readable(ring.fd, 5000);
        seen.push((became, ring.reap().unwrap().res));
        look(&ring);
    }
    seen
}

/// An epoll instance with the ring's descriptor.
fn instance(ring: &Ring, events: i32) -> OwnedFd {
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | events) as u32, u64: 1 };
    // SAFETY: new descriptors, an event of ours.
    unsafe {
        let epoll = OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC));
        assert_eq!(libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, ring.fd, &mut event), 0);
        epoll
    }
}

/// Whether the instance reports the ring within the time.
fn reported(epoll: &OwnedFd, timeout_ms: i32) -> bool {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one.
    unsafe { libc::epoll_wait(epoll.as_raw_fd(), &mut event, 1, timeout_ms) == 1 }
}

/// Whether or not the program takes what there is, and though it makes no call for that.
#[both]
fn an_edge_comes_for_each_completion(engine: Engine) -> impl Answer {
    let mut ring = shown(engine);
    let epoll = instance(&ring, libc::EPOLLET);
    let mut seen = vec![reported(&epoll, 0)];
    for round in 0..6 {
        ring.submit(&[sqe(IORING_OP_NOP, round)]);
        seen.extend([reported(&epoll, PATIENCE_MS), reported(&epoll, 0)]);
        if round % 2 == 1 {
            assert_eq!(ring.reap_all().len(), 2);
        }
    }
    // A call that waits is told by its return; the next edge comes all the same.
    ring.submit_and_wait(&[sqe(IORING_OP_NOP, 7)], 1);
    reported(&epoll, 0);
    assert_eq!(ring.reap_all().len(), 1);
    ring.submit(&[sqe(IORING_OP_NOP, 8)]);
    seen.push(reported(&epoll, PATIENCE_MS));
    seen
}

/// An edge comes for what completes by itself, too; a ring that defers has edges for what waits for its thread.
#[both]
fn an_edge_comes_for_what_completes_later(engine: Engine) -> impl Answer {
    [0, DEFER].map(|flags| {
        let mut ring = Ring::new(engine, 8, flags);
        if engine == Engine::User {
            frontend::show_readiness(ring.fd).unwrap();
        }
        let epoll = instance(&ring, libc::EPOLLET);
        let (from, to) = UnixStream::pair().unwrap();
        let mut byte = [0u8];
        (0..10)
            .map(|round| {
                let (fd, addr) = (from.as_raw_fd(), byte.as_mut_ptr() as u64);
                ring.submit(&[Sqe { fd, addr, len: 1, ..sqe(IORING_OP_RECV, round) }]);
                (&to).write_all(b"x").unwrap();
                let told = reported(&epoll, PATIENCE_MS);
                assert_eq!(ring.enter_with(0, 0, IORING_ENTER_GETEVENTS), 0);
                (told, ring.reap_all().len())
            })
            .collect::<Vec<_>>()
    })
}

/// The engine does not see who takes completions: it finds out.
#[test]
fn it_ceases_to_be_readable_without_a_call() {
    let mut ring = shown(Engine::User);
    let epoll = instance(&ring, 0);
    // A call that waits for a completion leaves it to the program, too.
    for (round, waits) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        ring.push(sqe(IORING_OP_NOP, round));
        assert_eq!(ring.enter(1, waits), 1);
        assert!(reported(&epoll, PATIENCE_MS));
        assert_eq!(ring.reap_all().len(), 1);
        until("the descriptor is readable no more", || !reported(&epoll, 0));
    }
    // Nothing is there after a call that only submits, either.
    let (one, _other) = UnixStream::pair().unwrap();
    ring.submit(&[sqe(IORING_OP_NOP, 4)]);
    assert_eq!(ring.reap_all().len(), 1);
    let mut byte = [0u8];
    let (fd, addr) = (one.as_raw_fd(), byte.as_mut_ptr() as u64);
    ring.submit(&[Sqe { fd, addr, len: 1, ..sqe(IORING_OP_RECV, 5) }]);
    assert!(!reported(&epoll, 0));
}

/// Completions that the program leaves are looked at ever more seldom, and as soon as ever once it goes on.
#[test]
fn completions_that_are_left_wake_nobody() {
    let mut ring = shown(Engine::User);
    ring.submit(&[sqe(IORING_OP_NOP, 1)]);
    until("the reactor is there", || reactor().is_some());
    // Twice its longest tick.
    std::thread::sleep(Duration::from_secs(2));
    let woken = switches(reactor().unwrap());
    assert!(woken < 50, "{woken} times");
    // It looks more often when the program goes on.
    ring.submit(&[sqe(IORING_OP_NOP, 2)]);
    assert_eq!(ring.reap_all().len(), 2);
    until("the descriptor is readable no more", || !readable(ring.fd, 0));
}

/// The thread that looks after rings.
fn reactor() -> Option<String> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let named = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim_end() == "anyring-reactor")
    };
    Some(threads.into_iter().find(named)?.join("status").to_str()?.to_owned())
}

/// How often a thread has gone to sleep.
fn switches(status: String) -> u32 {
    let status = std::fs::read_to_string(status).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

/// A ring ceases to be readable after a call that was to wait, and was refused, too.
#[test]
fn it_ceases_to_be_readable_after_a_call_that_was_refused() {
    let mut ring = Ring::new(Engine::User, 8, IORING_SETUP_SINGLE_ISSUER);
    frontend::show_readiness(ring.fd).unwrap();
    let epoll = instance(&ring, 0);
    ring.submit(&[sqe(IORING_OP_NOP, 1)]);
    assert!(reported(&epoll, PATIENCE_MS));
    let fd = ring.fd;
    let waits = move || enter(Engine::User, fd, 1, 1, IORING_ENTER_GETEVENTS, std::ptr::null(), 0);
    assert_eq!(std::thread::spawn(waits).join().unwrap(), -libc::EEXIST);
    assert_eq!(ring.reap_all().len(), 1);
    until("the descriptor is readable no more", || !reported(&epoll, 0));
}

#[both]
fn a_duplicate_is_the_ring_too(engine: Engine) -> impl Answer {
    let mut ring = shown(engine);
    ring.push(sqe(IORING_OP_NOP, 1));
    // SAFETY: a new descriptor, closed below.
    let other = unsafe { libc::dup(ring.fd) };
    let entered = enter(engine, other, 1, 1, IORING_ENTER_GETEVENTS, std::ptr::null(), 0);
    close_number(other);
    (entered, ring.reap().unwrap().user_data)
}

/// The number still stands for the ring, for other rings too.
#[both]
fn it_is_still_the_ring(engine: Engine) -> impl Answer {
    let (mut one, mut other) = (shown(engine), shown(engine));
    one.submit_and_wait(&[Sqe { fd: other.fd, len: 7, off: 8, ..sqe(IORING_OP_MSG_RING, 1) }], 1);
    let sent = one.reap().unwrap().res;
    let became = readable(other.fd, 5000);
    let got = other.reap().unwrap();
    (sent, became, got.user_data, got.res)
}

/// A child that posts, once it is told to, so often.
fn posts(ring: &mut Ring, times: u64) -> i32 {
    ended(child(|| {
        (0..times).all(|round| {
            ring.follow();
            ring.push(sqe(IORING_OP_NOP, round));
            ring.enter(1, 0) == 1
        })
    }))
}

/// Parent and child have one descriptor, which either makes readable.
#[both]
fn what_a_child_posts_is_shown_to_its_parent(engine: Engine) -> impl Answer {
    let mut ring = shown(engine);
    let mut seen = vec![];
    for _ in 0..3 {
        assert_eq!(posts(&mut ring, 2), 0);
        seen.push(readable(ring.fd, 5000));
        assert_eq!(ring.reap_all().len(), 2);
        look(&ring);
        seen.push(readable(ring.fd, 0));
        ring.follow();
        ring.submit(&[sqe(IORING_OP_NOP, 3)]);
        seen.push(readable(ring.fd, 5000));
        assert_eq!(ring.reap_all().len(), 1);
        look(&ring);
    }
    seen
}

/// A child that closes what it does not know has nothing left to signal by; its parent still has.
#[test]
fn a_child_without_the_engines_descriptors_silences_nobody() {
    let mut ring = shown(Engine::User);
    in_child(|| {
        // SAFETY: all above the ring's, most of them the engine's.
        unsafe { libc::syscall(libc::SYS_close_range, ring.fd + 1, u32::MAX, 0) };
        ring.follow();
        ring.push(sqe(IORING_OP_NOP, 1));
        ring.enter(1, 0) == 1
    });
    ring.follow();
    ring.submit(&[sqe(IORING_OP_NOP, 2)]);
    assert!(readable(ring.fd, 5000));
    assert_eq!(ring.reap_all().len(), 2);
}

/// Completions that a parent has taken, a child finds taken, and the other way round.
#[both]
fn what_a_child_has_taken_is_shown_to_its_parent(engine: Engine) -> impl Answer {
    let mut ring = shown(engine);
    let mut seen = vec![];
    for _ in 0..2 {
        ring.follow();
        ring.submit(&[sqe(IORING_OP_NOP, 1)]);
        seen.push(readable(ring.fd, 5000));
        in_child(|| {
            ring.follow();
            let taken = ring.reap_all().len() == 1;
            look(&ring);
            taken
        });
        seen.push(readable(ring.fd, 0));
    }
    seen
}

/// A child that was there before has another descriptor; its parent is told of what it posts all the same.
#[by(ours(8, 0))]
fn what_a_child_posts_is_shown_at_a_later_descriptor(mut ring: Ring) {
    let (mut told, teller) = pipe();
    let pid = child(|| {
        let told = told.read_exact(&mut [0]).is_ok();
        ring.push(sqe(IORING_OP_NOP, 1));
        told && ring.enter(1, 0) == 1
    });
    frontend::show_readiness(ring.fd).unwrap();
    write_to(&teller, b"x");
    assert!(readable(ring.fd, 10_000));
    assert_eq!(ended(pid), 0);
}

/// A ring that is found readable has `IORING_SQ_TASKRUN`, too: without it, who has taken what there is does not come in, and it would
/// stay readable. On one processor, for there the program runs as soon as it is woken.
#[test]
fn a_readable_ring_asks_to_be_entered() {
    install();
    in_child(|| {
        // SAFETY: a set of this thread's, and of those that it starts.
        unsafe {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(libc::sched_getcpu() as usize, &mut one);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &one), 0);
        }
        let mut ring = shown(Engine::User);
        let flags = ring.params.sq_off.flags;
        let time = [0_i64, 30_000];
        (0..2000).all(|_| {
            ring.push(Sqe { fd: -1, addr: time.as_ptr() as u64, len: 1, ..sqe(IORING_OP_TIMEOUT, 1) });
            assert!(ring.enter(1, 0) == 1 && readable(ring.fd, 5000));
            let asks = ring.word(flags).load(Ordering::Acquire) & IORING_SQ_TASKRUN != 0;
            assert!(ring.reap().is_some());
            look(&ring);
            asks
        })
    });
}
