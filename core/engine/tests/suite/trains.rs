//! Sends of one submission on one connection, which may leave together: each has the result that it has alone, and the
//! bytes are the same.

use std::net::Shutdown;

use crate::common::prelude::*;

const FIXED_FILE: u8 = 1 << 0;

const FIXED: u16 = 1 << 2;
const REPORT: u16 = 1 << 3;

const WAITALL: u32 = libc::MSG_WAITALL as u32;

fn send(user_data: u64, fd: RawFd, buffer: &[u8]) -> Sqe {
    Sqe { fd, addr: buffer.as_ptr() as u64, len: buffer.len() as u32, ..sqe(IORING_OP_SEND, user_data) }
}

fn send_zc(user_data: u64, fd: RawFd, buffer: &[u8]) -> Sqe {
    Sqe { opcode: IORING_OP_SEND_ZC as u8, ..send(user_data, fd, buffer) }
}

/// A pair that holds nothing back.
fn tcp_pair_at(address: &str) -> (TcpStream, TcpStream) {
    let (client, server) = crate::common::tcp_pair_at(address);
    client.set_nodelay(true).unwrap();
    (client, server)
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    tcp_pair_at("127.0.0.1:0")
}

/// A pair of whose number nothing is remembered: other tests close descriptors without a word.
fn fresh_pair() -> (TcpStream, TcpStream) {
    let (from, to) = tcp_pair();
    frontend::closed(from.as_raw_fd());
    (from, to)
}

/// A pair that has room for little.
fn narrow_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_option(&listener, libc::SOL_SOCKET, libc::SO_RCVBUF, 16 << 10);
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    set_option(&client, libc::SOL_SOCKET, libc::SO_SNDBUF, 16 << 10);
    (client, listener.accept().unwrap().0)
}

/// How many segments with data a connection has sent (`tcpi_data_segs_out`).
fn segments(stream: &TcpStream) -> u32 {
    let (mut info, mut length) = ([0u32; 64], 256u32);
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: writes as many bytes of ours.
    let asked = unsafe {
        libc::getsockopt(stream.as_raw_fd(), level, name, info.as_mut_ptr().cast(), &raw mut length)
    };
    assert_eq!(asked, 0);
    info[156 / 4]
}

/// Submits and returns completions in order, and what the peer has received.
fn run(ring: &mut Ring, peer: &mut TcpStream, sqes: &[Sqe]) -> (Vec<Cqe>, Vec<u8>) {
    let cqes = ring.run(sqes);
    let sent = cqes.iter().map(|cqe| cqe.res.max(0) as usize).sum();
    let mut received = vec![0; sent];
    peer.read_exact(&mut received).unwrap();
    (cqes, received)
}

#[both]
fn sends_of_any_lengths_arrive_in_order(engine: Engine) -> impl Answer {
    let mut all = Vec::new();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let mut ring = Ring::new(engine, 128, 0);
        let (from, mut to) = tcp_pair_at(address);
        let memory = pattern(70_000);
        let of_lengths = |lengths: &[usize]| -> Vec<Sqe> {
            let sends = lengths.iter().enumerate();
            sends.map(|(i, &length)| send(i as u64, from.as_raw_fd(), &memory[i..i + length])).collect()
        };
        all.push(run(&mut ring, &mut to, &of_lengths(&[200; 8])));
        all.push(run(&mut ring, &mut to, &of_lengths(&[200; 100])));
        let mut whole = of_lengths(&[200; 9]);
        whole.iter_mut().step_by(2).for_each(|sqe| sqe.op_flags = WAITALL);
        all.push(run(&mut ring, &mut to, &whole));
        all.push(run(&mut ring, &mut to, &of_lengths(&[200, 7, 1000, 0, 300, 1, 5000, 20_000, 3])));
        all.push(run(&mut ring, &mut to, &of_lengths(&[16_384, 16_384, 16_384, 16_384, 16_384])));
        all.push(run(&mut ring, &mut to, &of_lengths(&[64_999, 1, 1, 65_000, 1, 200, 66_000, 200])));
    }
    all
}

#[both(32, IORING_SETUP_SUBMIT_ALL)]
fn other_requests_come_in_between(mut ring: Ring) -> impl Answer {
    let (from, mut to) = tcp_pair();
    let (other, mut other_to) = tcp_pair();
    let memory = pattern(2000);
    let mut sqes: Vec<Sqe> =
        (0..20).map(|i| send(i, from.as_raw_fd(), &memory[i as usize * 50..][..30 + i as usize])).collect();
    sqes[2] = sqe(IORING_OP_NOP, 2);
    sqes[4].flags = LINK;
    sqes[7].fd = other.as_raw_fd();
    // Memory that is none.
    sqes[10].addr = 8;
    sqes[15].op_flags = libc::MSG_DONTWAIT as u32;
    sqes[17].op_flags = libc::MSG_MORE as u32;
    sqes[18].fd = -1;
    let cqes = ring.run(&sqes);
    let length = |fd: RawFd| -> usize {
        let of_fd = |cqe: &&Cqe| cqe.res > 0 && sqes[cqe.user_data as usize].fd == fd;
        cqes.iter().filter(of_fd).map(|cqe| cqe.res as usize).sum()
    };
    let mut received = vec![0; length(from.as_raw_fd())];
    to.read_exact(&mut received).unwrap();
    let mut other_received = vec![0; length(other.as_raw_fd())];
    other_to.read_exact(&mut other_received).unwrap();
    (cqes, received, other_received)
}

/// Sends that have room leave by one call, and so in one segment.
#[by(ours(8, 0))]
fn they_leave_together(mut ring: Ring) {
    let (from, mut to) = fresh_pair();
    let memory = pattern(2000);
    for (count, opcode) in [IORING_OP_SEND, IORING_OP_SEND_ZC].into_iter().enumerate() {
        for i in 0..8 {
            let sqe = send(i, from.as_raw_fd(), &memory[i as usize * 100..][..100 + i as usize]);
            ring.push(Sqe { opcode: opcode as u8, ..sqe });
        }
        assert_eq!(ring.enter(8, 8), 8);
        let mut received = [0; 828];
        to.read_exact(&mut received).unwrap();
        assert_eq!(segments(&from), count as u32 + 1);
        ring.collect(if opcode == IORING_OP_SEND { 8 } else { 16 });
    }
}

#[both(16, 0)]
fn sends_on_a_registered_file(mut ring: Ring) -> impl Answer {
    let (from, mut to) = tcp_pair();
    ring.register_files(&[-1, from.as_raw_fd()]);
    let memory = pattern(2000);
    let sqes: Vec<Sqe> = (0..9)
        .map(|i| Sqe { flags: FIXED_FILE, ..send(i, 1, &memory[i as usize * 9..][..10 + i as usize]) })
        .collect();
    (0..3).map(|_| run(&mut ring, &mut to, &sqes)).collect::<Vec<_>>()
}

#[both(16, 0)]
fn sends_without_copying(mut ring: Ring) -> impl Answer {
    let (from, mut to) = tcp_pair();
    let memory = pattern(60_000);
    let vector = libc::iovec { iov_base: memory.as_ptr() as *mut _, iov_len: memory.len() };
    ring.register_buffers(&[vector]);
    let mut all = Vec::new();
    for ioprio in [0, REPORT, FIXED, FIXED | REPORT] {
        for lengths in
            [&[200, 100, 300, 5][..], &[4096, 33_000, 10, 20], &[16_000, 16_000, 16_000, 16_000, 9]]
        {
            for (i, &length) in lengths.iter().enumerate() {
                let data = &memory[i * 11..i * 11 + length];
                ring.push(Sqe { ioprio, ..send_zc(i as u64, from.as_raw_fd(), data) });
            }
            let count = lengths.len();
            assert_eq!(ring.enter(count as u32, count as u32), count as i32);
            let mut received = vec![0; lengths.iter().sum()];
            to.read_exact(&mut received).unwrap();
            let mut cqes = ring.collect(2 * count);
            cqes.sort_by_key(|cqe| (cqe.user_data, cqe.flags & IORING_CQE_F_NOTIF != 0));
            all.push((cqes, received));
        }
    }
    all
}

/// Sends more than there is room for, each with a byte of its own, and receives all of it after that. Returns the
/// results by user data.
fn overfill(engine: Engine, opcode: io_uring_op, flags: u32, lengths: &[usize]) -> Vec<usize> {
    let mut ring = Ring::new(engine, 64, 0);
    let (from, mut to) = narrow_pair();
    let memory: Vec<Vec<u8>> = (0u8..).zip(lengths).map(|(i, &length)| vec![i; length]).collect();
    for (i, data) in memory.iter().enumerate() {
        let sqe = send(i as u64, from.as_raw_fd(), data);
        ring.push(Sqe { opcode: opcode as u8, op_flags: flags, ..sqe });
    }
    let count = lengths.len();
    assert_eq!(ring.enter(count as u32, 0), count as i32);
    let (mut results, mut notified) = (vec![None; count], vec![false; count]);
    let mut take = |cqes: Vec<Cqe>| {
        for cqe in cqes {
            let index = cqe.user_data as usize;
            if cqe.flags & IORING_CQE_F_NOTIF != 0 {
                assert!(!std::mem::replace(&mut notified[index], true));
            } else {
                assert_eq!(results[index].replace(cqe.res as usize), None);
                assert!((1..=lengths[index] as i32).contains(&cqe.res));
            }
        }
        let done = results.iter().all(Option::is_some);
        (results.clone(), done && (opcode == IORING_OP_SEND || notified.iter().all(|&notified| notified)))
    };
    let (first, done) = take(ring.reap_all());
    assert!(!done, "there is not that much room");
    let reader = std::thread::spawn(move || {
        let mut received = Vec::new();
        to.read_to_end(&mut received).unwrap();
        received
    });
    let mut results = first.clone();
    let mut done = done;
    while !done {
        (results, done) = take(ring.waited(1));
    }
    drop(from);
    let received = reader.join().unwrap();
    let results: Vec<usize> = results.into_iter().flatten().collect();
    for (i, &result) in results.iter().enumerate() {
        assert_eq!(received.iter().filter(|&&byte| byte == i as u8).count(), result, "bytes of {i}");
    }
    // Those that were done at once, one behind the other.
    let at_once = first.iter().take_while(|result| result.is_some()).count();
    let in_order =
        (0u8..).zip(&results).take(at_once).flat_map(|(i, &length)| std::iter::repeat_n(i, length));
    assert!(in_order.eq(received.iter().copied().take(results[..at_once].iter().sum())));
    results
}

#[both]
fn a_full_socket_takes_all_by_and_by(engine: Engine) -> impl Answer {
    const MIXED: [usize; 10] = [3, 30_000, 1, 200, 32_000, 7, 31_000, 15_000, 9000, 32_000];
    let mut whole = Vec::new();
    for opcode in [IORING_OP_SEND, IORING_OP_SEND_ZC] {
        for lengths in [&[6000; 60][..], &[20_000; 12], &MIXED] {
            whole.push(overfill(engine, opcode, WAITALL, lengths));
            // How much of each is sent is a matter of time.
            overfill(engine, opcode, 0, lengths);
        }
    }
    whole
}

#[both(16, 0)]
fn sends_wait_for_room_together(mut ring: Ring) -> impl Answer {
    let (from, mut to) = narrow_pair();
    from.set_nonblocking(true).unwrap();
    let mut before = 0;
    while let Ok(count @ 1..) = (&from).write(&[0xff; 1 << 16]) {
        before += count;
    }
    let memory = pattern(300);
    for i in 0..8 {
        let sqe = send(i, from.as_raw_fd(), &memory[i as usize * 30..][..30]);
        ring.push(Sqe { op_flags: WAITALL, ..sqe });
    }
    assert_eq!(ring.enter(8, 0), 8);
    assert_eq!(ring.reap(), None);
    let mut received = vec![0; before + 240];
    to.read_exact(&mut received).unwrap();
    let cqes = by_user_data(ring.collect(8));
    let mut received: Vec<&[u8]> = received[before..].chunks(30).collect();
    received.sort();
    (cqes, received.into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>())
}

#[both]
fn a_connection_that_has_ended(engine: Engine) -> impl Answer {
    let mut all = Vec::new();
    for opcode in [IORING_OP_SEND, IORING_OP_SEND_ZC] {
        let mut ring = Ring::new(engine, 16, 0);
        let mut run = |from: &TcpStream| {
            ring.submit_all(
                (0..4).map(|i| Sqe { opcode: opcode as u8, ..send(i, from.as_raw_fd(), b"gone") }),
                4,
            );
            let mut cqes = ring.collect(if opcode == IORING_OP_SEND { 4 } else { 8 });
            cqes.sort_by_key(|cqe| (cqe.user_data, cqe.flags & IORING_CQE_F_NOTIF != 0));
            all.push(cqes);
        };
        let (from, to) = tcp_pair();
        from.shutdown(Shutdown::Write).unwrap();
        run(&from);
        drop(to);
        // Closed with something left to be received: it is reset, of which the first is told.
        let (mut from, to) = tcp_pair();
        from.write_all(b"unread").unwrap();
        drop(to);
        run(&from);
    }
    all
}

/// The engine is not told that the descriptor stands for something else.
#[both(8, 0)]
fn a_number_that_became_another_socket(mut ring: Ring) -> impl Answer {
    let (from, mut to) = tcp_pair();
    let (sink, datagrams) = udp_connected();
    let data: [&[u8]; 3] = [b"one", b"three", b"four"];
    let sqes = || [0, 1, 2].map(|i| send(i as u64, from.as_raw_fd(), data[i]));
    let mut all = vec![run(&mut ring, &mut to, &sqes()).0];
    replace(&from, &datagrams);
    for _ in 0..2 {
        all.push(ring.run(&sqes()));
        for data in data {
            let mut datagram = [0; 16];
            assert_eq!(sink.recv(&mut datagram).unwrap(), data.len());
            assert_eq!(&datagram[..data.len()], data);
        }
    }
    all
}

/// How many messages there are in a socket's error queue.
fn stamps(stream: &TcpStream) -> usize {
    let mut control = [0u64; 64];
    let mut take = || {
        let mut header: libc::msghdr = zeroed();
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        // SAFETY: writes into memory of ours.
        unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) }
    };
    std::iter::from_fn(|| (take() >= 0).then_some(())).count()
}

#[both(8, 0)]
fn each_send_has_its_time_stamp(mut ring: Ring) {
    // On sending and on queueing, by the software's clock, with a key and without the data.
    const EVENTS: u32 = 1 << 1 | 1 << 4 | 1 << 7 | 1 << 11;
    let memory = pattern(100);
    let mut all = Vec::new();
    for together_before in [false, true] {
        let (from, mut to) = fresh_pair();
        let sqes: Vec<Sqe> = (0..4).map(|i| send(i, from.as_raw_fd(), &memory[i as usize..][..50])).collect();
        if together_before {
            run(&mut ring, &mut to, &sqes);
            if ring.engine == Engine::User {
                frontend::watches_errors(from.as_raw_fd());
            }
        }
        set_option(&from, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, EVENTS);
        run(&mut ring, &mut to, &sqes);
        all.push(stamps(&from));
    }
    assert_eq!(all, [4, 4]);
}

/// The lengths of the next datagrams with so many bytes in all.
fn datagrams(socket: &UdpSocket, mut bytes: usize) -> Vec<usize> {
    let mut lengths = Vec::new();
    while bytes > 0 {
        let length = socket.recv(&mut [0; 1000]).unwrap();
        bytes -= length;
        lengths.push(length);
    }
    lengths
}

/// A datagram ends what a `MSG_MORE` before it began; those behind it are datagrams of their own. On a corked socket all are one.
#[both(16, 0)]
fn datagrams_join_what_the_socket_holds_back(mut ring: Ring) -> impl Answer {
    let more = libc::MSG_MORE as u32;
    let (to, from) = udp_connected();
    let memory = pattern(100);
    let sends = [100, 100, 50].map(|length| send(length as u64, from.as_raw_fd(), &memory[..length]));
    let mut all = Vec::new();
    for by_ring in [false, true, false] {
        if by_ring {
            all.push((
                ring.run(&[Sqe { op_flags: more, ..send(10, from.as_raw_fd(), &memory[..10]) }]),
                vec![],
            ));
        } else {
            // SAFETY: reads ten bytes of ours.
            let sent = unsafe { libc::send(from.as_raw_fd(), memory.as_ptr().cast(), 10, libc::MSG_MORE) };
            assert_eq!(sent, 10);
        }
        all.push((ring.run(&sends), datagrams(&to, 260)));
    }
    set_option(&from, libc::SOL_UDP, libc::UDP_CORK, 1);
    let cqes = ring.run(&sends);
    set_option(&from, libc::SOL_UDP, libc::UDP_CORK, 0);
    all.push((cqes, datagrams(&to, 250)));
    all
}
