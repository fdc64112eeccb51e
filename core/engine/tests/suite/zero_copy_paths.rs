//! SEND_ZC where nothing is copied: in network namespaces of their own, over links that drop or hold what
//! is sent.

use std::fs::File;
use std::io::Read;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::*;
use anyring_engine::abi::Sqe;
use io_uring_op::*;

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

fn send_zc(user_data: u64, socket: &UdpSocket, buffer: &[u8]) -> Sqe {
    Sqe {
        fd: socket.as_raw_fd(),
        addr: buffer.as_ptr() as u64,
        len: buffer.len() as u32,
        ioprio: REPORT,
        ..sqe(IORING_OP_SEND_ZC, user_data)
    }
}

fn submit(ring: &mut Ring, sqe: Sqe) {
    ring.submit(&[sqe]);
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
            (0..batch).for_each(|i| ring.push(send_zc(i, &socket, &memory)));
            assert_eq!(ring.enter(batch as u32, 0), batch as i32);
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

/// What is there after everything that can be done without waiting has been done.
fn settled(ring: &mut Ring) -> Vec<Cqe> {
    for _ in 0..3 {
        assert_eq!(ring.enter_with(0, 0, IORING_ENTER_GETEVENTS), 0);
    }
    ring.reap_all()
}

#[by(with_link(HOLDING))]
fn memory_is_not_free_before_the_network_is_done_with_it(engine: Engine) -> impl Answer {
    use_up_the_burst();
    let mut ring = Ring::new(engine, 16, 0);
    let socket = connected();
    let memory = vec![1; LARGE];
    submit(&mut ring, send_zc(1, &socket, &memory));
    let sent = settled(&mut ring);
    // Neither a poll nor a cancellation has to do with it; a drain has.
    submit(&mut ring, Sqe { fd: socket.as_raw_fd(), op_flags: 1, ..sqe(IORING_OP_POLL_ADD, 2) });
    submit(&mut ring, Sqe { addr: 1, ..sqe(IORING_OP_ASYNC_CANCEL, 3) });
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
        submit(&mut ring, Sqe { ioprio: 0, ..send_zc(user_data, &socket, &memory) });
        submit(&mut ring, Sqe { fd: socket.as_raw_fd(), op_flags: 1, ..sqe(IORING_OP_POLL_ADD, 9) });
        sent.extend(ring.collect(2));
    }
    (sent, settled(&mut ring))
}

/// The table lets go of it at once; what it was tagged with is told when its last send does.
#[by(with_link(HOLDING))]
fn a_registered_buffer_is_held_until_the_network_is_done_with_it(engine: Engine) -> impl Answer {
    use_up_the_burst();
    let mut ring = Ring::new(engine, 16, 0);
    let socket = connected();
    let memory = vec![1; LARGE];
    let buffer = libc::iovec { iov_base: memory.as_ptr() as *mut _, iov_len: memory.len() };
    register_tagged(&ring, &buffer);
    submit(&mut ring, Sqe { ioprio: REPORT | FIXED, ..send_zc(1, &socket, &memory) });
    let sent = settled(&mut ring);
    let unregister = io_uring_register_op::IORING_UNREGISTER_BUFFERS;
    let unregistered = ring.register(unregister, std::ptr::null(), 0);
    let held = settled(&mut ring);
    let_go();
    let mut free = ring.collect(2);
    free.sort_by_key(|cqe| cqe.user_data);
    (sent, unregistered, held, free)
}

const GENEROUS: Duration = Duration::from_secs(60);

/// Looks until something is there.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < GENEROUS, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `sleep` in this thread, and `wake` in another as soon as this one is asleep.
fn awakened<T>(wake: impl FnOnce() + Send, sleep: impl FnOnce() -> T) -> T {
    // SAFETY: asks for a number.
    let tid = unsafe { libc::gettid() };
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
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, of ours.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, GENEROUS.as_millis() as i32) }, 1, "something is told");
}

fn is_readable(fd: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, of ours.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

/// A ring that does everything by itself, and one that leaves it to its caller.
const KINDS: [u32; 2] = [0, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN];

/// A ring of these flags on which a send is over whose pages are held, what it came to, and what must live on.
fn held(engine: Engine, flags: u32) -> (Ring, Vec<Cqe>, (UdpSocket, Vec<u8>)) {
    use_up_the_burst();
    let mut ring = Ring::new(engine, 16, flags);
    let (socket, memory) = (connected(), vec![1; LARGE]);
    submit(&mut ring, send_zc(1, &socket, &memory));
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
        // SAFETY: makes a descriptor, which is this test's.
        let mut told = unsafe { File::from_raw_fd(libc::eventfd(0, 0)) };
        let fd = told.as_raw_fd();
        let register = io_uring_register_op::IORING_REGISTER_EVENTFD;
        assert_eq!(ring.register(register, (&raw const fd).cast(), 1), 0);
        let (socket, memory) = (connected(), vec![1; LARGE]);
        submit(&mut ring, send_zc(1, &socket, &memory));
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
                let stand_in = anyring_engine::frontend::readiness_fd(ring.fd).unwrap();
                assert!(!anyring_engine::frontend::sync_readiness(ring.fd));
                stand_in
            }
        };
        match engine {
            Engine::User => awakened(let_go, || wait_readable(polled)),
            // Its ring does not always wake who sleeps there; who looks finds it readable.
            Engine::Kernel => {
                let_go();
                until("something is told", || is_readable(polled).then_some(()));
            }
        }
        (sent, settled(&mut ring))
    })
}

#[by(with_link(HOLDING))]
fn a_ring_that_another_ring_polls_tells_of_pages(engine: Engine) -> impl Answer {
    let (mut ring, sent, _kept) = held(engine, 0);
    let mut other = Ring::new(engine, 16, 0);
    submit(&mut other, Sqe { fd: ring.fd, op_flags: 1, ..sqe(IORING_OP_POLL_ADD, 2) });
    let polled = awakened(let_go, || other.collect(1));
    (sent, polled, settled(&mut ring))
}

#[by(with_link(HOLDING))]
fn who_sleeps_hears_of_pages_that_another_thread_sends(engine: Engine) -> impl Answer {
    const SENDS: u64 = 3;
    let mut ring = Ring::new(engine, 64, 0);
    let socket = connected();
    let memory = vec![1; LARGE];
    // The burst is for the probe.
    submit(&mut ring, send_zc(0, &socket, &memory));
    let probe = ring.collect(2);
    let fd = ring.fd;
    std::thread::scope(|scope| {
        let (say, tid) = std::sync::mpsc::channel();
        let sleeper = scope.spawn(move || {
            // SAFETY: asks for a number.
            say.send(unsafe { libc::gettid() }).unwrap();
            enter(engine, fd, 0, 2 * SENDS as u32, IORING_ENTER_GETEVENTS, std::ptr::null(), 0)
        });
        let tid = tid.recv().unwrap();
        until("the other thread sleeps", || is_asleep(tid).then_some(()));
        (0..SENDS).for_each(|i| ring.push(send_zc(i, &socket, &memory)));
        assert_eq!(ring.enter(SENDS as u32, 0), SENDS as i32);
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
        let mut ring = Ring::new(engine, 64, flags);
        let socket = connected();
        let memory = vec![1; LARGE];
        let round = || {
            queue("pfifo limit 0");
            for _ in 0..20 {
                (0..8).for_each(|i| ring.push(send_zc(i, &socket, &memory)));
                assert_eq!(ring.enter(8, 8), 8);
                ring.collect(16);
            }
            queue(HOLDING);
            use_up_the_burst();
            submit(&mut ring, send_zc(9, &socket, &memory));
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
        // SAFETY: integers only.
        let mut params: io_uring_params = unsafe { std::mem::zeroed() };
        (params.flags, params.sq_thread_idle) = (IORING_SETUP_SQPOLL, idle);
        let mut ring = Ring::with_params(engine, 16, params).unwrap();
        let needs_wakeup = |ring: &Ring| {
            ring.word(ring.params.sq_off.flags).load(Ordering::SeqCst) & IORING_SQ_NEED_WAKEUP != 0
        };
        let (socket, memory) = (connected(), vec![1; LARGE]);
        ring.push(send_zc(1, &socket, &memory));
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
        sockets.iter().zip(0..).for_each(|(socket, i)| ring.push(send_zc(i, socket, &memory)));
        assert_eq!(ring.enter(SOCKETS as u32, 0), SOCKETS as i32);
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
    submit(&mut ring, Sqe { flags: 1 << 1, ..sqe(IORING_OP_NOP, 2) });
    submit(&mut ring, sqe(IORING_OP_NOP, 3));
    let silent = settled(&mut ring);
    let_go();
    (sent, silent, ring.collect(3))
}

/// What a child has of a ring, it gives up silently; its parent's completions are the parent's.
#[by(with_link(HOLDING))]
fn a_child_has_nothing_of_pages_that_are_out(engine: Engine) -> impl Answer {
    use_up_the_burst();
    let mut ring = Ring::new(engine, 16, 0);
    let (socket, memory) = (connected(), vec![1; LARGE]);
    let buffer = libc::iovec { iov_base: memory.as_ptr() as *mut _, iov_len: memory.len() };
    register_tagged(&ring, &buffer);
    submit(&mut ring, Sqe { ioprio: REPORT | FIXED, ..send_zc(1, &socket, &memory) });
    let sent = settled(&mut ring);
    let unregister = io_uring_register_op::IORING_UNREGISTER_BUFFERS;
    assert_eq!(ring.register(unregister, std::ptr::null(), 0), 0);
    let child = child(|| {
        let mut own = Ring::new(engine, 16, 0);
        own.run(&[sqe(IORING_OP_NOP, 2)]).len() == 1
    });
    assert_eq!(ended(child), 0);
    let silent = settled(&mut ring);
    let_go();
    let mut free = ring.collect(2);
    free.sort_by_key(|cqe| cqe.user_data);
    (sent, silent, free)
}

/// One buffer whose end is told as 7.
fn register_tagged(ring: &Ring, buffer: &libc::iovec) {
    let (data, tag) = (std::ptr::from_ref(buffer) as u64, 7u64);
    let table = io_uring_rsrc_register { nr: 1, flags: 0, resv2: 0, data, tags: &raw const tag as u64 };
    let register = io_uring_register_op::IORING_REGISTER_BUFFERS2;
    assert_eq!(ring.register(register, (&raw const table).cast(), size_of_val(&table) as u32), 0);
}

#[by(with_link(HOLDING))]
fn a_socket_may_be_closed_while_its_pages_are_out(engine: Engine) -> impl Answer {
    use_up_the_burst();
    let mut ring = Ring::new(engine, 16, 0);
    let socket = connected();
    let memory = vec![1; LARGE];
    submit(&mut ring, send_zc(1, &socket, &memory));
    drop(socket);
    submit(&mut ring, Sqe { flags: 1 << 1, ..sqe(IORING_OP_NOP, 2) });
    let sent = settled(&mut ring);
    let_go();
    (sent, ring.collect(2))
}

#[by(with_link(HOLDING))]
fn a_ring_may_be_closed_while_pages_are_out(engine: Engine) -> impl Answer {
    use_up_the_burst();
    let mut ring = Ring::new(engine, 16, 0);
    let socket = connected();
    let memory = vec![1; LARGE];
    submit(&mut ring, send_zc(1, &socket, &memory));
    drop(ring);
    let_go();
    socket.send(b"x").unwrap()
}

#[by(with_link("pfifo limit 0"))]
fn an_error_queue_that_the_program_uses_is_left_to_it(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 16, 0);
    let socket = connected();
    let one = 1i32;
    // SAFETY: an option of ours on a socket of ours.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_RECVERR,
            (&raw const one).cast(),
            size_of_val(&one) as u32,
        )
    };
    assert_eq!(set, 0);
    let memory = vec![1; LARGE];
    submit(&mut ring, send_zc(1, &socket, &memory));
    let mut cqes = ring.collect(2);
    // Dropped packets are errors now. The kernel's zero-copy sends leave nothing in the queue, either.
    cqes.iter_mut().for_each(|cqe| cqe.res &= 0x7fff_ffff);
    (cqes, error_queue_is_empty(&socket))
}

#[by(with_link(HOLDING))]
fn one_that_the_program_begins_to_use_is_left_to_it_from_then_on(engine: Engine) -> impl Answer {
    use_up_the_burst();
    let mut ring = Ring::new(engine, 16, 0);
    let socket = connected();
    let memory = vec![1; LARGE];
    submit(&mut ring, send_zc(1, &socket, &memory));
    let sent = settled(&mut ring);
    if engine == Engine::User {
        anyring_engine::frontend::watches_errors(socket.as_raw_fd());
    }
    let_go();
    let free = ring.collect(1);
    if engine == Engine::User {
        // The number may be another test's next.
        anyring_engine::frontend::closed(socket.as_raw_fd());
    }
    (sent, free)
}

#[by(with_link("pfifo limit 0"))]
fn one_that_the_program_begins_to_watch_by_another_descriptor_is_left_to_it(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 16, 0);
    let socket = connected();
    let other = socket.try_clone().unwrap();
    let memory = vec![1; LARGE];
    submit(&mut ring, send_zc(1, &socket, &memory));
    let first = ring.collect(2);
    if engine == Engine::User {
        anyring_engine::frontend::watches_errors(other.as_raw_fd());
    }
    submit(&mut ring, send_zc(2, &socket, &memory));
    let second = ring.collect(2);
    if engine == Engine::User {
        // The number may be another test's next.
        anyring_engine::frontend::closed(other.as_raw_fd());
    }
    let is_copied = second.iter().any(|cqe| cqe.res < 0);
    assert_eq!(is_copied, engine == Engine::User);
    first
}

#[by(with_link("pfifo limit 0"))]
fn nothing_is_left_in_the_error_queue(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 16, 0);
    let socket = connected();
    let memory = vec![1; LARGE];
    for user_data in 0..5 {
        submit(&mut ring, send_zc(user_data, &socket, &memory));
        ring.collect(2);
    }
    error_queue_is_empty(&socket)
}

/// Datagrams of one submission leave together where they can; where the path is narrower, each goes in fragments.
#[by(with_link("pfifo"))]
fn datagrams_longer_than_the_path_takes_in_one_piece(engine: Engine) {
    assert!(run("ip link set lo mtu 1500 up"));
    let mut ring = Ring::new(engine, 16, 0);
    let to = UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = UdpSocket::bind("127.0.0.1:0").unwrap();
    from.connect(to.local_addr().unwrap()).unwrap();
    let memory: Vec<u8> = (0..20_000u32).map(|byte| (byte % 251) as u8).collect();
    let mut datagram = [0; 8192];
    for length in [4000, 200, 4000, 1472, 1473, 200] {
        for user_data in 0..6 {
            ring.push(send_zc(user_data, &from, &memory[user_data as usize * 7..][..length]));
        }
        assert_eq!(ring.enter(6, 6), 6);
        for (cqe, user_data) in
            ring.collect(12).iter().filter(|cqe| cqe.flags & IORING_CQE_F_NOTIF == 0).zip(0..)
        {
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
        let sqe = Sqe {
            fd: stream.as_raw_fd(),
            addr: memory.as_ptr() as u64,
            len: LENGTH as u32,
            op_flags: libc::MSG_WAITALL as u32,
            ..sqe(IORING_OP_SEND_ZC, number as u64)
        };
        submit(&mut ring, sqe);
        let cqes = ring.collect(2);
        assert_eq!((cqes[0].res, cqes[0].flags), (LENGTH as i32, IORING_CQE_F_MORE));
        assert_eq!((cqes[1].res, cqes[1].flags), (0, IORING_CQE_F_NOTIF));
    }
    peer.join().unwrap()
}

/// The same of sends that are requests before they are tried, and of messages; of theirs, too, nothing is told before the
/// network is done with the memory.
#[by(with_link(HOLDING))]
fn requests_leave_without_a_copy(engine: Engine) -> impl Answer {
    use_up_the_burst();
    let mut ring = Ring::new(engine, 16, 0);
    let socket = connected();
    let memory = vec![1; LARGE];
    // Few enough pages for one packet, however they lie.
    let mut vectors =
        [LARGE / 3; 2].map(|iov_len| libc::iovec { iov_base: memory.as_ptr().cast_mut().cast(), iov_len });
    // SAFETY: null pointers and zeros.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (vectors.as_mut_ptr(), vectors.len());
    let message = Sqe {
        addr: (&raw const header) as u64,
        len: 1,
        opcode: IORING_OP_SENDMSG_ZC as u8,
        ..send_zc(1, &socket, &memory)
    };
    let polls_first = IORING_RECVSEND_POLL_FIRST as u16;
    let mut all = Vec::new();
    // The first shows that the socket can.
    for sqe in [
        send_zc(1, &socket, &memory),
        Sqe { ioprio: REPORT | polls_first, ..send_zc(2, &socket, &memory) },
        message,
    ] {
        submit(&mut ring, sqe);
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
    let room = 1i32 << 17;
    let (room_at, length) = ((&raw const room).cast(), size_of_val(&room) as u32);
    // SAFETY: reads an integer of ours.
    let set =
        unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, room_at, length) };
    assert_eq!(set, 0);
    let mut all = Vec::new();
    for number in 0..2 {
        let memory = vec![number as u8; LENGTH];
        let sqe = Sqe {
            fd: stream.as_raw_fd(),
            addr: memory.as_ptr() as u64,
            len: LENGTH as u32,
            op_flags: libc::MSG_WAITALL as u32,
            ioprio: REPORT,
            ..sqe(IORING_OP_SEND_ZC, number)
        };
        submit(&mut ring, sqe);
        all.extend(ring.collect(2));
    }
    (all, peer.join().unwrap())
}

/// What comes of it stands in the socket's error queue, and is no error that the program polls for.
#[by(with_link("pfifo limit 0"))]
fn a_poll_hears_nothing_of_pages(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 16, IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER);
    let socket = connected();
    let memory = vec![1; LARGE];
    let mut all = Vec::new();
    for events in [0, libc::POLLIN as u32] {
        submit(&mut ring, send_zc(1, &socket, &memory));
        submit(&mut ring, Sqe { fd: socket.as_raw_fd(), op_flags: events, ..sqe(IORING_OP_POLL_ADD, 2) });
        all.extend(ring.reap_all());
        all.extend(ring.collect(1));
        all.extend(settled(&mut ring));
        submit(&mut ring, Sqe { addr: 2, ..sqe(IORING_OP_POLL_REMOVE, 3) });
        let mut ends = ring.collect(2);
        ends.sort_by_key(|cqe| cqe.user_data);
        all.extend(ends);
    }
    all
}

/// Only those have to do with the error queue that ask for it.
#[by(with_link("pfifo limit 0"))]
fn receives_leave_the_error_queue_alone(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 16, 0);
    let socket = connected();
    let memory = vec![1; LARGE];
    let mut buffer = [0u8; 8];
    let receive = Sqe {
        fd: socket.as_raw_fd(),
        addr: buffer.as_mut_ptr() as u64,
        len: 8,
        ioprio: IORING_RECVSEND_POLL_FIRST as u16,
        ..sqe(IORING_OP_RECV, 9)
    };
    submit(&mut ring, receive);
    let mut all = Vec::new();
    for user_data in 0..3 {
        submit(&mut ring, send_zc(user_data, &socket, &memory));
        all.extend(ring.collect(2));
    }
    all
}
