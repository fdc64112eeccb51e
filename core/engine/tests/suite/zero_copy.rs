//! SEND_ZC and SENDMSG_ZC: the result, then the notification that the memory is free.

use crate::common::prelude::*;

const POLL_FIRST: u16 = 1 << 0;
const FIXED: u16 = 1 << 2;
const REPORT: u16 = 1 << 3;
const VECTORIZED: u16 = 1 << 5;

fn sendmsg_zc(user_data: u64, fd: i32, header: &libc::msghdr) -> Sqe {
    Sqe { fd, addr: std::ptr::from_ref(header) as u64, len: 1, ..sqe(IORING_OP_SENDMSG_ZC, user_data) }
}

/// Submits one request and returns its result, and its notification if it announced one.
fn run_one(ring: &mut Ring, sqe: Sqe) -> Vec<Cqe> {
    let mut cqes = ring.collect_from(&[sqe], 1);
    if cqes[0].flags & IORING_CQE_F_MORE != 0 {
        cqes.extend(ring.collect(2 - cqes.len()));
    }
    cqes
}

/// Takes what the socket's buffers hold, so that nothing can be sent any more: what is on its way when they are full makes room
/// where it arrives, and what little the peer has room for yet is sent by and by.
fn fill(stream: &TcpStream) {
    stream.set_nonblocking(true).unwrap();
    let mut is_full = false;
    while !is_full {
        is_full = is_stuck(stream);
        while let Ok(1..) = (&mut &*stream).write(&[1; 1 << 16]) {
            is_full = false;
        }
        std::thread::yield_now();
    }
    stream.set_nonblocking(false).unwrap();
}

/// True if all segments have arrived, and the peer has no room at all.
fn is_stuck(stream: &TcpStream) -> bool {
    // struct tcp_info: tcpi_unacked is the word behind 24 bytes; tcpi_snd_wnd, from Linux 5.4, that behind 228.
    let mut information = [0u32; 58];
    let mut length = size_of_val(&information) as libc::socklen_t;
    // SAFETY: the kernel writes as much as there is room for.
    let result = unsafe {
        let at = information.as_mut_ptr().cast();
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, at, &mut length)
    };
    assert_eq!(result, 0);
    (information[6], information[57]) == (0, 0)
}

#[both(8, 0)]
fn a_result_and_a_notification(mut ring: Ring) -> impl Answer {
    let mut all = Vec::new();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (a, mut b) = tcp_pair_at(address);
        for ioprio in [0, REPORT, POLL_FIRST] {
            let mut received = [0; 5];
            all.push(run_one(&mut ring, Sqe { ioprio, ..send_zc(1, &a, b"hello") }));
            b.read_exact(&mut received).unwrap();
            assert_eq!(&received, b"hello");
        }
        let to = UdpSocket::bind(address).unwrap();
        let from = UdpSocket::bind(address).unwrap();
        from.connect(to.local_addr().unwrap()).unwrap();
        let mut received = [0; 20000];
        for length in [5, 20000] {
            let sqe = Sqe { ioprio: REPORT, ..send_zc(2, &from, &vec![7; length]) };
            all.push(run_one(&mut ring, sqe));
            assert_eq!(to.recv(&mut received).unwrap(), length);
        }
    }
    all
}

#[both(8, 0)]
fn datagrams_go_to_the_address_given(mut ring: Ring) -> impl Answer {
    let (to, from) = udp_pair();
    let address = address_of(to.local_addr().unwrap());
    let (off, file_index) = (std::ptr::from_ref(&address) as u64, size_of_val(&address) as u32);
    let plain = send_zc(1, &from, b"one");
    let vectors = [vector(b"tw"), vector(b"o")];
    let mut message = message_of(&vectors);
    (message.msg_name, message.msg_namelen) = (off as *mut _, file_index);
    let mut all = run_one(&mut ring, Sqe { off, file_index, ..plain });
    all.extend(run_one(&mut ring, sendmsg_zc(2, from.as_raw_fd(), &message)));
    // No address, an address that is none, one that is too long.
    all.extend(run_one(&mut ring, plain));
    all.extend(run_one(&mut ring, Sqe { off: 8, file_index, ..plain }));
    all.extend(run_one(&mut ring, Sqe { off, file_index: 129, ..plain }));
    let mut received = [0; 8];
    let lengths = [to.recv(&mut received).unwrap(), to.recv(&mut received).unwrap()];
    assert_eq!(&received[..3], b"two");
    (all, lengths)
}

#[both(16, 0)]
fn errors_before_anything_is_sent(mut ring: Ring) -> impl Answer {
    let (a, _b) = tcp_pair();
    let (unix, _peer) = UnixStream::pair().unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let file = File::open("/proc/self/exe").unwrap();
    let (fd, unix, file) = (a.as_raw_fd(), unix.as_raw_fd(), file.as_raw_fd());
    let plain = send_zc(1, &fd, b"x");
    let vectors = [vector(b"xy"), vector(b"z")];
    let good = message_of(&vectors);
    let message = sendmsg_zc(2, fd, &good);
    let mut too_many = message_of(&vectors);
    too_many.msg_iovlen = 2000;
    let mut nowhere = message_of(&vectors);
    nowhere.msg_iov = std::ptr::without_provenance_mut(8);
    let mut no_name = message_of(&vectors);
    (no_name.msg_name, no_name.msg_namelen) = (std::ptr::without_provenance_mut(8), 16);
    let sqes = [
        Sqe { ioprio: 1 << 9, ..plain },
        Sqe { ioprio: 1 << 9 | REPORT, ..plain },
        Sqe { ioprio: IORING_RECV_MULTISHOT as u16, ..plain },
        Sqe { ioprio: IORING_RECVSEND_BUNDLE as u16, ..plain },
        Sqe { ioprio: VECTORIZED, len: 2000, addr: vectors.as_ptr() as u64, ..plain },
        Sqe { ioprio: VECTORIZED, len: 2, addr: 8, ..plain },
        Sqe { pad: 1, ..plain },
        Sqe { addr3: 1, ..plain },
        Sqe { file_index: 1 << 16, ..plain },
        Sqe { flags: SKIP, ..plain },
        Sqe { flags: SKIP, ..message },
        Sqe { flags: SELECT, ..plain },
        Sqe { flags: 0x80, ..plain },
        Sqe { addr: 8, ..plain },
        Sqe { addr: 1 << 63, ..plain },
        Sqe { addr: 1 << 63, len: 0, ..plain },
        Sqe { fd: 9999, ..plain },
        Sqe { fd: file, ..plain },
        Sqe { fd: file, ioprio: REPORT, ..plain },
        Sqe { fd: unix, ..plain },
        Sqe { fd: unix, ioprio: POLL_FIRST, ..plain },
        Sqe { fd: unix, ..message },
        Sqe { fd: unix, flags: ASYNC, ioprio: REPORT, ..plain },
        Sqe { fd: udp.as_raw_fd(), ..plain },
        Sqe { ioprio: FIXED, ..plain },
        Sqe { ioprio: FIXED, ..message },
        Sqe { off: 1, ..message },
        Sqe { file_index: 1, ..message },
        Sqe { ioprio: 1 << 9, ..message },
        Sqe { addr: 8, ..message },
        sendmsg_zc(2, fd, &too_many),
        sendmsg_zc(2, fd, &nowhere),
        sendmsg_zc(2, fd, &no_name),
    ];
    sqes.map(|sqe| run_one(&mut ring, sqe))
}

#[both(16, 0)]
fn lengths_and_flags_that_are_fine(mut ring: Ring) -> impl Answer {
    let (a, mut b) = tcp_pair();
    let vectors = [vector(b"xy"), vector(b"z")];
    let message = message_of(&vectors);
    let empty = message_of(&[]);
    let plain = send_zc(1, &a, b"xyz");
    let sqes = [
        Sqe { len: 0, ioprio: REPORT, ..plain },
        Sqe { file_index: 16, ..plain },
        Sqe { buf_index: 7, ..plain },
        Sqe { flags: ASYNC, ioprio: REPORT, ..plain },
        Sqe { ioprio: VECTORIZED, addr: vectors.as_ptr() as u64, len: 2, ..plain },
        Sqe { op_flags: 0x400_0000, ..plain },
        Sqe { len: 1 << 31, ..sendmsg_zc(2, a.as_raw_fd(), &message) },
        Sqe { ioprio: VECTORIZED, ..sendmsg_zc(3, a.as_raw_fd(), &message) },
        sendmsg_zc(4, a.as_raw_fd(), &empty),
    ];
    sqes.map(|sqe| {
        let cqes = run_one(&mut ring, sqe);
        let mut received = vec![0; cqes[0].res as usize];
        b.read_exact(&mut received).unwrap();
        (cqes, received)
    })
}

#[both(16, 0)]
fn registered_buffers(mut ring: Ring) -> impl Answer {
    let (a, mut b) = tcp_pair();
    let (unix, _peer) = UnixStream::pair().unwrap();
    let memory: Vec<u8> = (0..16384u32).map(|i| (i % 251) as u8).collect();
    let fd = a.as_raw_fd();
    ring.register_buffers(&[vector(&memory[..8192]), vector(&memory[8192..12288])]);
    let fixed = Sqe { ioprio: FIXED, ..send_zc(1, &fd, &memory[100..200]) };
    let inside = [vector(&memory[..8]), vector(&memory[100..108])];
    let with_empty = [vector(&memory[..8]), vector(&memory[100..100])];
    let outside = [vector(&memory[..8]), vector(&memory[9000..9008])];
    let headers = [message_of(&inside), message_of(&with_empty), message_of(&outside)];
    // Those before Linux 7.2 refuse vectors without a message.
    let vectors = |all: &[libc::iovec], sqe| Sqe {
        ioprio: FIXED | VECTORIZED,
        addr: all.as_ptr() as u64,
        len: all.len() as u32,
        ..sqe
    };
    let none = message_of(&[]);
    let message = |header| Sqe { ioprio: FIXED, ..sendmsg_zc(2, fd, header) };
    let sqes = [
        fixed,
        Sqe { ioprio: FIXED | REPORT, ..fixed },
        Sqe { ioprio: FIXED | POLL_FIRST, ..fixed },
        Sqe { buf_index: 7, ..fixed },
        Sqe { buf_index: 1, ..fixed },
        Sqe { len: 8093, ..fixed },
        Sqe { len: 8092, ..fixed },
        Sqe { len: 0, ..fixed },
        Sqe { len: 0, addr: 8, ..fixed },
        Sqe { buf_index: 7, fd: unix.as_raw_fd(), ..fixed },
        vectors(&inside, fixed),
        vectors(&with_empty, fixed),
        vectors(&outside, fixed),
        vectors(&[], fixed),
        vectors(&inside, Sqe { buf_index: 7, ..fixed }),
        vectors(&inside, Sqe { fd: unix.as_raw_fd(), ..fixed }),
        message(&headers[0]),
        message(&headers[1]),
        message(&headers[2]),
        Sqe { buf_index: 1, ..message(&headers[0]) },
        Sqe { buf_index: 7, ..message(&headers[0]) },
        Sqe { ioprio: FIXED | VECTORIZED, ..message(&headers[0]) },
        message(&none),
        Sqe { buf_index: 7, ..message(&none) },
        Sqe { buf_index: 7, fd: unix.as_raw_fd(), ..message(&headers[0]) },
        Sqe { fd: unix.as_raw_fd(), ..message(&headers[0]) },
    ];
    sqes.map(|sqe| {
        let cqes = run_one(&mut ring, sqe);
        let mut received = vec![0; cqes[0].res.max(0) as usize];
        b.read_exact(&mut received).unwrap();
        (cqes, received.iter().enumerate().map(|(i, &byte)| i * usize::from(byte)).sum::<usize>())
    })
}

/// Whatever becomes of the table. The first attempt found no room.
#[both(8, 0)]
fn one_that_waits_holds_its_registered_buffer(mut ring: Ring) -> impl Answer {
    let (a, mut b) = tcp_pair();
    fill(&a);
    let memory = [7; 4096];
    ring.register_buffers(&[vector(&memory)]);
    ring.submit(&[Sqe { ioprio: FIXED, ..send_zc(1, &a, &memory[..100]) }]);
    let unregistered = ring.unregister(IORING_UNREGISTER_BUFFERS);
    ring.submit(&[Sqe { ioprio: FIXED, ..send_zc(2, &a, &memory[..100]) }]);
    let refused = ring.collect(2);
    let (mut received, mut sevens) = (vec![0; 1 << 16], 0);
    while sevens < 100 {
        let count = b.read(&mut received).unwrap();
        sevens += received[..count].iter().filter(|&&byte| byte == 7).count();
        ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
    }
    (unregistered, refused, ring.collect(2))
}

#[both(16, 0)]
fn links_break_with_notifications(mut ring: Ring) -> impl Answer {
    let (unix, _peer) = UnixStream::pair().unwrap();
    let (a, _b) = tcp_pair();
    let good = |user_data| send_zc(user_data, &a, b"x");
    let wrong = |user_data, flags| Sqe { ioprio: 1 << 9, flags, ..good(user_data) };
    let late = |user_data, flags| Sqe { addr: 8, flags, ..good(user_data) };
    let refused = Sqe { flags: LINK, ..send_zc(1, &unix, b"x") };
    [
        ring.collect_from(&[refused, good(2)], 4),
        ring.collect_from(&[wrong(1, LINK), good(2)], 4),
        ring.collect_from(&[Sqe { flags: LINK, ..good(1) }, wrong(2, 0)], 4),
        ring.collect_from(&[Sqe { flags: LINK, ..good(1) }, Sqe { addr3: 1, ..good(2) }], 3),
        ring.collect_from(&[late(1, LINK), Sqe { ioprio: REPORT, ..good(2) }], 4),
        ring.collect_from(&[Sqe { fd: 9999, ..late(1, LINK) }, good(2)], 4),
    ]
}

#[both(16, 0)]
fn links_go_on_without_waiting_for_notifications(mut ring: Ring) -> impl Answer {
    let (_to, from) = udp_connected();
    let good = |user_data, flags| Sqe { flags, ..send_zc(user_data, &from, b"x") };
    let late = |user_data, flags| Sqe { addr: 8, ..good(user_data, flags) };
    [
        ring.collect_from(&[good(1, LINK), good(2, LINK), good(3, 0)], 6),
        ring.collect_from(&[good(1, LINK), sqe(IORING_OP_NOP, 2)], 3),
        ring.collect_from(&[late(1, HARDLINK), good(2, 0)], 4),
    ]
}

#[both(16, 0)]
fn a_drain_waits_for_the_notification(mut ring: Ring) -> impl Answer {
    let (a, mut b) = tcp_pair();
    let sent = send_zc(1, &a, b"x");
    let cqes = ring.collect_from(&[sent, Sqe { flags: DRAIN, ..sqe(IORING_OP_NOP, 2) }], 3);
    b.read_exact(&mut [0]).unwrap();
    cqes
}

#[both(16, 0)]
fn one_that_waits_can_be_cancelled(mut ring: Ring) -> impl Answer {
    let (a, _b) = tcp_pair();
    fill(&a);
    let memory = vec![0; 1 << 20];
    let refused = Sqe { op_flags: libc::MSG_DONTWAIT as u32, ..send_zc(1, &a, &memory) };
    let refused = run_one(&mut ring, refused);
    let waits = Sqe { ioprio: REPORT, ..send_zc(2, &a, &memory) };
    ring.submit(&[waits]);
    assert_eq!(ring.reap(), None);
    let cancelled = ring.collect_from(&[Sqe { addr: 2, ..sqe(IORING_OP_ASYNC_CANCEL, 3) }], 3);
    // A notification is not to be found, nor what has none outstanding.
    let again = ring.collect_from(&[Sqe { addr: 2, ..sqe(IORING_OP_ASYNC_CANCEL, 4) }], 1);
    (refused, cancelled, again)
}

#[both(16, 0)]
fn all_is_sent_where_all_is_asked_for(mut ring: Ring) -> impl Answer {
    let (a, mut b) = tcp_pair();
    let memory: Vec<u8> = (0..8 << 20).map(|i: u32| (i % 251) as u8).collect();
    let expected = memory.clone();
    let reader = std::thread::spawn(move || {
        let mut received = Vec::new();
        b.read_to_end(&mut received).unwrap();
        received == expected
    });
    let sqe = send_zc(1, &a, &memory);
    let cqes = run_one(&mut ring, Sqe { op_flags: libc::MSG_WAITALL as u32, ioprio: REPORT, ..sqe });
    drop(a);
    (cqes, reader.join().unwrap())
}

#[both(16, DEFER)]
fn a_notification_waits_where_completions_are_deferred(mut ring: Ring) -> impl Answer {
    let (_to, from) = udp_connected();
    ring.submit(&[send_zc(1, &from, b"x")]);
    let at_once = ring.reap_all();
    assert_eq!(ring.enter_with(0, 0, IORING_ENTER_GETEVENTS), 0);
    (at_once, ring.reap_all())
}

#[both(16, 0)]
fn a_peer_that_is_gone(mut ring: Ring) -> impl Answer {
    let (a, b) = tcp_pair();
    a.shutdown(std::net::Shutdown::Write).unwrap();
    drop(b);
    run_one(&mut ring, Sqe { ioprio: REPORT, ..send_zc(1, &a, b"x") })
}

/// Datagrams of one submission, which may leave together: each has its result and its notification.
#[both(8, 0)]
fn datagrams_of_one_submission(mut ring: Ring) -> impl Answer {
    let (to, from) = udp_connected();
    let memory = b"the first, of same length, or longer, or not, and then a short one".to_vec();
    ring.register_buffers(&[vector(&memory)]);
    let datagrams: [&[u8]; 4] = [&memory[..9], &memory[11..25], &memory[27..44], &memory[61..63]];
    let mut all = Vec::new();
    for ioprio in [0, REPORT, FIXED, FIXED | REPORT] {
        ring.submit_all(
            (0..).zip(datagrams).map(|(user_data, data)| Sqe { ioprio, ..send_zc(user_data, &from, data) }),
            4,
        );
        let mut buffer = [0; 64];
        for data in datagrams {
            assert_eq!(to.recv(&mut buffer).unwrap(), data.len());
            assert_eq!(&buffer[..data.len()], data);
        }
        let mut cqes = ring.collect(8);
        cqes.sort_by_key(|cqe| (cqe.user_data, cqe.flags & IORING_CQE_F_NOTIF != 0));
        all.push(cqes);
    }
    all
}
