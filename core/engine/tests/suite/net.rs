//! Operations on sockets: TCP, Unix and UDP on the loopback interface.

use crate::common::prelude::*;

fn recv(user_data: u64, fd: i32, buffer: &mut [u8]) -> Sqe {
    reading(IORING_OP_RECV, user_data, &fd, buffer)
}

fn send(user_data: u64, fd: i32, buffer: &[u8]) -> Sqe {
    writing(IORING_OP_SEND, user_data, &fd, buffer)
}

fn accept(user_data: u64, fd: i32) -> Sqe {
    Sqe { fd, ..sqe(IORING_OP_ACCEPT, user_data) }
}

/// A request for a socket.
fn new_socket(user_data: u64, domain: i32) -> Sqe {
    Sqe { fd: domain, off: libc::SOCK_STREAM as u64, ..sqe(IORING_OP_SOCKET, user_data) }
}

/// A socket for TCP of the ring's making.
fn made(ring: &mut Ring) -> OwnedFd {
    owned(ring.run(&[new_socket(1, libc::AF_INET)])[0].res)
}

#[both(8, 0)]
fn data_that_is_there_is_received_at_once(mut ring: Ring) -> impl Answer {
    let (a, b) = tcp_pair();
    let mut buffer = [0; 16];
    let sent = ring.run(&[send(1, a.as_raw_fd(), b"hello")]);
    let received = ring.run(&[recv(2, b.as_raw_fd(), &mut buffer)]);
    (sent, received, buffer)
}

#[both(8, 0)]
fn a_receive_waits_for_data(mut ring: Ring) -> impl Answer {
    let (a, b) = UnixStream::pair().unwrap();
    let mut all = Vec::new();
    for round in 0..10u8 {
        let mut buffer = [0; 8];
        ring.submit(&[recv(1, b.as_raw_fd(), &mut buffer)]);
        assert_eq!(ring.reap(), None);
        ring.submit(&[send(2, a.as_raw_fd(), &[round; 3])]);
        let cqes = [ring.wait(), ring.wait()];
        all.push((results(&cqes), buffer));
    }
    all
}

#[both(8, 0)]
fn full_and_short_receives_alternate(mut ring: Ring) -> impl Answer {
    let (a, b) = tcp_pair();
    let mut all = Vec::new();
    for length in [4, 8, 3, 20, 8, 16, 1] {
        let mut buffer = [0; 8];
        ring.submit(&[recv(1, b.as_raw_fd(), &mut buffer)]);
        assert_eq!(ring_after_send(&mut ring, &a, length).wait().res, length.min(8) as i32);
        let mut left = length.saturating_sub(8);
        while left > 0 {
            let cqe = ring.run(&[recv(1, b.as_raw_fd(), &mut buffer)])[0];
            all.push(cqe);
            left -= cqe.res as usize;
        }
    }
    all
}

/// Sends behind the ring's back.
fn ring_after_send<'a>(ring: &'a mut Ring, stream: &TcpStream, length: usize) -> &'a mut Ring {
    let mut stream = stream;
    stream.write_all(&vec![7; length]).unwrap();
    ring
}

#[both(8, 0)]
fn a_stream_ends_with_nothing(mut ring: Ring) -> impl Answer {
    let (a, b) = tcp_pair();
    let mut buffer = [0; 8];
    ring.submit(&[recv(1, b.as_raw_fd(), &mut buffer)]);
    a.shutdown(std::net::Shutdown::Write).unwrap();
    let first = ring.wait();
    let second = ring.run(&[recv(2, b.as_raw_fd(), &mut buffer)]);
    // The other direction still works.
    let sent = ring.run(&[send(3, b.as_raw_fd(), b"x")]);
    (first, second, sent)
}

#[both(8, 0)]
fn a_half_close_behind_data_is_seen(mut ring: Ring) -> impl Answer {
    let (a, b) = tcp_pair();
    let mut buffer = [0; 8];
    let mut all = Vec::new();
    ring.submit(&[recv(1, b.as_raw_fd(), &mut buffer)]);
    ring_after_send(&mut ring, &a, 3);
    all.push(ring.wait().res);
    ring.submit(&[recv(2, b.as_raw_fd(), &mut buffer)]);
    ring_after_send(&mut ring, &a, 5);
    drop(a);
    all.push(ring.wait().res);
    ring.submit(&[recv(3, b.as_raw_fd(), &mut buffer)]);
    all.push(ring.wait().res);
    all
}

#[both(8, 0)]
fn a_reset_is_reported(mut ring: Ring) -> impl Answer {
    let (a, b) = tcp_pair();
    let mut buffer = [0; 8];
    ring.submit(&[recv(1, b.as_raw_fd(), &mut buffer)]);
    set_option(&a, libc::SOL_SOCKET, libc::SO_LINGER, libc::linger { l_onoff: 1, l_linger: 0 });
    drop(a);
    let received = ring.wait().res;
    (received, ring.run(&[send(2, b.as_raw_fd(), b"x")]))
}

#[both(16, IORING_SETUP_SUBMIT_ALL)]
fn errors_of_transfers(mut ring: Ring) -> impl Answer {
    let (a, _b) = UnixStream::pair().unwrap();
    let file = File::open("/proc/self/exe").unwrap();
    let mut buffer = [0; 8];
    let fd = a.as_raw_fd();
    let plain = recv(0, fd, &mut buffer);
    ring.run(&[
        Sqe { user_data: 1, ioprio: 1 << 9, ..plain },
        Sqe { user_data: 2, off: 1, ..plain },
        Sqe { user_data: 3, len: 1 << 31, ..plain },
        Sqe { user_data: 4, addr: 1 << 63, ..plain },
        Sqe { user_data: 5, fd: 9999, ..plain },
        Sqe { user_data: 6, fd: file.as_raw_fd(), ..plain },
        Sqe { user_data: 7, op_flags: libc::MSG_DONTWAIT as u32, ..plain },
        Sqe { user_data: 8, ioprio: IORING_RECV_MULTISHOT as u16, ..plain },
        Sqe { user_data: 9, file_index: 1 << 16, ..send(0, fd, b"x") },
        Sqe { user_data: 10, addr: 8, ..send(0, fd, b"x") },
        Sqe { user_data: 11, fd: file.as_raw_fd(), ..send(0, fd, b"x") },
        Sqe { user_data: 12, addr: 8, ..sqe(IORING_OP_SENDMSG, 0) },
        Sqe { user_data: 13, addr: 8, fd, ..sqe(IORING_OP_RECVMSG, 0) },
        Sqe { user_data: 14, off: 8, file_index: 16, ..send(0, fd, b"x") },
    ])
}

#[both(8, 0)]
fn waitall_collects_the_parts(mut ring: Ring) -> impl Answer {
    let (a, b) = tcp_pair();
    let mut buffer = [0; 8];
    let all = libc::MSG_WAITALL as u32;
    ring.submit(&[Sqe { op_flags: all, flags: LINK, ..recv(1, b.as_raw_fd(), &mut buffer) }]);
    ring_after_send(&mut ring, &a, 3);
    ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
    assert_eq!(ring.reap(), None);
    ring_after_send(&mut ring, &a, 5);
    let whole = ring.wait().res;
    // Cut short by the end of the stream: what came is reported, and the link is broken.
    ring.submit(&[
        Sqe { op_flags: all, flags: LINK, ..recv(2, b.as_raw_fd(), &mut buffer) },
        sqe(IORING_OP_NOP, 3),
    ]);
    ring_after_send(&mut ring, &a, 4);
    drop(a);
    let cqes = [ring.wait(), ring.wait()];
    (whole, results(&cqes))
}

#[both(8, 0)]
fn a_large_send_waits_for_room(mut ring: Ring) -> impl Answer {
    let (a, b) = UnixStream::pair().unwrap();
    let out = vec![5u8; 1 << 20];
    let mut into = vec![0u8; 1 << 20];
    let all = libc::MSG_WAITALL as u32;
    let cqes = ring.run(&[
        Sqe { op_flags: all, ..send(1, a.as_raw_fd(), &out) },
        Sqe { op_flags: all, ..recv(2, b.as_raw_fd(), &mut into) },
    ]);
    assert!(out == into);
    results(&cqes)
}

#[both(8, 0)]
fn a_send_that_may_be_short_ends_where_there_is_no_room(mut ring: Ring) -> impl Answer {
    let (a, mut b) = UnixStream::pair().unwrap();
    let sent = ring.run(&[send(1, a.as_raw_fd(), &vec![5; 1 << 22])])[0].res;
    drop(a);
    // How much there is room for is the kernel's affair.
    let arrived = b.read_to_end(&mut Vec::new()).unwrap();
    (arrived == sent as usize, sent < 1 << 22)
}

/// Raw sockets have a protocol, too, which does not make them sockets that send without copying.
#[test]
fn a_raw_socket_sends_no_pages() {
    // SAFETY: a plain call.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_UDP) };
    if fd < 0 {
        return skip("raw sockets need rights");
    }
    let socket = owned(fd);
    both(|engine| {
        let mut ring = Ring::new(engine, 8, 0);
        let request = Sqe { opcode: IORING_OP_SEND_ZC as u8, ..send(1, socket.as_raw_fd(), b"hello") };
        results(&ring.run(&[request]))
    });
}

#[both(8, 0)]
fn poll_first_waits_even_for_what_is_there(mut ring: Ring) -> impl Answer {
    let (a, b) = tcp_pair();
    let mut buffer = [0; 8];
    let mut all = Vec::new();
    for _ in 0..3 {
        ring_after_send(&mut ring, &a, 8);
        let first = Sqe { ioprio: IORING_RECVSEND_POLL_FIRST as u16, ..recv(1, b.as_raw_fd(), &mut buffer) };
        all.extend(ring.run(&[first]));
    }
    let first = Sqe { ioprio: IORING_RECVSEND_POLL_FIRST as u16, ..send(2, a.as_raw_fd(), b"y") };
    all.extend(ring.run(&[first]));
    all
}

#[both(8, 0)]
fn asynchronous_requests_wait_as_well(mut ring: Ring) -> impl Answer {
    let (a, b) = UnixStream::pair().unwrap();
    let mut buffer = [0; 8];
    ring.submit(&[Sqe { flags: ASYNC, ..recv(1, b.as_raw_fd(), &mut buffer) }]);
    ring.submit(&[Sqe { flags: ASYNC, ..send(2, a.as_raw_fd(), b"abc") }]);
    let cqes = [ring.wait(), ring.wait()];
    (results(&cqes), buffer)
}

struct Header {
    raw: libc::msghdr,
    _vectors: Vec<libc::iovec>,
}

fn header(pieces: &mut [&mut [u8]]) -> Box<Header> {
    let vectors: Vec<_> = pieces.iter().map(|piece| vector(piece)).collect();
    Box::new(Header { raw: message_of(&vectors), _vectors: vectors })
}

fn message(op: io_uring_op, user_data: u64, fd: i32, header: &Header) -> Sqe {
    Sqe { fd, addr: &raw const header.raw as u64, len: 1, ..sqe(op, user_data) }
}

#[both(8, 0)]
fn messages_are_copied_at_submission(mut ring: Ring) -> impl Answer {
    let (receiver, sender) = udp_pair();
    let to = address_of(receiver.local_addr().unwrap());
    let mut from: libc::sockaddr_in = zeroed();
    let (mut first, mut second, mut control) = ([0; 3], [0; 16], [0u8; 64]);
    let mut inward = header(&mut [&mut first, &mut second]);
    (inward.raw.msg_name, inward.raw.msg_namelen) = ((&raw mut from).cast(), size_of_val(&from) as u32);
    (inward.raw.msg_control, inward.raw.msg_controllen) = (control.as_mut_ptr().cast(), control.len());
    ring.submit(&[message(IORING_OP_RECVMSG, 1, receiver.as_raw_fd(), &inward)]);
    inward._vectors.fill(libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 9 });
    inward.raw.msg_flags = 77;
    inward.raw.msg_iov = std::ptr::null_mut();
    let mut text = *b"hello, world";
    let (left, right) = text.split_at_mut(5);
    let mut outward = header(&mut [left, right]);
    let mut to = to;
    (outward.raw.msg_name, outward.raw.msg_namelen) = ((&raw mut to).cast(), size_of_val(&to) as u32);
    let mut cqes = ring.run(&[message(IORING_OP_SENDMSG, 2, sender.as_raw_fd(), &outward)]);
    while cqes.len() < 2 {
        cqes.push(ring.wait());
    }
    assert_eq!(from.sin_port.to_be(), sender.local_addr().unwrap().port());
    let raw = inward.raw;
    (results(&cqes), first, second, raw.msg_flags, raw.msg_namelen, raw.msg_controllen)
}

#[both(8, 0)]
fn datagrams_go_where_the_address_says(mut ring: Ring) -> impl Answer {
    let (receiver, sender) = udp_pair();
    let mut buffer = [0; 4];
    ring.submit(&[recv(1, receiver.as_raw_fd(), &mut buffer)]);
    let mut to = address_of(receiver.local_addr().unwrap());
    let sqe = Sqe {
        off: &raw const to as u64,
        file_index: size_of_val(&to) as u32,
        ..send(2, sender.as_raw_fd(), b"truncated")
    };
    ring.submit_and_wait(&[sqe], 1);
    // SAFETY: ours; volatile, for nobody here reads it again.
    unsafe { (&raw mut to.sin_port).write_volatile(0) };
    let cqes = [ring.wait(), ring.wait()];
    (results(&cqes), buffer)
}

#[both(8, 0)]
fn descriptors_travel_in_messages(mut ring: Ring) -> impl Answer {
    let (a, b) = UnixDatagram::pair().unwrap();
    let (mut out, mut into) = ([1u8; 1], [0u8; 1]);
    let mut control = [0u64; 3];
    control[0] = 20;
    control[1] = libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32;
    control[2] = a.as_raw_fd() as u64;
    let mut space = [0u64; 8];
    let mut outward = header(&mut [&mut out]);
    (outward.raw.msg_control, outward.raw.msg_controllen) = (control.as_mut_ptr().cast(), 20);
    let mut inward = header(&mut [&mut into]);
    (inward.raw.msg_control, inward.raw.msg_controllen) = (space.as_mut_ptr().cast(), size_of_val(&space));
    let cqes = ring.one_by_one(&[
        message(IORING_OP_SENDMSG, 1, a.as_raw_fd(), &outward),
        message(IORING_OP_RECVMSG, 2, b.as_raw_fd(), &inward),
    ]);
    drop(owned(space[2] as i32));
    (results(&cqes), inward.raw.msg_controllen, space[0], space[1])
}

#[both(8, 0)]
fn connections_are_made_and_accepted(mut ring: Ring) -> impl Answer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = address_of(listener.local_addr().unwrap());
    let mut peers = Vec::new();
    for _ in 0..5 {
        let mut peer: libc::sockaddr_in = zeroed();
        let mut length = size_of_val(&peer) as u32;
        let accepting = Sqe {
            addr: &raw mut peer as u64,
            off: &raw mut length as u64,
            op_flags: libc::SOCK_CLOEXEC as u32,
            ..accept(1, listener.as_raw_fd())
        };
        ring.submit(&[accepting]);
        let socket = made(&mut ring);
        ring.submit(&[connect(3, &socket, &address)]);
        let cqes = by_user_data(vec![ring.wait(), ring.wait()]);
        let accepted = owned(cqes[0].res);
        // SAFETY: asks for flags.
        let cloexec = unsafe { libc::fcntl(accepted.as_raw_fd(), libc::F_GETFD) };
        peers.push((cqes[1].res, i32::from(peer.sin_family), length, cloexec));
        let mut buffer = [0; 4];
        let pair = ring
            .one_by_one(&[send(4, socket.as_raw_fd(), b"ping"), recv(5, accepted.as_raw_fd(), &mut buffer)]);
        assert_eq!(results(&pair), [(4, 4), (5, 4)]);
    }
    peers
}

#[both(8, 0)]
fn a_refused_connection_says_so(mut ring: Ring) -> impl Answer {
    let address = address_of(TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let socket = made(&mut ring);
    let refused = ring.run(&[connect(2, &socket, &address)]);
    (refused, flags_of(&socket) & libc::O_NONBLOCK)
}

#[both(8, 0)]
fn a_second_connect_on_a_connected_socket(mut ring: Ring) -> impl Answer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = address_of(listener.local_addr().unwrap());
    let socket = made(&mut ring);
    let first = ring.run(&[connect(2, &socket, &address)]);
    let second = ring.run(&[connect(3, &socket, &address)]);
    (first, second)
}

#[both(8, IORING_SETUP_SUBMIT_ALL)]
fn a_socket_is_bound_and_listens_and_shuts_down(mut ring: Ring) -> impl Answer {
    let address = address_of("127.0.0.1:0".parse().unwrap());
    let socket = made(&mut ring);
    let fd = socket.as_raw_fd();
    let bind = Sqe { opcode: IORING_OP_BIND as u8, ..connect(2, &fd, &address) };
    let mut all = ring.one_by_one(&[bind, Sqe { fd, len: 16, ..sqe(IORING_OP_LISTEN, 3) }, bind]);
    let listener = TcpListener::from(socket);
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let shutdown = Sqe { fd: client.as_raw_fd(), len: 1, ..sqe(IORING_OP_SHUTDOWN, 4) };
    all.extend(ring.one_by_one(&[
        shutdown,
        Sqe { len: 7, ..shutdown },
        send(5, client.as_raw_fd(), b"x"),
        Sqe { op_flags: 1, ..shutdown },
        Sqe { fd, len: 16, off: 1, ..sqe(IORING_OP_LISTEN, 3) },
        Sqe { off: 7, ..bind },
        Sqe { off: 700, ..bind },
        Sqe { addr: 8, ..bind },
    ]));
    all
}

#[both]
fn unix_sockets_are_bound_to_paths(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 8, 0);
    let path = std::env::temp_dir().join(format!("anyring-{}-{engine:?}", std::process::id()));
    let mut address = vec![libc::AF_UNIX as u8, 0];
    address.extend(path.as_os_str().as_encoded_bytes());
    let new = new_socket(1, libc::AF_UNIX);
    let socket = owned(ring.run(&[new])[0].res);
    let off = address.len() as u64;
    let bind = Sqe { len: 0, off, ..writing(IORING_OP_BIND, 2, &socket, &address) };
    let first = ring.run(&[bind]);
    let other = owned(ring.run(&[new])[0].res);
    let second = ring.run(&[Sqe { fd: other.as_raw_fd(), ..bind }]);
    std::fs::remove_file(path).unwrap();
    (first, second)
}

#[both(16, IORING_SETUP_SUBMIT_ALL)]
fn errors_of_accept(mut ring: Ring) -> impl Answer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (a, _b) = UnixStream::pair().unwrap();
    let plain = accept(0, listener.as_raw_fd());
    ring.run(&[
        Sqe { user_data: 1, len: 1, ..plain },
        Sqe { user_data: 2, buf_index: 1, ..plain },
        Sqe { user_data: 3, ioprio: 1 << 7, ..plain },
        Sqe { user_data: 4, op_flags: 1, ..plain },
        Sqe { user_data: 5, file_index: 1, op_flags: libc::SOCK_CLOEXEC as u32, ..plain },
        Sqe { user_data: 6, file_index: 1, ioprio: IORING_ACCEPT_MULTISHOT as u16, ..plain },
        Sqe { user_data: 7, ioprio: IORING_ACCEPT_DONTWAIT as u16, ..plain },
        Sqe { user_data: 8, fd: a.as_raw_fd(), ..plain },
        Sqe { user_data: 9, fd: 9999, ..plain },
    ])
}

#[both(8, 0)]
fn multishot_accept_takes_all_that_wait(mut ring: Ring) -> impl Answer {
    let (listener, address) = listening();
    let shots = IORING_ACCEPT_MULTISHOT as u16;
    ring.submit(&[Sqe { ioprio: shots, ..accept(1, listener.as_raw_fd()) }]);
    let mut all = Vec::new();
    for count in [1, 3, 2] {
        let clients: Vec<_> = (0..count).map(|_| TcpStream::connect(address).unwrap()).collect();
        for _ in &clients {
            let cqe = ring.wait();
            drop(owned(cqe.res));
            all.push((cqe.user_data, cqe.flags & IORING_CQE_F_MORE));
        }
    }
    // Nothing more comes.
    ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
    assert_eq!(ring.reap(), None);
    all
}

#[both(2, 0)]
fn multishot_accept_ends_when_the_cq_is_full(mut ring: Ring) -> impl Answer {
    let (listener, address) = listening();
    let _clients: Vec<_> = (0..6).map(|_| TcpStream::connect(address).unwrap()).collect();
    let shots = IORING_ACCEPT_MULTISHOT as u16;
    ring.submit(&[Sqe { ioprio: shots, ..accept(1, listener.as_raw_fd()) }]);
    let mut flags = Vec::new();
    loop {
        let cqe = ring.wait();
        drop(owned(cqe.res));
        flags.push(cqe.flags & IORING_CQE_F_MORE);
        if cqe.flags & IORING_CQE_F_MORE == 0 {
            break;
        }
    }
    (flags, ring.reap())
}

#[both(8, 0)]
fn accept_tells_of_others_that_wait(mut ring: Ring) -> impl Answer {
    let (listener, address) = listening();
    let _clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut flags = Vec::new();
    for _ in 0..3 {
        let cqe = ring.run(&[accept(1, listener.as_raw_fd())])[0];
        drop(owned(cqe.res));
        flags.push(cqe.flags);
    }
    flags
}

#[both(8, IORING_SETUP_SUBMIT_ALL)]
fn sockets_and_connections_go_into_slots(mut ring: Ring) -> impl Answer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = address_of(listener.local_addr().unwrap());
    let new = new_socket(1, libc::AF_INET);
    let mut all = ring.run(&[Sqe { file_index: 1, ..new }]);
    ring.register_files(&[-1; 4]);
    let any = IORING_FILE_INDEX_ALLOC as u32;
    all.extend(ring.run(&[Sqe { file_index: 2, ..new }, Sqe { file_index: 9, ..new }]));
    all.extend(ring.run(&[Sqe { file_index: any, ..new }]));
    all.extend(ring.run(&[Sqe { flags: FIXED, ..connect(2, &1, &address) }]));
    let single = Sqe { file_index: any, ..accept(3, listener.as_raw_fd()) };
    all.extend(ring.run(&[single]));
    let slot = all.last().unwrap().res;
    let mut buffer = [0; 4];
    all.extend(ring.one_by_one(&[
        Sqe { flags: FIXED, ..send(4, 1, b"slot") },
        Sqe { flags: FIXED, ..recv(5, slot, &mut buffer) },
    ]));
    // The last slot is filled, then there is none.
    let _clients: Vec<_> =
        (0..3).map(|_| TcpStream::connect(listener.local_addr().unwrap()).unwrap()).collect();
    ring.submit(&[Sqe { ioprio: IORING_ACCEPT_MULTISHOT as u16, ..single }]);
    all.push(ring.wait());
    all.push(ring.wait());
    // An occupied slot is replaced.
    all.extend(ring.run(&[Sqe { file_index: 2, ..accept(6, listener.as_raw_fd()) }]));
    (all, buffer)
}

#[both]
fn a_pending_receive_keeps_a_socket_that_another_thread_closes(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 8, 0);
    let (mut a, b) = UnixStream::pair().unwrap();
    let mut buffer = [0; 8];
    let fd = b.into_raw_fd();
    ring.submit(&[recv(1, fd, &mut buffer)]);
    std::thread::spawn(move || close(engine, fd)).join().unwrap();
    a.write_all(b"late").unwrap();
    let cqe = ring.wait();
    // It was the last to hold it.
    let written = a.write(b"x").map_err(|error| error.raw_os_error());
    (cqe, buffer, written)
}

#[both(8, 0)]
fn requests_in_a_wait_are_woken_by_other_threads(mut ring: Ring) -> impl Answer {
    let (mut a, b) = tcp_pair();
    let mut buffer = [0; 8];
    let mut all = Vec::new();
    for round in 0..20u8 {
        ring.submit(&[recv(1, b.as_raw_fd(), &mut buffer)]);
        let writer = std::thread::spawn(move || {
            a.write_all(&[round; 5]).unwrap();
            a
        });
        all.push((ring.wait(), buffer));
        a = writer.join().unwrap();
    }
    all
}

/// A number that changes its file where the engine does not see it, while the ring is driven in some way: nobody gets another's
/// data, and requests on the new file are served.
fn a_number_is_reused(flags: u32, driven: impl FnOnce()) {
    let mut ring = Ring::new(Engine::User, 8, flags);
    let (_a, b) = UnixStream::pair().unwrap();
    let (mut c, d) = UnixStream::pair().unwrap();
    let (mut old, mut new) = ([0; 8], [0; 8]);
    let wake = IORING_ENTER_SQ_WAKEUP | IORING_ENTER_GETEVENTS;
    ring.push_together(&[recv(1, b.as_raw_fd(), &mut old), sqe(IORING_OP_NOP, 3)]);
    // The NOP behind it is done: it waits.
    assert!(ring.enter_with(2, 1, wake) >= 0);
    assert_eq!(results(&ring.reap_all()), [(3, 0)]);
    replace(&b, &d);
    driven();
    ring.push(recv(2, b.as_raw_fd(), &mut new));
    c.write_all(b"for the new").unwrap();
    assert!(ring.enter_with(1, 2, wake) >= 0);
    assert_eq!(results(&ring.reap_all()), [(1, -libc::EBADF), (2, 8)]);
    assert_eq!((&old, &new), (&[0; 8], b"for the "));
}

#[test]
fn a_number_reused_behind_the_engines_back() {
    a_number_is_reused(0, || ());
}

#[test]
fn a_number_reused_while_the_reactor_drives() {
    // Long enough for the reactor to take the ring over, and to sleep for good: nothing tells when it has.
    a_number_is_reused(0, || std::thread::sleep(Duration::from_millis(50)));
}

#[test]
fn a_number_reused_while_an_sq_thread_drives() {
    a_number_is_reused(IORING_SETUP_SQPOLL, || ());
}

/// A program that was seen to reuse a number does not wait for a tick at each of its next connections.
#[by(ours(8, 0))]
fn a_number_reused_again_and_again(mut ring: Ring) {
    let (_a, number) = UnixStream::pair().unwrap();
    let mut buffer = [0; 8];
    ring.submit(&[recv(0, number.as_raw_fd(), &mut buffer)]);
    for round in 1..20 {
        let (mut peer, new) = UnixStream::pair().unwrap();
        replace(&number, &new);
        ring.submit(&[recv(round, number.as_raw_fd(), &mut buffer)]);
        assert!(round == 1 || epoll_knows(&new), "round {round}");
        peer.write_all(b"data").unwrap();
        let expected: &[_] = if round == 1 { &[(0, -libc::EBADF), (1, 4)] } else { &[(round, 4)] };
        assert_eq!(ring.enter(0, expected.len() as u32), 0);
        assert_eq!(results(&ring.reap_all()), expected);
    }
}

/// True if a file is registered with some epoll instance of the process.
fn epoll_knows(file: &UnixStream) -> bool {
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::metadata(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let entry = format!("ino:{:x} ", file.ino());
    let infos = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    infos
        .filter_map(|info| std::fs::read_to_string(info.unwrap().path()).ok())
        .flat_map(|info| info.lines().map(str::to_owned).collect::<Vec<_>>())
        .any(|line| line.starts_with("tfd:") && line.contains(&entry))
}

/// More of them than are looked at in one tick.
#[by(ours(512, 0))]
fn many_numbers_reused_behind_the_engines_back(mut ring: Ring) {
    const COUNT: usize = 150;
    let before: Vec<_> = (0..COUNT).map(|_| UnixStream::pair().unwrap()).collect();
    let mut after: Vec<_> = (0..COUNT).map(|_| UnixStream::pair().unwrap()).collect();
    let mut buffers = [[0u8; 8]; 2 * COUNT];
    for ((_, number), buffer) in before.iter().zip(&mut buffers) {
        ring.submit(&[recv(1, number.as_raw_fd(), buffer)]);
    }
    for (((_, number), (peer, new)), buffer) in before.iter().zip(&mut after).zip(&mut buffers[COUNT..]) {
        replace(number, new);
        ring.push(recv(2, number.as_raw_fd(), buffer));
        peer.write_all(b"for the new").unwrap();
    }
    assert_eq!(ring.enter(COUNT as u32, 2 * COUNT as u32), COUNT as i32);
    let cqes = ring.reap_all();
    let count =
        |user_data, res| cqes.iter().filter(|cqe| (cqe.user_data, cqe.res) == (user_data, res)).count();
    assert_eq!([count(1, -libc::EBADF), count(2, 8)], [COUNT; 2]);
}

/// The engine itself is given the number of a file that was closed unseen.
#[by(ours(8, 0))]
fn a_number_reused_by_accept(mut ring: Ring) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut buffer = [0; 8];
    for round in 0..50u8 {
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let fd = ring.run(&[accept(1, listener.as_raw_fd())])[0].res;
        let connection = owned(fd);
        // Twice, so that the second finds the number registered and idle.
        for _ in 0..2 {
            ring.push(recv(2, fd, &mut buffer));
            client.write_all(&[round; 3]).unwrap();
            assert_eq!(ring.enter(1, 1), 1);
            assert_eq!(results(&ring.reap_all()), [(2, 3)]);
            assert_eq!(buffer[..3], [round; 3]);
        }
        drop(connection);
    }
}

struct Stream {
    near: UnixStream,
    far: UnixStream,
    sent: u8,
    seen: u8,
    pending: bool,
    buffer: Box<[u8; 16]>,
}

impl Stream {
    fn new() -> Stream {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        Stream { near, far, sent: 0, seen: 0, pending: false, buffer: Box::new([0; 16]) }
    }

    fn completed(&mut self, cqe: Cqe) {
        self.pending = false;
        assert!(cqe.res > 0 || cqe.res == -libc::ECANCELED, "{cqe:?}");
        for &byte in &self.buffer[..cqe.res.max(0) as usize] {
            assert_eq!(byte, self.seen);
            self.seen = self.seen.wrapping_add(1);
        }
    }
}

/// Streams that come and go, with receives that are cancelled or closed under: every byte arrives
/// once, in order, and every request completes once.
#[both(64, 0)]
fn many_streams_with_cancellations_and_closes(mut ring: Ring) {
    let mut random = 0x1234_5678u32;
    let mut streams: Vec<Stream> = (0..24).map(|_| Stream::new()).collect();
    let collect = |ring: &mut Ring, streams: &mut Vec<Stream>| {
        for cqe in ring.reap_all() {
            if let Some(stream) = streams.get_mut(cqe.user_data as usize) {
                stream.completed(cqe);
            }
        }
    };
    for _ in 0..20_000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (index, action) = ((random >> 8) as usize % streams.len(), random >> 24);
        let stream = &mut streams[index];
        match action % 8 {
            0..=2 if !stream.pending => {
                stream.pending = true;
                ring.push(recv(index as u64, stream.far.as_raw_fd(), &mut stream.buffer[..]));
                ring.enter_with(1, 0, if action & 64 == 0 { 0 } else { IORING_ENTER_GETEVENTS });
            }
            3..=5 => {
                let bytes: Vec<u8> = (0..action % 20).map(|i| stream.sent.wrapping_add(i as u8)).collect();
                let written = stream.near.write(&bytes).unwrap_or(0);
                stream.sent = stream.sent.wrapping_add(written as u8);
            }
            6 if stream.pending => {
                ring.submit_and_wait(&[cancel(1 << 32, index as u64, 0)], 1);
            }
            7 if !stream.pending && action & 128 == 0 => {
                let old = std::mem::replace(stream, Stream::new());
                close(ring.engine, old.far.into_raw_fd());
            }
            _ => {
                ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
            }
        }
        collect(&mut ring, &mut streams);
    }
    // What still waits gets its data.
    for index in 0..streams.len() {
        let stream = &mut streams[index];
        if stream.pending {
            let sent = stream.sent;
            assert_eq!(stream.near.write(&[sent]).unwrap(), 1);
            stream.sent = sent.wrapping_add(1);
        }
        while streams[index].pending {
            assert_eq!(ring.enter_with(0, 1, IORING_ENTER_GETEVENTS), 0);
            collect(&mut ring, &mut streams);
        }
    }
}

fn command(user_data: u64, fd: i32, operation: io_uring_socket_op) -> Sqe {
    Sqe { fd, off: operation as u64, ..sqe(IORING_OP_URING_CMD, user_data) }
}

/// Linux 7.1 was the first to answer.
#[both(4, IORING_SETUP_IOPOLL)]
fn sockets_are_not_polled_for_commands(mut ring: Ring) -> impl Answer {
    let (socket, _peer) = tcp_pair();
    ring.run(&[command(1, socket.as_raw_fd(), io_uring_socket_op::SOCKET_URING_OP_SIOCINQ)])
}

#[both(8, IORING_SETUP_SUBMIT_ALL)]
fn sockets_answer_commands(mut ring: Ring) -> impl Answer {
    use io_uring_socket_op::*;
    let (a, b) = tcp_pair();
    let (unix, _peer) = UnixStream::pair().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ring_after_send(&mut ring, &a, 9);
    let mut value = [0i32; 2];
    let option = |fd, operation, level: i32, name: i32, value: &mut [i32; 2]| Sqe {
        addr: level as u64 | (name as u64) << 32,
        file_index: 4,
        addr3: value.as_mut_ptr() as u64,
        ..command(1, fd, operation)
    };
    let (get, set) = (SOCKET_URING_OP_GETSOCKOPT, SOCKET_URING_OP_SETSOCKOPT);
    let mut all = ring.one_by_one(&[
        command(2, b.as_raw_fd(), SOCKET_URING_OP_SIOCINQ),
        command(3, b.as_raw_fd(), SOCKET_URING_OP_SIOCOUTQ),
        command(4, unix.as_raw_fd(), SOCKET_URING_OP_SIOCINQ),
        command(5, listener.as_raw_fd(), SOCKET_URING_OP_SIOCINQ),
    ]);
    let fd = a.as_raw_fd();
    all.extend(ring.run(&[option(fd, get, libc::SOL_SOCKET, libc::SO_TYPE, &mut value)]));
    let kind = value[0];
    value = [1, 0];
    all.extend(ring.one_by_one(&[
        option(fd, set, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &mut value),
        option(fd, set, libc::IPPROTO_TCP, libc::TCP_NODELAY, &mut value),
    ]));
    value = [0, 0];
    all.extend(ring.one_by_one(&[
        option(fd, get, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &mut value),
        option(fd, get, libc::SOL_SOCKET, 9999, &mut value),
    ]));
    let executable = File::open("/proc/self/exe").unwrap();
    let null = File::open("/dev/null").unwrap();
    all.extend(ring.run(&[
        command(6, executable.as_raw_fd(), get),
        command(10, null.as_raw_fd(), get),
        Sqe { off: 77, ..command(11, null.as_raw_fd(), get) },
        command(7, 9999, get),
        Sqe { off: 77, ..command(8, fd, get) },
        Sqe { off: 1 << 32, ..command(9, fd, get) },
    ]));
    (all, kind, value)
}

/// Descriptors between them keep the bytes of two messages apart: a short read is not the end.
#[both(8, 0)]
fn a_short_read_of_a_unix_stream_may_leave_some(mut ring: Ring) -> impl Answer {
    let (mut a, b) = UnixStream::pair().unwrap();
    // A registered file is never looked at again by the way.
    ring.register_files(&[b.as_raw_fd()]);
    let mut all = Vec::new();
    for read in [IORING_OP_RECV, IORING_OP_READ] {
        let mut buffer = [0; 16];
        let receive = Sqe { opcode: read as u8, flags: 1, ..recv(1, 0, &mut buffer) };
        // Registers the socket.
        ring.submit(&[receive]);
        a.write_all(b"first").unwrap();
        all.push(ring.wait().res);
        let mut text = *b"with a descriptor";
        let mut control = [20, libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32, 0];
        control[2] = a.as_raw_fd() as u64;
        let mut outward = header(&mut [&mut text[..6]]);
        outward.raw.msg_control = control.as_mut_ptr().cast();
        outward.raw.msg_controllen = 20;
        all.extend(ring.run(&[message(IORING_OP_SENDMSG, 2, a.as_raw_fd(), &outward)]).iter().map(|c| c.res));
        a.write_all(b"plain").unwrap();
        for _ in 0..2 {
            ring.submit_and_wait(&[receive], 1);
            all.push(ring.wait().res);
        }
    }
    all
}

/// A descriptor ends a receive, whose rest waits. One request polls first, as those of a program do that decides by the flag.
#[both(8, 0)]
fn a_short_receive_tells_of_the_rest(mut ring: Ring) -> impl Answer {
    let (mut a, b) = UnixStream::pair().unwrap();
    let mut text = *b"with a descriptor";
    let mut control = [20, libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32, b.as_raw_fd() as u64];
    let mut outward = header(&mut [&mut text]);
    (outward.raw.msg_control, outward.raw.msg_controllen) = (control.as_mut_ptr().cast(), 20);
    let mut all = ring.run(&[message(IORING_OP_SENDMSG, 1, a.as_raw_fd(), &outward)]);
    a.write_all(b"plain").unwrap();
    let mut buffer = [0; 32];
    let receive = recv(2, b.as_raw_fd(), &mut buffer);
    let polls_first = Sqe { ioprio: IORING_RECVSEND_POLL_FIRST as u16, ..receive };
    all.extend(ring.one_by_one(&[polls_first, receive]));
    all
}

/// A request that is to poll first, and is ready, is done when the call returns, whether that waits or not.
#[both(4, 0)]
fn polling_first_takes_no_second_call(mut ring: Ring) -> impl Answer {
    let (a, mut b) = UnixStream::pair().unwrap();
    ring.submit(&[Sqe { ioprio: IORING_RECVSEND_POLL_FIRST as u16, ..send(1, a.as_raw_fd(), b"now") }]);
    a.shutdown(std::net::Shutdown::Write).unwrap();
    let mut arrived = Vec::new();
    b.read_to_end(&mut arrived).unwrap();
    (arrived, ring.wait())
}

/// A fresh connection on which a receive waits is not watched for room until somebody waits for that, too.
#[both(8, 0)]
fn room_is_waited_for_beside_a_receive(mut ring: Ring) -> impl Answer {
    const LENGTH: usize = 16 << 20;
    ring.register_files(&[-1; 2]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ioprio = IORING_ACCEPT_MULTISHOT as u16;
    let file_index = IORING_FILE_INDEX_ALLOC as u32;
    ring.submit(&[Sqe { file_index, ioprio, ..accept(1, listener.as_raw_fd()) }]);
    let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let slot = ring.wait().res;
    let mut all = vec![slot];
    let (memory, mut buffer) = (vec![7; LENGTH], [0; 8]);
    for polls in [false, true] {
        ring.submit(&[Sqe { flags: FIXED, ..recv(2, slot, &mut buffer) }]);
        let op_flags = libc::MSG_WAITALL as u32;
        ring.submit(&[Sqe { flags: FIXED, op_flags, ..send(3, slot, &memory) }]);
        if polls {
            ring.submit(&[Sqe { flags: FIXED, ..poll(4, &slot, libc::POLLOUT) }]);
        }
        assert!(ring.reap().is_none());
        peer.read_exact(&mut vec![0; LENGTH]).unwrap();
        let cqes = by_user_data(ring.collect(if polls { 2 } else { 1 }));
        all.extend(cqes.iter().map(|cqe| cqe.res & !(libc::POLLIN as i32)));
        peer.write_all(b"back").unwrap();
        all.push(ring.wait().res);
    }
    all
}

/// Sends all of these in one submission; returns what came of them, and what arrived.
fn run_datagrams(ring: &mut Ring, to: &UdpSocket, sqes: &[Sqe]) -> (Vec<Cqe>, Vec<Vec<u8>>) {
    let cqes = ring.run(sqes);
    let mut arrived = Vec::new();
    let mut datagram = [0; 65536];
    to.set_nonblocking(true).unwrap();
    while let Ok(length) = to.recv(&mut datagram) {
        arrived.push(datagram[..length].to_vec());
    }
    (cqes, arrived)
}

#[both]
fn datagrams_of_one_submission_stay_what_they_are(engine: Engine) -> impl Answer {
    let mut all = Vec::new();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let mut ring = Ring::new(engine, 128, IORING_SETUP_SUBMIT_ALL);
        let to = UdpSocket::bind(address).unwrap();
        let from = UdpSocket::bind(address).unwrap();
        from.connect(to.local_addr().unwrap()).unwrap();
        let (tcp, _peer) = tcp_pair();
        let memory: Vec<u8> = (0..70_000u32).map(|i| (i % 251) as u8).collect();
        let datagram = |i: usize, length: usize| send(i as u64, from.as_raw_fd(), &memory[i..i + length]);
        let of_lengths = |lengths: &[usize]| -> Vec<Sqe> {
            lengths.iter().enumerate().map(|(i, &length)| datagram(i, length)).collect()
        };
        all.push(run_datagrams(&mut ring, &to, &of_lengths(&[200; 8])));
        all.push(run_datagrams(&mut ring, &to, &of_lengths(&[200; 100])));
        let mut whole = of_lengths(&[200; 9]);
        whole.iter_mut().step_by(2).for_each(|sqe| sqe.op_flags = libc::MSG_WAITALL as u32);
        all.push(run_datagrams(&mut ring, &to, &whole));
        all.push(run_datagrams(&mut ring, &to, &of_lengths(&[200, 200, 100, 200, 300, 300, 0, 5, 5, 5])));
        all.push(run_datagrams(&mut ring, &to, &of_lengths(&[100, 100, 66_000, 100, 100])));
        all.push(run_datagrams(&mut ring, &to, &of_lengths(&[4000; 20])));
        all.push(run_datagrams(&mut ring, &to, &of_lengths(&[16_000, 16_000, 16_000, 16_000, 15_000])));
        all.push(run_datagrams(&mut ring, &to, &of_lengths(&[32_500, 32_500, 32_501])));
        let mut mixed = of_lengths(&[50; 12]);
        mixed[2] = sqe(IORING_OP_NOP, 2);
        mixed[4].flags = LINK;
        mixed[6].fd = tcp.as_raw_fd();
        mixed[8].addr = 8;
        mixed[10].ioprio = 1 << 9;
        all.push(run_datagrams(&mut ring, &to, &mixed));
    }
    all
}

#[both(16, 0)]
fn an_error_of_earlier_datagrams_is_told_once(mut ring: Ring) -> impl Answer {
    let (closed, from) = udp_connected();
    drop(closed);
    let first = ring.run(&[send(1, from.as_raw_fd(), b"x")])[0].res;
    // What is refused meanwhile depends on whether they leave together.
    let next = ring.run(&[2, 3, 4].map(|user_data| send(user_data, from.as_raw_fd(), b"x")));
    (first, next[0])
}

/// On a ring that defers, what readiness has woken goes on when the program comes: with its own file.
#[both(4, DEFER)]
fn a_descriptor_may_be_closed_between_its_event_and_its_receive(mut ring: Ring) -> impl Answer {
    let mut event = File::from(eventfd(0, libc::EFD_CLOEXEC));
    ring.register_eventfd(&event);
    let (mut peer, here) = UnixStream::pair().unwrap();
    let (mut other_peer, other) = UnixStream::pair().unwrap();
    let number = numbered(&here, 710);
    let mut buffer = [0; 8];
    ring.submit(&[recv(1, number, &mut buffer)]);
    peer.write_all(b"mine").unwrap();
    other_peer.write_all(b"another's").unwrap();
    event.read_exact(&mut [0; 8]).unwrap();
    closes(ring.engine, number);
    replace(&number, &other);
    let cqes = ring.waited(1);
    close_number(number);
    (cqes, buffer)
}

/// A multishot request keeps the listener until it ends, and no longer.
#[both(4, 0)]
fn a_listener_ends_with_the_last_request_on_it(mut ring: Ring) -> impl Answer {
    let (listener, address) = listening();
    let fd = listener.into_raw_fd();
    ring.submit(&[Sqe { ioprio: IORING_ACCEPT_MULTISHOT as u16, ..accept(1, fd) }]);
    let first = TcpStream::connect(address).unwrap();
    let _first = owned(ring.wait().res);
    close(ring.engine, fd);
    let second = TcpStream::connect(address).unwrap();
    let _second = owned(ring.wait().res);
    ring.submit_and_wait(&[cancel(2, 1, 0)], 2);
    let results = results(&ring.reap_all());
    drop((first, second));
    (results, TcpStream::connect(address).map(|_| ()).map_err(|error| error.kind()))
}

/// A descriptor of a connection that stood at once, which nothing waits for by readiness, may be closed, too.
#[both(4, DEFER)]
fn a_descriptor_may_be_closed_before_its_connection_is_told(mut ring: Ring) -> impl Answer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = address_of(listener.local_addr().unwrap());
    let number = numbered(&socket(libc::AF_INET, libc::SOCK_STREAM), 720);
    ring.submit(&[connect(1, &number, &address)]);
    close(ring.engine, number);
    ring.waited(1)
}

#[both(4, 0)]
fn a_receive_finds_what_came_while_others_were_cancelled(mut ring: Ring) -> impl Answer {
    let (mut peer, here) = UnixStream::pair().unwrap();
    let mut buffer = [0; 8];
    let pair = [recv(1, here.as_raw_fd(), &mut buffer), cancel(2, 1, 0)];
    let cancelled = ring.run(&pair);
    peer.write_all(b"come").unwrap();
    (cancelled, ring.run(&pair), buffer)
}

/// Requests that wait on a connection that is closed on the spot keep it, in the same ring and in another, and nothing
/// keeps it for longer.
#[both]
fn a_connection_is_closed_under_what_waits_on_it(engine: Engine) -> impl Answer {
    [false, true].map(|elsewhere| {
        let (mut ring, mut other) = (Ring::new(engine, 8, 0), Ring::new(engine, 8, 0));
        let (mut client, server) = tcp_pair();
        // It is received from after it is closed, too.
        let fd = numbered(&server, 730);
        drop(server);
        let (mut first, mut second) = ([0; 64], [0; 64]);
        // A short one shows that it is a connection.
        ring.submit(&[recv(1, fd, &mut first)]);
        client.write_all(b"short").unwrap();
        let mut all = vec![ring.wait()];
        (if elsewhere { &mut other } else { &mut ring }).submit(&[recv(2, fd, &mut second)]);
        all.extend(ring.run(&[Sqe { fd, ..sqe(IORING_OP_CLOSE, 3) }, recv(4, fd, &mut first)]));
        client.write_all(b"late").unwrap();
        all.push((if elsewhere { &mut other } else { &mut ring }).wait());
        assert_eq!(&second[..5], b"late\0");
        (results(&all), client.read(&mut first).unwrap())
    })
}

/// Receives that complete by their SQE alone say all that others do.
#[both(8, 0)]
fn receives_of_all_that_was_asked_for(mut ring: Ring) -> impl Answer {
    let (mut client, server) = tcp_pair();
    let fd = server.as_raw_fd();
    let mut buffer = [0; 8];
    let all_of = |user_data, flags: i32, ioprio: u32, buffer: &mut [u8]| Sqe {
        op_flags: flags as u32,
        ioprio: ioprio as u16,
        ..recv(user_data, fd, buffer)
    };
    let (whole, quiet) = (libc::MSG_WAITALL, libc::MSG_NOSIGNAL);
    let mut all = Vec::new();
    client.write_all(&[1; 8]).unwrap();
    all.extend(ring.run(&[all_of(1, whole, 0, &mut buffer)]));
    client.write_all(&[2; 20]).unwrap();
    all.extend(ring.one_by_one(&[
        all_of(2, whole | quiet, IORING_RECVSEND_POLL_FIRST, &mut buffer),
        all_of(3, quiet, 0, &mut buffer),
        all_of(4, 0, IORING_RECVSEND_POLL_FIRST, &mut buffer),
    ]));
    ring.submit(&[all_of(5, whole, IORING_RECVSEND_POLL_FIRST, &mut buffer)]);
    for part in [&[3; 5][..], &[4; 3]] {
        client.write_all(part).unwrap();
        ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
    }
    all.push(ring.wait());
    assert_eq!(buffer, [3, 3, 3, 3, 3, 4, 4, 4]);
    // An end behind what fills the buffer is told of, one before it is is told with what there is.
    client.write_all(&[5; 8]).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    all.extend(ring.one_by_one(&[all_of(6, 0, 0, &mut buffer), all_of(7, whole, 0, &mut buffer)]));
    all
}

/// There is nothing to wait for, even where the socket is known to have no data.
#[both(8, 0)]
fn urgent_data_that_are_not_there_are_refused_at_once(mut ring: Ring) -> impl Answer {
    let (tcp, _peer) = tcp_pair();
    let (unix, _other) = UnixStream::pair().unwrap();
    let (mut one, mut two) = ([0; 8], [0; 8]);
    [tcp.as_raw_fd(), unix.as_raw_fd()].map(|fd| {
        ring.submit(&[recv(1, fd, &mut one)]);
        let urgent = Sqe { op_flags: libc::MSG_OOB as u32, ..recv(2, fd, &mut two) };
        results(&ring.run(&[urgent]))
    })
}

fn is_nonblocking(fd: i32) -> bool {
    flags_of(&fd) & libc::O_NONBLOCK != 0
}

#[both]
fn a_listener_keeps_its_flags(engine: Engine) -> impl Answer {
    let mut seen = Vec::new();
    for nonblocking in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(nonblocking).unwrap();
        let (fd, address) = (listener.as_raw_fd(), listener.local_addr().unwrap());
        let mut ring = Ring::new(engine, 8, 0);
        let mut look = |ring: &mut Ring, sqe: Sqe| {
            // Nobody waits yet, then somebody does, then nobody.
            ring.submit(&[sqe]);
            seen.push(is_nonblocking(fd));
            let client = TcpStream::connect(address).unwrap();
            for accepted in ring.collect(1) {
                drop(owned(accepted.res));
            }
            seen.push(is_nonblocking(fd));
            client
        };
        drop(look(&mut ring, accept(1, fd)));
        let multishot = Sqe { ioprio: IORING_ACCEPT_MULTISHOT as u16, ..accept(2, fd) };
        drop(look(&mut ring, multishot));
        // Without anybody who waits, and at once.
        let at_once = Sqe { ioprio: IORING_ACCEPT_DONTWAIT as u16, ..accept(3, fd) };
        seen.push(ring.run(&[at_once])[0].res == -libc::EAGAIN);
        seen.push(is_nonblocking(fd));
    }
    seen
}

/// An `accept` of another thread waited no longer once a ring had accepted.
#[both(8, 0)]
fn who_accepts_beside_a_ring_waits(mut ring: Ring) -> impl Answer {
    let (listener, address) = listening();
    let fd = listener.as_raw_fd();
    let first = TcpStream::connect(address).unwrap();
    drop(owned(ring.run(&[accept(1, fd)])[0].res));
    let (tell, number) = std::sync::mpsc::channel();
    let beside = std::thread::spawn(move || {
        tell.send(thread_id()).unwrap();
        listener.accept().map(drop).map_err(|error| error.kind())
    });
    asleep_or(number.recv().unwrap(), || beside.is_finished());
    drop((first, TcpStream::connect(address).unwrap()));
    beside.join().unwrap()
}

/// Threads and a child accept from one listener that blocks, each on a ring of its own: none of them is left in an `accept`
/// that finds nobody, where its ring would do nothing else.
#[both]
fn many_rings_on_one_listener(engine: Engine) -> impl Answer {
    const CONNECTIONS: usize = 300;
    let (listener, address) = listening();
    let fd = listener.as_raw_fd();
    let (mut told, tell) = std::io::pipe().unwrap();
    let serve = |stop: i32, tell: &std::io::PipeWriter| {
        let mut ring = Ring::new(engine, 8, 0);
        // The ring still does something else: it hears of the end.
        ring.push(poll(1, &stop, libc::POLLIN));
        ring.push(accept(2, fd));
        let mut to_submit = 2;
        loop {
            ring.enter(std::mem::take(&mut to_submit), 1);
            for cqe in ring.reap_all() {
                if cqe.user_data == 1 {
                    return true;
                }
                drop(owned(cqe.res));
                (&mut &*tell).write_all(&[1]).unwrap();
                ring.push(accept(2, fd));
                to_submit += 1;
            }
        }
    };
    let (stop, stopper) = std::io::pipe().unwrap();
    let stop = &stop;
    let other = child(|| serve(stop.as_raw_fd(), &tell));
    std::thread::scope(|scope| {
        let serve = &serve;
        let servers = [(); 2].map(|()| {
            let tell = tell.try_clone().unwrap();
            scope.spawn(move || serve(stop.as_raw_fd(), &tell))
        });
        for _ in 0..CONNECTIONS {
            drop(TcpStream::connect(address).unwrap());
        }
        let mut each = vec![0; CONNECTIONS];
        told.read_exact(&mut each).unwrap();
        (&stopper).write_all(&[1]).unwrap();
        until("the threads hear of the end", || servers.iter().all(|server| server.is_finished()));
        // The end of the scope would do, but ThreadSanitizer does not see what that orders.
        servers.into_iter().for_each(|server| drop(server.join()));
    });
    let mut status = 0;
    // SAFETY: asks for the end of a child of ours.
    until("the child hears of the end", || unsafe {
        libc::waitpid(other, &mut status, libc::WNOHANG) == other
    });
    assert_eq!(status, 0);
    is_nonblocking(fd)
}

/// A ring is not handed over by a socket; to one that hands nothing over it is of no concern.
#[test]
fn messages_carry_no_rings() {
    #[repr(C)]
    struct Rights {
        header: libc::cmsghdr,
        descriptor: i32,
        padding: i32,
    }
    both(|engine| {
        let mut ring = Ring::new(engine, 8, 0);
        let (a, _b) = UnixStream::pair().unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.connect(udp.local_addr().unwrap()).unwrap();
        let mut all = Vec::new();
        for (socket, descriptor) in
            [(a.as_raw_fd(), ring.fd), (a.as_raw_fd(), udp.as_raw_fd()), (udp.as_raw_fd(), ring.fd)]
        {
            let header =
                libc::cmsghdr { cmsg_len: 20, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SCM_RIGHTS };
            let mut rights = Rights { header, descriptor, padding: 0 };
            let byte = [vector(b"x")];
            let mut message = message_of(&byte);
            (message.msg_control, message.msg_controllen) = ((&raw mut rights).cast(), size_of::<Rights>());
            let addr = (&raw const message) as u64;
            all.extend(ring.run(&[Sqe { fd: socket, addr, len: 1, ..sqe(IORING_OP_SENDMSG, 1) }]));
        }
        all
    });
}

/// A connection from whose other end the ring has received before: it knows that there is nothing.
fn known_pair(ring: &mut Ring) -> (TcpStream, TcpStream) {
    let (mut one, other) = tcp_pair();
    let mut buffer = [0; 8];
    ring.submit(&[recv(0, other.as_raw_fd(), &mut buffer)]);
    one.write_all(b"hello").unwrap();
    assert_eq!(ring.wait().res, 5);
    (one, other)
}

#[both(8, DEFER)]
fn receives_that_may_not_wait_for_a_known_connection(mut ring: Ring) -> impl Answer {
    let (mut one, other) = known_pair(&mut ring);
    let mut buffer = [0; 8];
    let receive = recv(1, other.as_raw_fd(), &mut buffer);
    let with = |flags: i32| Sqe { op_flags: flags as u32, ..receive };
    let mut all = ring.one_by_one(&[
        with(libc::MSG_OOB),
        with(libc::MSG_DONTWAIT),
        with(libc::MSG_OOB | libc::MSG_WAITALL),
    ]);
    one.write_all(b"hello").unwrap();
    all.extend(ring.run(&[receive]));
    all
}

/// A request that a drain holds back goes on as soon as that ends for which it waits, however that was done.
#[both(8, DEFER)]
fn a_drain_behind_a_receive_that_waits(mut ring: Ring) -> impl Answer {
    let (mut one, other) = known_pair(&mut ring);
    let mut all = Vec::new();
    for _ in 0..3 {
        let mut buffer = [0; 8];
        ring.submit(&[recv(1, other.as_raw_fd(), &mut buffer)]);
        ring.submit(&[Sqe { flags: DRAIN, ..sqe(IORING_OP_NOP, 2) }]);
        one.write_all(b"again").unwrap();
        all.extend([ring.wait(), ring.wait()]);
    }
    all
}

/// A socket that has begun to connect to a listener, or to where none is.
fn connecting(ring: &mut Ring, address: &libc::sockaddr_in) -> OwnedFd {
    let socket = socket(libc::AF_INET, libc::SOCK_STREAM);
    ring.submit(&[connect(1, &socket, address)]);
    socket
}

#[both(8, DEFER)]
fn connections_that_the_program_has_a_hand_in(mut ring: Ring) -> impl Answer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = address_of(listener.local_addr().unwrap());
    let socket = connecting(&mut ring, &address);
    // It hears of the connection before the ring does.
    // SAFETY: reads an address of ours.
    let connected = unsafe {
        libc::connect(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), size_of_val(&address) as u32)
    };
    let made = ring.wait();
    drop(listener);
    let refused = connecting(&mut ring, &address);
    let (mut error, mut length) = (0i32, 4u32);
    // It takes the error away from the ring, which tries once more.
    until("the connection is refused", || {
        let (error_at, length_at) = ((&raw mut error).cast(), &raw mut length);
        // SAFETY: writes integers of ours.
        unsafe {
            libc::getsockopt(refused.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR, error_at, length_at)
        };
        error != 0
    });
    (connected, made, error, ring.wait())
}

/// A request behind the second of a chain is part of it, though the first is done before they are looked at together.
#[both(8, DEFER)]
fn a_chain_of_three_breaks_behind_its_second(mut ring: Ring) -> impl Answer {
    let (one, other) = known_pair(&mut ring);
    let mut buffer = [0; 8];
    let first = Sqe { flags: LINK, ..send(1, one.as_raw_fd(), b"hello") };
    let fails =
        Sqe { flags: LINK, op_flags: libc::MSG_DONTWAIT as u32, ..recv(2, one.as_raw_fd(), &mut buffer) };
    let all = ring.run(&[first, fails, sqe(IORING_OP_NOP, 3)]);
    drop(other);
    results(&all)
}

/// A datagram that is cut off makes a request that wants all of it fail, and breaks its chain; one that is not, does not.
#[both(8, 0)]
fn datagrams_that_are_wanted_as_a_whole(mut ring: Ring) -> impl Answer {
    let (receiver, sender) = udp_pair();
    let mut all = Vec::new();
    for length in [4, 5, 6] {
        let mut buffer = [0u8; 5];
        let whole = recv(1, receiver.as_raw_fd(), &mut buffer);
        let mut pieces = buffer;
        let into = header(&mut [&mut pieces]);
        let message = message(IORING_OP_RECVMSG, 1, receiver.as_raw_fd(), &into);
        for request in [whole, message] {
            for op_flags in [0, libc::MSG_WAITALL as u32] {
                sender.send_to(&[7; 6][..length], receiver.local_addr().unwrap()).unwrap();
                let first = Sqe { flags: LINK, op_flags, ..request };
                all.push(results(&ring.run(&[first, sqe(IORING_OP_NOP, 2)])));
            }
        }
    }
    all
}

#[both(8, IORING_SETUP_SUBMIT_ALL)]
fn messages_whose_address_is_none(mut ring: Ring) -> impl Answer {
    let (_receiver, sender) = udp_connected();
    let mut text = *b"hello";
    let mut outward = header(&mut [&mut text]);
    let mut all = Vec::new();
    for (name, length) in [(0usize, 16u32), (8, 0), (0, 0), (8, 16), (8, 1 << 31)] {
        outward.raw.msg_name = name as *mut _;
        outward.raw.msg_namelen = length;
        let sent = ring.run(&[message(IORING_OP_SENDMSG, 1, sender.as_raw_fd(), &outward)]);
        all.extend(results(&sent));
    }
    all
}

/// Nothing comes but an error, which does not make the socket readable.
#[both(8, 0)]
fn an_error_queue_is_waited_for(mut ring: Ring) -> impl Answer {
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    set_option(&sender, libc::SOL_IP, libc::IP_RECVERR, 1);
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    sender.connect(gone).unwrap();
    let mut buffer = [0u8; 8];
    let into = header(&mut [&mut buffer]);
    let op_flags = libc::MSG_ERRQUEUE as u32;
    ring.submit(&[Sqe { op_flags, ..message(IORING_OP_RECVMSG, 1, sender.as_raw_fd(), &into) }]);
    let early = ring.reap_all();
    sender.send(b"hello").unwrap();
    (early, ring.wait(), into.raw.msg_flags)
}

/// Data does not make the error queue ready. But the kernel is woken by it, and gives up.
#[both(8, 0)]
fn an_error_queue_is_not_waited_for_beside_data(mut ring: Ring) -> impl Answer {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(socket.local_addr().unwrap()).unwrap();
    let mut buffer = [0u8; 8];
    let op_flags = libc::MSG_ERRQUEUE as u32;
    let errors = Sqe { op_flags, ..recv(1, socket.as_raw_fd(), &mut buffer) };
    ring.submit(&[errors]);
    let early = ring.reap_all();
    socket.send(b"x").unwrap();
    let after = ring.wait();
    ring.submit(&[errors]);
    (early, after, ring.wait())
}

/// An attempt at one listener may not come to its end: its process is stopped, or it waits for a page, as here. Requests
/// on other listeners go on, and so does CONNECT.
#[test]
fn an_accept_that_is_held_up_holds_up_no_other() {
    if Missing::new().is_none() {
        return skip(NO_MISSING);
    }
    both(|engine| {
        let missing = Missing::new().expect("there was one");
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let clients = listeners
            .each_ref()
            .map(|listener| [(); 2].map(|()| TcpStream::connect(listener.local_addr().unwrap()).unwrap()));
        let held = listeners[0].as_raw_fd();
        let answers = std::thread::scope(|scope| {
            let address = missing.address() as u64;
            scope.spawn(move || {
                let mut length = 16u32;
                let mut ring = Ring::new(engine, 4, 0);
                let off = &raw mut length as u64;
                assert!(ring.run(&[Sqe { addr: address, off, ..accept(1, held) }])[0].res >= 0);
            });
            missing.await_demand();
            let mut ring = Ring::new(engine, 4, 0);
            let fd = listeners[1].as_raw_fd();
            let mut answers = vec![ring.run(&[accept(2, fd)])[0].res];
            ring.submit_and_wait(&[Sqe { ioprio: IORING_ACCEPT_MULTISHOT as u16, ..accept(3, fd) }], 1);
            answers.extend(ring.reap_all().iter().map(|cqe| cqe.res));
            let late = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = socket(libc::AF_INET, libc::SOCK_STREAM);
            let address = address_of(late.local_addr().unwrap());
            answers.push(ring.run(&[connect(4, &client, &address)])[0].res);
            missing.give();
            answers
        });
        drop(clients);
        answers.into_iter().map(|answer| answer.min(1)).collect::<Vec<_>>()
    });
}

/// A poll does not tell of less data than the socket's low-water mark, but a receive takes them.
#[both]
fn a_receive_takes_less_than_the_low_water_mark(engine: Engine) -> impl Answer {
    let mut all = Vec::new();
    for from_the_beginning in [true, false] {
        let mut ring = Ring::new(engine, 8, 0);
        let (mut client, server) = tcp_pair();
        client.set_nodelay(true).unwrap();
        let set_mark = || {
            let fd = server.as_raw_fd();
            if engine == Engine::User && frontend::sets_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
                frontend::changes_kind(fd);
            }
            set_option(&server, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 100);
        };
        let mut memory = [0u8; 200];
        let receive = reading(IORING_OP_RECV, 1, &server, &mut memory);
        if from_the_beginning {
            set_mark();
        }
        ring.submit(&[receive]);
        client.write_all(&[1; 100]).unwrap();
        all.push(ring.collect(1));
        if !from_the_beginning {
            set_mark();
        }
        client.write_all(&[2; 50]).unwrap();
        let (mut peeked, flags) = ([0u8; 200], libc::MSG_PEEK | libc::MSG_DONTWAIT);
        // SAFETY: writes into memory of ours.
        let mut peek = || unsafe { libc::recv(server.as_raw_fd(), peeked.as_mut_ptr().cast(), 200, flags) };
        until("the data are there", || peek() == 50);
        ring.submit_and_wait(&[Sqe { user_data: 2, ..receive }, nop(3, 0)], 1);
        all.push(by_user_data(ring.reap_all()));
    }
    all
}
