//! What operations cost in system calls, and with which flags the engine makes them: a shortcut that is not taken any more
//! has the same results, and is seen here only.
#![cfg(not(anyring_sanitizer))]

mod arch;
mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use anyring_engine::abi::Sqe;
use anyring_engine::request::version::{self, Version};
use arch::Stopped;
use common::*;
use io_uring_op::*;

/// A call that nobody makes, around what is looked at.
const MARK: i64 = libc::SYS_getpriority;
const MARK_NUMBER: u64 = 4711;
/// In the place of [`MARK_NUMBER`], with the address of a CQ's tail.
const SHOW_NUMBER: u64 = 4712;

fn mark() {
    // SAFETY: refused, for there is no such kind of priority.
    unsafe { libc::syscall(MARK, MARK_NUMBER, 0) };
}

/// From here on, calls are shown with how many CQEs the ring has posted.
fn show_posted(ring: &Ring) {
    let tail = std::ptr::from_ref(ring.word(ring.params.cq_off.tail));
    // SAFETY: refused, for there is no such kind of priority.
    unsafe { libc::syscall(MARK, SHOW_NUMBER, tail) };
}

/// A call on the program's files by its name, with the arguments that tell something; not what the engine does for
/// itself: locks, copies of memory, registrations, the time.
fn describe(pid: i32, number: i64, arguments: [u64; 6]) -> Option<String> {
    let [_, b, c, d, _, _] = arguments;
    Some(match number {
        libc::SYS_recvfrom => format!("recv({c}, {d:#x})"),
        libc::SYS_sendto => format!("send({c}, {d:#x})"),
        libc::SYS_recvmsg => format!("recvmsg({c:#x})"),
        libc::SYS_sendmsg => format!("sendmsg({c:#x})"),
        libc::SYS_accept4 => format!("accept4({d:#x})"),
        libc::SYS_socket => format!("socket({b:#x})"),
        libc::SYS_pipe2 => format!("pipe2({b:#x})"),
        libc::SYS_openat => format!("openat({c:#x})"),
        libc::SYS_openat2 => {
            // SAFETY: reads a word of the child, which is stopped.
            let flags = unsafe { libc::ptrace(libc::PTRACE_PEEKDATA, pid, c, 0) };
            format!("openat2({flags:#x})")
        }
        libc::SYS_pidfd_open => "pidfd_open".to_owned(),
        libc::SYS_waitid => "waitid".to_owned(),
        libc::SYS_write if c == 8 => "signal".to_owned(),
        libc::SYS_statx | libc::SYS_newfstatat => "look".to_owned(),
        libc::SYS_fsync => "fsync".to_owned(),
        libc::SYS_fdatasync => "fdatasync".to_owned(),
        libc::SYS_ppoll => "poll".to_owned(),
        libc::SYS_ioctl if b == 0 => "between".to_owned(),
        libc::SYS_ioctl => format!("ioctl({b:#x})"),
        libc::SYS_fcntl if b == libc::F_GETFL as u64 => "flags".to_owned(),
        libc::SYS_fcntl if b == libc::F_DUPFD_CLOEXEC as u64 => "duplicate".to_owned(),
        libc::SYS_io_submit => format!("io_submit({b})"),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => "wait".to_owned(),
        libc::SYS_getsockopt => format!("option({b}, {c})"),
        libc::SYS_readv => "readv".to_owned(),
        libc::SYS_writev => "writev".to_owned(),
        libc::SYS_preadv2 => format!("preadv2({c})"),
        libc::SYS_pwritev2 => format!("pwritev2({c})"),
        libc::SYS_pread64 => format!("pread({c}, {d})"),
        libc::SYS_pwrite64 => format!("pwrite({c}, {d})"),
        libc::SYS_kcmp => "compare".into(),
        _ => return None,
    })
}

/// What the body's thread calls between two marks, but for duplicates of descriptors, and looks at files and their comparisons.
fn calls(body: impl FnOnce()) -> Vec<String> {
    let mut calls = all_calls(body);
    calls.retain(|call| !["duplicate", "look", "compare"].contains(&call.as_str()));
    calls
}

/// The same with them.
fn all_calls(body: impl FnOnce()) -> Vec<String> {
    let pid = child(|| {
        // SAFETY: the parent traces this process, and lets it go on.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
            // Ends it where it waits for what never comes.
            libc::alarm(20);
        }
        body();
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
    let (mut calls, mut marks, mut enters) = (Vec::new(), 0, false);
    let (mut entered, mut tail) = (None, None);
    let mut signal = 0;
    loop {
        // SAFETY: it is stopped.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SYSCALL, pid, 0, signal), 0);
            assert_eq!(libc::waitpid(pid, &mut status, libc::__WALL), pid);
        }
        if !libc::WIFSTOPPED(status) {
            assert!(
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
                "the child ends well: {status:#x}"
            );
            return calls;
        }
        signal = libc::WSTOPSIG(status);
        if signal != libc::SIGTRAP | 0x80 {
            continue;
        }
        signal = 0;
        enters = !enters;
        if !enters && entered.is_none() {
            continue;
        }
        let call = Stopped::look(pid);
        if !enters {
            // What an older kernel has not is asked for once, and does not count.
            calls.extend(entered.take().filter(|_| call.result() != i64::from(-libc::ENOSYS)));
            continue;
        }
        let (number, arguments) = (call.number(), call.arguments());
        if number == MARK && arguments[0] == MARK_NUMBER {
            marks += 1;
        } else if number == MARK && arguments[0] == SHOW_NUMBER {
            tail = Some(arguments[1]);
        } else if marks == 1 {
            entered = describe(pid, number, arguments);
            if let (Some(call), Some(tail)) = (&mut entered, tail) {
                // SAFETY: reads a word of the child, which is stopped.
                let posted = unsafe { libc::ptrace(libc::PTRACE_PEEKDATA, pid, tail, 0) } as u32;
                *call += &format!(", {posted} posted");
            }
        }
    }
}

fn assert_calls(expected: &[&str], body: impl FnOnce()) {
    assert_eq!(calls(body), expected);
}

/// One for which no other thread does anything.
fn ring() -> Ring {
    ring_of(32)
}

/// The same with room for so many entries.
fn ring_of(entries: u32) -> Ring {
    Ring::new(Engine::User, entries, IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER)
}

fn transfer(opcode: io_uring_op, user_data: u64, fd: &impl AsRawFd, buffer: &[u8]) -> Sqe {
    let (addr, len) = (buffer.as_ptr() as u64, buffer.len() as u32);
    Sqe { fd: fd.as_raw_fd(), addr, len, ..sqe(opcode, user_data) }
}

/// The same for what the engine writes.
fn into(opcode: io_uring_op, user_data: u64, fd: &impl AsRawFd, buffer: &mut [u8]) -> Sqe {
    Sqe { addr: buffer.as_mut_ptr() as u64, ..transfer(opcode, user_data, fd, buffer) }
}

/// A pair that holds nothing back, and a ring that knows both ends.
fn known_pair(ring: &mut Ring) -> (TcpStream, TcpStream) {
    let (one, other) = tcp_pair();
    for end in [&one, &other] {
        end.set_nodelay(true).unwrap();
    }
    for (from, to) in [(&one, &other), (&other, &one)] {
        ring.push(into(IORING_OP_RECV, 1, to, &mut [0; 8]));
        ring.enter(1, 0);
        ring.push(transfer(IORING_OP_SEND, 2, from, b"hello"));
        ring.enter(1, 0);
        ring.collect(2);
    }
    (one, other)
}

#[repr(align(4096))]
struct Page(#[allow(dead_code, reason = "the engine writes it")] [u8; 4096]);

/// A file that is read and written past the cache.
fn storage() -> Option<std::fs::File> {
    let name = format!("calls-{}", std::process::id());
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut options = std::fs::File::options();
    options.read(true).write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
    let file = options.open(&path).ok()?;
    std::fs::remove_file(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    Some(file)
}

/// A socket that listens, and connections that wait for it.
fn listener(waiting: usize) -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let clients = (0..waiting).map(|_| TcpStream::connect(address).unwrap()).collect();
    (listener, clients)
}

fn multishot_accept(listener: &TcpListener) -> Sqe {
    let ioprio = IORING_ACCEPT_MULTISHOT as u16;
    Sqe { fd: listener.as_raw_fd(), ioprio, ..sqe(IORING_OP_ACCEPT, 1) }
}

fn datagrams() -> (UdpSocket, UdpSocket) {
    let (one, other) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    one.connect(other.local_addr().unwrap()).unwrap();
    (one, other)
}

fn anonymous() -> *mut u8 {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0) };
    assert_ne!(address, libc::MAP_FAILED);
    address.cast()
}

/// A ring of provided buffers, as group 7.
struct Buffers {
    _memory: Vec<u8>,
}

impl Buffers {
    fn new(ring: &Ring, count: u16, length: u32) -> Buffers {
        let memory = vec![0; count as usize * length as usize];
        let entries = anonymous().cast::<io_uring_buf>();
        for index in 0..count {
            let addr = memory.as_ptr() as u64 + u64::from(index) * u64::from(length);
            // SAFETY: a page of ours, which the engine reads from the registration on.
            unsafe {
                entries.add(index as usize).write(io_uring_buf { addr, len: length, bid: index, resv: 0 })
            };
        }
        // SAFETY: the tail lies in the first entry's last field.
        unsafe { (&raw mut (*entries).resv).write(count) };
        // SAFETY: integers only.
        let mut register: io_uring_buf_reg = unsafe { std::mem::zeroed() };
        (register.ring_addr, register.ring_entries, register.bgid) = (entries as u64, u32::from(count), 7);
        let registered =
            ring.register(io_uring_register_op::IORING_REGISTER_PBUF_RING, (&raw const register).cast(), 1);
        assert_eq!(registered, 0);
        Buffers { _memory: memory }
    }

    fn receive(&self, user_data: u64, fd: &impl AsRawFd) -> Sqe {
        const BUFFER_SELECT: u8 = 1 << 5;
        let ioprio = IORING_RECV_MULTISHOT as u16;
        Sqe { flags: BUFFER_SELECT, buf_index: 7, ioprio, ..transfer(IORING_OP_RECV, user_data, fd, &[]) }
    }
}

#[test]
fn a_receive_of_what_is_there() {
    assert_calls(&["wait", "recv(64, 0x40)"], || {
        let mut ring = ring();
        let (mut one, other) = known_pair(&mut ring);
        one.write_all(b"hello").unwrap();
        mark();
        let cqes = ring.run(&[into(IORING_OP_RECV, 3, &other, &mut [0; 64])]);
        mark();
        assert_eq!(cqes[0].res, 5);
    });
}

#[test]
fn a_receive_of_all_of_what_is_there() {
    assert_calls(&["wait", "recv(5, 0x40)", "option(6, 35)"], || {
        let mut ring = ring();
        let (mut one, other) = known_pair(&mut ring);
        one.write_all(b"hello").unwrap();
        mark();
        let cqes = ring.run(&[into(IORING_OP_RECV, 3, &other, &mut [0; 5])]);
        mark();
        assert_eq!((cqes[0].res, cqes[0].flags), (5, 0));
    });
}

#[test]
fn a_receive_of_a_part_of_what_is_there() {
    assert_calls(&["wait", "recv(3, 0x40)", "option(6, 35)"], || {
        let mut ring = ring();
        let (mut one, other) = known_pair(&mut ring);
        one.write_all(b"hello").unwrap();
        mark();
        let cqes = ring.run(&[into(IORING_OP_RECV, 3, &other, &mut [0; 3])]);
        mark();
        assert_eq!((cqes[0].res, cqes[0].flags), (3, IORING_CQE_F_SOCK_NONEMPTY));
    });
}

#[test]
fn a_receive_that_waits() {
    assert_calls(&["recv(64, 0x40)", "send(5, 0x4000)", "wait", "recv(64, 0x40)"], || {
        let mut ring = ring();
        let (mut one, other) = known_pair(&mut ring);
        let mut buffer = [0; 64];
        mark();
        ring.push(into(IORING_OP_RECV, 3, &other, &mut buffer));
        ring.enter(1, 0);
        one.write_all(b"hello").unwrap();
        assert_eq!(ring.collect(1)[0].res, 5);
        mark();
    });
}

#[test]
fn a_receive_that_polls_first() {
    assert_calls(&["wait", "recv(64, 0x40)"], || {
        let mut ring = ring();
        let (mut one, other) = known_pair(&mut ring);
        one.write_all(b"hello").unwrap();
        let mut buffer = [0; 64];
        let receive = into(IORING_OP_RECV, 3, &other, &mut buffer);
        mark();
        let cqes = ring.run(&[Sqe { ioprio: IORING_RECVSEND_POLL_FIRST as u16, ..receive }]);
        mark();
        assert_eq!(cqes[0].res, 5);
    });
}

#[test]
fn a_receive_that_waits_for_all() {
    assert_calls(
        &["recv(10, 0x140)", "option(1, 3)", "send(5, 0x4000)", "wait", "recv(5, 0x140)", "option(6, 35)"],
        || {
            let mut ring = ring();
            let (mut one, other) = known_pair(&mut ring);
            one.write_all(b"hello").unwrap();
            let mut buffer = [0; 10];
            let receive = into(IORING_OP_RECV, 3, &other, &mut buffer);
            mark();
            ring.push(Sqe { op_flags: libc::MSG_WAITALL as u32, ..receive });
            ring.enter(1, 0);
            one.write_all(b"world").unwrap();
            assert_eq!(ring.collect(1)[0].res, 10);
            mark();
        },
    );
}

#[test]
fn a_receive_from_a_number_that_is_not_known() {
    assert_calls(
        &["recv(64, 0x40)", "option(1, 3)", "option(1, 30)", "option(1, 38)", "option(6, 35)"],
        || {
            let mut ring = ring();
            let (mut one, other) = tcp_pair();
            one.write_all(b"hello").unwrap();
            mark();
            let cqes = ring.run(&[into(IORING_OP_RECV, 3, &other, &mut [0; 64])]);
            mark();
            assert_eq!(cqes[0].res, 5);
        },
    );
}

#[test]
fn a_multishot_receive() {
    assert_calls(
        &[
            "recv(64, 0x40)",
            "send(4, 0x4000)",
            "wait",
            "recv(64, 0x40)",
            "send(5, 0x4000)",
            "wait",
            "recv(64, 0x40)",
            "send(6, 0x4000)",
            "wait",
            "recv(64, 0x40)",
        ],
        || {
            let mut ring = ring();
            let (mut one, other) = known_pair(&mut ring);
            let buffers = Buffers::new(&ring, 8, 64);
            mark();
            ring.push(buffers.receive(3, &other));
            ring.enter(1, 0);
            for round in 0..3 {
                one.write_all(&[b'x'; 10][..4 + round]).unwrap();
                let cqes = ring.collect(1);
                assert_eq!((cqes.len(), cqes[0].res), (1, 4 + round as i32));
            }
            mark();
        },
    );
}

#[test]
fn a_multishot_receive_that_fills_buffers() {
    assert_calls(
        &[
            "send(40, 0x4000)",
            "wait",
            "recv(16, 0x40)",
            "option(6, 35)",
            "recv(16, 0x40)",
            "option(6, 35)",
            "recv(16, 0x40)",
        ],
        || {
            let mut ring = ring();
            let (mut one, other) = known_pair(&mut ring);
            let buffers = Buffers::new(&ring, 8, 16);
            ring.push(buffers.receive(3, &other));
            ring.enter(1, 0);
            mark();
            one.write_all(&[b'x'; 40]).unwrap();
            let lengths: Vec<_> = ring.collect(3).iter().map(|cqe| cqe.res).collect();
            assert_eq!(lengths, [16, 16, 8]);
            mark();
        },
    );
}

#[test]
fn a_bundle() {
    assert_calls(&["wait", "recvmsg(0x40)"], || {
        let mut ring = ring();
        let (mut one, other) = known_pair(&mut ring);
        let buffers = Buffers::new(&ring, 8, 16);
        one.write_all(&[b'x'; 40]).unwrap();
        mark();
        ring.push(Sqe { ioprio: IORING_RECVSEND_BUNDLE as u16, ..buffers.receive(3, &other) });
        ring.enter(1, 1);
        mark();
        assert_eq!(ring.collect(1)[0].res, 40);
    });
}

#[test]
fn a_message_that_is_received() {
    assert_calls(&["wait", "recvmsg(0x40)"], || {
        let mut ring = ring();
        let (mut one, other) = known_pair(&mut ring);
        one.write_all(b"hello").unwrap();
        let mut buffer = [0u8; 64];
        let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 64 };
        // SAFETY: integers and pointers.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (&raw mut vector, 1);
        let addr = (&raw mut header) as u64;
        mark();
        let cqes = ring.run(&[Sqe { addr, len: 1, ..transfer(IORING_OP_RECVMSG, 3, &other, &[]) }]);
        mark();
        assert_eq!(cqes[0].res, 5);
    });
}

#[test]
fn one_send() {
    assert_calls(&["send(5, 0x4040)"], || {
        let mut ring = ring();
        let (one, _other) = known_pair(&mut ring);
        mark();
        let cqes = ring.run(&[transfer(IORING_OP_SEND, 3, &one, b"hello")]);
        mark();
        assert_eq!(cqes[0].res, 5);
    });
}

#[test]
fn sends_on_a_connection() {
    assert_calls(&["option(1, 37)", "option(6, 2)", "option(6, 2)", "sendmsg(0x4040)"], || {
        let mut ring = ring();
        let (one, _other) = known_pair(&mut ring);
        mark();
        let sends = [5, 3, 9, 4].map(|length| transfer(IORING_OP_SEND, 3, &one, &b"hello world"[..length]));
        let cqes = ring.run(&sends);
        mark();
        assert_eq!(cqes.iter().map(|cqe| cqe.res).sum::<i32>(), 21);
    });
}

#[test]
fn sends_that_are_too_much_for_one_call() {
    assert_calls(
        &["send(40000, 0x4040)", "option(1, 37)", "option(6, 2)", "option(6, 2)", "sendmsg(0x4040)"],
        || {
            let mut ring = ring();
            let (one, _other) = known_pair(&mut ring);
            let large = vec![0; 40_000];
            mark();
            let sends = [40_000, 40_000, 5].map(|length| transfer(IORING_OP_SEND, 3, &one, &large[..length]));
            let cqes = ring.run(&sends);
            mark();
            assert_eq!(cqes.iter().map(|cqe| cqe.res).sum::<i32>(), 80_005);
        },
    );
}

#[test]
fn datagrams_of_one_length() {
    assert_calls(
        &["option(1, 37)", "option(6, 2)", "option(17, 103)", "option(17, 103)", "sendmsg(0x4040)"],
        || {
            let mut ring = ring();
            let (one, _other) = datagrams();
            mark();
            ring.run(&[5, 5, 5].map(|length| transfer(IORING_OP_SEND, 3, &one, &b"hello world"[..length])));
            mark();
        },
    );
}

#[test]
fn a_shorter_datagram_is_the_last_of_a_call() {
    assert_calls(
        &[
            "option(1, 37)",
            "option(6, 2)",
            "option(17, 103)",
            "option(17, 103)",
            "sendmsg(0x4040)",
            "send(5, 0x4040)",
        ],
        || {
            let mut ring = ring();
            let (one, _other) = datagrams();
            mark();
            ring.run(
                &[5, 5, 3, 5].map(|length| transfer(IORING_OP_SEND, 3, &one, &b"hello world"[..length])),
            );
            mark();
        },
    );
}

#[test]
fn a_longer_datagram_goes_in_a_call_of_its_own() {
    assert_calls(
        &[
            "option(1, 37)",
            "option(6, 2)",
            "option(17, 103)",
            "send(5, 0x4040)",
            "option(17, 103)",
            "sendmsg(0x4040)",
            "send(5, 0x4040)",
            "send(9, 0x4040)",
        ],
        || {
            let mut ring = ring();
            let (one, _other) = datagrams();
            mark();
            ring.run(&[5, 9, 9].map(|length| transfer(IORING_OP_SEND, 3, &one, &b"hello world"[..length])));
            ring.run(&[5, 9].map(|length| transfer(IORING_OP_SEND, 3, &one, &b"hello world"[..length])));
            mark();
        },
    );
}

#[test]
fn datagrams_to_a_destination_go_alone() {
    assert_calls(&["send(5, 0x4040)", "send(5, 0x4040)"], || {
        let mut ring = ring();
        let (one, other) = datagrams();
        let std::net::SocketAddr::V4(to) = other.local_addr().unwrap() else { panic!() };
        let address = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: to.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
            sin_zero: [0; 8],
        };
        let send = transfer(IORING_OP_SEND, 3, &one, b"hello");
        let send = Sqe { off: (&raw const address) as u64, file_index: 16, ..send };
        mark();
        let cqes = ring.run(&[send, send]);
        mark();
        assert_eq!(cqes[0].res, 5);
    });
}

#[test]
fn sends_of_other_flags_go_alone() {
    assert_calls(
        &["send(5, 0xc040)", "option(1, 37)", "option(6, 2)", "option(6, 2)", "sendmsg(0x4140)"],
        || {
            let mut ring = ring();
            let (one, _other) = known_pair(&mut ring);
            let send = |op_flags| Sqe { op_flags, ..transfer(IORING_OP_SEND, 3, &one, b"hello") };
            mark();
            ring.run(&[send(libc::MSG_MORE as u32), send(0), send(libc::MSG_WAITALL as u32), send(0)]);
            mark();
        },
    );
}

#[test]
fn a_small_send_without_a_copy_is_copied() {
    assert_calls(&["option(1, 38)", "option(1, 3)", "option(1, 39)", "send(5, 0x4040)"], || {
        let mut ring = ring();
        let (one, _other) = known_pair(&mut ring);
        mark();
        ring.push(transfer(IORING_OP_SEND_ZC, 3, &one, b"hello"));
        ring.enter(1, 2);
        mark();
        assert_eq!(ring.collect(2)[0].res, 5);
    });
}

#[test]
fn a_large_send_without_a_copy_is_not() {
    assert_calls(
        &[
            "option(1, 38)",
            "option(1, 3)",
            "option(1, 39)",
            "option(1, 60)",
            "option(1, 37)",
            "option(1, 65)",
            "option(1, 45)",
            "option(0, 11)",
            "option(41, 25)",
            "send(40000, 0x4040)",
        ],
        || {
            let mut ring = ring();
            let (one, _other) = known_pair(&mut ring);
            let large = vec![0; 40_000];
            mark();
            ring.push(transfer(IORING_OP_SEND_ZC, 3, &one, &large));
            ring.enter(1, 1);
            mark();
            assert_eq!(ring.collect(1)[0].res, 40_000);
        },
    );
}

#[test]
fn connections_that_wait() {
    assert_calls(
        &[
            "flags",
            "option(1, 30)",
            "ioctl(0x5421)",
            "accept4(0x0)",
            "ioctl(0x5421)",
            "option(1, 3)",
            "option(1, 30)",
            "option(1, 38)",
            "poll",
            "flags",
            "option(1, 30)",
            "ioctl(0x5421)",
            "accept4(0x0)",
            "ioctl(0x5421)",
            "option(1, 3)",
            "option(1, 30)",
            "option(1, 38)",
            "poll",
        ],
        || {
            let mut ring = ring();
            let (listener, clients) = listener(3);
            mark();
            let accept = Sqe { fd: listener.as_raw_fd(), ..sqe(IORING_OP_ACCEPT, 1) };
            let cqes = ring.run(&[accept]);
            let second = ring.run(&[accept]);
            mark();
            drop(clients);
            assert_eq!([cqes[0].flags, second[0].flags], [IORING_CQE_F_SOCK_NONEMPTY; 2]);
        },
    );
}

#[test]
fn connections_that_wait_for_a_multishot_accept() {
    assert_calls(
        &[
            "flags",
            "option(1, 30)",
            // Once more, by the descriptor that the request keeps from then on.
            "flags",
            "option(1, 30)",
            "ioctl(0x5421)",
            "option(1, 3)",
            "option(1, 30)",
            "option(1, 38)",
            "accept4(0x0)",
            "poll",
            "accept4(0x0)",
            "poll",
            "accept4(0x0)",
            "poll",
            "ioctl(0x5421)",
        ],
        || {
            let mut ring = ring();
            let (listener, clients) = listener(3);
            mark();
            ring.push(multishot_accept(&listener));
            ring.enter(1, 0);
            mark();
            drop(clients);
            assert_eq!(ring.reap_all().len(), 3);
        },
    );
}

/// A program that has seen every connection may look at the listener's flags, and change them.
#[test]
fn the_last_connection_of_a_multishot_accept_is_told_when_the_listener_has_its_flags_again() {
    // The second ring's CQ has two entries, and is full then.
    for (entries, waiting) in [(32, 3), (1, 2)] {
        let mut flags = calls(|| {
            let mut ring = ring_of(entries);
            let (listener, clients) = listener(waiting);
            show_posted(&ring);
            mark();
            ring.push(multishot_accept(&listener));
            ring.enter(1, 0);
            mark();
            assert_eq!(ring.reap_all().len(), clients.len());
        });
        flags.retain(|call| call.starts_with("ioctl"));
        let told = format!("ioctl(0x5421), {} posted", waiting - 1);
        assert_eq!(flags, ["ioctl(0x5421), 0 posted", &told]);
    }
}

#[test]
fn an_accept_that_waits() {
    assert_calls(&["flags", "option(1, 30)", "ioctl(0x5421)", "accept4(0x80000)", "ioctl(0x5421)"], || {
        let mut ring = ring();
        let (listener, _) = listener(0);
        let accept =
            Sqe { fd: listener.as_raw_fd(), op_flags: libc::SOCK_CLOEXEC as u32, ..sqe(IORING_OP_ACCEPT, 1) };
        mark();
        ring.push(accept);
        ring.enter(1, 0);
        mark();
    });
}

#[test]
fn files_for_slots_are_never_inherited() {
    let mut made = calls(|| {
        let mut ring = ring();
        let slots = [-1i32; 4];
        assert_eq!(ring.register(io_uring_register_op::IORING_REGISTER_FILES, slots.as_ptr().cast(), 4), 0);
        let slot = Sqe { file_index: 1, ..sqe(IORING_OP_NOP, 1) };
        let path = c"/proc/self/comm";
        let open =
            Sqe { opcode: IORING_OP_OPENAT as u8, fd: libc::AT_FDCWD, addr: path.as_ptr() as u64, ..slot };
        let socket =
            Sqe { opcode: IORING_OP_SOCKET as u8, fd: libc::AF_INET, off: libc::SOCK_STREAM as u64, ..slot };
        let pipe = Sqe {
            opcode: IORING_OP_PIPE as u8,
            fd: 0,
            addr: (&raw const slots) as u64,
            file_index: 2,
            ..slot
        };
        // The first open looks at what is mounted.
        ring.run(&[open]);
        mark();
        for sqe in [open, socket, pipe] {
            assert!(ring.run(&[sqe])[0].res >= 0);
        }
        mark();
    });
    // What was seen of mounts is believed for some milliseconds, after which one look tells that nothing changed.
    if made.first().is_some_and(|call| call.starts_with("poll")) {
        made.remove(0);
    }
    // Before Linux 5.6 there is no openat2.
    made[0] = made[0].replace("openat2", "openat");
    assert_eq!(made, ["openat(0x80800)", "socket(0x80001)", "pipe2(0x80000)"]);
}

#[test]
fn pipes_with_flags() {
    assert_calls(&["pipe2(0x800)"], || {
        let mut ring = ring();
        let mut ends = [0i32; 2];
        let pipe = Sqe { fd: 0, addr: (&raw mut ends) as u64, ..sqe(IORING_OP_PIPE, 1) };
        mark();
        assert_eq!(ring.run(&[Sqe { op_flags: libc::O_NONBLOCK as u32, ..pipe }])[0].res, 0);
        mark();
    });
}

#[test]
fn transfers_past_the_cache() {
    // Not every file system has such files.
    let Some(file) = &storage() else { return };
    assert_calls(
        &["flags", "flags", "pwritev2(1)", "flags", "flags", "flags", "flags", "io_submit(4)"],
        || {
            let mut ring = ring();
            let mut page = Page([0; 4096]);
            let write =
                Sqe { len: 4096, addr: (&raw mut page) as u64, ..transfer(IORING_OP_WRITE, 1, file, &[]) };
            mark();
            ring.run(&[write]);
            for at in 0..4 {
                ring.push(Sqe { off: 4096 * at, ..write });
            }
            ring.enter(4, 0);
            mark();
            ring.collect(4);
        },
    );
}

#[test]
fn more_transfers_past_the_cache_than_leave_together() {
    // Not every file system has such files.
    let Some(file) = &storage() else { return };
    let mut calls = calls(|| {
        let mut ring = ring_of(512);
        let mut page = Page([0; 4096]);
        let write =
            Sqe { len: 4096, addr: (&raw mut page) as u64, ..transfer(IORING_OP_WRITE, 1, file, &[]) };
        mark();
        for at in 0..70 {
            ring.push(Sqe { off: 4096 * (at % 64), ..write });
        }
        ring.enter(70, 0);
        mark();
        ring.collect(70);
    });
    calls.retain(|call| call != "flags");
    assert_eq!(calls, ["io_submit(32)", "io_submit(32)", "io_submit(6)"]);
}

#[test]
fn a_transfer_past_the_cache_that_is_refused() {
    // Not every file system has such files.
    let Some(file) = &storage() else { return };
    let mut calls = calls(|| {
        let mut ring = ring();
        let mut page = Page([0; 4096]);
        let write =
            Sqe { len: 4096, addr: (&raw mut page) as u64, ..transfer(IORING_OP_WRITE, 1, file, &[]) };
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let unwritable = std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
        mark();
        for (at, file) in [file, file, &unwritable, file, file].into_iter().enumerate() {
            ring.push(Sqe { fd: file.as_raw_fd(), off: 4096 * at as u64, user_data: at as u64, ..write });
        }
        ring.enter(5, 0);
        mark();
        for cqe in ring.collect(5) {
            assert_eq!(cqe.res, if cqe.user_data == 2 { -libc::EBADF } else { 4096 });
        }
    });
    calls.retain(|call| call != "flags");
    // What was refused is tried once more, to tell why.
    assert_eq!(calls, ["io_submit(5)", "io_submit(2)", "pwritev2(1)"]);
}

#[test]
fn transfers_that_are_in_the_cache() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let (mut byte, flags) = ([0_u8; 1], libc::RWF_NOWAIT);
    let vector = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: a byte of ours.
    if unsafe { libc::preadv2(file.as_raw_fd(), &vector, 1, 0, flags) } != 1 {
        // A file system in memory does not tell.
        return;
    }
    assert_calls(&["preadv2(1)", "preadv2(1)", "preadv2(1)"], || {
        let mut ring = ring();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let mut buffer = [0; 512];
        let read = into(IORING_OP_READ, 1, &file, &mut buffer);
        ring.run(&[read]);
        let vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 512 };
        let vectored =
            Sqe { addr: (&raw const vector) as u64, len: 1, ..transfer(IORING_OP_READV, 1, &file, &[]) };
        mark();
        ring.run(&[read]);
        ring.run(&[vectored]);
        ring.run(&[Sqe { off: u64::MAX, ..read }]);
        mark();
    });
}

#[test]
fn a_pipe_that_is_read() {
    assert_calls(
        &[
            "flags",
            "preadv2(1)",
            "preadv2(1)",
            "flags",
            "preadv2(1)",
            "preadv2(1)",
            "flags",
            "wait",
            "preadv2(1)",
        ],
        || {
            let mut ring = ring();
            let (from, mut to) = std::io::pipe().unwrap();
            let mut buffer = [0; 64];
            let read = into(IORING_OP_READ, 1, &from, &mut buffer);
            mark();
            to.write_all(b"hello").unwrap();
            assert_eq!(ring.run(&[read])[0].res, 5);
            ring.push(read);
            ring.enter(1, 0);
            to.write_all(b"world").unwrap();
            assert_eq!(ring.collect(1)[0].res, 5);
            mark();
        },
    );
}

#[test]
fn a_poll() {
    assert_calls(&["poll", "wait", "poll"], || {
        let mut ring = ring();
        let (from, mut to) = std::io::pipe().unwrap();
        let poll = Sqe { fd: from.as_raw_fd(), op_flags: libc::POLLIN as u32, ..sqe(IORING_OP_POLL_ADD, 1) };
        mark();
        ring.push(poll);
        ring.enter(1, 0);
        to.write_all(b"hello").unwrap();
        assert_eq!(ring.collect(1)[0].res, i32::from(libc::POLLIN));
        assert_eq!(ring.run(&[poll])[0].res, i32::from(libc::POLLIN));
        mark();
    });
}

#[test]
fn an_exchange_as_a_chain() {
    assert_calls(&["send(8, 0x4040)", "send(6, 0x4000)", "wait", "recv(64, 0x40)"], || {
        let mut ring = ring();
        let (mut one, other) = known_pair(&mut ring);
        let mut buffer = [0; 64];
        mark();
        let send = Sqe { flags: 1 << 2, ..transfer(IORING_OP_SEND, 3, &other, b"question") };
        for sqe in [send, into(IORING_OP_RECV, 4, &other, &mut buffer)] {
            ring.push(sqe);
        }
        ring.enter(2, 1);
        one.write_all(b"answer").unwrap();
        assert_eq!(ring.collect(2)[1].res, 6);
        mark();
    });
}

#[test]
fn operations_that_need_none() {
    assert_calls(&[], || {
        let mut ring = ring();
        let time = [3600u64, 0];
        let timeout = Sqe { addr: time.as_ptr() as u64, len: 1, ..sqe(IORING_OP_TIMEOUT, 1) };
        mark();
        ring.run(&[sqe(IORING_OP_NOP, 1); 3]);
        ring.push(timeout);
        ring.enter(1, 0);
        ring.push(Sqe { addr: 1, ..sqe(IORING_OP_TIMEOUT_REMOVE, 2) });
        ring.enter(1, 2);
        mark();
        assert_eq!(ring.collect(2).len(), 2);
    });
}

#[test]
fn datagrams_that_are_too_long_for_a_link() {
    assert_calls(
        &[
            "option(1, 37)",
            "option(6, 2)",
            "option(17, 103)",
            "option(17, 103)",
            "sendmsg(0x4040)",
            "option(17, 103)",
            "sendmsg(0x4040)",
            "option(17, 103)",
            "sendmsg(0x4040)",
        ],
        || {
            let mut ring = ring();
            let (one, _other) = datagrams();
            let large = [0; 3000];
            mark();
            ring.run(&[3000; 3].map(|length| transfer(IORING_OP_SEND, 3, &one, &large[..length])));
            ring.run(&[1400; 3].map(|length| transfer(IORING_OP_SEND, 3, &one, &large[..length])));
            ring.run(&[3000; 3].map(|length| transfer(IORING_OP_SEND, 3, &one, &large[..length])));
            mark();
        },
    );
}

#[test]
fn more_datagrams_than_leave_together() {
    assert_calls(
        &["option(1, 37)", "option(6, 2)", "option(17, 103)", "option(17, 103)", "sendmsg(0x4040)"],
        || {
            let mut ring = ring();
            let (one, _other) = datagrams();
            mark();
            for _ in 0..30 {
                ring.push(transfer(IORING_OP_SEND, 3, &one, b"hello"));
            }
            ring.enter(30, 30);
            mark();
        },
    );
}

#[test]
fn sends_of_different_kinds_go_alone() {
    assert_calls(
        &["send(5, 0x4040)", "flags", "pwritev2(1)", "pwritev2(1)", "send(5, 0x4040)", "send(5, 0x4040)"],
        || {
            let mut ring = ring();
            let (one, _other) = known_pair(&mut ring);
            let send = transfer(IORING_OP_SEND, 3, &one, b"hello");
            mark();
            ring.run(&[
                send,
                transfer(IORING_OP_WRITE, 4, &one, b"hello"),
                send,
                sqe(IORING_OP_NOP, 5),
                send,
            ]);
            mark();
        },
    );
}

#[test]
fn small_sends_without_a_copy_leave_together() {
    assert_calls(
        &[
            "option(1, 38)",
            "option(1, 3)",
            "option(1, 39)",
            "option(1, 37)",
            "option(6, 2)",
            "option(1, 38)",
            "option(1, 38)",
            "option(6, 2)",
            "sendmsg(0x4040)",
        ],
        || {
            let mut ring = ring();
            let (one, _other) = known_pair(&mut ring);
            mark();
            for _ in 0..3 {
                ring.push(transfer(IORING_OP_SEND_ZC, 3, &one, b"hello"));
            }
            ring.enter(3, 3);
            mark();
        },
    );
}

#[test]
fn a_large_message_without_a_copy() {
    assert_calls(
        &[
            "option(1, 38)",
            "option(1, 3)",
            "option(1, 39)",
            "option(1, 60)",
            "option(1, 37)",
            "option(1, 65)",
            "option(1, 45)",
            "option(0, 11)",
            "option(41, 25)",
            "sendmsg(0x4040)",
        ],
        || {
            let mut ring = ring();
            let (one, _other) = known_pair(&mut ring);
            let large = vec![0u8; 40_000];
            let vector = libc::iovec { iov_base: large.as_ptr().cast_mut().cast(), iov_len: large.len() };
            // SAFETY: integers and pointers.
            let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
            (header.msg_iov, header.msg_iovlen) = ((&raw const vector).cast_mut(), 1);
            mark();
            ring.push(Sqe {
                addr: (&raw mut header) as u64,
                len: 1,
                ..transfer(IORING_OP_SENDMSG_ZC, 3, &one, &[])
            });
            ring.enter(1, 1);
            mark();
        },
    );
}

#[test]
fn large_sends_without_a_copy_ask_once() {
    assert_calls(&["option(1, 38)", "send(40000, 0x4040)"], || {
        let mut ring = ring();
        let (one, _other) = known_pair(&mut ring);
        let large = vec![0; 40_000];
        let send = transfer(IORING_OP_SEND_ZC, 3, &one, &large);
        ring.push(send);
        ring.enter(1, 1);
        mark();
        ring.push(send);
        ring.enter(1, 1);
        mark();
    });
}

#[test]
fn a_multishot_receive_of_parts() {
    assert_calls(
        &[
            "recv(4, 0x40)",
            "send(11, 0x4000)",
            "wait",
            "recv(4, 0x40)",
            "option(6, 35)",
            "recv(4, 0x40)",
            "option(6, 35)",
            "recv(4, 0x40)",
            "send(2, 0x4000)",
            "wait",
            "recv(4, 0x40)",
        ],
        || {
            let mut ring = ring();
            let (mut one, other) = known_pair(&mut ring);
            let buffers = Buffers::new(&ring, 8, 64);
            mark();
            ring.push(Sqe { len: 4, ..buffers.receive(3, &other) });
            ring.enter(1, 0);
            one.write_all(b"hello world").unwrap();
            ring.collect(3);
            one.write_all(b"hi").unwrap();
            ring.collect(1);
            mark();
        },
    );
}

#[test]
fn a_multishot_receive_that_comes_to_the_end() {
    assert_calls(
        &[
            "recv(64, 0x40)",
            "send(11, 0x4000)",
            "wait",
            "recv(64, 0x40)",
            "option(6, 35)",
            "recv(64, 0x40)",
            "option(6, 35)",
        ],
        || {
            let mut ring = ring();
            let (mut one, other) = known_pair(&mut ring);
            let buffers = Buffers::new(&ring, 8, 64);
            mark();
            ring.push(buffers.receive(3, &other));
            ring.enter(1, 0);
            one.write_all(b"hello world").unwrap();
            drop(one);
            ring.collect(2);
            mark();
        },
    );
}

#[test]
fn receives_in_turn() {
    assert_calls(
        &[
            "send(8, 0x4000)",
            "wait",
            "recv(8, 0x40)",
            "option(6, 35)",
            "send(3, 0x4000)",
            "recv(8, 0x40)",
            "send(5, 0x4000)",
            "wait",
            "recv(8, 0x40)",
            "send(18, 0x4000)",
            "wait",
            "recv(8, 0x40)",
            "option(6, 35)",
            "recv(8, 0x40)",
            "option(6, 35)",
        ],
        || {
            let mut ring = ring();
            let (mut one, other) = known_pair(&mut ring);
            let mut buffer = [0; 8];
            let receive = into(IORING_OP_RECV, 3, &other, &mut buffer);
            mark();
            for text in [&b"hello wo"[..], b"rld", b"hello", b"hello world, hello"] {
                one.write_all(text).unwrap();
                ring.run(&[receive]);
            }
            ring.run(&[receive]);
            mark();
        },
    );
}

#[test]
fn receives_with_flags() {
    assert_calls(
        &[
            "wait",
            "recv(4, 0x42)",
            "option(6, 35)",
            "recv(4, 0x40)",
            "option(6, 35)",
            "recv(4, 0x140)",
            "option(6, 35)",
            "recv(4, 0x40)",
        ],
        || {
            let mut ring = ring();
            let (mut one, other) = known_pair(&mut ring);
            one.write_all(b"hello world").unwrap();
            let mut buffer = [0; 4];
            let receive = into(IORING_OP_RECV, 3, &other, &mut buffer);
            mark();
            for flags in [libc::MSG_PEEK, libc::MSG_NOSIGNAL, libc::MSG_WAITALL, libc::MSG_DONTWAIT] {
                ring.run(&[Sqe { op_flags: flags as u32, ..receive }]);
            }
            mark();
        },
    );
}

#[test]
fn a_receive_behind_a_drain() {
    assert_calls(&["wait", "recv(8, 0x40)"], || {
        let mut ring = ring();
        let (mut one, other) = known_pair(&mut ring);
        one.write_all(b"hello").unwrap();
        let mut buffer = [0; 8];
        let receive = into(IORING_OP_RECV, 3, &other, &mut buffer);
        mark();
        ring.run(&[Sqe { flags: 1 << 1, ..sqe(IORING_OP_NOP, 1) }, receive]);
        mark();
    });
}

#[test]
fn an_accept_into_a_slot() {
    assert_calls(
        &[
            "flags",
            "option(1, 30)",
            "ioctl(0x5421)",
            "accept4(0x80000)",
            "ioctl(0x5421)",
            "option(1, 3)",
            "option(1, 30)",
            "option(1, 38)",
            "poll",
        ],
        || {
            let mut ring = ring();
            let slots = [-1i32; 4];
            assert_eq!(
                ring.register(io_uring_register_op::IORING_REGISTER_FILES, slots.as_ptr().cast(), 4),
                0
            );
            let (listener, _clients) = listener(1);
            let accept = Sqe { fd: listener.as_raw_fd(), file_index: 1, ..sqe(IORING_OP_ACCEPT, 1) };
            mark();
            ring.run(&[accept]);
            mark();
        },
    );
}

#[test]
fn an_accept_that_polls_first() {
    assert_calls(
        &[
            "wait",
            "flags",
            "option(1, 30)",
            "ioctl(0x5421)",
            "accept4(0x0)",
            "ioctl(0x5421)",
            "option(1, 3)",
            "option(1, 30)",
            "option(1, 38)",
            "poll",
            "flags",
            "ioctl(0x5421)",
            "accept4(0x0)",
            "ioctl(0x5421)",
            "flags",
        ],
        || {
            let mut ring = ring();
            let (listener, _clients) = listener(1);
            let ioprio = IORING_ACCEPT_POLL_FIRST as u16;
            let accept = Sqe { fd: listener.as_raw_fd(), ioprio, ..sqe(IORING_OP_ACCEPT, 1) };
            mark();
            ring.run(&[accept]);
            ring.run(&[Sqe { ioprio: IORING_ACCEPT_DONTWAIT as u16, ..accept }]);
            mark();
        },
    );
}

#[test]
fn many_connections_for_a_multishot_accept() {
    assert_calls(
        &[
            "flags",
            "option(1, 30)",
            // Once more, by the descriptor that the request keeps from then on.
            "flags",
            "option(1, 30)",
            "ioctl(0x5421)",
            "option(1, 3)",
            "option(1, 30)",
            "option(1, 38)",
            "accept4(0x0)",
            "poll",
            "accept4(0x0)",
            "poll",
            "accept4(0x0)",
            "poll",
            "accept4(0x0)",
            "poll",
            "accept4(0x0)",
            "poll",
            "accept4(0x0)",
            "poll",
            "accept4(0x0)",
            "poll",
            "accept4(0x0)",
            "poll",
            "accept4(0x0)",
            "accept4(0x0)",
            "accept4(0x0)",
            "accept4(0x0)",
            "accept4(0x0)",
            "ioctl(0x5421)",
        ],
        || {
            let mut ring = ring();
            let (listener, clients) = listener(12);
            mark();
            ring.push(multishot_accept(&listener));
            ring.enter(1, 0);
            mark();
            drop(clients);
            assert_eq!(ring.reap_all().len(), 12);
        },
    );
}

#[test]
fn vectors_past_the_cache_and_their_flags() {
    // Not every file system has such files.
    let Some(file) = &storage() else { return };
    assert_calls(&["flags", "flags", "flags", "flags", "io_submit(3)"], || {
        let mut ring = ring();
        let mut page = Page([0; 4096]);
        let vectors = [libc::iovec { iov_base: (&raw mut page).cast(), iov_len: 4096 }; 2];
        let addr = vectors.as_ptr() as u64;
        let write = Sqe { len: 2, addr, ..transfer(IORING_OP_WRITEV, 1, file, &[]) };
        mark();
        for (at, op_flags) in [(0, 0), (1, libc::RWF_DSYNC as u32), (2, 0)] {
            ring.push(Sqe { off: 8192 * at, op_flags, ..write });
        }
        ring.enter(3, 0);
        mark();
        for cqe in ring.collect(3) {
            assert_eq!(cqe.res, 8192);
        }
    });
}

/// A file in memory, which knows no attempt that does not block.
fn memory_file() -> std::fs::File {
    use std::os::fd::FromRawFd;
    // SAFETY: a new descriptor.
    unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"calls".as_ptr(), libc::MFD_CLOEXEC)) }
}

#[test]
fn work_that_the_call_does_needs_no_descriptor_of_its_own() {
    let file = &memory_file();
    let calls = all_calls(|| {
        let mut ring = ring();
        let write = transfer(IORING_OP_WRITE, 1, file, b"hello");
        let mut buffer = [0; 5];
        mark();
        ring.run(&[write]);
        ring.run(&[write]);
        ring.run(&[into(IORING_OP_READ, 1, file, &mut buffer)]);
        mark();
    });
    let write = "pwritev2(1)";
    assert_eq!(calls, ["flags", write, write, write, "preadv2(1)", "preadv2(1)"]);
}

#[test]
fn work_for_another_thread_has_a_descriptor_of_its_own() {
    let file = &memory_file();
    let calls = all_calls(|| {
        let mut ring = ring();
        mark();
        ring.push(Sqe { fd: file.as_raw_fd(), ..sqe(IORING_OP_FSYNC, 1) });
        ring.enter(1, 0);
        mark();
        ring.collect(1);
    });
    assert_eq!(calls, ["duplicate"]);
}

#[test]
fn one_transfer_past_the_cache_and_two() {
    // Not every file system has such files.
    let Some(file) = &storage() else { return };
    let mut calls = calls(|| {
        let mut ring = ring();
        let mut page = Page([0; 4096]);
        let write =
            Sqe { len: 4096, addr: (&raw mut page) as u64, ..transfer(IORING_OP_WRITE, 1, file, &[]) };
        mark();
        for count in [1, 2, 1] {
            for at in 0..count {
                ring.push(Sqe { off: 4096 * at, ..write });
            }
            ring.enter(count as u32, 0);
            mark_between();
            ring.collect(count as usize);
            mark_between();
        }
        mark();
    });
    calls.retain(|call| !["flags", "wait", "duplicate"].contains(&call.as_str()));
    assert_eq!(
        calls,
        ["between", "between", "io_submit(2)", "between", "between", "io_submit(1)", "between", "between"]
    );
}

/// A call that nobody makes, inside what is looked at.
fn mark_between() {
    // SAFETY: refused, for there is no such descriptor.
    unsafe { libc::ioctl(-1, 0) };
}

#[test]
fn flags_that_are_set_already() {
    assert_calls(
        &[
            "send(5, 0x4040)",
            "send(5, 0x4040)",
            "sendmsg(0x4040)",
            "option(1, 38)",
            "option(1, 3)",
            "option(1, 39)",
            "send(5, 0x4040)",
        ],
        || {
            let mut ring = ring();
            let (one, _other) = known_pair(&mut ring);
            let vector = libc::iovec { iov_base: b"hello".as_ptr().cast_mut().cast(), iov_len: 5 };
            // SAFETY: integers and pointers.
            let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
            (header.msg_iov, header.msg_iovlen) = ((&raw const vector).cast_mut(), 1);
            let flags = (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as u32;
            let send = transfer(IORING_OP_SEND, 3, &one, b"hello");
            let message =
                Sqe { addr: (&raw mut header) as u64, len: 1, ..transfer(IORING_OP_SENDMSG, 3, &one, &[]) };
            mark();
            ring.run(&[Sqe { op_flags: libc::MSG_NOSIGNAL as u32, ..send }]);
            ring.run(&[Sqe { op_flags: flags, ..send }]);
            ring.run(&[Sqe { op_flags: flags, ..message }]);
            ring.push(Sqe {
                op_flags: libc::MSG_NOSIGNAL as u32,
                ..transfer(IORING_OP_SEND_ZC, 3, &one, b"hello")
            });
            ring.enter(1, 2);
            mark();
        },
    );
}

#[test]
fn receives_of_unusual_kinds() {
    assert_calls(
        &[
            "between",
            "wait",
            "recv(0, 0x40)",
            "option(6, 35)",
            "between",
            "recv(4, 0x140)",
            "option(6, 35)",
            "between",
            "recv(4, 0x40)",
            "option(6, 35)",
            "between",
            "recv(8, 0x40)",
            "between",
            "recv(3, 0x40)",
            "option(1, 3)",
            "option(1, 30)",
            "between",
            "recv(8, 0x40)",
            "option(1, 3)",
            "option(1, 30)",
            "between",
            "recvmsg(0x140)",
            "option(1, 3)",
            "option(1, 3)",
            "option(1, 30)",
            "between",
            "option(1, 3)",
            "wait",
            "recv(8, 0x40)",
            "option(1, 3)",
            "option(1, 30)",
            "between",
            "recv(4, 0x40)",
            "option(1, 3)",
            "option(1, 30)",
            "option(1, 38)",
            "option(1, 39)",
            "ioctl(0x541b)",
            "between",
            "recvmsg(0x140)",
            "option(1, 3)",
            "option(1, 30)",
            "option(1, 38)",
            "option(1, 39)",
            "ioctl(0x541b)",
            "between",
            "option(1, 3)",
            "wait",
            "recv(4, 0x40)",
            "option(1, 3)",
            "option(1, 30)",
            "option(1, 38)",
            "option(1, 39)",
            "ioctl(0x541b)",
            "between",
            "recv(8, 0x40)",
            "between",
            "wait",
            "recv(8, 0x40)",
            "option(6, 35)",
            "between",
            "recv(8, 0x40)",
            "option(6, 35)",
            "between",
            "recv(8, 0x40)",
            "ioctl(0x541b)",
            "between",
            "recv(8, 0x40)",
            "ioctl(0x541b)",
        ],
        || {
            let mut ring = ring();
            version::play(Version::NEWEST);
            let (mut one, other) = known_pair(&mut ring);
            let (sender, receiver) = datagrams();
            let (mut left, right) = std::os::unix::net::UnixStream::pair().unwrap();
            let mut buffer = [0; 8];
            one.write_all(b"hello world").unwrap();
            left.write_all(b"hello world, hello").unwrap();
            for _ in 0..4 {
                receiver.send_to(b"hello", sender.local_addr().unwrap()).unwrap();
            }
            let stream = into(IORING_OP_RECV, 3, &other, &mut buffer);
            let datagram = into(IORING_OP_RECV, 3, &sender, &mut buffer);
            let local = into(IORING_OP_RECV, 3, &right, &mut buffer);
            let first = IORING_RECVSEND_POLL_FIRST as u16;
            let all = libc::MSG_WAITALL as u32;
            mark();
            for sqe in [
                Sqe { len: 0, ..stream },
                Sqe { len: 4, op_flags: all, ..stream },
                Sqe { len: 4, ioprio: first, ..stream },
                stream,
                Sqe { len: 3, ..datagram },
                datagram,
                Sqe { op_flags: all, ..datagram },
                Sqe { ioprio: first, ..datagram },
                Sqe { len: 4, ..local },
                Sqe { len: 4, op_flags: all, ..local },
                Sqe { len: 4, ioprio: first, ..local },
                local,
            ] {
                mark_between();
                ring.run(&[sqe]);
            }
            drop((one, left));
            for sqe in [stream, stream, local, local] {
                mark_between();
                ring.run(&[sqe]);
            }
            mark();
        },
    );
}

#[test]
fn transfers_without_a_copy_of_unusual_kinds() {
    assert_calls(
        &[
            "between",
            "option(1, 38)",
            "option(1, 3)",
            "option(1, 39)",
            "option(1, 60)",
            "option(1, 37)",
            "option(1, 65)",
            "option(1, 45)",
            "option(0, 11)",
            "option(41, 25)",
            "send(40000, 0x4140)",
            "between",
            "option(1, 38)",
            "send(40000, 0x4040)",
            "between",
            "option(1, 38)",
            "send(40000, 0x4040)",
            "between",
            "option(1, 38)",
            "option(1, 3)",
            "option(1, 39)",
            "option(1, 60)",
            "option(1, 37)",
            "option(1, 65)",
            "option(1, 45)",
            "option(0, 11)",
            "option(41, 25)",
            "send(40000, 0x4140)",
            "between",
            "option(1, 38)",
            "send(40000, 0x4040)",
            "between",
            "option(1, 38)",
            "send(40000, 0x4040)",
            "between",
            "option(1, 38)",
            "option(1, 38)",
            "flags",
            "option(1, 3)",
            "between",
            "option(1, 38)",
            "option(1, 38)",
            "flags",
            "option(1, 3)",
            "between",
            "option(1, 38)",
            "option(1, 38)",
            "flags",
            "option(1, 3)",
            "between",
            "option(1, 38)",
            "send(10, 0x4140)",
            "between",
            "option(1, 38)",
            "send(10, 0x4040)",
            "between",
            "option(1, 38)",
            "send(10, 0x4040)",
        ],
        || {
            let mut ring = ring();
            let (one, _other) = known_pair(&mut ring);
            let (sender, _receiver) = datagrams();
            let (left, _right) = std::os::unix::net::UnixStream::pair().unwrap();
            let large = vec![0u8; 40_000];
            let all = libc::MSG_WAITALL as u32;
            let report = IORING_SEND_ZC_REPORT_USAGE as u16;
            mark();
            for (socket, length) in [
                (one.as_raw_fd(), 40_000),
                (sender.as_raw_fd(), 40_000),
                (left.as_raw_fd(), 40_000),
                (one.as_raw_fd(), 10),
            ] {
                let send = Sqe { fd: socket, ..transfer(IORING_OP_SEND_ZC, 3, &one, &large[..length]) };
                for sqe in [Sqe { op_flags: all, ..send }, Sqe { ioprio: report, ..send }, send] {
                    mark_between();
                    ring.push(sqe);
                    ring.enter(1, 1);
                }
            }
            mark();
        },
    );
}

#[test]
fn sends_that_may_not_go_together() {
    assert_calls(
        &[
            "between",
            "send(0, 0x4040)",
            "send(5, 0x4040)",
            "between",
            "send(0, 0x4040)",
            "send(5, 0x4040)",
            "between",
            "option(1, 37)",
            "option(6, 2)",
            "send(5, 0x4040)",
            "send(0, 0x4040)",
            "between",
            "option(1, 37)",
            "option(6, 2)",
            "option(17, 103)",
            "send(5, 0x4040)",
            "send(0, 0x4040)",
            "between",
            "send(65000, 0x4040)",
            "send(500, 0x4040)",
            "between",
            "send(65000, 0x4040)",
            "send(500, 0x4040)",
            "between",
            "option(6, 2)",
            "sendmsg(0x4040)",
            "send(600, 0x4040)",
            "between",
            "send(60000, 0x4040)",
            "option(17, 103)",
            "sendmsg(0x4040)",
            "between",
            "send(65536, 0x4040)",
            "send(5, 0x4040)",
            "between",
            "send(65536, 0x4040)",
            "flags",
            "option(1, 3)",
            "send(5, 0x4040)",
            "between",
            "option(6, 2)",
            "sendmsg(0x4040)",
            "between",
            "option(17, 103)",
            "sendmsg(0x4040)",
            "between",
            "send(5, 0x4040)",
            "send(5, 0x4040)",
            "send(5, 0x4040)",
            "between",
            "send(5, 0x4040)",
            "send(5, 0x4040)",
            "send(5, 0x4040)",
            "between",
            "send(5, 0x4040)",
            "send(5, 0x4040)",
            "send(5, 0x4040)",
        ],
        || {
            let mut ring = ring();
            let (one, _other) = known_pair(&mut ring);
            let (sender, _receiver) = datagrams();
            let large = vec![0u8; 70_000];
            let buffers = [4096u64];
            let _ = buffers;
            mark();
            for lengths in
                [&[0usize, 5][..], &[5, 0], &[65_000, 500], &[60_000, 5000, 600], &[65_536, 5], &[1, 1, 1]]
            {
                for fd in [one.as_raw_fd(), sender.as_raw_fd()] {
                    mark_between();
                    let send =
                        |length: usize| Sqe { fd, ..transfer(IORING_OP_SEND, 3, &one, &large[..length]) };
                    let sends: Vec<Sqe> = lengths.iter().map(|&length| send(length)).collect();
                    ring.run(&sends);
                }
            }
            for flags in [1u8 << 1, 1 << 4, 1 << 6] {
                mark_between();
                let send = transfer(IORING_OP_SEND, 3, &one, b"hello");
                for sqe in [send, Sqe { flags, ..send }, send] {
                    ring.push(sqe);
                }
                ring.enter(3, 2);
            }
            mark();
        },
    );
}

#[test]
fn opens_that_may_create() {
    if !has_openat2() {
        return;
    }
    let directory =
        std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("opens-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = |name: &str| std::ffi::CString::new(directory.join(name).to_str().unwrap()).unwrap();
    let (file, link) = (path("file"), path("link"));
    std::fs::write(directory.join("file"), "").unwrap();
    std::os::unix::fs::symlink("file", directory.join("link")).unwrap();
    let mut calls = all_calls(|| {
        let mut ring = ring();
        let open = |path: &std::ffi::CString, flags: i32| Sqe {
            fd: libc::AT_FDCWD,
            addr: path.as_ptr() as u64,
            op_flags: flags as u32,
            len: 0o600,
            ..sqe(IORING_OP_OPENAT, 1)
        };
        let how = |path: &std::ffi::CString, how: &[u64; 3]| Sqe {
            fd: libc::AT_FDCWD,
            addr: path.as_ptr() as u64,
            off: how.as_ptr() as u64,
            len: 24,
            ..sqe(IORING_OP_OPENAT2, 1)
        };
        let create = libc::O_CREAT | libc::O_RDWR;
        // The first open looks at what is mounted.
        ring.run(&[open(&file, libc::O_RDWR)]);
        mark();
        for sqe in [
            open(&file, libc::O_RDWR),
            open(&file, libc::O_RDWR | libc::O_TRUNC),
            open(&link, create),
            open(&link, create | libc::O_NOFOLLOW),
            open(&path("new"), create | libc::O_EXCL),
            Sqe { flags: 1 << 4, ..open(&file, libc::O_RDWR) },
            how(&file, &[libc::O_RDWR as u64, 0, 0]),
            how(&file, &[create as u64, 0o600, 0]),
            how(&file, &[create as u64, 0o600, libc::RESOLVE_NO_SYMLINKS]),
            how(&link, &[create as u64, 0o600, libc::RESOLVE_NO_SYMLINKS]),
            how(&link, &[(create | libc::O_NOFOLLOW) as u64, 0o600, libc::RESOLVE_NO_MAGICLINKS]),
            how(&file, &[libc::O_RDWR as u64, 0, libc::RESOLVE_CACHED]),
            how(&file, &[create as u64, 0o600, libc::RESOLVE_CACHED]),
        ] {
            mark_between();
            ring.run(&[sqe]);
        }
        mark();
    });
    // It looks whether anything was mounted meanwhile.
    calls.retain(|call| call != "poll");
    std::fs::remove_dir_all(&directory).unwrap();
    // A flag that differs between processors.
    let unfollowed = |call: &str, flags: i32| format!("{call}({:#x})", flags | libc::O_NOFOLLOW);
    assert_eq!(
        calls,
        [
            "between",
            "openat(0x802)",
            "between",
            "look",
            "openat(0xa02)",
            "between",
            "look",
            "openat(0x842)",
            "between",
            "look",
            &unfollowed("openat", 0x842),
            "between",
            "openat(0xc2)",
            "between",
            "look",
            "openat(0x802)",
            "between",
            "openat2(0x802)",
            "between",
            "look",
            "openat2(0x842)",
            "between",
            "openat2(0x280000)",
            "openat2(0x842)",
            "between",
            "openat2(0x280000)",
            "openat2(0x842)",
            "between",
            &unfollowed("openat2", 0x280000),
            &unfollowed("openat2", 0x842),
            "between",
            "openat2(0x802)",
            "between",
            "openat2(0x280000)",
            "openat2(0x842)"
        ]
    );
}

#[test]
fn waits_for_the_end_of_a_process() {
    // SAFETY: a descriptor that ends with this process.
    if unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), libc::O_NONBLOCK) } < 0 {
        eprintln!(
            "skipped: this kernel is older than 5.10, and no descriptor of a process can be told not to wait"
        );
        return;
    }
    let calls = calls(|| {
        let mut ring = ring();
        let start = || {
            // SAFETY: the child waits for a signal.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: as above.
                unsafe {
                    libc::pause();
                    libc::_exit(0);
                }
            }
            pid
        };
        // SAFETY: names a child of ours.
        let open = |pid: i32, flags: u32| unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) as i32 };
        let wait = |kind: u32, whom: i32, options: i32| Sqe {
            fd: whom,
            len: kind,
            file_index: options as u32,
            ..sqe(IORING_OP_WAITID, 1)
        };
        mark();
        for options in [libc::WEXITED, libc::WEXITED | libc::WNOHANG, libc::WEXITED | libc::WSTOPPED] {
            for kind in [libc::P_PID, libc::P_PIDFD] {
                for flags in [0, libc::O_NONBLOCK as u32] {
                    let pid = start();
                    let whom = if kind == libc::P_PID { pid } else { open(pid, flags) };
                    mark_between();
                    ring.push(wait(kind, whom, options));
                    ring.enter(1, 0);
                    mark_between();
                    // SAFETY: a child of ours.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                    if options == libc::WEXITED && (kind, flags) != (libc::P_PIDFD, libc::O_NONBLOCK as u32) {
                        ring.collect(1);
                    } else {
                        ring.push(Sqe { addr: 1, ..sqe(IORING_OP_ASYNC_CANCEL, 2) });
                        ring.enter(1, 0);
                        ring.collect(1);
                    }
                }
            }
        }
        mark();
    });
    assert_eq!(
        calls,
        [
            "between",
            "waitid",
            "pidfd_open",
            "between",
            "wait",
            "waitid",
            "between",
            "waitid",
            "pidfd_open",
            "between",
            "wait",
            "waitid",
            "pidfd_open",
            "between",
            "waitid",
            "flags",
            "between",
            "wait",
            "waitid",
            "pidfd_open",
            "between",
            "waitid",
            "flags",
            "between",
            "between",
            "waitid",
            "between",
            "between",
            "waitid",
            "between",
            "pidfd_open",
            "between",
            "waitid",
            "between",
            "pidfd_open",
            "between",
            "waitid",
            "between",
            "between",
            "waitid",
            "between",
            "between",
            "waitid",
            "between",
            "pidfd_open",
            "between",
            "waitid",
            "flags",
            "between",
            "pidfd_open",
            "between",
            "waitid",
            "flags",
            "between"
        ]
    );
}

/// A timeout that was taken away is not looked for.
#[test]
fn what_has_been_removed_costs_nothing() {
    assert_calls(&[], || {
        let mut ring = ring();
        let hour = [3600i64, 0];
        let (addr, len) = (hour.as_ptr() as u64, 1);
        let remove = Sqe { addr: 1, ..sqe(IORING_OP_TIMEOUT_REMOVE, 3) };
        for off in [0, 5] {
            ring.run(&[Sqe { addr, len, off, ..sqe(IORING_OP_TIMEOUT, 1) }, remove]);
        }
        ring.reap_all();
        mark();
        ring.run(&[sqe(IORING_OP_NOP, 4)]);
        ring.run(&[sqe(IORING_OP_NOP, 5)]);
        mark();
    });
}

/// Other processes that use a ring have its descriptor, too, which stays readable until one of them has looked: who posts has
/// nobody to tell.
#[test]
fn completions_that_are_shown_to_a_child_cost_nothing() {
    assert_calls(&[], || {
        let mut ring = Ring::new(Engine::User, 8, 0);
        anyring_engine::frontend::show_readiness(ring.fd).unwrap();
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
        ring.run(&[sqe(IORING_OP_NOP, 2)]);
        mark();
        ring.run(&[sqe(IORING_OP_NOP, 3)]);
        ring.run(&[sqe(IORING_OP_NOP, 4)]);
        mark();
        // SAFETY: our child.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    });
}

#[test]
fn a_cancellation_by_descriptor_compares_no_other_files() {
    let mut made = all_calls(|| {
        let mut ring = ring();
        let sockets: Vec<_> = (0..8).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let poll = |user_data, socket: &UdpSocket| Sqe {
            fd: socket.as_raw_fd(),
            op_flags: libc::POLLIN as u32,
            ..sqe(IORING_OP_POLL_ADD, user_data)
        };
        let cancel = |socket: &UdpSocket| Sqe {
            fd: socket.as_raw_fd(),
            op_flags: IORING_ASYNC_CANCEL_FD,
            ..sqe(IORING_OP_ASYNC_CANCEL, 100)
        };
        for (user_data, socket) in (1..).zip(&sockets) {
            ring.push(poll(user_data, socket));
        }
        ring.enter(8, 0);
        mark();
        let other = sockets[3].try_clone().unwrap();
        ring.push(cancel(&other));
        ring.enter(1, 2);
        assert_eq!(ring.reap_all().len(), 2);
        mark();
    });
    made.retain(|call| call == "compare");
    assert_eq!(made, ["compare"]);
}
