//! Transfers over sockets in all their shapes, on both engines: how much there is and how much is asked for, how, from
//! whom, and what the peer did then.

use crate::common::prelude::*;

const CANCEL_DATA: u64 = 999;
const GROUP: u16 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Tcp,
    Unix,
    Udp,
    UnixDatagrams,
}

use Kind::{Tcp, Udp, Unix, UnixDatagrams};

const KINDS: [Kind; 4] = [Tcp, Unix, Udp, UnixDatagrams];

/// The peer's behaviour when it has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    Stays,
    SendsNoMore,
    IsGone,
}

fn pair(kind: Kind) -> (OwnedFd, OwnedFd) {
    match kind {
        Tcp => {
            let (one, other) = tcp_pair();
            one.set_nodelay(true).unwrap();
            (one.into(), other.into())
        }
        Udp => {
            let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
            let (one, other) = (bind(), bind());
            one.connect(other.local_addr().unwrap()).unwrap();
            other.connect(one.local_addr().unwrap()).unwrap();
            (one.into(), other.into())
        }
        Unix => {
            let (one, other) = UnixStream::pair().unwrap();
            (one.into(), other.into())
        }
        UnixDatagrams => {
            let (one, other) = UnixDatagram::pair().unwrap();
            (one.into(), other.into())
        }
    }
}

fn feed(fd: &OwnedFd, length: usize) {
    let data = pattern(length);
    // SAFETY: reads memory of ours.
    let sent = unsafe { libc::send(fd.as_raw_fd(), data.as_ptr().cast(), length, 0) };
    assert_eq!(sent, length as isize);
}

fn act(fd: OwnedFd, then: Then) -> Option<OwnedFd> {
    match then {
        Then::Stays => Some(fd),
        Then::SendsNoMore => {
            // SAFETY: touches no memory.
            unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_WR) };
            Some(fd)
        }
        Then::IsGone => None,
    }
}

/// Waits for more. What is left of a ring of the kernel may interrupt the thread that had it.
fn collect(ring: &mut Ring) -> Vec<Cqe> {
    loop {
        let cqes = ring.reap_all();
        if !cqes.is_empty() {
            return cqes;
        }
        assert!([0, -libc::EINTR].contains(&ring.enter(0, 1)));
    }
}

/// Submits one, cancels it where it waits; its completions.
fn run_or_cancel(ring: &mut Ring, sqe_: Sqe) -> Vec<Cqe> {
    ring.push(sqe_);
    assert_eq!(ring.enter_with(1, 0, IORING_ENTER_GETEVENTS), 1);
    let mut cqes = ring.reap_all();
    // The CQE of a send without a copy says that its notification follows.
    let follows = [IORING_OP_SEND_ZC as u8, IORING_OP_SENDMSG_ZC as u8].contains(&sqe_.opcode);
    let ends = |cqe: &Cqe| {
        cqe.user_data != CANCEL_DATA
            && cqe.flags & IORING_CQE_F_NOTIF == 0
            && (follows || cqe.flags & IORING_CQE_F_MORE == 0)
    };
    let is_cancel = |cqe: &Cqe| cqe.user_data == CANCEL_DATA;
    if !cqes.iter().any(ends) {
        ring.submit_and_wait(&[Sqe { addr: sqe_.user_data, ..sqe(IORING_OP_ASYNC_CANCEL, CANCEL_DATA) }], 1);
        cqes.extend(ring.reap_all());
        while !(cqes.iter().any(ends) && cqes.iter().any(is_cancel)) {
            cqes.extend(collect(ring));
        }
    }
    cqes.sort_by_key(|cqe| cqe.user_data == CANCEL_DATA);
    cqes
}

/// The outcome of each shape: completions, and what was received.
type Outcomes = Vec<(Case, (Vec<Cqe>, Vec<u8>))>;

/// [`both`], with the shapes by what comes of them. `of` is what they have in common.
fn both_shapes(of: &str, body: impl Fn(Engine) -> Outcomes) {
    both(|engine| (Case(of.to_owned()), by_outcome(body(engine))));
}

fn receives(engine: Engine, kind: Kind) -> Outcomes {
    const FLAGS: [i32; 6] = [
        0,
        libc::MSG_WAITALL,
        libc::MSG_PEEK,
        libc::MSG_TRUNC,
        libc::MSG_DONTWAIT,
        libc::MSG_PEEK | libc::MSG_WAITALL,
    ];
    let mut all = Vec::new();
    let mut ring = Ring::new(engine, 8, 0);
    for there in [0, 1, 100, 5000] {
        for asked in [1, 99, 100, 101, 6000] {
            // Of a stream it gets the same bytes again and again: how often is nobody's contract.
            let streams = matches!(kind, Tcp | Unix);
            for flags in
                FLAGS.into_iter().filter(|&flags| !streams || flags != libc::MSG_PEEK | libc::MSG_WAITALL)
            {
                for ioprio in [0, IORING_RECVSEND_POLL_FIRST as u16] {
                    for then in [Then::Stays, Then::SendsNoMore, Then::IsGone] {
                        let (peer, socket) = pair(kind);
                        if there > 0 {
                            feed(&peer, there);
                        }
                        let peer = act(peer, then);
                        let mut buffer = vec![0; asked];
                        let receive = Sqe {
                            len: asked as u32,
                            op_flags: flags as u32,
                            ioprio,
                            ..reading(IORING_OP_RECV, 1, &socket, &mut buffer)
                        };
                        let cqes = run_or_cancel(&mut ring, receive);
                        let what = format!("{asked} of {there} flags {flags:#x} ioprio {ioprio} {then:?}");
                        all.push((Case(what), (cqes, buffer)));
                        drop(peer);
                        frontend::closed(socket.as_raw_fd());
                    }
                }
            }
        }
    }
    all
}

#[test]
fn receives_over_tcp() {
    both_shapes("Tcp", |engine| receives(engine, Tcp));
}

#[test]
fn receives_from_unix_sockets() {
    both_shapes("Unix", |engine| receives(engine, Unix));
}

#[test]
fn receives_of_datagrams() {
    both_shapes("Udp", |engine| receives(engine, Udp));
    both_shapes("UnixDatagrams", |engine| receives(engine, UnixDatagrams));
}

/// A message that comes with control data: where from, or how many were lost.
fn talkative_pair(kind: Kind) -> (OwnedFd, OwnedFd) {
    let (peer, socket) = pair(kind);
    if kind == Udp {
        set_option(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1);
        set_option(&socket, libc::IPPROTO_IP, libc::IP_RECVTTL, 1);
    } else if kind != Tcp {
        set_option(&socket, libc::SOL_SOCKET, libc::SO_PASSCRED, 1);
    }
    (peer, socket)
}

/// Takes the sender's credentials out of control data (`SOL_SOCKET`, `SCM_CREDENTIALS`): another process has others.
fn forget_credentials(memory: &mut [u8]) {
    // SAFETY: ask only.
    let ids = unsafe { [libc::getpid() as u32, libc::geteuid(), libc::getegid()] };
    let kind = [1u32, 2].map(u32::to_ne_bytes).concat();
    for behind in 8..memory.len() {
        if memory[behind - 8..behind] != kind {
            continue;
        }
        for (place, id) in (behind..).step_by(4).zip(ids) {
            let at = memory.get_mut(place..place + 4);
            at.filter(|at| **at == id.to_ne_bytes()).into_iter().for_each(|at| at.fill(0));
        }
    }
}

#[by(both_shapes("all"))]
fn messages_with_vectors_addresses_and_control_data(engine: Engine) -> Outcomes {
    const VECTORS: [&[usize]; 6] =
        [&[], &[0], &[100], &[10, 20], &[0, 50, 0, 100], &[3, 3, 3, 3, 3, 3, 3, 3, 3]];
    let mut all = Vec::new();
    let mut ring = Ring::new(engine, 8, 0);
    for (kind, vectors) in KINDS.iter().flat_map(|&kind| VECTORS.iter().map(move |&vectors| (kind, vectors)))
    {
        for (name, control) in [(0, 0), (16, 0), (8, 0), (0, 64), (16, 28), (128, 8), (0, 1)] {
            for flags in [0, libc::MSG_TRUNC, libc::MSG_PEEK, libc::MSG_WAITALL, libc::MSG_CMSG_CLOEXEC] {
                let (peer, socket) = talkative_pair(kind);
                feed(&peer, 40);
                let mut memory = vec![0u8; 1024];
                let mut at = 512;
                let pieces: Vec<libc::iovec> = vectors
                    .iter()
                    .map(|&length| {
                        at += length;
                        let iov_base = memory[at - length..].as_mut_ptr().cast();
                        libc::iovec { iov_base, iov_len: length }
                    })
                    .collect();
                let mut header = message_of(&pieces);
                if name > 0 {
                    (header.msg_name, header.msg_namelen) = (memory[0..].as_mut_ptr().cast(), name);
                }
                if control > 0 {
                    header.msg_control = memory[256..].as_mut_ptr().cast();
                    header.msg_controllen = control;
                }
                let receive = Sqe {
                    op_flags: flags as u32,
                    ..messaging(IORING_OP_RECVMSG, 1, &socket, &raw mut header)
                };
                let cqes = run_or_cancel(&mut ring, receive);
                frontend::closed(socket.as_raw_fd());
                // Ports differ.
                memory[2..4].fill(0);
                forget_credentials(&mut memory);
                let told = (header.msg_namelen, header.msg_controllen, header.msg_flags);
                let what = format!(
                    "{kind:?} {vectors:?} name {name} control {control} flags {flags:#x} tells {told:?}"
                );
                all.push((Case(what), (cqes, memory)));
            }
        }
    }
    all
}

/// Memory as provided buffers of one length.
fn provide(ring: &mut Ring, memory: &mut [u8], length: usize) {
    let count = (memory.len() / length) as i32;
    let addr = memory.as_mut_ptr() as u64;
    let provide =
        Sqe { fd: count, addr, len: length as u32, buf_index: GROUP, ..sqe(IORING_OP_PROVIDE_BUFFERS, 5) };
    assert!(ring.run(&[provide])[0].res >= 0);
}

// Begins with a page, whatever its size.
#[repr(C, align(65536))]
struct Entries([io_uring_buf; 8]);

/// Memory as a ring of buffers of one length.
fn provide_as_ring(ring: &Ring, memory: &mut [u8], length: usize) -> Box<Entries> {
    let count = memory.len() / length;
    let base = memory.as_mut_ptr() as u64;
    let mut entries = Box::new(Entries(std::array::from_fn(|index| io_uring_buf {
        addr: base + (index * length) as u64,
        len: length as u32,
        bid: index as u16,
        resv: 0,
    })));
    // The tail.
    entries.0[0].resv = count as u16;
    let mut register: io_uring_buf_reg = zeroed();
    (register.ring_addr, register.ring_entries, register.bgid) = ((&raw mut *entries) as u64, 8, GROUP);
    let registered = ring.register(IORING_REGISTER_PBUF_RING, (&raw const register).cast(), 1);
    assert_eq!(registered, 0);
    entries
}

#[by(both_shapes("all"))]
fn multishot_messages_of_all_shapes(engine: Engine) -> Outcomes {
    let mut all = Vec::new();
    for kind in [Udp, UnixDatagrams] {
        for (name, control) in [(0, 0), (16, 0), (8, 0), (0, 64), (16, 28), (128, 0), (0, 24), (3, 5)] {
            for (length, flags) in [(256, 0), (256, libc::MSG_TRUNC), (80, 0), (40, 0), (16, 0)] {
                let mut ring = Ring::new(engine, 8, 0);
                let (peer, socket) = talkative_pair(kind);
                let mut memory = vec![0u8; 4 * length];
                provide(&mut ring, &mut memory, length);
                feed(&peer, 40);
                feed(&peer, 30);
                let mut header: libc::msghdr = zeroed();
                (header.msg_namelen, header.msg_controllen) = (name, control);
                let receive = Sqe {
                    flags: SELECT,
                    buf_index: GROUP,
                    op_flags: flags as u32,
                    ioprio: IORING_RECV_MULTISHOT as u16,
                    ..messaging(IORING_OP_RECVMSG, 1, &socket, &raw mut header)
                };
                let cqes = run_or_cancel(&mut ring, receive);
                frontend::closed(socket.as_raw_fd());
                // Ports differ: they stand behind the family in the address.
                let port = 18..16 + 4.min(name as usize).max(2);
                let buffers = memory.chunks_exact_mut(length).filter(|buffer| buffer.len() >= port.end);
                buffers.for_each(|buffer| buffer[port.clone()].fill(0));
                forget_credentials(&mut memory);
                let what = format!("{kind:?} name {name} control {control} length {length} flags {flags:#x}");
                all.push((Case(what), (cqes, memory)));
            }
        }
    }
    all
}

#[by(both_shapes("all"))]
fn multishot_receives_of_all_shapes(engine: Engine) -> Outcomes {
    let mut all = Vec::new();
    for kind in KINDS {
        for (there, length, asked) in
            [(100, 64, 0), (100, 64, 10), (5000, 1000, 0), (64, 64, 0), (1, 64, 64), (500, 64, 0)]
        {
            for mode in [
                IORING_RECV_MULTISHOT,
                IORING_RECV_MULTISHOT | IORING_RECVSEND_BUNDLE,
                IORING_RECVSEND_BUNDLE,
                0,
            ] {
                // The kernel's first look at a datagram is into one buffer, and cuts off what does not fit.
                let bundles = mode & IORING_RECVSEND_BUNDLE != 0;
                if bundles && asked == 0 && matches!(kind, Udp | UnixDatagrams) {
                    continue;
                }
                for then in [Then::Stays, Then::SendsNoMore] {
                    let ring = &mut Ring::new(engine, 32, 0);
                    let (peer, socket) = pair(kind);
                    let mut memory = vec![0u8; 6 * length];
                    let _entries = provide_as_ring(ring, &mut memory, length);
                    feed(&peer, there);
                    let peer = act(peer, then);
                    let (fd, ioprio) = (socket.as_raw_fd(), mode as u16);
                    let receive = sqe(IORING_OP_RECV, 1);
                    let receive = Sqe { fd, flags: SELECT, buf_index: GROUP, len: asked, ioprio, ..receive };
                    let cqes = run_or_cancel(ring, receive);
                    drop(peer);
                    frontend::closed(socket.as_raw_fd());
                    let what =
                        format!("{kind:?} {asked} of {there} in buffers of {length} mode {mode:#x} {then:?}");
                    all.push((Case(what), (cqes, memory)));
                }
            }
        }
    }
    all
}

/// The bytes that a peer has got.
fn drain(fd: &OwnedFd) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let mut buffer = [0u8; 65536];
        // SAFETY: writes memory of ours.
        let count = unsafe {
            libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT)
        };
        if count <= 0 {
            return all;
        }
        // Where one datagram ends counts as well.
        all.extend((count as u32).to_ne_bytes());
        all.extend(&buffer[..count as usize]);
    }
}

/// Streams do not say where a send ended.
fn drained(kind: Kind, fd: &OwnedFd) -> Vec<u8> {
    let all = drain(fd);
    if matches!(kind, Udp | UnixDatagrams) {
        return all;
    }
    let mut rest = &all[..];
    let mut stream = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let length = u32::from_ne_bytes(*length) as usize;
        stream.extend(&behind[..length]);
        rest = &behind[length..];
    }
    stream
}

#[by(both_shapes("all"))]
fn sends_that_may_leave_together(engine: Engine) -> Outcomes {
    const LENGTHS: [&[usize]; 9] = [
        &[10],
        &[10, 10],
        &[10, 10, 10, 7],
        &[10, 20],
        &[20, 10, 20],
        &[0, 5, 5],
        &[1400, 1400, 9],
        &[30000, 30000, 30000],
        &[5, 5, 0, 5],
    ];
    let mut all = Vec::new();
    let data = pattern(30000);
    for kind in KINDS {
        for lengths in LENGTHS {
            for opcode in [IORING_OP_SEND, IORING_OP_SEND_ZC] {
                for flags in [0, libc::MSG_WAITALL, libc::MSG_DONTWAIT, libc::MSG_MORE] {
                    if kind == Udp && flags == libc::MSG_MORE {
                        continue;
                    }
                    let mut ring = Ring::new(engine, 16, 0);
                    let (socket, peer) = pair(kind);
                    set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, 1 << 20);
                    set_option(&peer, libc::SOL_SOCKET, libc::SO_RCVBUF, 1 << 20);
                    for (index, &length) in lengths.iter().enumerate() {
                        ring.push(Sqe {
                            len: length as u32,
                            op_flags: flags as u32,
                            ..writing(opcode, index as u64, &socket, &data)
                        });
                    }
                    let count = lengths.len() as u32;
                    assert_eq!(ring.enter(count, count), count as i32);
                    let mut cqes = ring.reap_all();
                    // Notifications come when they like.
                    while cqes.iter().any(|cqe| cqe.flags & IORING_CQE_F_MORE != 0)
                        && cqes.iter().filter(|cqe| cqe.flags & IORING_CQE_F_NOTIF != 0).count()
                            < cqes.iter().filter(|cqe| cqe.flags & IORING_CQE_F_MORE != 0).count()
                    {
                        if kind == Tcp {
                            break;
                        }
                        cqes.extend(ring.collect(1));
                    }
                    cqes.retain(|cqe| cqe.flags & IORING_CQE_F_NOTIF == 0);
                    cqes.sort_by_key(|cqe| cqe.user_data);
                    let what = format!("{kind:?} {lengths:?} {opcode:?} flags {flags:#x}");
                    // What is held back for more comes later.
                    let got = if flags == libc::MSG_MORE { Vec::new() } else { drained(kind, &peer) };
                    all.push((Case(what), (cqes, got)));
                    frontend::closed(socket.as_raw_fd());
                }
            }
        }
    }
    all
}

#[both]
fn large_messages_of_several_pieces_wait_for_room(engine: Engine) -> impl Answer {
    let mut all = Vec::new();
    for opcode in [IORING_OP_SENDMSG, IORING_OP_SENDMSG_ZC] {
        let mut ring = Ring::new(engine, 8, 0);
        let (socket, peer) = pair(Tcp);
        set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, 64 << 10);
        let data = pattern(3_000_000);
        let lengths = [1, 999_999, 0, 1_500_000, 3, 499_997];
        let mut at = 0;
        let pieces: Vec<libc::iovec> = lengths
            .iter()
            .map(|&length| {
                at += length;
                vector(&data[at - length..at])
            })
            .collect();
        let mut header = message_of(&pieces);
        let send =
            Sqe { op_flags: libc::MSG_WAITALL as u32, ..messaging(opcode, 1, &socket, &raw mut header) };
        ring.submit(&[send]);
        let reader = std::thread::spawn(move || {
            let mut got = vec![0u8; 3_000_000];
            File::from(peer).read_exact(&mut got).unwrap();
            got
        });
        let cqe = ring.collect(1)[0];
        all.push((cqe.res, reader.join().unwrap() == data));
        frontend::closed(socket.as_raw_fd());
    }
    all
}

#[both(8, 0)]
fn messages_that_wait_for_all_of_their_pieces(mut ring: Ring) -> impl Answer {
    let (peer, socket) = pair(Unix);
    let mut memory = vec![0u8; 100];
    let base = memory.as_mut_ptr();
    let pieces = [(0, 10), (10, 0), (10, 30), (40, 60)]
        .map(|(at, iov_len)| libc::iovec { iov_base: base.wrapping_add(at).cast(), iov_len });
    let mut header = message_of(&pieces);
    ring.submit(&[Sqe {
        op_flags: libc::MSG_WAITALL as u32,
        ..messaging(IORING_OP_RECVMSG, 1, &socket, &raw mut header)
    }]);
    let data = pattern(100);
    for piece in [&data[..5], &data[5..10], &data[10..45], &data[45..100]] {
        // SAFETY: reads memory of ours.
        assert!(unsafe { libc::send(peer.as_raw_fd(), piece.as_ptr().cast(), piece.len(), 0) } > 0);
        assert_eq!(ring.enter_with(0, 0, IORING_ENTER_GETEVENTS), 0);
    }
    (ring.collect(1), memory == data)
}

/// The request with each bit of its fields changed that may be: what it is called, and the request.
fn one_bit_at_a_time(base: Sqe, length_bits: std::ops::Range<u32>) -> Vec<(String, Sqe)> {
    let mut all = vec![("as it is".to_owned(), base)];
    let mut add = |field: &str, bits: std::ops::Range<u32>, change: &dyn Fn(u64) -> Sqe| {
        all.extend(bits.map(|bit| (format!("{field} {bit}"), change(1 << bit))));
    };
    // Without provided buffers BUNDLE is refused here (docs/differences.md).
    let bundles = base.opcode == IORING_OP_SEND as u8;
    add("ioprio", 0..4, &|bit| Sqe { ioprio: base.ioprio ^ bit as u16, ..base });
    add("ioprio", if bundles { 5 } else { 4 }..13, &|bit| Sqe { ioprio: base.ioprio ^ bit as u16, ..base });
    // In a transfer of files it is the class of real time, which takes rights.
    let transfers = [IORING_OP_READ, IORING_OP_READV, IORING_OP_WRITE, IORING_OP_WRITEV];
    if transfers.iter().all(|&opcode| opcode as u8 != base.opcode) {
        add("ioprio", 13..14, &|bit| Sqe { ioprio: base.ioprio ^ bit as u16, ..base });
    }
    add("ioprio", 14..16, &|bit| Sqe { ioprio: base.ioprio ^ bit as u16, ..base });
    add("off", 0..64, &|bit| Sqe { off: base.off ^ bit, ..base });
    add("len", length_bits, &|bit| Sqe { len: base.len ^ bit as u32, ..base });
    // Not MSG_ERRQUEUE: the kernel waits there or not, as the acknowledgement comes. Nor that of 32-bit programs.
    add("op_flags", 0..13, &|bit| Sqe { op_flags: base.op_flags ^ bit as u32, ..base });
    add("op_flags", 14..31, &|bit| Sqe { op_flags: base.op_flags ^ bit as u32, ..base });
    add("buf_index", 0..16, &|bit| Sqe { buf_index: base.buf_index ^ bit as u16, ..base });
    add("personality", 0..16, &|bit| Sqe { personality: base.personality ^ bit as u16, ..base });
    add("file_index", 0..32, &|bit| Sqe { file_index: base.file_index ^ bit as u32, ..base });
    add("addr3", 0..64, &|bit| Sqe { addr3: base.addr3 ^ bit, ..base });
    // FIXED_FILE, BUFFER_SELECT.
    add("flags", 0..1, &|bit| Sqe { flags: bit as u8, ..base });
    add("flags", 5..6, &|bit| Sqe { flags: bit as u8, ..base });
    all
}

/// The completions that are compared: notifications come when they like.
fn comparable(mut cqes: Vec<Cqe>) -> Vec<Cqe> {
    cqes.retain(|cqe| cqe.flags & IORING_CQE_F_NOTIF == 0);
    cqes
}

fn every_bit(opcode: io_uring_op, kind: Kind, length_bits: std::ops::Range<u32>) {
    both_shapes(&format!("{opcode:?} on {kind:?}"), |engine| {
        let mut all = Vec::new();
        let mut ring = Ring::new(engine, 8, 0);
        let mut buffer = vec![0u8; 1 << 16];
        let mut vectors = [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 16 }; 16];
        let empty: libc::msghdr = zeroed();
        let mut header = Box::new(empty);
        let addr = match opcode {
            IORING_OP_RECVMSG | IORING_OP_SENDMSG | IORING_OP_SENDMSG_ZC => (&raw mut *header) as u64,
            IORING_OP_READV | IORING_OP_WRITEV => vectors.as_mut_ptr() as u64,
            _ => buffer.as_mut_ptr() as u64,
        };
        let len = if addr == buffer.as_ptr() as u64 { 16 } else { 1 };
        let base = Sqe { addr, len, ..sqe(opcode, 1) };
        for known in [false, true] {
            for (what, changed) in one_bit_at_a_time(base, length_bits.clone()) {
                let (peer, socket) = pair(kind);
                let receive = Sqe { len: 16, ..reading(IORING_OP_RECV, 7, &socket, &mut buffer) };
                if known {
                    // One that waited: the ring knows the socket from then on.
                    ring.submit(&[receive]);
                    feed(&peer, 3);
                    while !collect(&mut ring).iter().any(|cqe| (cqe.user_data, cqe.res) == (7, 3)) {}
                }
                feed(&peer, 5);
                // What is received changes it.
                *header = libc::msghdr { msg_iov: vectors.as_mut_ptr(), msg_iovlen: 1, ..empty };
                let cqes = run_or_cancel(&mut ring, Sqe { fd: socket.as_raw_fd(), ..changed });
                let what = if known { format!("known {what}") } else { what };
                all.push((Case(what), (comparable(cqes), Vec::new())));
                frontend::closed(socket.as_raw_fd());
            }
        }
        all
    });
}

#[test]
fn every_bit_of_a_receive() {
    for kind in [Tcp, Udp, Unix] {
        every_bit(IORING_OP_RECV, kind, 0..32);
    }
}

#[test]
fn every_bit_of_a_received_message() {
    for kind in [Tcp, Udp] {
        every_bit(IORING_OP_RECVMSG, kind, 0..32);
    }
}

#[test]
fn every_bit_of_a_send() {
    for kind in [Tcp, Udp, Unix] {
        every_bit(IORING_OP_SEND, kind, 0..12);
        every_bit(IORING_OP_SEND_ZC, kind, 0..12);
    }
}

#[test]
fn every_bit_of_a_sent_message() {
    for kind in [Tcp, Udp] {
        every_bit(IORING_OP_SENDMSG, kind, 0..32);
        every_bit(IORING_OP_SENDMSG_ZC, kind, 0..32);
    }
}

#[test]
fn every_bit_of_reads_and_writes_on_sockets() {
    for opcode in [IORING_OP_READ, IORING_OP_READV, IORING_OP_WRITE, IORING_OP_WRITEV] {
        // No more bytes than there are, and no more vectors.
        let length_bits = match opcode {
            IORING_OP_WRITE => 12,
            IORING_OP_READ => 32,
            _ => 4,
        };
        every_bit(opcode, Unix, 0..length_bits);
    }
}
