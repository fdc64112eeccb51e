//! SEND_ZC where nothing is copied: in network namespaces of their own, over links that drop or hold what
//! is sent.

use std::process::{Command, Stdio};

use crate::common::prelude::*;

const FIXED: u16 = 1 << 2;
const REPORT: u16 = 1 << 3;
const LARGE: usize = 60_000;

fn run(command: &str) -> bool {
    let mut words = command.split_whitespace();
    let status = Command::new(words.next().unwrap()).args(words).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// A child that ends before the thread that started it has its signals back sends one that is not ignored: it would end the
/// wait of any other test.
fn block_ends_of_children() {
    // SAFETY: a set of signals of ours.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

/// Runs `body` in a network namespace with a link to 10.66.0.2 whose packets are held (`tbf`) or dropped
/// (`pfifo limit 0`), on both engines. Says why where that cannot be had.
fn with_link<T: PartialEq + std::fmt::Debug + Send>(queue: &str, body: impl Fn(Engine) -> T + Sync) {
    std::thread::scope(|scope| {
        let body = &body;
        let in_namespace = move || {
            // SAFETY: concerns this thread only, which ends with this test.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return skip("no network namespace");
            }
            block_ends_of_children();
            let queue = format!("tc qdisc add dev near root {queue}");
            let made = [
                "ip link add near mtu 65535 type veth peer name far mtu 65535",
                "ip addr add 10.66.0.1/24 dev near",
                "ip link set near up",
                "ip link set far up",
                "ip neigh add 10.66.0.2 lladdr 02:00:00:00:00:02 dev near",
                &queue,
            ];
            if let Some(failed) = made.iter().find(|command| !run(command)) {
                eprintln!("'{failed}' fails");
                return skip("no link with a queue (ip, tc)");
            }
            both(body);
        };
        record::like_this().spawn_scoped(scope, in_namespace).unwrap();
    });
}

fn connected() -> UdpSocket {
    let socket = UdpSocket::bind("10.66.0.1:0").unwrap();
    socket.connect("10.66.0.2:9").unwrap();
    socket
}

/// A ring, what it sends on, and what it sends.
fn sender(engine: Engine, flags: u32) -> (Ring, UdpSocket, Vec<u8>) {
    (Ring::new(engine, 64, flags), connected(), vec![1; LARGE])
}

/// One whose completion says whether it was copied.
fn send(user_data: u64, socket: &UdpSocket, memory: &[u8]) -> Sqe {
    Sqe { ioprio: REPORT, ..send_zc(user_data, socket, memory) }
}

/// The engine looks every 4 ms whether anything has been sent on a socket. If not, the next send is a probe anew, and others are
/// copied until its pages are back: the test tries again where the machine took so long.
const UNUSED: Duration = Duration::from_millis(4);

#[by(with_link("pfifo limit 0"))]
fn nothing_is_copied_where_nobody_receives(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 64, 0);
    let memory = vec![1; LARGE];
    let attempt = |_| {
        let socket = connected();
        let (mut all, begin) = (Vec::new(), Instant::now());
        for batch in [1, 1, 2, 20, 40] {
            ring.submit_all((0..batch).map(|i| send(i, &socket, &memory)), 0);
            let mut cqes = ring.collect(2 * batch as usize);
            cqes.sort_by_key(|cqe| (cqe.user_data, cqe.flags));
            all.extend(cqes);
        }
        let is_copied = all.iter().any(|cqe| cqe.res < 0);
        (!is_copied || begin.elapsed() < UNUSED).then_some(all)
    };
    (0..100).find_map(attempt).expect("the machine is quick enough once")
}

/// Packets stay in the queue of this link, once its first bytes are used up, until it is taken away.
const HOLDING: &str = "tbf rate 1kbit burst 70000 limit 10000000";

fn use_up_the_burst() {
    assert_eq!(connected().send(&[0; LARGE]).unwrap(), LARGE);
}

fn let_go() {
    queue(HOLDING);
}

/// The link has another queue from now on; what the one before held is dropped.
fn queue(queue: &str) {
    assert!(run("tc qdisc del dev near root"));
    assert!(run(&format!("tc qdisc add dev near root {queue}")));
}

/// The completions after everything that can be done without waiting has been done.
fn settled(ring: &mut Ring) -> Vec<Cqe> {
    for _ in 0..3 {
        assert_eq!(ring.enter_with(0, 0, IORING_ENTER_GETEVENTS), 0);
    }
    ring.reap_all()
}

#[by(with_link(HOLDING))]
fn memory_is_not_free_before_the_network_is_done_with_it(engine: Engine) -> impl Answer {
    let (mut ring, sent, (socket, _memory)) = held(engine, 0);
    // Neither a poll nor a cancellation has to do with it; a drain has.
    ring.submit(&[poll(2, &socket, libc::POLLIN)]);
    ring.submit(&[cancel(3, 1, 0)]);
    let not_found = settled(&mut ring);
    let_go();
    let free = ring.collect(1);
    let silent = settled(&mut ring);
    (sent, not_found, free, silent)
}

/// Whoever looks first, the caller or the thread that sleeps for the ring, the other's event of the error queue is old.
#[by(with_link("pfifo"))]
fn a_poll_hears_nothing_of_pages_that_were_copied(engine: Engine) -> impl Answer {
    // Holds what comes after the first bytes for some milliseconds.
    assert!(run("tc qdisc replace dev lo root tbf rate 40mbit burst 70000 limit 10000000"));
    let receiver = UdpSocket::bind("10.66.0.1:0").unwrap();
    let socket = UdpSocket::bind("10.66.0.1:0").unwrap();
    socket.connect(receiver.local_addr().unwrap()).unwrap();
    let mut ring = Ring::new(engine, 16, 0);
    let memory = vec![1; LARGE];
    let mut sent = Vec::new();
    for user_data in 1..5 {
        socket.send(&memory).unwrap();
        ring.submit(&[Sqe { ioprio: 0, ..send(user_data, &socket, &memory) }]);
        ring.submit(&[poll(9, &socket, libc::POLLIN)]);
        sent.extend(ring.collect(2));
    }
    (sent, settled(&mut ring))
}

/// The table lets go of it at once; what it was tagged with is told when its last send does.
#[by(with_link(HOLDING))]
fn a_registered_buffer_is_held_until_the_network_is_done_with_it(engine: Engine) -> impl Answer {
    use_up_the_burst();
    let (mut ring, socket, memory) = sender(engine, 0);
    register_tagged(&ring, &vector(&memory));
    ring.submit(&[Sqe { ioprio: REPORT | FIXED, ..send(1, &socket, &memory) }]);
    let sent = settled(&mut ring);
    let unregistered = ring.unregister(IORING_UNREGISTER_BUFFERS);
    let held = settled(&mut ring);
    let_go();
    let free = by_user_data(ring.collect(2));
    (sent, unregistered, held, free)
}

/// Looks until something is there.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `sleep` in this thread, and `wake` in another as soon as this one is asleep.
fn awakened<T>(wake: impl FnOnce() + Send, sleep: impl FnOnce() -> T) -> T {
    let tid = thread_id();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            until("the caller sleeps", || is_asleep(tid).then_some(()));
            wake();
        });
        sleep()
    })
}

fn is_asleep(tid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
    status.rsplit(") ").next().unwrap().starts_with('S')
}

fn wait_readable(fd: i32) {
    assert_ne!(shown(&fd, libc::POLLIN, PATIENCE_MS), 0, "something is told");
}

/// A ring that does everything by itself, and one that leaves it to its caller.
const KINDS: [u32; 2] = [0, DEFER];

/// A ring of these flags on which a send is over whose pages are held, what it came to, and what must live on.
fn held(engine: Engine, flags: u32) -> (Ring, Vec<Cqe>, (UdpSocket, Vec<u8>)) {
    use_up_the_burst();
    let (mut ring, socket, memory) = sender(engine, flags);
    ring.submit(&[send(1, &socket, &memory)]);
    let sent = settled(&mut ring);
    (ring, sent, (socket, memory))
}

#[by(with_link(HOLDING))]
fn who_sleeps_hears_of_pages(engine: Engine) -> impl Answer {
    KINDS.map(|flags| {
        let (mut ring, sent, _kept) = held(engine, flags);
        (sent, awakened(let_go, || ring.collect(1)))
    })
}

#[by(with_link(HOLDING))]
fn who_looks_at_the_cq_hears_of_pages(engine: Engine) -> impl Answer {
    let (mut ring, sent, _kept) = held(engine, 0);
    let_go();
    (sent, until("the pages come back", || ring.reap()))
}

#[by(with_link(HOLDING))]
fn who_comes_when_the_ring_says_so_hears_of_pages(engine: Engine) -> impl Answer {
    let (mut ring, sent, _kept) = held(engine, KINDS[1] | IORING_SETUP_TASKRUN_FLAG);
    let_go();
    let free = until("the pages come back", || {
        if ring.word(ring.params.sq_off.flags).load(Ordering::Relaxed) & IORING_SQ_TASKRUN != 0 {
            assert_eq!(ring.enter_with(0, 0, IORING_ENTER_GETEVENTS), 0);
        }
        ring.reap()
    });
    (sent, free)
}

#[by(with_link(HOLDING))]
fn an_eventfd_tells_of_pages(engine: Engine) -> impl Answer {
    KINDS.map(|flags| {
        use_up_the_burst();
        let mut ring = Ring::new(engine, 16, flags);
        let mut told = File::from(eventfd(0, 0));
        let fd = told.as_raw_fd();
        ring.register_eventfd(&told);
        let (socket, memory) = (connected(), vec![1; LARGE]);
        ring.submit(&[send(1, &socket, &memory)]);
        let sent = settled(&mut ring);
        told.read_exact(&mut [0; 8]).unwrap();
        let_go();
        wait_readable(fd);
        (sent, settled(&mut ring))
    })
}

#[by(with_link(HOLDING))]
fn a_ring_that_is_polled_tells_of_pages(engine: Engine) -> impl Answer {
    KINDS.map(|flags| {
        let (mut ring, sent, _kept) = held(engine, flags);
        let polled = match engine {
            Engine::Kernel => ring.fd,
            Engine::User => {
                let stand_in = frontend::readiness_fd(ring.fd).unwrap();
                assert!(!frontend::sync_readiness(ring.fd));
                stand_in
            }
        };
        match engine {
            Engine::User => awakened(let_go, || wait_readable(polled)),
            // Its ring does not always wake who sleeps there; who looks finds it readable.
            Engine::Kernel => {
                let_go();
                until("something is told", || (shown(&polled, libc::POLLIN, 0) != 0).then_some(()));
            }
        }
        (sent, settled(&mut ring))
    })
}

#[by(with_link(HOLDING))]
fn a_ring_that_another_ring_polls_tells_of_pages(engine: Engine) -> impl Answer {
    let (mut ring, sent, _kept) = held(engine, 0);
    let mut other = Ring::new(engine, 16, 0);
    other.submit(&[Sqe { fd: ring.fd, op_flags: 1, ..sqe(IORING_OP_POLL_ADD, 2) }]);
    let polled = awakened(let_go, || other.collect(1));
    (sent, polled, settled(&mut ring))
}

#[by(with_link(HOLDING))]
fn who_sleeps_hears_of_pages_that_another_thread_sends(engine: Engine) -> impl Answer {
    const SENDS: u64 = 3;
    let (mut ring, socket, memory) = sender(engine, 0);
    // The burst is for the probe.
    ring.submit(&[send(0, &socket, &memory)]);
    let probe = ring.collect(2);
    let fd = ring.fd;
    std::thread::scope(|scope| {
        let (say, tid) = std::sync::mpsc::channel();
        let sleeper = scope.spawn(move || {
            say.send(thread_id()).unwrap();
            enter(engine, fd, 0, 2 * SENDS as u32, IORING_ENTER_GETEVENTS, std::ptr::null(), 0)
        });
        let tid = tid.recv().unwrap();
        until("the other thread sleeps", || is_asleep(tid).then_some(()));
        ring.submit_all((0..SENDS).map(|i| send(i, &socket, &memory)), 0);
        let_go();
        assert_eq!(sleeper.join().unwrap(), 0);
    });
    let mut cqes = ring.reap_all();
    cqes.sort_by_key(|cqe| (cqe.user_data, cqe.flags));
    // Where it took long there was another probe, and the others were copied.
    cqes.iter_mut().for_each(|cqe| cqe.res &= 0x7fff_ffff);
    (probe, cqes)
}

/// Between one sleep and the next, many sends whose pages nobody sleeps for.
#[by(with_link("pfifo limit 0"))]
fn who_has_been_busy_and_sleeps_hears_of_pages(engine: Engine) -> impl Answer {
    KINDS.map(|flags| {
        let (mut ring, socket, memory) = sender(engine, flags);
        let round = || {
            queue("pfifo limit 0");
            for _ in 0..20 {
                ring.submit_all((0..8).map(|i| send(i, &socket, &memory)), 8);
                ring.collect(16);
            }
            queue(HOLDING);
            use_up_the_burst();
            ring.submit(&[send(9, &socket, &memory)]);
            let sent = settled(&mut ring);
            (sent, awakened(let_go, || ring.collect(1)))
        };
        std::iter::repeat_with(round).take(3).collect::<Vec<_>>()
    })
}

#[by(with_link(HOLDING))]
fn an_sq_thread_hears_of_pages_asleep_and_awake(engine: Engine) -> impl Answer {
    [1, 100_000].map(|idle| {
        use_up_the_burst();
        let params = io_uring_params { sq_thread_idle: idle, ..params(IORING_SETUP_SQPOLL) };
        let mut ring = Ring::with_params(engine, 16, params).unwrap();
        let needs_wakeup = |ring: &Ring| {
            ring.word(ring.params.sq_off.flags).load(Ordering::SeqCst) & IORING_SQ_NEED_WAKEUP != 0
        };
        let (socket, memory) = (connected(), vec![1; LARGE]);
        ring.push(send(1, &socket, &memory));
        if needs_wakeup(&ring) {
            assert_eq!(ring.enter_with(1, 0, IORING_ENTER_SQ_WAKEUP), 1);
        }
        let sent = until("the send is over", || ring.reap());
        if idle == 1 {
            until("the thread sleeps", || needs_wakeup(&ring).then_some(()));
        }
        let_go();
        (sent, until("the pages come back", || ring.reap()))
    })
}

/// More of them than are looked at one by one.
#[by(with_link(HOLDING))]
fn pages_of_many_sockets_come_back(engine: Engine) -> impl Answer {
    const SOCKETS: usize = 12;
    [true, false].map(|sleeps| {
        use_up_the_burst();
        let mut ring = Ring::new(engine, 16, KINDS[1]);
        let sockets: Vec<UdpSocket> = (0..SOCKETS).map(|_| connected()).collect();
        let memory = vec![1; LARGE];
        ring.submit_all(sockets.iter().zip(0..).map(|(socket, i)| send(i, socket, &memory)), 0);
        let sent = settled(&mut ring);
        let mut free = Vec::new();
        if sleeps {
            awakened(let_go, || free.extend(ring.collect(SOCKETS)));
        } else {
            let_go();
            until("the pages come back", || {
                free.extend(settled(&mut ring));
                (free.len() == SOCKETS).then_some(())
            });
        }
        free.sort_by_key(|cqe| cqe.user_data);
        (sent, free)
    })
}

#[by(with_link(HOLDING))]
fn a_drain_waits_for_pages(engine: Engine) -> impl Answer {
    let (mut ring, sent, _kept) = held(engine, 0);
    ring.submit(&[Sqe { flags: 1 << 1, ..sqe(IORING_OP_NOP, 2) }]);
    ring.submit(&[sqe(IORING_OP_NOP, 3)]);
    let silent = settled(&mut ring);
    let_go();
    (sent, silent, ring.collect(3))
}

/// A child gives up silently what it has of a ring; its parent's completions are the parent's.
#[by(with_link(HOLDING))]
fn a_child_has_nothing_of_pages_that_are_out(engine: Engine) -> impl Answer {
    use_up_the_burst();
    let (mut ring, socket, memory) = sender(engine, 0);
    register_tagged(&ring, &vector(&memory));
    ring.submit(&[Sqe { ioprio: REPORT | FIXED, ..send(1, &socket, &memory) }]);
    let sent = settled(&mut ring);
    assert_eq!(ring.unregister(IORING_UNREGISTER_BUFFERS), 0);
    in_child(|| {
        let mut own = Ring::new(engine, 16, 0);
        own.run(&[sqe(IORING_OP_NOP, 2)]).len() == 1
    });
    let silent = settled(&mut ring);
    let_go();
    let free = by_user_data(ring.collect(2));
    (sent, silent, free)
}

/// One buffer whose end is told as 7.
fn register_tagged(ring: &Ring, buffer: &libc::iovec) {
    let (data, tag) = (std::ptr::from_ref(buffer) as u64, 7u64);
    let table = io_uring_rsrc_register { nr: 1, flags: 0, resv2: 0, data, tags: &raw const tag as u64 };
    let register = IORING_REGISTER_BUFFERS2;
    assert_eq!(ring.register(register, (&raw const table).cast(), size_of_val(&table) as u32), 0);
}

#[by(with_link(HOLDING))]
fn a_socket_may_be_closed_while_its_pages_are_out(engine: Engine) -> impl Answer {
    use_up_the_burst();
    let (mut ring, socket, memory) = sender(engine, 0);
    ring.submit(&[send(1, &socket, &memory)]);
    drop(socket);
    ring.submit(&[Sqe { flags: 1 << 1, ..sqe(IORING_OP_NOP, 2) }]);
    let sent = settled(&mut ring);
    let_go();
    (sent, ring.collect(2))
}

#[by(with_link(HOLDING))]
fn a_ring_may_be_closed_while_pages_are_out(engine: Engine) -> impl Answer {
    use_up_the_burst();
    let (mut ring, socket, memory) = sender(engine, 0);
    ring.submit(&[send(1, &socket, &memory)]);
    drop(ring);
    let_go();
    socket.send(b"x").unwrap()
}

#[by(with_link("pfifo limit 0"))]
fn an_error_queue_that_the_program_uses_is_left_to_it(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 16, 0);
    let socket = connected();
    set_option(&socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1);
    let memory = vec![1; LARGE];
    ring.submit(&[send(1, &socket, &memory)]);
    let mut cqes = ring.collect(2);
    // Dropped packets are errors now. The kernel's zero-copy sends leave nothing in the queue, either.
    cqes.iter_mut().for_each(|cqe| cqe.res &= 0x7fff_ffff);
    (cqes, error_queue_is_empty(&socket))
}

#[by(with_link(HOLDING))]
fn one_that_the_program_begins_to_use_is_left_to_it_from_then_on(engine: Engine) -> impl Answer {
    let (mut ring, sent, (socket, _memory)) = held(engine, 0);
    if engine == Engine::User {
        frontend::watches_errors(socket.as_raw_fd());
    }
    let_go();
    let free = ring.collect(1);
    (sent, free)
}

#[by(with_link("pfifo limit 0"))]
fn one_that_the_program_begins_to_watch_by_another_descriptor_is_left_to_it(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 16, 0);
    let socket = connected();
    let other = socket.try_clone().unwrap();
    let memory = vec![1; LARGE];
    ring.submit(&[send(1, &socket, &memory)]);
    let first = ring.collect(2);
    if engine == Engine::User {
        frontend::watches_errors(other.as_raw_fd());
    }
    ring.submit(&[send(2, &socket, &memory)]);
    let second = ring.collect(2);
    let is_copied = second.iter().any(|cqe| cqe.res < 0);
    assert_eq!(is_copied, engine == Engine::User);
    first
}

#[by(with_link("pfifo limit 0"))]
fn nothing_is_left_in_the_error_queue(engine: Engine) -> impl Answer {
    let (mut ring, socket, memory) = sender(engine, 0);
    for user_data in 0..5 {
        ring.submit(&[send(user_data, &socket, &memory)]);
        ring.collect(2);
    }
    error_queue_is_empty(&socket)
}

/// Datagrams of one submission leave together where they can; where the path is narrower, each goes in fragments.
#[by(with_link("pfifo"))]
fn datagrams_longer_than_the_path_takes_in_one_piece(engine: Engine) {
    assert!(run("ip link set lo mtu 1500 up"));
    let mut ring = Ring::new(engine, 16, 0);
    let (to, from) = udp_connected();
    let memory: Vec<u8> = (0..20_000u32).map(|byte| (byte % 251) as u8).collect();
    let mut datagram = [0; 8192];
    for length in [4000, 200, 4000, 1472, 1473, 200] {
        ring.submit_all(
            (0..6).map(|user_data| send(user_data, &from, &memory[user_data as usize * 7..][..length])),
            6,
        );
        let cqes = ring.collect(12);
        for (cqe, user_data) in cqes.iter().filter(|cqe| cqe.flags & IORING_CQE_F_NOTIF == 0).zip(0..) {
            assert_eq!((cqe.user_data, cqe.res), (user_data, length as i32));
            assert_eq!(to.recv(&mut datagram).unwrap(), length);
            assert_eq!(datagram[..length], memory[user_data as usize * 7..][..length]);
        }
    }
}

fn error_queue_is_empty(socket: &UdpSocket) -> bool {
    let mut byte = 0u8;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: receives into a byte of ours.
    unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, flags) < 0 }
}

/// A peer in a namespace of its own, behind a link to this thread's, that takes what comes and says
/// whether each block of it is filled with its own number.
fn peer(blocks: usize, length: usize) -> Option<std::thread::JoinHandle<bool>> {
    let (ready, started) = std::sync::mpsc::channel();
    let (go, linked) = std::sync::mpsc::channel::<()>();
    let peer = std::thread::spawn(move || {
        // SAFETY: concerns this thread only, and asks for its number.
        let tid = unsafe {
            assert_eq!(libc::unshare(libc::CLONE_NEWNET), 0);
            libc::gettid()
        };
        ready.send(tid).unwrap();
        if linked.recv().is_err() {
            return false;
        }
        let made = run("ip addr add 10.66.0.2/24 dev far") && run("ip link set far up");
        let listener = TcpListener::bind("10.66.0.2:9").unwrap();
        ready.send(i32::from(made)).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let mut block = vec![0; length];
        (0..blocks).all(|number| {
            stream.read_exact(&mut block).unwrap();
            block.iter().all(|&byte| byte == number as u8)
        })
    });
    let tid = started.recv().unwrap();
    // What links this namespace with another test's peer goes with the link.
    run("ip link del near");
    let made = run("ip link add near type veth peer name far")
        && run(&format!("ip link set far netns {tid}"))
        && run("ip addr add 10.66.0.1/24 dev near")
        && run("ip link set near up");
    if !made {
        return None;
    }
    go.send(()).unwrap();
    (started.recv().unwrap() == 1).then_some(peer)
}

#[by(with_link("pfifo"))]
fn memory_may_be_used_again_after_the_notification(engine: Engine) -> impl Answer {
    const BLOCKS: usize = 64;
    const LENGTH: usize = 256 << 10;
    let peer = peer(BLOCKS, LENGTH).expect("a link into another namespace");
    let mut ring = Ring::new(engine, 16, 0);
    let stream = TcpStream::connect("10.66.0.2:9").unwrap();
    let mut memory = vec![0u8; LENGTH];
    for number in 0..BLOCKS {
        memory.fill(number as u8);
        let op_flags = libc::MSG_WAITALL as u32;
        ring.submit(&[Sqe { op_flags, ..send_zc(number as u64, &stream, &memory) }]);
        let cqes = ring.collect(2);
        assert_eq!((cqes[0].res, cqes[0].flags), (LENGTH as i32, IORING_CQE_F_MORE));
        assert_eq!((cqes[1].res, cqes[1].flags), (0, IORING_CQE_F_NOTIF));
    }
    peer.join().unwrap()
}

/// Sends that are requests before they are tried leave without a copy, and so do messages; of theirs, too, nothing is told before
/// the network is done with the memory.
#[by(with_link(HOLDING))]
fn requests_leave_without_a_copy(engine: Engine) -> impl Answer {
    use_up_the_burst();
    let (mut ring, socket, memory) = sender(engine, 0);
    // Few enough pages for one packet, however they lie.
    let vectors = [vector(&memory[..LARGE / 3]); 2];
    let header = message_of(&vectors);
    let message = Sqe { ioprio: REPORT, ..messaging(IORING_OP_SENDMSG_ZC, 1, &socket, &header) };
    let polls_first = IORING_RECVSEND_POLL_FIRST as u16;
    let mut all = Vec::new();
    // The first shows that the socket can.
    for sqe in [
        send(1, &socket, &memory),
        Sqe { ioprio: REPORT | polls_first, ..send(2, &socket, &memory) },
        message,
    ] {
        ring.submit(&[sqe]);
        let sent = settled(&mut ring);
        let_go();
        use_up_the_burst();
        let owed = 2 - sent.len();
        all.extend([sent, ring.collect(owed)]);
    }
    all
}

/// A stream takes a large send piece by piece; what it tells of them are one notification.
#[by(with_link("pfifo"))]
fn pieces_of_a_send_have_one_notification(engine: Engine) -> impl Answer {
    const LENGTH: usize = 4 << 20;
    let peer = peer(2, LENGTH).expect("a link into another namespace");
    let mut ring = Ring::new(engine, 16, 0);
    let stream = TcpStream::connect("10.66.0.2:9").unwrap();
    set_option(&stream, libc::SOL_SOCKET, libc::SO_SNDBUF, 1 << 17);
    let mut all = Vec::new();
    for number in 0..2 {
        let memory = vec![number as u8; LENGTH];
        let op_flags = libc::MSG_WAITALL as u32;
        ring.submit(&[Sqe { op_flags, ioprio: REPORT, ..send_zc(number, &stream, &memory) }]);
        all.extend(ring.collect(2));
    }
    (all, peer.join().unwrap())
}

/// The network's notice about a send stands in the socket's error queue, and is no error that the program polls for.
#[by(with_link("pfifo limit 0"))]
fn a_poll_hears_nothing_of_pages(engine: Engine) -> impl Answer {
    let (mut ring, socket, memory) = sender(engine, DEFER);
    let mut all = Vec::new();
    for events in [0, libc::POLLIN as u32] {
        ring.submit(&[send(1, &socket, &memory)]);
        ring.submit(&[Sqe { fd: socket.as_raw_fd(), op_flags: events, ..sqe(IORING_OP_POLL_ADD, 2) }]);
        all.extend(ring.reap_all());
        all.extend(ring.collect(1));
        all.extend(settled(&mut ring));
        ring.submit(&[Sqe { addr: 2, ..sqe(IORING_OP_POLL_REMOVE, 3) }]);
        let ends = by_user_data(ring.collect(2));
        all.extend(ends);
    }
    all
}

/// Only those have to do with the error queue that ask for it.
#[by(with_link("pfifo limit 0"))]
fn receives_leave_the_error_queue_alone(engine: Engine) -> impl Answer {
    let (mut ring, socket, memory) = sender(engine, 0);
    let mut buffer = [0u8; 8];
    let ioprio = IORING_RECVSEND_POLL_FIRST as u16;
    ring.submit(&[Sqe { ioprio, ..reading(IORING_OP_RECV, 9, &socket, &mut buffer) }]);
    let mut all = Vec::new();
    for user_data in 0..3 {
        ring.submit(&[send(user_data, &socket, &memory)]);
        all.extend(ring.collect(2));
    }
    all
}
