//! The cost of operations in system calls, and the flags with which the engine makes them: a shortcut that is not taken any more
//! has the same results, and is seen here only.
//!
//! Each row of [`cases`] is a test, which runs in a traced child. Its steps name the calls that the engine makes for what they
//! submit: `run(ring, "wait; recv(64)", &[receive(&other, 64)])`.
#![cfg(not(anyring_sanitizer))]

use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::panic::Location;

use crate::arch::Stopped;
use crate::common::prelude::*;
use crate::zero_copy_names::{LARGE, unread};
use anyring_engine::Host;
use anyring_engine::abi::{
    IOSQE_ASYNC, IOSQE_BUFFER_SELECT, IOSQE_CQE_SKIP_SUCCESS, IOSQE_FIXED_FILE, IOSQE_IO_DRAIN,
    IOSQE_IO_LINK, names,
};
use anyring_engine::request::version::{self, Version};

/// A call that nobody else makes: a case tells its tracer one of the three values below by it, and what belongs to that.
const TELL: i64 = libc::SYS_getpriority;
const STEP_BEGINS: u64 = 4711;
/// With the address and length of the calls that are expected, and the address of the step's place in this file.
const STEP_ENDS: u64 = 4712;
/// With the address of a CQ's tail: from here on, calls are shown with how many CQEs the ring has posted.
const SHOW_POSTED: u64 = 4713;

fn tell(what: u64, a: usize, b: usize, c: usize) {
    // SAFETY: refused, for there is no such kind of priority.
    unsafe { libc::syscall(TELL, what, a, b, c) };
}

/// A step, for which this thread makes the expected calls, or those of one of several ways: `poll; open | open`.
#[track_caller]
fn step<T>(expected: &'static str, body: impl FnOnce() -> T) -> T {
    step_that_tells(|| (body(), expected))
}

/// A step that tells itself which calls are expected of it.
#[track_caller]
fn step_that_tells<T>(body: impl FnOnce() -> (T, &'static str)) -> T {
    tell(STEP_BEGINS, 0, 0, 0);
    let (result, expected) = body();
    let place = std::ptr::from_ref::<Location<'static>>(Location::caller());
    tell(STEP_ENDS, expected.as_ptr().addr(), expected.len(), place.addr());
    result
}

/// A call on the program's files by its name, with the number that tells something, and the flags that differ from the usual ones:
/// `recv(64, WAITALL, !DONTWAIT)`. `None` for what the engine does for itself: locks, copies of memory, registrations, the time.
fn describe(pid: i32, number: i64, arguments: [u64; 6]) -> Option<String> {
    const RECEIVES: i32 = libc::MSG_DONTWAIT;
    const SENDS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let [_, b, c, d, _, _] = arguments;
    let none = (names::MSG_FLAGS, 0, 0);
    let (name, number, (names, flags, usual)) = match number {
        libc::SYS_recvfrom => ("recv", Some(c), (names::MSG_FLAGS, d, RECEIVES)),
        libc::SYS_recvmsg => ("recvmsg", None, (names::MSG_FLAGS, c, RECEIVES)),
        libc::SYS_sendto => ("send", Some(c), (names::MSG_FLAGS, d, SENDS)),
        libc::SYS_sendmsg => ("sendmsg", None, (names::MSG_FLAGS, c, SENDS)),
        libc::SYS_accept4 => ("accept4", None, (names::SOCKET_FLAGS, d, 0)),
        libc::SYS_close_range => ("close_range", None, none),
        libc::SYS_socket => ("socket", None, (names::SOCKET_FLAGS, b, libc::SOCK_STREAM)),
        libc::SYS_pipe2 => ("pipe2", None, (names::PIPE_FLAGS, b, 0)),
        libc::SYS_openat => ("openat", None, (names::OPEN_FLAGS, c, 0)),
        libc::SYS_openat2 => ("openat2", None, (names::OPEN_FLAGS, peek(pid, c), 0)),
        libc::SYS_io_submit => ("io_submit", Some(b), none),
        libc::SYS_io_getevents => ("await", None, none),
        libc::SYS_preadv2 => ("preadv2", Some(c), none),
        libc::SYS_pwritev2 => ("pwritev2", Some(c), none),
        libc::SYS_pread64 => ("pread", Some(c), none),
        libc::SYS_pwrite64 => ("pwrite", Some(c), none),
        libc::SYS_readv => ("readv", None, none),
        libc::SYS_writev => ("writev", None, none),
        libc::SYS_fsync => ("fsync", None, none),
        libc::SYS_fdatasync => ("fdatasync", None, none),
        libc::SYS_ppoll => ("poll", None, none),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => ("wait", None, none),
        libc::SYS_pidfd_open => ("pidfd_open", None, none),
        libc::SYS_waitid => ("waitid", None, none),
        libc::SYS_write if c == 8 => ("signal", None, none),
        libc::SYS_statx | libc::SYS_newfstatat => ("look", None, none),
        libc::SYS_kcmp => ("compare", None, none),
        libc::SYS_fcntl if b == u64::from(linux_raw_sys::general::F_DUPFD_QUERY) => ("compare", None, none),
        libc::SYS_fcntl if b == libc::F_GETFL as u64 => ("flags", None, none),
        libc::SYS_fcntl if b == libc::F_DUPFD_CLOEXEC as u64 => ("duplicate", None, none),
        libc::SYS_ioctl if b as u32 == linux_raw_sys::ioctl::FIONBIO => ("FIONBIO", None, none),
        libc::SYS_ioctl if b as u32 == linux_raw_sys::ioctl::FIONREAD => ("FIONREAD", None, none),
        libc::SYS_ioctl if b as u32 == linux_raw_sys::ioctl::TIOCOUTQ => ("SIOCOUTQ", None, none),
        libc::SYS_ioctl => ("ioctl", Some(b), none),
        libc::SYS_getsockopt => {
            let name = match (b as i32, c as i32) {
                (libc::SOL_SOCKET, _) => names::SOCKET_OPTIONS.of(c as u32),
                (libc::SOL_TCP, _) => names::TCP_OPTIONS.of(c as u32),
                (libc::SOL_UDP, libc::UDP_SEGMENT) => Some("UDP_SEGMENT"),
                (libc::SOL_UDP, libc::UDP_CORK) => Some("UDP_CORK"),
                (libc::SOL_IP, libc::IP_RECVERR) => Some("IP_RECVERR"),
                (libc::SOL_IPV6, libc::IPV6_RECVERR) => Some("IPV6_RECVERR"),
                _ => None,
            };
            name.map_or(("option", Some(c), none), |name| (name, None, none))
        }
        _ => return None,
    };
    let mut told: Vec<String> = number.iter().map(u64::to_string).collect();
    let (flags, mut unusual) = (flags as u32, flags as u32 ^ usual as u32);
    for &(value, name) in names.names {
        if unusual & value == value {
            let not = if flags & value == 0 { "!" } else { "" };
            told.push(format!("{not}{}", name.strip_prefix(names.prefix).unwrap_or(name)));
            unusual &= !value;
        }
    }
    told.extend((unusual != 0).then(|| format!("{unusual:#x}")));
    Some(if told.is_empty() { name.to_owned() } else { format!("{name}({})", told.join(", ")) })
}

/// A word of a child that is stopped.
fn peek(pid: i32, address: u64) -> u64 {
    // SAFETY: reads the child's memory only.
    unsafe { libc::ptrace(libc::PTRACE_PEEKDATA, pid, address, 0) as u64 }
}

/// The expected calls and those that were made, one a line, from the first difference to the last one with `-` and `+`.
fn difference(expected: &str, made: &[String]) -> String {
    let expected: Vec<&str> = expected.split("; ").filter(|call| !call.is_empty()).collect();
    let same = |pairs: &mut dyn Iterator<Item = (&&str, &String)>| pairs.take_while(|(a, b)| *a == b).count();
    let begin = same(&mut expected.iter().zip(made));
    let end = same(&mut expected[begin..].iter().rev().zip(made[begin..].iter().rev()));
    let common = |calls: &[String]| calls.iter().map(|call| format!("  {call}\n")).collect::<String>();
    let missing = expected[begin..expected.len() - end].iter().map(|call| format!("- {call}\n"));
    let added = made[begin..made.len() - end].iter().map(|call| format!("+ {call}\n"));
    common(&made[..begin]) + &missing.chain(added).collect::<String>() + &common(&made[made.len() - end..])
}

/// Runs a case with a ring in a child, and compares those calls of its steps that are `shown` with what they expect.
fn traced_where(shown: impl Fn(&str) -> bool, entries: u32, flags: u32, case: impl FnOnce(&mut Ring)) {
    let pid = child(|| {
        // SAFETY: the parent traces this process, and lets it go on.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
            // Ends it where it waits for what never comes.
            libc::alarm(60);
        }
        case(&mut Ring::new(Engine::User, entries, flags));
        true
    });
    let mut status = 0;
    // SAFETY: our child, which stops at once; then at each call's begin and end.
    unsafe {
        assert_eq!(libc::waitpid(pid, &mut status, libc::__WALL), pid);
        assert!(libc::WIFSTOPPED(status), "the child is traced");
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        assert_eq!(libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options), 0);
    }
    let (mut in_step, mut enters, mut signal) = (false, false, 0);
    let (mut made, mut entered, mut tail) = (Vec::new(), None, None);
    let (mut steps, mut differences) = (0, String::new());
    loop {
        // SAFETY: it is stopped.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SYSCALL, pid, 0, signal), 0);
            assert_eq!(libc::waitpid(pid, &mut status, libc::__WALL), pid);
        }
        if !libc::WIFSTOPPED(status) {
            break;
        }
        signal = libc::WSTOPSIG(status);
        if signal != libc::SIGTRAP | 0x80 {
            continue;
        }
        signal = 0;
        enters = !enters;
        let call = Stopped::look(pid);
        if !enters {
            // What an older kernel has not is asked for once, and does not count.
            made.extend(entered.take().filter(|_| call.result() != i64::from(-libc::ENOSYS)));
            continue;
        }
        let (number, arguments) = (call.number(), call.arguments());
        match arguments {
            [STEP_BEGINS, ..] if number == TELL => in_step = true,
            [SHOW_POSTED, address, ..] if number == TELL => tail = Some(address),
            [STEP_ENDS, text, length, place, ..] if number == TELL => {
                // SAFETY: constants of this program, which are in the same place in the child.
                let (expected, place) = unsafe {
                    let bytes = std::slice::from_raw_parts(text as *const u8, length as usize);
                    (std::str::from_utf8(bytes).unwrap(), &*(place as *const Location<'static>))
                };
                made.retain(|call: &String| shown(call));
                if !expected.split(" | ").any(|way| way == made.join("; ")) {
                    let calls = difference(expected, &made);
                    differences += &format!("{place}: the step makes other calls:\n{calls}");
                }
                made.clear();
                (in_step, steps) = (false, steps + 1);
            }
            _ if in_step => entered = describe(pid, number, arguments),
            _ => {}
        }
        if let (Some(call), Some(tail)) = (&mut entered, tail) {
            *call += &format!(" with {} posted", peek(pid, tail) as u32);
        }
    }
    assert!(differences.is_empty(), "\n{differences}");
    let well = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
    assert!(well, "the child ends well: {status:#x}; the step made {made:?}");
    assert!(!in_step && steps > 0, "something is looked at");
}

/// How the engine watches what descriptors name: cases that are about other things do not say it.
const UNTOLD: &[&str] = &["duplicate", "look", "compare"];

/// The flags of a ring for which no other thread does anything.
const ALONE: u32 = DEFER;

fn without(hidden: &[&str]) -> impl Fn(&str) -> bool {
    |call| !hidden.contains(&call)
}

fn only(name: &str) -> impl Fn(&str) -> bool {
    move |call| call.starts_with(name)
}

fn traced(case: impl FnOnce(&mut Ring)) {
    traced_where(without(UNTOLD), 32, ALONE, case);
}

/// Runs a case with a pair that holds nothing back, and a ring that knows both ends.
fn connection(case: impl FnOnce(&mut Ring, TcpStream, TcpStream)) {
    traced(|ring| {
        let (one, other) = tcp_pair();
        for end in [&one, &other] {
            end.set_nodelay(true).unwrap();
        }
        for (from, to) in [(&one, &other), (&other, &one)] {
            for sqe in [receive(to, 8), send(from, 5)] {
                ring.submit(&[sqe]);
            }
            ring.collect(2);
        }
        case(ring, one, other);
    });
}

/// Runs a case of a receive from a connection on which five bytes have arrived, and of what its CQE says.
fn arrived(calls: &'static str, receive: impl FnOnce(&TcpStream) -> Sqe, answer: (i32, u32)) {
    connection(|ring, one, other| {
        write(&one, 5);
        let cqes = step(calls, || ring.run(&[receive(&other)]));
        assert_eq!((cqes[0].res, cqes[0].flags), answer);
    });
}

/// Runs a case of sends of these lengths on a connection.
fn streams(sends: &[(&'static str, &[usize])]) {
    connection(|ring, one, _other| {
        sends.iter().for_each(|(calls, lengths)| send_all(ring, calls, &one, lengths))
    });
}

/// A case like [`streams`], over datagrams.
fn datagrams(sends: &[(&'static str, &[usize])]) {
    traced(|ring| {
        let (_other, one) = udp_connected();
        sends.iter().for_each(|(calls, lengths)| send_all(ring, calls, &one, lengths));
    });
}

/// Runs a case with a file that is read and written past the cache, and a write of a page of it.
fn storage(hidden: &[&str], case: impl FnOnce(&mut Ring, &File, Sqe)) {
    let name = format!("calls-{}", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
    let Ok(file) = options.open(&path) else {
        eprintln!("skipped: the file system of {} knows no O_DIRECT", path.display());
        return;
    };
    // What is written for the first time the system does not do without waiting.
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    file.sync_all().unwrap();
    std::fs::remove_file(&path).unwrap();
    traced_where(without(&[UNTOLD, hidden].concat()), 512, ALONE, |ring| {
        let addr = memory(8192).as_ptr().addr().next_multiple_of(4096) as u64;
        case(ring, &file, Sqe { addr, len: 4096, ..transfer(IORING_OP_WRITE, &file, 0) });
    });
}

/// A step that submits, and waits for so many completions.
#[track_caller]
fn submit(ring: &mut Ring, calls: &'static str, sqes: &[Sqe], wait: u32) {
    step(calls, || {
        ring.push_together(sqes);
        ring.enter(sqes.len() as u32, wait);
    });
}

/// A step that submits, and waits for all; what they answer.
#[track_caller]
fn run(ring: &mut Ring, calls: &'static str, sqes: &[Sqe]) -> Vec<i32> {
    step(calls, || ring.run(sqes)).iter().map(|cqe| cqe.res).collect()
}

/// A step that waits for so many completions; what they answer.
#[track_caller]
fn collect(ring: &mut Ring, calls: &'static str, count: usize) -> Vec<i32> {
    step(calls, || ring.collect(count)).iter().map(|cqe| cqe.res).collect()
}

/// A step that submits sends of these lengths.
#[track_caller]
fn send_all(ring: &mut Ring, calls: &'static str, fd: &impl AsRawFd, lengths: &[usize]) {
    let sends: Vec<Sqe> = lengths.iter().map(|&length| send(fd, length)).collect();
    let sent: Vec<usize> = run(ring, calls, &sends).iter().map(|&result| result as usize).collect();
    assert_eq!(sent, lengths);
}

/// Memory that the engine may use as long as the child lives.
fn memory(length: usize) -> &'static mut [u8] {
    vec![0; length].leak()
}

fn transfer(opcode: io_uring_op, fd: &impl AsRawFd, length: usize) -> Sqe {
    let addr = memory(length).as_mut_ptr() as u64;
    Sqe { fd: fd.as_raw_fd(), addr, len: length as u32, ..sqe(opcode, 1) }
}

fn receive(fd: &impl AsRawFd, length: usize) -> Sqe {
    transfer(IORING_OP_RECV, fd, length)
}

/// Has eight buffers of a length provided, for a multishot receive.
fn receives(ring: &Ring, fd: &impl AsRawFd, length: usize) -> Sqe {
    let buffers = Box::leak(Box::new(Buffers::of(ring, 8, 7, 0)));
    buffers.fill(memory(8 * length), length, 0, 1);
    let (flags, ioprio) = (IOSQE_BUFFER_SELECT as u8, IORING_RECV_MULTISHOT as u16);
    Sqe { flags, buf_index: 7, ioprio, ..receive(fd, 0) }
}

fn send(fd: &impl AsRawFd, length: usize) -> Sqe {
    transfer(IORING_OP_SEND, fd, length)
}

fn send_zc(fd: &impl AsRawFd, length: usize) -> Sqe {
    transfer(IORING_OP_SEND_ZC, fd, length)
}

fn vector(length: usize) -> libc::iovec {
    libc::iovec { iov_base: memory(length).as_mut_ptr().cast(), iov_len: length }
}

/// With a header for one piece of memory.
fn message(opcode: io_uring_op, fd: &impl AsRawFd, length: usize) -> Sqe {
    let mut header: libc::msghdr = zeroed();
    (header.msg_iov, header.msg_iovlen) = (Box::leak(Box::new(vector(length))), 1);
    let addr = std::ptr::from_mut(Box::leak(Box::new(header))) as u64;
    Sqe { addr, len: 1, ..transfer(opcode, fd, 0) }
}

/// Writes as the program itself does, outside of a step.
fn write(mut to: impl Write, length: usize) {
    to.write_all(memory(length)).unwrap();
}

/// A socket that listens, and connections that wait for it.
fn listener(waiting: usize) -> (TcpListener, Vec<TcpStream>) {
    let (listener, address) = listening();
    let clients = (0..waiting).map(|_| TcpStream::connect(address).unwrap()).collect();
    (listener, clients)
}

fn accept(listener: &TcpListener, ioprio: u32) -> Sqe {
    Sqe { fd: listener.as_raw_fd(), ioprio: ioprio as u16, ..sqe(IORING_OP_ACCEPT, 1) }
}

/// A listener on which an accept of the ring waits again, after a first connection.
fn waited_for(ring: &mut Ring, ioprio: u32) -> (TcpListener, Vec<TcpStream>, std::net::SocketAddr) {
    let (listener, address) = listening();
    ring.submit(&[accept(&listener, ioprio)]);
    let client = TcpStream::connect(address).unwrap();
    drop(owned(ring.collect(1)[0].res));
    if ioprio == 0 {
        ring.submit(&[accept(&listener, 0)]);
    }
    (listener, vec![client], address)
}

/// A front end that is told of all closes, and knows it.
struct AllSeen;

impl Host for AllSeen {
    as_seeing!();

    fn sees_closes(&self) -> bool {
        true
    }

    fn finds_unseen_closes(&self) -> Option<fn() -> bool> {
        Some(|| false)
    }
}

/// Four slots for files, all empty.
fn empty_slots(ring: &Ring) {
    ring.register_files(&[-1; 4]);
}

fn open(path: &CStr, flags: i32) -> Sqe {
    crate::common::open(1, path, flags)
}

fn pipe(flags: i32) -> Sqe {
    Sqe { fd: 0, addr: memory(8).as_ptr() as u64, op_flags: flags as u32, ..sqe(IORING_OP_PIPE, 1) }
}

fn poll(fd: &impl AsRawFd, user_data: u64) -> Sqe {
    crate::common::poll(user_data, fd, libc::POLLIN)
}

fn pidfd_open(pid: i32, flags: i32) -> i32 {
    // SAFETY: names a process of ours.
    unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) as i32 }
}

const ALL: u32 = libc::MSG_WAITALL as u32;
const POLL_FIRST: u16 = IORING_RECVSEND_POLL_FIRST as u16;

/// Connections whose peers do not read, with a send on each that the engine makes without a copy.
fn pages_out(ring: &mut Ring, count: usize) -> Vec<(TcpStream, TcpStream)> {
    let pairs: Vec<_> = (0..count).map(|_| unread()).collect();
    ring.submit_all(pairs.iter().map(|(near, _far)| send_zc(near, LARGE)), 0);
    let sent = ring.reap_all();
    assert_eq!(sent.iter().map(|cqe| cqe.res).collect::<Vec<_>>(), vec![LARGE as i32; count]);
    // Whether any come back at once is looked for once. Who has slept hears of all by epoll, also of the few that would be looked at.
    let soon = [0i64, 1_000_000];
    let wakes = timeout(1, &soon);
    (0..2).for_each(|_| assert_eq!(ring.run(&[wakes])[0].res, -libc::ETIME));
    pairs
}

macro_rules! cases {
    ($($name:ident = $case:expr),* $(,)?) => { $(#[test] fn $name() { $case })* };
}

cases![
    // Receives.
    a_receive_of_what_is_there = arrived("wait; recv(64)", |fd| receive(fd, 64), (5, 0)),
    a_receive_of_all_of_what_is_there =
        arrived("wait; recv(5); TCP_ZEROCOPY_RECEIVE", |fd| receive(fd, 5), (5, 0)),
    a_receive_of_a_part_of_what_is_there =
        arrived("wait; recv(3); TCP_ZEROCOPY_RECEIVE", |fd| receive(fd, 3), (3, IORING_CQE_F_SOCK_NONEMPTY)),
    a_receive_that_waits = connection(|ring, one, other| {
        submit(ring, "recv(64)", &[receive(&other, 64)], 0);
        write(&one, 5);
        assert_eq!(collect(ring, "wait; recv(64)", 1), [5]);
    }),
    a_receive_that_polls_first =
        arrived("wait; recv(64)", |fd| Sqe { ioprio: POLL_FIRST, ..receive(fd, 64) }, (5, 0)),
    a_receive_that_waits_for_all = connection(|ring, one, other| {
        write(&one, 5);
        submit(ring, "recv(10, WAITALL); SO_TYPE", &[Sqe { op_flags: ALL, ..receive(&other, 10) }], 0);
        write(&one, 5);
        assert_eq!(collect(ring, "wait; recv(5, WAITALL); TCP_ZEROCOPY_RECEIVE", 1), [10]);
    }),
    a_receive_from_a_number_that_is_not_known = traced(|ring| {
        let (one, other) = tcp_pair();
        write(&one, 5);
        let calls = "recv(64); SO_TYPE; SO_ACCEPTCONN; SO_PROTOCOL; SO_RCVLOWAT; TCP_ZEROCOPY_RECEIVE";
        assert_eq!(run(ring, calls, &[receive(&other, 64)]), [5]);
    }),
    a_multishot_receive = connection(|ring, one, other| {
        let receives = receives(ring, &other, 64);
        submit(ring, "recv(64)", &[receives], 0);
        for length in [4, 5, 6] {
            write(&one, length);
            assert_eq!(collect(ring, "wait; recv(64)", 1), [length as i32]);
        }
    }),
    a_multishot_receive_that_fills_buffers = connection(|ring, one, other| {
        ring.submit(&[receives(ring, &other, 16)]);
        write(&one, 40);
        let calls = "wait; recv(16); TCP_ZEROCOPY_RECEIVE; recv(16); TCP_ZEROCOPY_RECEIVE; recv(16)";
        assert_eq!(collect(ring, calls, 3), [16, 16, 8]);
    }),
    a_multishot_receive_of_parts = connection(|ring, one, other| {
        let receives = Sqe { len: 4, ..receives(ring, &other, 64) };
        submit(ring, "recv(4)", &[receives], 0);
        write(&one, 11);
        collect(ring, "wait; recv(4); TCP_ZEROCOPY_RECEIVE; recv(4); TCP_ZEROCOPY_RECEIVE; recv(4)", 3);
        write(&one, 2);
        collect(ring, "wait; recv(4)", 1);
    }),
    a_multishot_receive_that_comes_to_the_end = connection(|ring, one, other| {
        let receives = receives(ring, &other, 64);
        submit(ring, "recv(64)", &[receives], 0);
        write(&one, 11);
        drop(one);
        collect(ring, "wait; recv(64); TCP_ZEROCOPY_RECEIVE; recv(64); TCP_ZEROCOPY_RECEIVE", 2);
    }),
    a_bundle = connection(|ring, one, other| {
        let receives = receives(ring, &other, 16);
        write(&one, 40);
        submit(ring, "wait; recvmsg", &[Sqe { ioprio: IORING_RECVSEND_BUNDLE as u16, ..receives }], 1);
        assert_eq!(ring.collect(1)[0].res, 40);
    }),
    a_message_that_is_received = arrived("wait; recvmsg", |fd| message(IORING_OP_RECVMSG, fd, 64), (5, 0)),
    receives_in_turn = connection(|ring, one, other| {
        for (written, calls) in [
            (8, "wait; recv(8); TCP_ZEROCOPY_RECEIVE"),
            (3, "recv(8)"),
            (5, "wait; recv(8)"),
            (18, "wait; recv(8); TCP_ZEROCOPY_RECEIVE"),
            (0, "recv(8); TCP_ZEROCOPY_RECEIVE"),
        ] {
            write(&one, written);
            run(ring, calls, &[receive(&other, 8)]);
        }
    }),
    receives_with_flags = connection(|ring, one, other| {
        write(&one, 11);
        for (flags, calls) in [
            (libc::MSG_PEEK, "wait; recv(4, PEEK); TCP_ZEROCOPY_RECEIVE"),
            (libc::MSG_NOSIGNAL, "recv(4); TCP_ZEROCOPY_RECEIVE"),
            (libc::MSG_WAITALL, "recv(4, WAITALL); TCP_ZEROCOPY_RECEIVE"),
            (libc::MSG_DONTWAIT, "recv(4)"),
        ] {
            run(ring, calls, &[Sqe { op_flags: flags as u32, ..receive(&other, 4) }]);
        }
    }),
    a_receive_behind_a_drain = connection(|ring, one, other| {
        write(&one, 5);
        let drain = Sqe { flags: IOSQE_IO_DRAIN as u8, ..sqe(IORING_OP_NOP, 1) };
        run(ring, "wait; recv(8)", &[drain, receive(&other, 8)]);
    }),
    an_exchange_as_a_chain = connection(|ring, one, other| {
        let question = Sqe { flags: IOSQE_IO_LINK as u8, ..send(&other, 8) };
        submit(ring, "send(8)", &[question, receive(&other, 64)], 1);
        write(&one, 6);
        assert_eq!(collect(ring, "wait; recv(64)", 2)[1], 6);
    }),
    receives_of_unusual_kinds = connection(|ring, one, other| {
        version::play(Version::NEWEST);
        let (receiver, sender) = udp_connected();
        let (left, right) = UnixStream::pair().unwrap();
        write(&one, 11);
        write(&left, 18);
        for _ in 0..4 {
            receiver.send_to(b"hello", sender.local_addr().unwrap()).unwrap();
        }
        let (stream, datagram, local) = (receive(&other, 8), receive(&sender, 8), receive(&right, 8));
        let asks = "SO_TYPE; wait; recv(4); SO_TYPE; SO_ACCEPTCONN; SO_PROTOCOL; SO_DOMAIN; FIONREAD";
        for (calls, sqe) in [
            ("wait; recv(0); TCP_ZEROCOPY_RECEIVE", Sqe { len: 0, ..stream }),
            ("recv(4, WAITALL); TCP_ZEROCOPY_RECEIVE", Sqe { len: 4, op_flags: ALL, ..stream }),
            ("recv(4); TCP_ZEROCOPY_RECEIVE", Sqe { len: 4, ioprio: POLL_FIRST, ..stream }),
            ("recv(8)", stream),
            ("recv(3); SO_TYPE; SO_ACCEPTCONN", Sqe { len: 3, ..datagram }),
            ("recv(8); SO_TYPE; SO_ACCEPTCONN", datagram),
            ("recvmsg(WAITALL); SO_TYPE; SO_TYPE; SO_ACCEPTCONN", Sqe { op_flags: ALL, ..datagram }),
            ("SO_TYPE; wait; recv(8); SO_TYPE; SO_ACCEPTCONN", Sqe { ioprio: POLL_FIRST, ..datagram }),
            ("recv(4); SO_TYPE; SO_ACCEPTCONN; SO_PROTOCOL; SO_DOMAIN; FIONREAD", Sqe { len: 4, ..local }),
            (
                "recvmsg(WAITALL); SO_TYPE; SO_ACCEPTCONN; SO_PROTOCOL; SO_DOMAIN; FIONREAD",
                Sqe { len: 4, op_flags: ALL, ..local },
            ),
            (asks, Sqe { len: 4, ioprio: POLL_FIRST, ..local }),
            ("recv(8); FIONREAD", local),
        ] {
            run(ring, calls, &[sqe]);
        }
        drop((one, left));
        run(ring, "wait; recv(8); TCP_ZEROCOPY_RECEIVE", &[stream]);
        run(ring, "recv(8); TCP_ZEROCOPY_RECEIVE", &[stream]);
        run(ring, "recv(8); FIONREAD", &[local]);
        run(ring, "recv(8); FIONREAD", &[local]);
    }),
    // Sends.
    one_send = streams(&[("send(5)", &[5])]),
    sends_on_a_connection =
        streams(&[("SO_TIMESTAMPING_OLD; TCP_MAXSEG; TCP_MAXSEG; sendmsg", &[5, 3, 9, 4])]),
    sends_that_are_too_much_for_one_call = streams(&[(
        "send(40000); SO_TIMESTAMPING_OLD; TCP_MAXSEG; TCP_MAXSEG; sendmsg",
        &[40_000, 40_000, 5]
    )]),
    sends_of_other_flags_go_alone = connection(|ring, one, _other| {
        let calls = "send(5, MORE); SO_TIMESTAMPING_OLD; TCP_MAXSEG; TCP_MAXSEG; sendmsg(WAITALL)";
        let flags = [libc::MSG_MORE as u32, 0, ALL, 0];
        run(ring, calls, &flags.map(|op_flags| Sqe { op_flags, ..send(&one, 5) }));
    }),
    sends_of_different_kinds_go_alone = connection(|ring, one, _other| {
        let (send, write) = (send(&one, 5), transfer(IORING_OP_WRITE, &one, 5));
        let calls = "send(5); flags; pwritev2(1); pwritev2(1); send(5); send(5)";
        run(ring, calls, &[send, write, send, sqe(IORING_OP_NOP, 1), send]);
    }),
    datagrams_of_one_length = datagrams(&[(
        "SO_TIMESTAMPING_OLD; TCP_MAXSEG; UDP_SEGMENT; UDP_SEGMENT; UDP_CORK; SIOCOUTQ; sendmsg",
        &[5, 5, 5]
    )]),
    a_shorter_datagram_is_the_last_of_a_call = datagrams(&[(
        "SO_TIMESTAMPING_OLD; TCP_MAXSEG; UDP_SEGMENT; UDP_SEGMENT; UDP_CORK; SIOCOUTQ; sendmsg; send(5)",
        &[5, 5, 3, 5]
    )]),
    a_longer_datagram_goes_in_a_call_of_its_own = datagrams(&[
        (
            "SO_TIMESTAMPING_OLD; TCP_MAXSEG; UDP_SEGMENT; send(5); UDP_SEGMENT; UDP_CORK; SIOCOUTQ; sendmsg",
            &[5, 9, 9]
        ),
        ("send(5); send(9)", &[5, 9])
    ]),
    datagrams_to_a_destination_go_alone = traced(|ring| {
        let (other, one) = udp_connected();
        let port = other.local_addr().unwrap().port().to_be_bytes();
        let family = (libc::AF_INET as u16).to_ne_bytes();
        let address = [family, port, [127, 0], [0, 1], [0; 2], [0; 2], [0; 2], [0; 2]].concat();
        let send = Sqe { off: address.as_ptr() as u64, file_index: 16, ..send(&one, 5) };
        assert_eq!(run(ring, "send(5); send(5)", &[send, send]), [5, 5]);
    }),
    datagrams_that_are_too_long_for_a_link = datagrams(&[
        (
            "SO_TIMESTAMPING_OLD; TCP_MAXSEG; UDP_SEGMENT; UDP_SEGMENT; UDP_CORK; SIOCOUTQ; sendmsg",
            &[3000; 3]
        ),
        ("UDP_SEGMENT; UDP_CORK; SIOCOUTQ; sendmsg", &[1400; 3]),
        ("UDP_SEGMENT; UDP_CORK; SIOCOUTQ; sendmsg", &[3000; 3])
    ]),
    more_datagrams_than_leave_together = datagrams(&[(
        "SO_TIMESTAMPING_OLD; TCP_MAXSEG; UDP_SEGMENT; UDP_SEGMENT; UDP_CORK; SIOCOUTQ; sendmsg",
        &[5; 30]
    )]),
    sends_that_may_not_go_together = connection(|ring, one, _other| {
        let (_receiver, sender) = udp_connected();
        send_all(ring, "send(0); send(5)", &one, &[0, 5]);
        send_all(ring, "send(0); send(5)", &sender, &[0, 5]);
        send_all(ring, "SO_TIMESTAMPING_OLD; TCP_MAXSEG; send(5); send(0)", &one, &[5, 0]);
        send_all(ring, "SO_TIMESTAMPING_OLD; TCP_MAXSEG; UDP_SEGMENT; send(5); send(0)", &sender, &[5, 0]);
        send_all(ring, "send(65000); send(500)", &one, &[65_000, 500]);
        send_all(ring, "send(65000); send(500)", &sender, &[65_000, 500]);
        send_all(ring, "TCP_MAXSEG; sendmsg; send(600)", &one, &[60_000, 5000, 600]);
        send_all(
            ring,
            "send(60000); UDP_SEGMENT; UDP_CORK; SIOCOUTQ; sendmsg",
            &sender,
            &[60_000, 5000, 600],
        );
        send_all(ring, "send(65536); send(5)", &one, &[65_536, 5]);
        // More than a datagram holds.
        let too_long = [send(&sender, 65_536), send(&sender, 5)];
        assert_eq!(run(ring, "send(65536); flags; SO_TYPE; send(5)", &too_long), [-libc::EMSGSIZE, 5]);
        send_all(ring, "TCP_MAXSEG; sendmsg", &one, &[1, 1, 1]);
        send_all(ring, "UDP_SEGMENT; UDP_CORK; SIOCOUTQ; sendmsg", &sender, &[1, 1, 1]);
        for flags in [IOSQE_IO_DRAIN, IOSQE_ASYNC, IOSQE_CQE_SKIP_SUCCESS] {
            let send = send(&one, 5);
            let sends = [send, Sqe { flags: flags as u8, ..send }, send];
            submit(ring, "send(5); send(5); send(5)", &sends, 2);
        }
    }),
    flags_that_are_set_already = connection(|ring, one, _other| {
        let (signal, both) = (libc::MSG_NOSIGNAL as u32, (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as u32);
        run(ring, "send(5)", &[Sqe { op_flags: signal, ..send(&one, 5) }]);
        run(ring, "send(5)", &[Sqe { op_flags: both, ..send(&one, 5) }]);
        run(ring, "sendmsg", &[Sqe { op_flags: both, ..message(IORING_OP_SENDMSG, &one, 5) }]);
        let send = Sqe { op_flags: signal, ..send_zc(&one, 5) };
        submit(ring, "SO_PROTOCOL; SO_TYPE; SO_DOMAIN; send(5)", &[send], 2);
    }),
    // Sends without a copy.
    a_small_send_without_a_copy_is_copied = connection(|ring, one, _other| {
        submit(ring, "SO_PROTOCOL; SO_TYPE; SO_DOMAIN; send(5)", &[send_zc(&one, 5)], 2);
        assert_eq!(ring.collect(2)[0].res, 5);
    }),
    small_sends_without_a_copy_leave_together = connection(|ring, one, _other| {
        let calls = "SO_PROTOCOL; SO_TYPE; SO_DOMAIN; SO_TIMESTAMPING_OLD; TCP_MAXSEG; SO_PROTOCOL; \
                     SO_PROTOCOL; TCP_MAXSEG; sendmsg";
        submit(ring, calls, &[send_zc(&one, 5); 3], 3);
    }),
    a_large_send_without_a_copy_is_not = connection(|ring, one, _other| {
        let calls = "SO_PROTOCOL; SO_TYPE; SO_DOMAIN; SO_ZEROCOPY; SO_TIMESTAMPING_OLD; SO_TIMESTAMPING_NEW; \
                     SO_SELECT_ERR_QUEUE; IP_RECVERR; IPV6_RECVERR; send(40000)";
        submit(ring, calls, &[send_zc(&one, 40_000)], 1);
        assert_eq!(ring.collect(1)[0].res, 40_000);
    }),
    a_large_message_without_a_copy = connection(|ring, one, _other| {
        let calls = "SO_PROTOCOL; SO_TYPE; SO_DOMAIN; SO_ZEROCOPY; SO_TIMESTAMPING_OLD; SO_TIMESTAMPING_NEW; \
                     SO_SELECT_ERR_QUEUE; IP_RECVERR; IPV6_RECVERR; sendmsg";
        submit(ring, calls, &[message(IORING_OP_SENDMSG_ZC, &one, 40_000)], 1);
    }),
    large_sends_without_a_copy_ask_once = connection(|ring, one, _other| {
        let send = send_zc(&one, 40_000);
        ring.submit_and_wait(&[send], 1);
        submit(ring, "SO_PROTOCOL; send(40000)", &[send], 1);
    }),
    transfers_without_a_copy_of_unusual_kinds = connection(|ring, one, _other| {
        let (_receiver, sender) = udp_connected();
        let (left, _right) = UnixStream::pair().unwrap();
        let asks = "SO_PROTOCOL; SO_TYPE; SO_DOMAIN; SO_ZEROCOPY; SO_TIMESTAMPING_OLD; SO_TIMESTAMPING_NEW; \
                    SO_SELECT_ERR_QUEUE; IP_RECVERR; IPV6_RECVERR; send(40000, WAITALL)";
        let refused = "SO_PROTOCOL; SO_PROTOCOL; flags; SO_TYPE";
        for (send, all, others) in [
            (send_zc(&one, 40_000), asks, "SO_PROTOCOL; send(40000)"),
            (send_zc(&sender, 40_000), asks, "SO_PROTOCOL; send(40000)"),
            (send_zc(&left, 40_000), refused, refused),
            (send_zc(&one, 10), "SO_PROTOCOL; send(10, WAITALL)", "SO_PROTOCOL; send(10)"),
        ] {
            submit(ring, all, &[Sqe { op_flags: ALL, ..send }], 1);
            submit(ring, others, &[Sqe { ioprio: IORING_SEND_ZC_REPORT_USAGE as u16, ..send }], 1);
            submit(ring, others, &[send], 1);
        }
    }),
    an_error_of_a_connection_beside_sends_whose_pages_are_out =
        traced_where(only("recvmsg"), 32, ALONE, |ring| {
            let _out = pages_out(ring, 8);
            let (waits, resets) = tcp_pair();
            // Whoever sleeps hears of all pages; there are none.
            submit(ring, "", &[receive(&waits, 64)], 0);
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            let (at, length) = ((&raw const linger).cast(), size_of_val(&linger) as u32);
            // SAFETY: an option of ours on a socket of ours.
            let set = unsafe {
                libc::setsockopt(resets.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, length)
            };
            assert_eq!(set, 0);
            drop(resets);
            assert_eq!(collect(ring, "", 1), [-libc::ECONNRESET]);
        }),
    // Accepts.
    connections_that_wait = traced(|ring| {
        let (listener, _clients) = listener(3);
        let calls = "flags; SO_ACCEPTCONN; FIONBIO; accept4; SO_TYPE; SO_ACCEPTCONN; SO_PROTOCOL; SO_RCVLOWAT; poll; FIONBIO";
        for _ in 0..2 {
            let cqes = step(calls, || ring.run(&[accept(&listener, 0)]));
            assert_eq!(cqes[0].flags, IORING_CQE_F_SOCK_NONEMPTY);
        }
    }),
    connections_that_wait_for_a_multishot_accept = traced(|ring| {
        let (listener, _clients) = listener(3);
        // The flags twice: once more by the descriptor that the request keeps from then on.
        let calls = "flags; SO_ACCEPTCONN; flags; SO_ACCEPTCONN; FIONBIO; accept4; SO_TYPE; SO_ACCEPTCONN; \
                     SO_PROTOCOL; SO_RCVLOWAT; poll; accept4; poll; accept4; poll; FIONBIO";
        submit(ring, calls, &[accept(&listener, IORING_ACCEPT_MULTISHOT)], 0);
        assert_eq!(ring.reap_all().len(), 3);
    }),
    many_connections_for_a_multishot_accept = traced(|ring| {
        let (listener, _clients) = listener(12);
        let calls = "flags; SO_ACCEPTCONN; flags; SO_ACCEPTCONN; FIONBIO; accept4; SO_TYPE; SO_ACCEPTCONN; \
                     SO_PROTOCOL; SO_RCVLOWAT; poll; accept4; poll; accept4; poll; accept4; poll; accept4; poll; accept4; poll; \
                     accept4; poll; accept4; poll; accept4; accept4; accept4; accept4; accept4; FIONBIO";
        submit(ring, calls, &[accept(&listener, IORING_ACCEPT_MULTISHOT)], 0);
        assert_eq!(ring.reap_all().len(), 12);
    }),
    // A program that has seen every connection may look at the listener's flags, and change them. The second ring's CQ has two
    // entries, and is full then.
    the_last_connection_of_a_multishot_accept_is_told_when_the_listener_has_its_flags_again = {
        for (entries, waiting, calls) in [
            (32, 3, "FIONBIO with 0 posted; FIONBIO with 2 posted"),
            (1, 2, "FIONBIO with 0 posted; FIONBIO with 1 posted"),
        ] {
            traced_where(only("FIONBIO"), entries, ALONE, |ring| {
                let (listener, clients) = listener(waiting);
                let tail = std::ptr::from_ref(ring.word(ring.params.cq_off.tail));
                tell(SHOW_POSTED, tail.addr(), 0, 0);
                submit(ring, calls, &[accept(&listener, IORING_ACCEPT_MULTISHOT)], 0);
                assert_eq!(ring.reap_all().len(), clients.len());
            });
        }
    },
    an_accept_that_waits = traced(|ring| {
        let (listener, _clients) = listener(0);
        let accept = Sqe { op_flags: libc::SOCK_CLOEXEC as u32, ..accept(&listener, 0) };
        submit(ring, "flags; SO_ACCEPTCONN; FIONBIO; accept4(CLOEXEC); FIONBIO", &[accept], 0);
    }),
    an_accept_into_a_slot = traced(|ring| {
        empty_slots(ring);
        let (listener, _clients) = listener(1);
        let calls = "flags; SO_ACCEPTCONN; FIONBIO; accept4(CLOEXEC); SO_TYPE; SO_ACCEPTCONN; SO_PROTOCOL; SO_RCVLOWAT; poll; \
                     FIONBIO";
        run(ring, calls, &[Sqe { file_index: 1, ..accept(&listener, 0) }]);
    }),
    an_accept_that_polls_first = traced(|ring| {
        let (listener, _clients) = listener(1);
        let calls = "wait; flags; SO_ACCEPTCONN; FIONBIO; accept4; SO_TYPE; SO_ACCEPTCONN; SO_PROTOCOL; SO_RCVLOWAT; poll; \
                     FIONBIO";
        run(ring, calls, &[accept(&listener, IORING_ACCEPT_POLL_FIRST)]);
        run(ring, "flags; FIONBIO; accept4; FIONBIO; flags", &[accept(&listener, IORING_ACCEPT_DONTWAIT)]);
    }),
    // Once epoll has told of a listener, one question tells how many wait.
    connections_that_come_for_a_multishot_accept = traced(|ring| {
        let (listener, _clients, address) = waited_for(ring, IORING_ACCEPT_MULTISHOT);
        for (count, calls) in [
            (1, "wait; TCP_INFO; flags; FIONBIO; accept4; FIONBIO"),
            (3, "wait; TCP_INFO; flags; FIONBIO; accept4; accept4; accept4; FIONBIO"),
        ] {
            let _clients: Vec<_> = (0..count).map(|_| TcpStream::connect(address).unwrap()).collect();
            let cqes = step(calls, || ring.collect(count));
            let nonempty = cqes.iter().map(|cqe| cqe.flags & IORING_CQE_F_SOCK_NONEMPTY != 0);
            assert!(nonempty.eq((1..=count).map(|number| number < count)));
        }
        listener.set_nonblocking(true).unwrap();
        let _client = TcpStream::connect(address).unwrap();
        collect(ring, "wait; TCP_INFO; flags; accept4", 1);
    }),
    connections_that_come_for_single_accepts = traced(|ring| {
        let (listener, _clients, address) = waited_for(ring, 0);
        let _clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        let calls = "wait; TCP_INFO; flags; FIONBIO; accept4; FIONBIO";
        assert_eq!(step(calls, || ring.collect(1))[0].flags, IORING_CQE_F_SOCK_NONEMPTY);
        let calls = "flags; FIONBIO; accept4; FIONBIO";
        for flags in [IORING_CQE_F_SOCK_NONEMPTY, 0] {
            assert_eq!(step(calls, || ring.run(&[accept(&listener, 0)]))[0].flags, flags);
        }
        // A call that does not wait looks once more.
        submit(ring, calls, &[accept(&listener, 0)], 0);
    }),
    // Who closes a descriptor tells the ring, which is locked during the attempt: the descriptor needs no duplicate.
    connections_that_come_where_all_closes_are_seen =
        traced_where(without(&["look", "compare"]), 32, ALONE, |ring| {
            static HOST: &dyn Host = &AllSeen;
            anyring_engine::install(&HOST);
            let (listener, address) = listening();
            let accept_one = |ring: &mut Ring, calls: Option<&'static str>| {
                ring.submit(&[accept(&listener, 0)]);
                let _client = TcpStream::connect(address).unwrap();
                match calls {
                    Some(calls) => assert_eq!(step(calls, || ring.collect(1))[0].flags, 0),
                    None => drop(owned(ring.collect(1)[0].res)),
                }
            };
            (0..2).for_each(|_| accept_one(ring, None));
            accept_one(ring, Some("wait; TCP_INFO; flags; duplicate; FIONBIO; accept4; FIONBIO"));
            // The front end is asked after some waits.
            until("the front end has looked", || {
                accept_one(ring, None);
                frontend::are_closes_seen() == Some(true)
            });
            accept_one(ring, Some("wait; TCP_INFO; flags; FIONBIO; accept4; FIONBIO"));
        }),
    connections_that_come_for_single_accepts_of_a_unix_listener = traced(|ring| {
        let name = SocketAddr::from_abstract_name(format!("accept {}", std::process::id())).unwrap();
        let listener = UnixListener::bind_addr(&name).unwrap();
        let accept = Sqe { fd: listener.as_raw_fd(), ..sqe(IORING_OP_ACCEPT, 1) };
        ring.submit(&[accept]);
        for calls in [
            "wait; flags; SO_ACCEPTCONN; FIONBIO; accept4; SO_TYPE; SO_ACCEPTCONN; SO_PROTOCOL; poll; FIONBIO",
            "wait; flags; FIONBIO; accept4; poll; FIONBIO",
        ] {
            let _client = UnixStream::connect_addr(&name).unwrap();
            collect(ring, calls, 1);
            // That no other connection waits is known: the next request waits without an attempt.
            submit(ring, "", &[sqe(IORING_OP_NOP, 2), accept], 1);
            assert_eq!(ring.reap_all().len(), 1);
        }
    }),
    // What others have accepted meanwhile the engine does not wait for.
    connections_that_others_accept_first = traced(|ring| {
        let (listener, _clients, address) = waited_for(ring, 0);
        let _clients: Vec<_> = (0..2).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert_eq!(ring.collect(1)[0].flags, IORING_CQE_F_SOCK_NONEMPTY);
        let _taken = listener.accept().unwrap();
        submit(ring, "flags; FIONBIO; accept4; FIONBIO", &[accept(&listener, 0)], 0);
        let _clients: Vec<_> = (0..2).map(|_| TcpStream::connect(address).unwrap()).collect();
        let _taken = [listener.accept().unwrap(), listener.accept().unwrap()];
        step("wait", || ring.enter_with(0, 0, IORING_ENTER_GETEVENTS));
        let _client = TcpStream::connect(address).unwrap();
        collect(ring, "wait; TCP_INFO; flags; FIONBIO; accept4; FIONBIO", 1);
    }),
    // They are accepted at the lowest numbers, duplicated to others, and closed together.
    connections_that_come_for_slots = traced_where(without(&["look", "compare"]), 32, ALONE, |ring| {
        empty_slots(ring);
        let (listener, address) = listening();
        let into_any = Sqe { file_index: u32::MAX, ..accept(&listener, IORING_ACCEPT_MULTISHOT) };
        ring.submit(&[into_any]);
        // The first connection tells that the listener is one of TCP.
        let _client = TcpStream::connect(address).unwrap();
        ring.collect(1);
        let _clients = [(); 2].map(|()| TcpStream::connect(address).unwrap());
        let number = memory_file(b"").as_raw_fd();
        let calls = "wait; TCP_INFO; flags; FIONBIO; accept4(CLOEXEC); accept4(CLOEXEC); FIONBIO; \
                     duplicate; duplicate; close_range | \
                     wait; TCP_INFO; flags; FIONBIO; accept4(CLOEXEC); accept4(CLOEXEC); FIONBIO; \
                     duplicate; duplicate";
        assert!(collect(ring, calls, 2).iter().all(|&slot| slot >= 0));
        assert_eq!(memory_file(b"").as_raw_fd(), number, "no low number is taken");
    }),
    // Whether the end follows is looked for on rings that poll first.
    a_receive_from_a_connection_that_was_accepted = traced(|ring| {
        empty_slots(ring);
        let (listener, address) = listening();
        let into_any = Sqe { file_index: u32::MAX, ..accept(&listener, IORING_ACCEPT_MULTISHOT) };
        ring.submit(&[into_any]);
        for (ioprio, calls, flags) in [
            (0, "recv(64)", 0),
            (POLL_FIRST, "wait; recv(64); TCP_ZEROCOPY_RECEIVE", IORING_CQE_F_SOCK_NONEMPTY),
            (0, "recv(64); TCP_ZEROCOPY_RECEIVE", IORING_CQE_F_SOCK_NONEMPTY),
        ] {
            // The first connection tells that the listener is one of TCP.
            for last in [false, true] {
                let client = TcpStream::connect(address).unwrap();
                let fd = ring.collect(1)[0].res;
                write(&client, 5);
                drop(client);
                let receive = Sqe { fd, ioprio, flags: IOSQE_FIXED_FILE as u8, ..receive(&listener, 64) };
                if last {
                    assert_eq!(step(calls, || ring.run(&[receive]))[0].flags, flags);
                }
                ring.run(&[Sqe { fd: 0, file_index: fd as u32 + 1, ..sqe(IORING_OP_CLOSE, 1) }]);
            }
        }
    }),
    // Files and pipes.
    files_for_slots_are_never_inherited = traced(|ring| {
        empty_slots(ring);
        let open = Sqe { file_index: 1, len: 0, ..open(c"/proc/self/comm", 0) };
        let (fd, off) = (libc::AF_INET, libc::SOCK_STREAM as u64);
        let socket = Sqe { fd, off, file_index: 1, ..sqe(IORING_OP_SOCKET, 1) };
        let pipe = Sqe { file_index: 2, ..pipe(0) };
        // The first open looks at what is mounted. That is believed for some milliseconds, after which one look (`poll`) tells
        // that nothing changed.
        ring.run(&[open]);
        let opens = if has_openat2() {
            "openat2(NONBLOCK, CLOEXEC) | poll; openat2(NONBLOCK, CLOEXEC)"
        } else {
            "openat(NONBLOCK, CLOEXEC) | poll; openat(NONBLOCK, CLOEXEC)"
        };
        assert!(run(ring, opens, &[open])[0] >= 0);
        assert!(run(ring, "socket(CLOEXEC)", &[socket])[0] >= 0);
        assert!(run(ring, "pipe2(CLOEXEC)", &[pipe])[0] >= 0);
    }),
    // It is closed where it was opened. What another request uses is moved first.
    a_chain_that_opens_and_closes_a_slot = if has_openat2() {
        let shown = |call: &str| call.starts_with("openat2") || call == "duplicate";
        traced_where(shown, 32, ALONE, |ring| {
            empty_slots(ring);
            let open = Sqe { file_index: 1, flags: LINK, ..open(c"/proc/self/comm", 0) };
            let status = memory(256).as_mut_ptr() as u64;
            let (addr, off) = (c"/proc/self/comm".as_ptr() as u64, status);
            let look =
                Sqe { fd: libc::AT_FDCWD, addr, off, len: 0x7ff, flags: LINK, ..sqe(IORING_OP_STATX, 2) };
            let close = Sqe { fd: 0, file_index: 1, ..sqe(IORING_OP_CLOSE, 3) };
            // The first open looks at what is mounted.
            ring.run(&[open, look, close]);
            assert_eq!(run(ring, "openat2(NONBLOCK, CLOEXEC)", &[open, look, close]), [0; 3]);
            let read = Sqe { fd: 0, flags: LINK | IOSQE_FIXED_FILE as u8, ..transfer(IORING_OP_READ, &0, 4) };
            let moves = "openat2(NONBLOCK, CLOEXEC); duplicate";
            assert_eq!(run(ring, moves, &[open, read, close]), [0, 4, 0]);
            assert_eq!(run(ring, moves, &[Sqe { flags: 0, ..open }]), [0]);
        });
    },
    opens_that_may_create = if has_openat2() {
        let name = format!("opens-{}", std::process::id());
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("file"), "").unwrap();
        std::os::unix::fs::symlink("file", directory.join("link")).unwrap();
        // It looks (`poll`) whether anything was mounted meanwhile.
        traced_where(without(&["poll"]), 32, ALONE, |ring| {
            let path = |name| CString::new(directory.join(name).to_str().unwrap()).unwrap();
            let (file, link, new) = (path("file"), path("link"), path("new"));
            let how = |path, flags: i32, resolve| {
                let mode = if flags & libc::O_CREAT == 0 { 0 } else { 0o600 };
                let off = Box::leak(Box::new([flags as u64, mode, resolve])).as_ptr() as u64;
                Sqe { off, len: 24, op_flags: 0, opcode: IORING_OP_OPENAT2 as u8, ..open(path, 0) }
            };
            let (write, create) = (libc::O_RDWR, libc::O_RDWR | libc::O_CREAT);
            let unfollowed = create | libc::O_NOFOLLOW;
            let looks_first = "openat2(CLOEXEC, PATH); openat2(CREAT, NONBLOCK, 0x2)";
            let not_at_a_link = "openat2(NOFOLLOW, CLOEXEC, PATH); openat2(CREAT, NONBLOCK, NOFOLLOW, 0x2)";
            // The first open looks at what is mounted.
            ring.run(&[open(&file, write)]);
            for (calls, sqe) in [
                ("openat(NONBLOCK, 0x2)", open(&file, write)),
                ("look; openat(TRUNC, NONBLOCK, 0x2)", open(&file, write | libc::O_TRUNC)),
                ("look; openat(CREAT, NONBLOCK, 0x2)", open(&link, create)),
                ("look; openat(CREAT, NONBLOCK, NOFOLLOW, 0x2)", open(&link, unfollowed)),
                ("openat(CREAT, EXCL, 0x2)", open(&new, create | libc::O_EXCL)),
                ("look; openat(NONBLOCK, 0x2)", Sqe { flags: IOSQE_ASYNC as u8, ..open(&file, write) }),
                ("openat2(NONBLOCK, 0x2)", how(&file, write, 0)),
                ("look; openat2(CREAT, NONBLOCK, 0x2)", how(&file, create, 0)),
                (looks_first, how(&file, create, libc::RESOLVE_NO_SYMLINKS)),
                (looks_first, how(&link, create, libc::RESOLVE_NO_SYMLINKS)),
                (not_at_a_link, how(&link, unfollowed, libc::RESOLVE_NO_MAGICLINKS)),
                ("openat2(NONBLOCK, 0x2)", how(&file, write, libc::RESOLVE_CACHED)),
                (looks_first, how(&file, create, libc::RESOLVE_CACHED)),
            ] {
                run(ring, calls, &[sqe]);
            }
        });
        std::fs::remove_dir_all(&directory).unwrap();
    },
    pipes_with_flags = traced(|ring| {
        assert_eq!(run(ring, "pipe2(NONBLOCK)", &[pipe(libc::O_NONBLOCK)]), [0]);
    }),
    a_pipe_that_is_read = traced(|ring| {
        let (from, to) = std::io::pipe().unwrap();
        let read = transfer(IORING_OP_READ, &from, 64);
        write(&to, 5);
        assert_eq!(run(ring, "flags; preadv2(1); preadv2(1); flags", &[read]), [5]);
        submit(ring, "preadv2(1); preadv2(1); flags", &[read], 0);
        write(&to, 5);
        assert_eq!(collect(ring, "wait; preadv2(1)", 1), [5]);
    }),
    transfers_that_are_in_the_cache = {
        let file = &File::open("/proc/self/exe").unwrap();
        // SAFETY: a byte of ours.
        if unsafe { libc::preadv2(file.as_raw_fd(), &vector(1), 1, 0, libc::RWF_NOWAIT) } == 1 {
            traced(|ring| {
                let read = transfer(IORING_OP_READ, file, 512);
                let vector = vector(512);
                let addr = (&raw const vector) as u64;
                ring.run(&[read]);
                run(ring, "preadv2(1)", &[read]);
                run(ring, "preadv2(1)", &[Sqe { addr, len: 1, ..transfer(IORING_OP_READV, file, 0) }]);
                run(ring, "preadv2(1)", &[Sqe { off: u64::MAX, ..read }]);
            });
        } else {
            eprintln!("skipped: the file system of the test does not tell what is in its cache (RWF_NOWAIT)");
        }
    },
    work_that_the_call_does_needs_no_descriptor_of_its_own = traced_where(without(&[]), 32, ALONE, |ring| {
        let file = memory_file(b"");
        let write = transfer(IORING_OP_WRITE, &file, 5);
        let read = transfer(IORING_OP_READ, &file, 5);
        // Once it is found out where the file system has what it holds: by the mount, then for the descriptor.
        run(ring, "flags; pwritev2(1); look; look; openat(CLOEXEC); pwritev2(1)", &[write]);
        // A ring that has not measured how long a write takes: on a busy machine this one was slow.
        run(&mut Ring::new(Engine::User, 32, ALONE), "pwritev2(1)", &[write]);
        run(ring, "preadv2(1); look; preadv2(1)", &[read]);
        run(ring, "preadv2(1); preadv2(1)", &[read]);
    }),
    work_for_another_thread_has_a_descriptor_of_its_own = traced_where(without(&[]), 32, ALONE, |ring| {
        let file = memory_file(b"");
        submit(ring, "duplicate", &[Sqe { fd: file.as_raw_fd(), ..sqe(IORING_OP_FSYNC, 1) }], 0);
        ring.collect(1);
    }),
    // Transfers past the cache.
    transfers_past_the_cache = storage(&[], |ring, _, write| {
        run(ring, "flags; flags; pwritev2(1)", &[write]);
        let writes = [0, 1, 2, 3].map(|at| Sqe { off: 4096 * at, ..write });
        submit(ring, "flags; flags; flags; flags; io_submit(4)", &writes, 0);
        ring.collect(4);
    }),
    one_transfer_past_the_cache_and_two = storage(&["flags", "wait"], |ring, _, write| {
        for (submits, count) in [("", 1), ("io_submit(2)", 2), ("io_submit(1)", 1)] {
            submit(ring, submits, &[0, 1].map(|at| Sqe { off: 4096 * at, ..write })[..count], 0);
            ring.collect(count);
        }
    }),
    single_transfers_past_the_cache = storage(&["flags"], |ring, _, write| {
        for _ in 0..4 {
            run(ring, "pwritev2(1)", &[write]);
        }
        for _ in 0..2 {
            submit(ring, "io_submit(1)", &[write], 0);
            ring.collect(1);
        }
    }),
    files_are_synchronized_by_threads_of_the_kernel = storage(&["await"], |ring, file, _| {
        let [all, data] = [0, IORING_FSYNC_DATASYNC].map(|op_flags| Sqe {
            op_flags,
            fd: file.as_raw_fd(),
            ..sqe(IORING_OP_FSYNC, 1)
        });
        (0..16).for_each(|_| assert_eq!(ring.run(&[all])[0].res, 0));
        submit(ring, "io_submit(1)", &[data], 0);
        ring.collect(1);
        submit(ring, "io_submit(2)", &[all, data], 0);
        ring.collect(2);
    }),
    a_file_is_synchronized_by_the_caller_that_waits_for_it = storage(&[], |ring, file, write| {
        static HOST: &dyn Host = &AllSeen;
        anyring_engine::install(&HOST);
        let sync = Sqe { fd: file.as_raw_fd(), ..sqe(IORING_OP_FSYNC, 1) };
        // Once it is found out how the file was opened, and whether its file system is far.
        ring.run(&[write]);
        Ring::new(Engine::User, 32, ALONE).run(&[sync]);
        // This ring has not measured yet how long that takes: on a busy machine it may be long.
        run(&mut Ring::new(Engine::User, 32, ALONE), "fsync", &[sync]);
    }),
    more_transfers_past_the_cache_than_leave_together = storage(&["flags"], |ring, _, write| {
        let writes: Vec<_> = (0..70).map(|at| Sqe { off: 4096 * (at % 64), ..write }).collect();
        submit(ring, "io_submit(32); io_submit(32); io_submit(6)", &writes, 0);
        ring.collect(70);
    }),
    a_transfer_past_the_cache_that_is_refused = storage(&["flags"], |ring, file, write| {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let unwritable = File::options().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
        let mut writes = [0, 1, 2, 3, 4].map(|at| Sqe { off: 4096 * at, user_data: at, ..write });
        writes[2].fd = unwritable.as_raw_fd();
        // What was refused is tried once more, to tell why, by a worker.
        submit(ring, "io_submit(5); io_submit(2)", &writes, 0);
        for cqe in ring.collect(5) {
            assert_eq!(cqe.res, if cqe.user_data == 2 { -libc::EBADF } else { 4096 });
        }
    }),
    vectors_past_the_cache_and_their_flags = storage(&[], |ring, file, write| {
        let vectors = [libc::iovec { iov_base: write.addr as *mut _, iov_len: 4096 }; 2];
        let write = Sqe { len: 2, addr: vectors.as_ptr() as u64, ..transfer(IORING_OP_WRITEV, file, 0) };
        let writes = [(0, 0), (1, libc::RWF_DSYNC as u32), (2, 0)];
        let writes = writes.map(|(at, op_flags)| Sqe { off: 8192 * at, op_flags, ..write });
        submit(ring, "flags; flags; flags; flags; io_submit(3)", &writes, 0);
        assert!(ring.collect(3).iter().all(|cqe| cqe.res == 8192));
    }),
    // Polls, timeouts, cancellations, processes.
    a_poll = traced(|ring| {
        let (from, to) = std::io::pipe().unwrap();
        submit(ring, "poll", &[poll(&from, 1)], 0);
        write(&to, 5);
        assert_eq!(collect(ring, "wait", 1), [i32::from(libc::POLLIN)]);
        assert_eq!(run(ring, "poll", &[poll(&from, 1)]), [i32::from(libc::POLLIN)]);
    }),
    operations_that_need_none = traced(|ring| {
        let time = [3600i64, 0];
        run(ring, "", &[sqe(IORING_OP_NOP, 1); 3]);
        submit(ring, "", &[timeout(1, &time)], 0);
        submit(ring, "", &[Sqe { addr: 1, ..sqe(IORING_OP_TIMEOUT_REMOVE, 2) }], 2);
        assert_eq!(ring.collect(2).len(), 2);
    }),
    // A timeout that was taken away is not looked for.
    what_has_been_removed_costs_nothing = traced(|ring| {
        let hour = [3600i64, 0];
        for off in [0, 5] {
            let timeout = Sqe { off, ..timeout(1, &hour) };
            ring.run(&[timeout, Sqe { addr: 1, ..sqe(IORING_OP_TIMEOUT_REMOVE, 3) }]);
        }
        ring.reap_all();
        run(ring, "", &[sqe(IORING_OP_NOP, 4)]);
        run(ring, "", &[sqe(IORING_OP_NOP, 5)]);
    }),
    // Other processes that use a ring have its descriptor, too, which stays readable until one of them has looked: who posts has
    // nobody to tell.
    completions_that_are_shown_to_a_child_cost_nothing = traced_where(without(UNTOLD), 8, 0, |ring| {
        frontend::show_readiness(ring.fd).unwrap();
        let (mut told, mut teller) = std::io::pipe().unwrap();
        let pid = child(|| {
            ring.push(sqe(IORING_OP_NOP, 1));
            let entered = ring.enter(1, 0);
            teller.write_all(b"x").unwrap();
            // SAFETY: sleeps until it is killed.
            unsafe { libc::pause() };
            entered == 1
        });
        told.read_exact(&mut [0]).unwrap();
        ring.follow();
        // After a tick without a call, the reactor has the ring: the next call tells it, and those that poll the descriptor. The time
        // begins before the call, as it does in the loop.
        let (mut before, mut in_time) = (Instant::now(), false);
        ring.run(&[sqe(IORING_OP_NOP, 2)]);
        while !in_time {
            let begun = Instant::now();
            in_time = step_that_tells(|| {
                ring.run(&[sqe(IORING_OP_NOP, 3)]);
                let in_time = before.elapsed() < Duration::from_millis(4);
                (in_time, if in_time { "" } else { " | signal; signal" })
            });
            before = begun;
        }
        // SAFETY: our child.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }),
    a_cancellation_by_descriptor_compares_no_other_files = traced_where(only("compare"), 32, ALONE, |ring| {
        let sockets = [(); 8].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        ring.push_all((1..).zip(&sockets).map(|(user_data, socket)| poll(socket, user_data)));
        ring.enter(8, 0);
        let others = [0, 3].map(|index| sockets[index].try_clone().unwrap());
        let [first, second] = others.each_ref().map(|other| Sqe {
            fd: other.as_raw_fd(),
            op_flags: IORING_ASYNC_CANCEL_FD,
            ..sqe(IORING_OP_ASYNC_CANCEL, 100)
        });
        // Before Linux 6.10 the first comparison of a process asks in two ways: from then on it knows which of them there is.
        ring.push(first);
        ring.enter(1, 2);
        assert_eq!(ring.reap_all().len(), 2);
        submit(ring, "compare", &[second], 2);
        assert_eq!(ring.reap_all().len(), 2);
    }),
    waits_for_the_end_of_a_process = if pidfd_open(std::process::id() as i32, libc::O_NONBLOCK) < 0 {
        eprintln!("skipped: before Linux 5.10, no descriptor of a process can be told not to wait");
    } else {
        use libc::{O_NONBLOCK, P_PID, P_PIDFD, WEXITED, WNOHANG, WSTOPPED};
        traced(|ring| {
            for (options, kind, flags, waits, ends) in [
                (WEXITED, P_PID, 0, "waitid; pidfd_open", "wait; waitid"),
                (WEXITED, P_PIDFD, 0, "waitid; flags", "wait; waitid"),
                (WEXITED, P_PIDFD, O_NONBLOCK, "waitid; flags", ""),
                (WEXITED | WNOHANG, P_PID, 0, "waitid", ""),
                (WEXITED | WNOHANG, P_PIDFD, 0, "waitid", ""),
                (WEXITED | WNOHANG, P_PIDFD, O_NONBLOCK, "waitid", ""),
                (WEXITED | WSTOPPED, P_PID, 0, "waitid", ""),
                (WEXITED | WSTOPPED, P_PIDFD, 0, "waitid; flags", ""),
                (WEXITED | WSTOPPED, P_PIDFD, O_NONBLOCK, "waitid; flags", ""),
            ] {
                // SAFETY: waits for a signal.
                let pid = child(|| unsafe { libc::pause() } == 0);
                let fd = if kind == P_PID { pid } else { pidfd_open(pid, flags) };
                let wait = Sqe { fd, len: kind, file_index: options as u32, ..sqe(IORING_OP_WAITID, 1) };
                submit(ring, waits, &[wait], 0);
                // SAFETY: a child of ours.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                step(ends, || {
                    if options != WEXITED || flags != 0 {
                        ring.submit(&[cancel(2, 1, 0)]);
                    }
                    ring.collect(1);
                });
            }
        });
    },
];

/// How many system calls the only other thread of a process makes between two of its sleeps, at most, while nothing happens.
fn calls_of_a_tick(process: i32) -> usize {
    const TICKS: usize = 20;
    let tasks = || std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let ids = tasks().map(|entry| entry.unwrap().file_name().into_string().unwrap().parse().unwrap());
    let others: Vec<i32> = ids.filter(|&id| id != process).collect();
    let [reactor] = others[..] else { panic!("one other thread: {others:?}") };
    let options = libc::PTRACE_O_TRACESYSGOOD;
    // SAFETY: a thread of our child, which goes on as it was.
    unsafe {
        assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, reactor, 0, options), 0);
        assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, reactor, 0, 0), 0);
    }
    let (mut enters, mut made, mut most, mut ticks, mut status) = (false, 0, 0, 0, 0);
    while ticks < TICKS {
        // SAFETY: as before.
        unsafe {
            assert_eq!(libc::waitpid(reactor, &mut status, libc::__WALL), reactor);
            assert!(libc::WIFSTOPPED(status), "it goes on");
        }
        if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 {
            enters = !enters;
            let number = Stopped::look(reactor).number();
            if enters && [libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2].contains(&number) {
                // The first is not seen from its begin.
                most = if ticks == 0 { 0 } else { most.max(made) };
                (made, ticks) = (0, ticks + 1);
            }
            made += usize::from(enters);
        }
        // SAFETY: as before.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, reactor, 0, 0) }, 0);
    }
    most
}

#[test]
fn a_tick_does_not_look_at_all_sends_whose_pages_are_out() {
    let calls = [4, 64].map(|count| {
        let (mut ready, mut says) = UnixStream::pair().unwrap();
        let (ends, mut end) = UnixStream::pair().unwrap();
        let pid = child(|| {
            let ends_at = ends.as_raw_fd();
            // SAFETY: the parent's is another one.
            unsafe { libc::close(ends_at) };
            let mut ring = Ring::new(Engine::User, 128, 0);
            let _out = pages_out(&mut ring, count);
            says.write_all(b"x").unwrap();
            end.read(&mut [0]).unwrap() == 0
        });
        ready.read_exact(&mut [0]).unwrap();
        let calls = calls_of_a_tick(pid);
        // SAFETY: our child.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        drop(ends);
        calls
    });
    assert!(calls[1] <= calls[0] + 2, "{calls:?}");
}
