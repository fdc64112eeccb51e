//! Provided buffers: lists and rings, and what takes from them.

use crate::common::prelude::*;

const BUNDLE: u16 = IORING_RECVSEND_BUNDLE as u16;
const SHOTS: u16 = IORING_RECV_MULTISHOT as u16;
/// Of a ring of buffers.
const INC: u16 = io_uring_register_pbuf_ring_flags::IOU_PBUF_RING_INC as u16;

fn provide(group: u16, first: u16, buffers: &mut [u8], count: i32) -> Sqe {
    Sqe {
        fd: count,
        addr: buffers.as_mut_ptr() as u64,
        len: buffers.len() as u32 / count as u32,
        off: u64::from(first),
        buf_index: group,
        ..sqe(IORING_OP_PROVIDE_BUFFERS, 100)
    }
}

fn remove(group: u16, count: i32) -> Sqe {
    Sqe { fd: count, buf_index: group, ..sqe(IORING_OP_REMOVE_BUFFERS, 101) }
}

fn recv(user_data: u64, socket: &impl AsRawFd, group: u16) -> Sqe {
    Sqe { fd: socket.as_raw_fd(), flags: SELECT, buf_index: group, ..sqe(IORING_OP_RECV, user_data) }
}

fn multishot(user_data: u64, socket: &impl AsRawFd, group: u16) -> Sqe {
    Sqe { ioprio: SHOTS, ..recv(user_data, socket, group) }
}

/// A multishot receive of messages whose header has room for a name and for what is beside.
fn messages(socket: &impl AsRawFd, group: u16, header: &libc::msghdr) -> Sqe {
    let (opcode, addr) = (IORING_OP_RECVMSG as u8, std::ptr::from_ref(header) as u64);
    Sqe { opcode, addr, ..multishot(1, socket, group) }
}

/// Without the hint that newer kernels give for Unix sockets too.
fn plain(mut cqe: Cqe) -> Cqe {
    cqe.flags &= !IORING_CQE_F_SOCK_NONEMPTY;
    cqe
}

fn wait(ring: &mut Ring) -> Cqe {
    plain(ring.wait())
}

fn run(ring: &mut Ring, sqe: Sqe) -> Cqe {
    plain(ring.run(&[sqe])[0])
}

/// Each in a submission of its own.
fn each(ring: &mut Ring, sqes: &[Sqe]) -> Vec<Cqe> {
    ring.one_by_one(sqes).into_iter().map(plain).collect()
}

fn unregister(ring: &Ring, group: u16) -> i32 {
    let request = io_uring_buf_reg { ring_addr: 0, ring_entries: 0, bgid: group, flags: 0, resv: [0; 3] };
    ring.register(IORING_UNREGISTER_PBUF_RING, (&raw const request).cast(), 1)
}

/// The head of a ring, or an error.
fn head(ring: &Ring, group: u16) -> i32 {
    let mut status = io_uring_buf_status { buf_group: u32::from(group), head: 0, resv: [0; 8] };
    match ring.register(IORING_REGISTER_PBUF_STATUS, (&raw mut status).cast(), 1) {
        0 => status.head as i32,
        error => error,
    }
}

#[both(8, 0)]
fn lists_are_filled_used_and_emptied(mut ring: Ring) -> impl Answer {
    let (mut a, b) = UnixStream::pair().unwrap();
    let mut memory = [0u8; 64];
    let mut all = vec![run(&mut ring, provide(7, 3, &mut memory, 4))];
    a.write_all(b"first").unwrap();
    all.push(run(&mut ring, recv(1, &b, 7)));
    a.write_all(b"second, and longer than one buffer").unwrap();
    all.extend(each(
        &mut ring,
        &[
            recv(2, &b, 7),
            Sqe { len: 5, ..recv(3, &b, 7) },
            remove(7, 9),
            recv(4, &b, 7),
            remove(7, 9),
            remove(8, 9),
        ],
    ));
    (all, memory)
}

#[both(16, IORING_SETUP_SUBMIT_ALL)]
fn errors_of_lists(mut ring: Ring) -> impl Answer {
    let mut memory = [0u8; 64];
    let good = provide(1, 0, &mut memory, 4);
    ring.run(&[
        Sqe { op_flags: 1, ..good },
        Sqe { file_index: 1, ..good },
        Sqe { fd: 0, ..good },
        Sqe { fd: 65537, ..good },
        Sqe { fd: -1, ..good },
        Sqe { len: 0, ..good },
        Sqe { addr: u64::MAX - 3, ..good },
        Sqe { addr: 1 << 63, ..good },
        Sqe { off: 65536, ..good },
        Sqe { off: 65534, ..good },
        Sqe { addr: 1, ..remove(1, 1) },
        remove(1, 0),
        remove(1, 65537),
    ])
}

#[both(8, 0)]
fn a_waiting_receive_holds_no_buffer(mut ring: Ring) -> impl Answer {
    let ((mut a, b), (mut c, d)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let mut memory = [0u8; 16];
    let provided = run(&mut ring, provide(0, 0, &mut memory, 1));
    ring.submit(&[recv(1, &b, 0)]);
    ring.submit(&[recv(2, &d, 0)]);
    c.write_all(b"x").unwrap();
    let first = wait(&mut ring);
    a.write_all(b"y").unwrap();
    let second = wait(&mut ring);
    // And one that finds none fails at once.
    let third = run(&mut ring, recv(3, &b, 0));
    (provided, first, second, third)
}

#[both(8, 0)]
fn an_end_or_an_error_uses_no_buffer(mut ring: Ring) -> impl Answer {
    let (a, b) = UnixStream::pair().unwrap();
    let mut memory = [0u8; 16];
    run(&mut ring, provide(0, 9, &mut memory, 1));
    drop(a);
    let ended = run(&mut ring, recv(1, &b, 0));
    let failed = run(&mut ring, Sqe { fd: 9999, ..recv(2, &b, 0) });
    let left = run(&mut ring, remove(0, 5));
    (ended, failed, left)
}

#[both(8, 0)]
fn rings_give_their_buffers_in_order(mut ring: Ring) -> impl Answer {
    let (mut a, b) = UnixStream::pair().unwrap();
    let mut memory = [0u8; 64];
    let mut buffers = Buffers::map(4, -1, 0);
    let mut all = vec![buffers.register(&ring, 5, 0), head(&ring, 5)];
    let mut cqes = Vec::new();
    for round in 0..9u16 {
        let id = round * 1000;
        let place = usize::from(round % 4) * 16;
        buffers.add(id, &mut memory[place..place + 16]);
        a.write_all(&[round as u8; 3]).unwrap();
        cqes.push(run(&mut ring, recv(1, &b, 5)));
        assert_eq!(memory[place], round as u8);
        all.push(head(&ring, 5));
    }
    cqes.push(run(&mut ring, recv(2, &b, 5)));
    all.extend([unregister(&ring, 5), unregister(&ring, 5), head(&ring, 5)]);
    (all, cqes)
}

#[both(8, 0)]
fn errors_of_rings(mut ring: Ring) -> impl Answer {
    let mut memory = [0u8; 16];
    let buffers = Buffers::map(4, -1, 0);
    let good =
        io_uring_buf_reg { ring_addr: buffers.ring as u64, ring_entries: 4, bgid: 1, flags: 0, resv: [0; 3] };
    let read_only = mapped(anyring_engine::os::page_bytes(), libc::PROT_READ, libc::MAP_PRIVATE) as u64;
    let tries = [
        io_uring_buf_reg { ring_addr: 0, ..good },
        io_uring_buf_reg { ring_addr: good.ring_addr + 8, ..good },
        io_uring_buf_reg { ring_addr: 4096, ..good },
        io_uring_buf_reg { ring_addr: read_only, ..good },
        io_uring_buf_reg { ring_entries: 3, ..good },
        io_uring_buf_reg { ring_entries: 0, ..good },
        io_uring_buf_reg { ring_entries: 65536, ..good },
        io_uring_buf_reg { flags: 1 << 9, ..good },
        io_uring_buf_reg { resv: [0, 0, 1], ..good },
        good,
        good,
    ];
    let mut all: Vec<i32> = tries
        .iter()
        .map(|request| ring.register(IORING_REGISTER_PBUF_RING, std::ptr::from_ref(request).cast(), 1))
        .collect();
    all.push(ring.register(IORING_REGISTER_PBUF_RING, (&raw const good).cast(), 2));
    all.push(ring.register(IORING_REGISTER_PBUF_RING, std::ptr::null(), 1));
    all.push(ring.register(IORING_REGISTER_PBUF_RING, 8 as *const _, 1));
    all.push(run(&mut ring, provide(1, 0, &mut memory, 1)).res);
    all.push(run(&mut ring, remove(1, 1)).res);
    all.push(run(&mut ring, provide(2, 0, &mut memory, 1)).res);
    let on_list = io_uring_buf_reg { bgid: 2, ..good };
    all.push(ring.register(IORING_REGISTER_PBUF_RING, (&raw const on_list).cast(), 1));
    all.extend([unregister(&ring, 2), head(&ring, 2), run(&mut ring, remove(2, 1)).res]);
    // An emptied list may become a ring.
    all.push(ring.register(IORING_REGISTER_PBUF_RING, (&raw const on_list).cast(), 1));
    all
}

#[both(8, 0)]
fn rings_in_the_rings_own_memory(mut ring: Ring) -> impl Answer {
    let (mut a, b) = UnixStream::pair().unwrap();
    let mut memory = [0u8; 32];
    let mut cqes = Vec::new();
    for group in [0u16, 3, 0] {
        let request = io_uring_buf_reg {
            ring_addr: 0,
            ring_entries: 8,
            bgid: group,
            flags: io_uring_register_pbuf_ring_flags::IOU_PBUF_RING_MMAP as u16,
            resv: [0; 3],
        };
        assert_eq!(ring.register(IORING_REGISTER_PBUF_RING, (&raw const request).cast(), 1), 0);
        let offset = i64::from(IORING_OFF_PBUF_RING) | i64::from(group) << IORING_OFF_PBUF_SHIFT;
        let mut buffers = Buffers::map(8, ring.fd, offset);
        a.write_all(b"text").unwrap();
        cqes.push(run(&mut ring, recv(1, &b, group)));
        buffers.add(40 + group, &mut memory);
        cqes.push(run(&mut ring, recv(2, &b, group)));
        assert_eq!(unregister(&ring, group), 0);
    }
    cqes
}

/// The kernel holds such pages, and so does the engine.
#[both(8, 0)]
fn rings_in_shared_pages_outlive_the_mapping_that_gave_them(mut ring: Ring) -> impl Answer {
    let (mut a, b) = UnixStream::pair().unwrap();
    let mut memory = [0u8; 32];
    let mut buffers = Buffers::map(8, -1, 0);
    let given = mapped(buffers.length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    buffers.ring = given.cast();
    assert_eq!(buffers.register(&ring, 1, 0), 0);
    // SAFETY: adds a mapping of memory of our own, and takes the first one away.
    unsafe {
        let again = libc::mremap(given, 0, buffers.length, libc::MREMAP_MAYMOVE);
        assert_ne!(again, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(given, buffers.length, libc::PROT_NONE), 0);
        buffers.ring = again.cast();
    }
    a.write_all(b"text").unwrap();
    let without = run(&mut ring, recv(1, &b, 1));
    buffers.add(5, &mut memory);
    [without, run(&mut ring, recv(2, &b, 1))]
}

#[both(8, 0)]
fn buffers_are_used_up_bit_by_bit(mut ring: Ring) -> impl Answer {
    let (mut a, b) = UnixStream::pair().unwrap();
    let mut memory = [0u8; 32];
    let mut buffers = Buffers::of(&ring, 4, 1, INC);
    buffers.fill(&mut memory, 16, 11, 11);
    let mut all = Vec::new();
    for length in [5, 8, 7, 16, 1] {
        a.write_all(&vec![length as u8; length]).unwrap();
        all.push((run(&mut ring, recv(1, &b, 1)), head(&ring, 1)));
    }
    all.push((run(&mut ring, recv(1, &b, 1)), head(&ring, 1)));
    let start = memory.as_ptr() as u64;
    let left = [0, 1].map(|index| buffers.left(index, start));
    (all, memory, left)
}

/// A datagram that is longer than its memory takes so much of an incremental buffer as its completion says, and of the next ones.
#[both(8, 0)]
fn a_truncated_datagram_takes_its_whole_length(mut ring: Ring) -> impl Answer {
    let (a, b) = UnixDatagram::pair().unwrap();
    let mut memory = [0u8; 80];
    let mut buffers = Buffers::of(&ring, 8, 1, INC);
    buffers.fill(&mut memory, 16, 11, 11);
    let truncating = Sqe { len: 4, op_flags: libc::MSG_TRUNC as u32, ..recv(1, &b, 1) };
    let bundle = Sqe { ioprio: BUNDLE, ..truncating };
    let mut all = Vec::new();
    for (sqe, length) in [(truncating, 10), (recv(1, &b, 1), 3), (truncating, 20), (bundle, 9), (bundle, 3)] {
        a.send(&vec![length as u8; length]).unwrap();
        all.push((run(&mut ring, sqe), head(&ring, 1)));
    }
    (all, memory)
}

/// True if the kernel that is asked knows how little may be left in a buffer (`min_left`, from Linux 7.1 and in newer stable
/// kernels). That of the record does.
fn kernel_knows_min_left() -> bool {
    if !record::oracle().asks_the_kernel() {
        return true;
    }
    let ring = Ring::new(Engine::Kernel, 4, 0);
    let buffers = Buffers::map(4, -1, 0);
    let known = buffers.register_with(&ring, 1, INC, 1);
    if known != 0 {
        skip("the kernel has no min_left for buffers");
    }
    known == 0
}

#[by(both_if(kernel_knows_min_left))]
fn what_is_too_little_is_not_left_in_a_buffer(engine: Engine) -> impl Answer {
    let mut ring = Ring::new(engine, 8, 0);
    let (mut a, b) = UnixStream::pair().unwrap();
    let mut memory = [0u8; 48];
    let mut buffers = Buffers::map(4, -1, 0);
    let refused = [(0, 1), (INC, 1 << 32), (0, 1 << 32)]
        .map(|(flags, min_left)| buffers.register_with(&ring, 1, flags, min_left));
    assert_eq!(buffers.register_with(&ring, 1, INC, 6), 0);
    buffers.fill(&mut memory, 16, 11, 11);
    let mut all = Vec::new();
    // Six bytes are left of the first, then three; of the second five; the third is used up.
    for length in [10, 3, 11, 16] {
        a.write_all(&vec![length as u8; length]).unwrap();
        all.push((run(&mut ring, recv(1, &b, 1)), head(&ring, 1)));
    }
    let start = memory.as_ptr() as u64;
    let left = [0, 1, 2].map(|index| buffers.left(index, start));
    (refused, all, memory, left)
}

/// A message's header has to fit, too: with `min_left` it always does, without the request fails.
#[by(both_if(kernel_knows_min_left))]
fn multishot_messages_use_buffers_up(engine: Engine) -> impl Answer {
    [0, 16].map(|min_left| {
        let mut ring = Ring::new(engine, 8, 0);
        let (mut a, b) = UnixStream::pair().unwrap();
        let mut memory = [0u8; 128];
        let mut buffers = Buffers::map(2, -1, 0);
        assert_eq!(buffers.register_with(&ring, 1, INC, min_left), 0);
        buffers.fill(&mut memory, 64, 11, 11);
        let header: libc::msghdr = zeroed();
        ring.submit(&[messages(&b, 1, &header)]);
        let mut all = Vec::new();
        for length in [20, 10, 5] {
            a.write_all(&vec![length as u8; length]).unwrap();
            let cqe = wait(&mut ring);
            all.push((cqe, head(&ring, 1)));
            if cqe.res < 0 {
                break;
            }
        }
        (all, memory)
    })
}

#[by(ours(8, 0))]
fn ring_memory_that_is_gone_harms_nobody(mut ring: Ring) {
    let (mut a, b) = UnixStream::pair().unwrap();
    let buffers = Buffers::of(&ring, 4, 1, 0);
    // Not unmapped, so that no other thread's mapping takes the place.
    // SAFETY: a mapping of ours.
    unsafe { libc::mprotect(buffers.ring.cast(), buffers.length, libc::PROT_NONE) };
    a.write_all(b"x").unwrap();
    assert_eq!(run(&mut ring, recv(1, &b, 1)).res, -libc::EFAULT);
    assert_eq!(unregister(&ring, 1), 0);
}

#[by(ours(8, 0))]
fn scribbled_rings_harm_nobody(mut ring: Ring) {
    let (mut a, b) = UnixStream::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    for flags in [0, 2] {
        let buffers = Buffers::of(&ring, 4, 1, flags);
        for byte in 0..=255u8 {
            // SAFETY: the whole mapping.
            unsafe { buffers.ring.write_bytes(byte, 64) };
            let _full = a.write(b"xyz");
            let cqe = run(&mut ring, recv(1, &b, 1));
            assert!(cqe.res <= 0 || byte == 0, "{cqe:?}");
        }
        assert_eq!(unregister(&ring, 1), 0);
    }
}

#[both(8, 0)]
fn multishot_receive_goes_on_until_buffers_run_out(mut ring: Ring) -> impl Answer {
    let (mut a, b) = UnixStream::pair().unwrap();
    let mut memory = [0u8; 64];
    run(&mut ring, provide(0, 0, &mut memory, 4));
    ring.submit(&[multishot(1, &b, 0)]);
    let mut all = Vec::new();
    for length in [3, 20, 2] {
        a.write_all(&vec![9; length]).unwrap();
        all.push(wait(&mut ring));
        if length > 16 {
            all.push(wait(&mut ring));
        }
    }
    a.write_all(b"more").unwrap();
    all.push(wait(&mut ring));
    (all, ring.reap())
}

#[both(8, 0)]
fn multishot_receive_ends_with_the_stream(mut ring: Ring) -> impl Answer {
    let (mut a, b) = UnixStream::pair().unwrap();
    let mut memory = [0u8; 64];
    run(&mut ring, provide(0, 0, &mut memory, 4));
    a.write_all(b"at once").unwrap();
    ring.submit(&[multishot(1, &b, 0)]);
    let first = wait(&mut ring);
    drop(a);
    let second = wait(&mut ring);
    let left = run(&mut ring, remove(0, 9));
    (first, second, left)
}

#[both(2, 0)]
fn multishot_receive_ends_when_the_cq_is_full(mut ring: Ring) -> impl Answer {
    let (mut a, b) = UnixStream::pair().unwrap();
    let mut memory = [0u8; 64];
    run(&mut ring, provide(0, 0, &mut memory, 16));
    a.write_all(&[1; 40]).unwrap();
    ring.submit(&[multishot(1, &b, 0)]);
    let mut all = Vec::new();
    loop {
        let cqe = wait(&mut ring);
        all.push(cqe);
        if cqe.flags & IORING_CQE_F_MORE == 0 {
            return all;
        }
    }
}

#[both(8, 0)]
fn multishot_messages_carry_address_and_payload(mut ring: Ring) -> impl Answer {
    let (receiver, sender) = udp_connected();
    let mut memory = [0u8; 192];
    run(&mut ring, provide(0, 0, &mut memory, 3));
    let mut header: libc::msghdr = zeroed();
    header.msg_namelen = 16;
    header.msg_controllen = 8;
    ring.submit(&[messages(&receiver, 0, &header)]);
    let mut all = Vec::new();
    for text in [&b"short"[..], &[5; 40], &[]] {
        sender.send(text).unwrap();
        all.push(wait(&mut ring));
    }
    let port = sender.local_addr().unwrap().port().to_be_bytes();
    for buffer in memory.chunks_mut(64) {
        assert_eq!(buffer[18..20], port, "the sender's address");
        buffer[18..20].fill(0);
    }
    (all, memory.to_vec())
}

/// The length that the program's header gives limits the first message only.
#[both(8, 0)]
fn a_length_limits_the_first_of_many_messages(mut ring: Ring) -> impl Answer {
    let (receiver, sender) = udp_connected();
    let mut memory = [0u8; 192];
    run(&mut ring, provide(0, 0, &mut memory, 3));
    let mut vector = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 20 };
    let mut header: libc::msghdr = zeroed();
    (header.msg_iov, header.msg_iovlen) = (&raw mut vector, 1);
    ring.submit(&[messages(&receiver, 0, &header)]);
    let mut all = Vec::new();
    for byte in 1..=3 {
        sender.send(&[byte; 40]).unwrap();
        all.push(wait(&mut ring));
    }
    (all, memory.to_vec())
}

/// Of a buffer that is used up bit by bit, less is left than a header takes: only the next message ends the request.
#[both(8, 0)]
fn multishot_messages_end_for_want_of_room_when_one_comes(mut ring: Ring) -> impl Answer {
    let (mut a, b) = UnixStream::pair().unwrap();
    let mut memory = [0u8; 64];
    let mut buffers = Buffers::of(&ring, 4, 1, INC);
    buffers.fill(&mut memory, 64, 11, 11);
    let header: libc::msghdr = zeroed();
    ring.submit(&[messages(&b, 1, &header)]);
    a.write_all(&[7; 40]).unwrap();
    let mut all = vec![wait(&mut ring)];
    all.extend(ring.run(&[nop(2, 0)]).into_iter().map(plain));
    a.write_all(&[8]).unwrap();
    all.push(wait(&mut ring));
    (all, head(&ring, 1), memory)
}

#[both(8, 0)]
fn multishot_messages_need_room_for_their_header(mut ring: Ring) -> impl Answer {
    let (mut a, b) = UnixStream::pair().unwrap();
    let mut memory = [0u8; 16];
    run(&mut ring, provide(0, 0, &mut memory, 1));
    let mut header: libc::msghdr = zeroed();
    header.msg_namelen = 4;
    a.write_all(b"x").unwrap();
    (run(&mut ring, messages(&b, 0, &header)), run(&mut ring, remove(0, 4)))
}

#[both(8, 0)]
fn sends_take_buffers_too(mut ring: Ring) -> impl Answer {
    let (a, b) = UnixStream::pair().unwrap();
    let mut memory = *b"abcdefgh";
    let mut buffers = Buffers::of(&ring, 4, 1, 0);
    buffers.add(77, &mut memory);
    buffers.add(78, &mut memory);
    let sending = Sqe { opcode: IORING_OP_SEND as u8, ..recv(1, &a, 1) };
    let mut all =
        each(&mut ring, &[sending, Sqe { len: 3, ..sending }, sending, Sqe { buf_index: 9, ..sending }]);
    // An address beside it is nobody's.
    buffers.add(80, &mut memory);
    all.push(run(&mut ring, Sqe { addr: u64::MAX - 100, ..sending }));
    drop(b);
    buffers.add(79, &mut memory);
    all.push(run(&mut ring, sending));
    (all, head(&ring, 1))
}

#[both(8, 0)]
fn waitall_keeps_its_buffer(mut ring: Ring) -> impl Answer {
    let (mut a, b) = UnixStream::pair().unwrap();
    let (mut list, mut memory) = ([0u8; 8], [0u8; 8]);
    run(&mut ring, provide(0, 4, &mut list, 1));
    let mut buffers = Buffers::of(&ring, 4, 1, 0);
    buffers.add(5, &mut memory);
    let mut all = Vec::new();
    for group in [0, 1] {
        ring.submit(&[Sqe { op_flags: libc::MSG_WAITALL as u32, ..recv(1, &b, group) }]);
        a.write_all(b"abc").unwrap();
        ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
        assert_eq!(ring.reap(), None);
        a.write_all(b"defgh").unwrap();
        all.push(wait(&mut ring));
    }
    (all, list, memory)
}

#[both(8, 0)]
fn bundles_fill_buffer_after_buffer(mut ring: Ring) -> impl Answer {
    let mut all = Vec::new();
    for flags in [0, INC] {
        let (mut a, b) = tcp_pair();
        let mut memory = [0u8; 64];
        let mut buffers = Buffers::of(&ring, 8, 1, flags);
        buffers.fill(&mut memory, 8, 0, 3);
        let sqe = Sqe { ioprio: BUNDLE, ..recv(1, &b, 1) };
        for (length, wanted) in [(16, 0), (24, 0), (8, 10), (3, 0), (5, 0), (9, 0)] {
            a.write_all(&vec![length as u8; length]).unwrap();
            let cqe = ring.run(&[Sqe { len: wanted, ..sqe }])[0];
            all.push((cqe, head(&ring, 1)));
        }
        assert_eq!(unregister(&ring, 1), 0);
    }
    all
}

#[both(8, 0)]
fn multishot_bundles_end_with_the_buffers(mut ring: Ring) -> impl Answer {
    let (mut a, b) = tcp_pair();
    let mut memory = [0u8; 64];
    let mut buffers = Buffers::of(&ring, 8, 1, 0);
    buffers.fill(&mut memory, 8, 0, 1);
    ring.submit(&[Sqe { ioprio: BUNDLE | SHOTS, ..recv(1, &b, 1) }]);
    let mut all = Vec::new();
    for length in [8, 16, 5, 40] {
        a.write_all(&vec![1; length]).unwrap();
        all.push(wait(&mut ring));
    }
    all
}

/// Returns the two ends of a stream: TCP sockets, or Unix sockets.
fn stream(tcp: bool) -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
    if tcp {
        let (a, b) = tcp_pair();
        return (a.into(), b.into());
    }
    let (a, b) = UnixStream::pair().unwrap();
    (a.into(), b.into())
}

/// Receives `length` bytes into two buffers of `size`, before or after which the request is submitted; then four bytes into new buffers.
fn into_two_buffers(
    engine: Engine,
    tcp: bool,
    armed: bool,
    request: Sqe,
    size: usize,
    length: usize,
) -> Vec<Cqe> {
    let mut ring = Ring::new(engine, 8, 0);
    let (a, b) = stream(tcp);
    let mut memory = [0u8; 128];
    let (first, second) = memory.split_at_mut(64);
    let mut buffers = Buffers::of(&ring, 4, 1, 0);
    buffers.fill(&mut first[..2 * size], size, 0, 1);
    let request = Sqe { fd: b.as_raw_fd(), ..request };
    if armed {
        ring.submit(&[request]);
    }
    write_to(&a, &vec![7; length]);
    if !armed {
        ring.submit(&[request]);
    }
    let mut received = 0;
    let mut all = Vec::new();
    while received < length {
        let cqe = wait(&mut ring);
        received +=
            (cqe.res as usize).saturating_sub(if request.opcode == IORING_OP_RECVMSG as u8 { 16 } else { 0 });
        all.push(cqe);
        if cqe.res <= 0 || cqe.flags & IORING_CQE_F_MORE == 0 {
            break;
        }
    }
    all.extend(ring.reap_all());
    buffers.fill(&mut second[..2 * size], size, 2, 1);
    write_to(&a, &[8; 4]);
    // A request that has ended receives no more.
    if all.last().is_some_and(|cqe| cqe.flags & IORING_CQE_F_MORE != 0) {
        all.push(wait(&mut ring));
    }
    all
}

/// The kernel looks for more data before it selects another buffer, if the socket tells how much is left.
#[both]
fn multishot_receives_that_fill_the_last_buffer_go_on(engine: Engine) -> impl Answer {
    let header: libc::msghdr = zeroed();
    let mut all = Vec::new();
    for (tcp, armed) in [(false, false), (false, true), (true, false), (true, true)] {
        all.push(into_two_buffers(engine, tcp, armed, multishot(1, &0, 1), 4, 8));
        let received = into_two_buffers(engine, tcp, armed, messages(&0, 1, &header), 20, 8);
        all.push(received);
    }
    all
}

/// Data below the low-water mark are left, too.
#[both]
fn multishot_receives_without_buffers_end_where_data_are_left(engine: Engine) -> impl Answer {
    [0, 60].map(|mark: i32| {
        let mut ring = Ring::new(engine, 32, 0);
        let (a, b) = stream(true);
        let size = size_of::<i32>() as u32;
        // SAFETY: reads an integer.
        let set = unsafe {
            libc::setsockopt(
                b.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                (&raw const mark).cast(),
                size,
            )
        };
        assert_eq!(set, 0);
        let mut memory = [0u8; 100];
        let mut buffers = Buffers::of(&ring, 16, 1, 0);
        buffers.fill(&mut memory, 10, 0, 1);
        ring.submit(&[multishot(1, &b, 1)]);
        write_to(&a, &[7; 105]);
        (0..11).map(|_| ring.wait()).collect::<Vec<_>>()
    })
}

#[both]
fn multishot_bundles_end_where_data_are_left(engine: Engine) -> impl Answer {
    let request = Sqe { ioprio: BUNDLE | SHOTS, ..recv(1, &0, 1) };
    let mut all = Vec::new();
    for (tcp, armed) in [(false, false), (false, true), (true, false), (true, true)] {
        all.push([4, 6, 8, 12].map(|length| into_two_buffers(engine, tcp, armed, request, 4, length)));
    }
    all
}

#[both(8, 0)]
fn bundles_send_all_there_is(mut ring: Ring) -> impl Answer {
    let (a, mut b) = tcp_pair();
    let mut memory = *b"abcdefghijklmnopqrstuvwx";
    let mut buffers = Buffers::of(&ring, 8, 1, 0);
    let sqe = Sqe { opcode: IORING_OP_SEND as u8, ioprio: BUNDLE, ..recv(1, &a, 1) };
    let mut all = vec![ring.run(&[sqe])[0]];
    buffers.fill(&mut memory, 8, 0, 1);
    all.extend(ring.run(&[sqe]));
    buffers.add(7, &mut memory);
    all.extend(ring.run(&[sqe]));
    let mut text = [0u8; 48];
    b.read_exact(&mut text).unwrap();
    (all, text.to_vec(), head(&ring, 1))
}

/// Sends a bundle, or a single buffer, of at most so many bytes from buffers of these lengths, on a connection of its own.
fn sent(ring: &mut Ring, lengths: &[usize], ioprio: u16, len: u32) -> (Vec<Cqe>, i32) {
    let (a, _b) = tcp_pair();
    let mut memory = [0u8; 64];
    let mut buffers = Buffers::of(ring, 8, 1, 0);
    lengths.iter().zip(0..).for_each(|(&length, id)| buffers.add(id, &mut memory[..length]));
    let send = Sqe { opcode: IORING_OP_SEND as u8, ioprio, len, ..recv(1, &a, 1) };
    ring.submit(&[send]);
    let mut all = vec![ring.wait()];
    while all.last().is_some_and(|cqe| cqe.flags & IORING_CQE_F_MORE != 0) {
        all.push(ring.wait());
    }
    let head = head(ring, 1);
    assert_eq!(unregister(ring, 1), 0);
    (all, head)
}

#[both(8, 0)]
fn a_length_limits_the_first_bundle_of_a_send(mut ring: Ring) -> impl Answer {
    // Of the second, two buffers would be enough if all were as long as the first.
    [&[8; 5][..], &[20, 5, 5, 5, 50]].map(|lengths| [8, 40].map(|len| sent(&mut ring, lengths, BUNDLE, len)))
}

#[both(8, 0)]
fn sends_refuse_an_empty_buffer(mut ring: Ring) -> impl Answer {
    [(0, 0), (0, 8), (BUNDLE, 0), (BUNDLE, 8)].map(|(ioprio, len)| sent(&mut ring, &[0, 8, 8], ioprio, len))
}

#[both(8, 0)]
fn bundles_with_a_length_refuse_an_empty_buffer(mut ring: Ring) -> impl Answer {
    let (mut a, b) = tcp_pair();
    let mut memory = [0u8; 16];
    let mut buffers = Buffers::of(&ring, 8, 1, 0);
    buffers.add(0, &mut []);
    buffers.add(1, &mut memory);
    a.write_all(b"text").unwrap();
    (run(&mut ring, Sqe { ioprio: BUNDLE, len: 16, ..recv(1, &b, 1) }), head(&ring, 1))
}

fn read_multishot(fd: i32, group: u16) -> Sqe {
    Sqe { fd, flags: SELECT, buf_index: group, ..sqe(IORING_OP_READ_MULTISHOT, 1) }
}

#[both(8, 0)]
fn multishot_reads_go_on_until_the_end(mut ring: Ring) -> impl Answer {
    let (reader, mut writer) = pipe();
    let mut memory = [0u8; 64];
    run(&mut ring, provide(0, 0, &mut memory, 4));
    ring.submit(&[read_multishot(reader.as_raw_fd(), 0)]);
    let mut all = Vec::new();
    for length in [3, 20, 2] {
        writer.write_all(&vec![9; length]).unwrap();
        all.push(wait(&mut ring));
        if length > 16 {
            all.push(wait(&mut ring));
        }
    }
    drop(writer);
    all.push(wait(&mut ring));
    all
}

#[both(8, 0)]
fn multishot_reads_end_at_the_end_of_the_stream(mut ring: Ring) -> impl Answer {
    let (reader, mut writer) = pipe();
    let mut memory = [0u8; 64];
    run(&mut ring, provide(0, 0, &mut memory, 4));
    writer.write_all(b"text").unwrap();
    ring.submit(&[read_multishot(reader.as_raw_fd(), 0)]);
    let first = wait(&mut ring);
    drop(writer);
    (first, wait(&mut ring), run(&mut ring, remove(0, 9)))
}

#[both(8, IORING_SETUP_SUBMIT_ALL)]
fn errors_of_multishot_reads(mut ring: Ring) -> impl Answer {
    let (reader, _writer) = pipe();
    let file = File::open("/proc/self/exe").unwrap();
    let zero = File::open("/dev/zero").unwrap();
    let mut memory = [0u8; 64];
    run(&mut ring, provide(0, 0, &mut memory, 4));
    let good = read_multishot(reader.as_raw_fd(), 0);
    ring.run(&[
        Sqe { flags: 0, ..good },
        Sqe { len: 1, ..good },
        Sqe { addr: 1, ..good },
        Sqe { ioprio: 1, ..good },
        Sqe { fd: 9999, ..good },
        Sqe { buf_index: 1, ..good },
        read_multishot(file.as_raw_fd(), 0),
        read_multishot(zero.as_raw_fd(), 0),
    ])
}

/// A terminal knows no non-blocking attempts.
#[both(8, 0)]
fn multishot_reads_of_a_terminal(mut ring: Ring) -> impl Answer {
    let (main, terminal) = self::terminal();
    let mut memory = [0u8; 64];
    run(&mut ring, provide(0, 0, &mut memory, 4));
    ring.submit(&[read_multishot(terminal, 0)]);
    let mut all = Vec::new();
    for text in [&b"line\n"[..], b"another line\n"] {
        write_to(&main, text);
        all.push(wait(&mut ring));
    }
    close_number(main);
    all.push(wait(&mut ring));
    close_number(terminal);
    (all, memory)
}

/// The completions for two events of an inotify instance, one after the other, in buffers of `size` bytes. Inotify knows no
/// non-blocking attempts, and gives out whole events only.
fn multishot_reads_of_events(ring: &mut Ring, flags: i32, size: usize) -> Vec<Cqe> {
    use std::os::unix::fs::PermissionsExt;

    let watched = nameless(b"");
    let events = inotify(&watched, libc::IN_ATTRIB, flags);
    let mut memory = vec![0u8; 4 * size];
    run(ring, provide(0, 0, &mut memory, 4));
    ring.submit(&[read_multishot(events.as_raw_fd(), 0)]);
    let mut all = Vec::new();
    for mode in [0o400, 0o600] {
        watched.set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
        all.push(wait(ring));
        if all.last().is_some_and(|cqe| cqe.res < 0) {
            break;
        }
    }
    // Nothing comes behind, as these go with the ring.
    std::mem::forget((events, memory));
    all
}

#[both(8, 0)]
fn multishot_reads_of_inotify(mut ring: Ring) -> impl Answer {
    let small = multishot_reads_of_events(&mut ring, libc::IN_NONBLOCK, 8);
    run(&mut ring, remove(0, 9));
    (small, multishot_reads_of_events(&mut ring, libc::IN_NONBLOCK, 64))
}

/// The kernel tries such a file without waiting only where it has `O_NONBLOCK`, and a multishot nowhere else: there it never completes.
#[by(ours(8, 0))]
fn multishot_reads_of_inotify_that_could_block(mut ring: Ring) {
    let all = multishot_reads_of_events(&mut ring, 0, 64);
    assert_eq!(all.iter().map(|cqe| cqe.res).collect::<Vec<_>>(), [16, 16]);
}

fn read(fd: i32, len: u32, group: u16) -> Sqe {
    Sqe { fd, len, off: u64::MAX, flags: SELECT, buf_index: group, ..sqe(IORING_OP_READ, 1) }
}

/// Reads of a terminal by a thread use as much of a buffer as they fill.
#[both(8, 0)]
fn reads_of_a_terminal_use_buffers_up_bit_by_bit(mut ring: Ring) -> impl Answer {
    let (main, terminal) = terminal();
    let (mut all, mut left) = (Vec::new(), Vec::new());
    for multishot in [false, true] {
        let mut memory = [0u8; 32];
        let mut buffers = Buffers::map(4, -1, 0);
        let flags = io_uring_register_pbuf_ring_flags::IOU_PBUF_RING_INC as u16;
        assert_eq!(buffers.register(&ring, 1, flags), 0);
        memory.chunks_mut(16).zip([11, 22]).for_each(|(buffer, id)| buffers.add(id, buffer));
        if multishot {
            ring.submit(&[read_multishot(terminal, 1)]);
        }
        for text in [&b"line\n"[..], b"another\n", b"ab\n", b"end\n"] {
            write_to(&main, text);
            if !multishot {
                ring.submit(&[read(terminal, 100, 1)]);
            }
            all.push((wait(&mut ring), head(&ring, 1)));
        }
        if multishot {
            let cancel = Sqe { addr: 1, ..sqe(IORING_OP_ASYNC_CANCEL, 2) };
            ring.submit(&[cancel]);
            let mut ends = [wait(&mut ring), wait(&mut ring)];
            ends.sort_by_key(|cqe| cqe.user_data);
            all.extend(ends.map(|cqe| (cqe, head(&ring, 1))));
        }
        let start = memory.as_ptr() as u64;
        assert_eq!(memory[..20], *b"line\nanother\nab\nend\n");
        left.extend([0, 1].map(|index| buffers.left(index, start)));
        assert_eq!(unregister(&ring, 1), 0);
    }
    close_number(terminal);
    close_number(main);
    (all, left)
}

/// Files in `/proc` look like files on storage, and some of them can be polled.
#[both(8, 0)]
fn reads_of_proc_use_buffers_up_bit_by_bit(mut ring: Ring) -> impl Answer {
    // The second cannot be polled: all that was asked for is used up.
    ["/proc/version", "/proc/self/oom_score"].map(|path| {
        let file = std::fs::File::open(path).unwrap();
        let expected = std::fs::read(path).unwrap().len();
        let mut memory = [0u8; 2 << 10];
        let mut buffers = Buffers::map(4, -1, 0);
        let flags = io_uring_register_pbuf_ring_flags::IOU_PBUF_RING_INC as u16;
        assert_eq!(buffers.register(&ring, 1, flags), 0);
        memory.chunks_mut(1 << 10).zip([11, 22]).for_each(|(buffer, id)| buffers.add(id, buffer));
        let all: Vec<_> = [1000, 1000, 4000]
            .map(|length| {
                let cqe = run(&mut ring, Sqe { off: 0, ..read(file.as_raw_fd(), length, 1) });
                (cqe.res == expected as i32, cqe.flags, head(&ring, 1))
            })
            .into();
        assert_eq!(unregister(&ring, 1), 0);
        all
    })
}

/// A read of a file takes what it asked for of its buffer, however much of the file is in the page cache.
#[both(8, 0)]
fn reads_of_files_use_up_what_they_asked_for(mut ring: Ring) -> impl Answer {
    let file = nameless(b"twelve bytes");
    let directory = File::open("/").unwrap();
    [0, INC].map(|flags| {
        let mut memory = [0u8; 64];
        let mut buffers = Buffers::of(&ring, 4, 1, flags);
        buffers.fill(&mut memory, 32, 0, 1);
        let reads = [(file.as_raw_fd(), 0), (file.as_raw_fd(), 99), (directory.as_raw_fd(), 0)];
        let answers = reads.map(|(fd, off)| (run(&mut ring, Sqe { off, ..read(fd, 14, 1) }), head(&ring, 1)));
        let left = [0, 1].map(|index| buffers.left(index, memory.as_ptr() as u64));
        assert_eq!(unregister(&ring, 1), 0);
        (answers, left)
    })
}

/// Of a buffer that a thread reads into, nobody else gets a part meanwhile; what is left of it can be had again.
#[both(8, 0)]
fn two_terminals_share_their_buffers(mut ring: Ring) -> impl Answer {
    let terminals = [terminal(), terminal()];
    let mut memory = [0u8; 48];
    let mut buffers = Buffers::map(4, -1, 0);
    let flags = io_uring_register_pbuf_ring_flags::IOU_PBUF_RING_INC as u16;
    assert_eq!(buffers.register(&ring, 1, flags), 0);
    memory.chunks_mut(16).zip([11, 22, 33]).for_each(|(buffer, id)| buffers.add(id, buffer));
    for (main, terminal) in terminals {
        ring.submit(&[read(terminal, 100, 1)]);
        write_to(&main, b"line\n");
    }
    let lengths = [wait(&mut ring).res, wait(&mut ring).res];
    // Whichever buffers those were, at least one is left, and it is not a part of them.
    write_to(&terminals[0].0, b"end\n");
    let last = run(&mut ring, read(terminals[0].1, 100, 1)).res;
    let text: Vec<u8> = memory.iter().copied().filter(|&byte| byte != 0).collect();
    assert_eq!(text.len(), 14);
    for (main, terminal) in terminals {
        close_number(terminal);
        close_number(main);
    }
    (lengths, last)
}

#[both]
fn multishot_receives_have_limits(engine: Engine) -> impl Answer {
    let mut all = Vec::new();
    for (bundle, once, in_all) in [
        (0, 0, 0),
        (0, 40, 0),
        (0, 0, 250),
        (0, 40, 250),
        (0, 100, 100),
        (16, 0, 250),
        (16, 150, 0),
        (16, 150, 250),
    ] {
        let mut ring = Ring::new(engine, 16, 0);
        let (a, b) = tcp_pair();
        let mut memory = vec![0; 64 * 64];
        let mut buffers = Buffers::of(&ring, 64, 1, 0);
        buffers.fill(&mut memory, 64, 0, 1);
        (&a).write_all(&[7; 400]).unwrap();
        ring.submit(&[Sqe { len: once, file_index: in_all, ioprio: SHOTS | bundle, ..recv(1, &b, 1) }]);
        let mut received = 0;
        let mut cqes = Vec::new();
        let expected = if in_all == 0 { 400 } else { in_all as i32 };
        while received < expected {
            let cqe = wait(&mut ring);
            received += cqe.res;
            cqes.push((cqe.res, cqe.flags & IORING_CQE_F_MORE));
            if cqe.flags & IORING_CQE_F_MORE == 0 {
                break;
            }
        }
        all.push((once, in_all, cqes));
        drop(ring);
    }
    all
}

#[both(16, IORING_SETUP_SUBMIT_ALL)]
fn limits_that_are_none(mut ring: Ring) -> impl Answer {
    let (a, _b) = UnixStream::pair().unwrap();
    let mut byte = [0u8];
    let header: libc::msghdr = zeroed();
    let message = Sqe { user_data: 3, len: 1, ioprio: 0, ..messages(&a, 1, &header) };
    ring.run(&[
        Sqe { file_index: 10, ..recv(1, &a, 1) },
        Sqe { file_index: 10, flags: 0, addr: byte.as_mut_ptr() as u64, len: 1, ..recv(2, &a, 0) },
        Sqe { file_index: 10, ..message },
        Sqe { file_index: 10, ioprio: SHOTS, ..message },
        Sqe { file_index: 10, flags: 0, ..multishot(4, &a, 1) },
        Sqe { len: 1 << 31, ..multishot(5, &a, 1) },
    ])
}

#[both(8, 0)]
fn lists_have_numbers_up_to_a_bound(mut ring: Ring) -> impl Answer {
    let mut memory = vec![0u8; 1 << 16];
    let addr = memory.as_mut_ptr() as u64;
    let mut all = Vec::new();
    for (first, count) in
        [(0, 65536), (0, 65537), (1, 65535), (1, 65536), (65535, 1), (65535, 2), (65536, 1), (7, 65530)]
    {
        let group = all.len() as u16;
        let provide = sqe(IORING_OP_PROVIDE_BUFFERS, 1);
        all.extend(ring.run(&[Sqe { fd: count, addr, len: 1, off: first, buf_index: group, ..provide }]));
        all.extend([65537, 65536, 1].map(|count| run(&mut ring, remove(group, count))));
    }
    all
}

/// A multishot receive from a connection, into buffers of 16 bytes.
struct Stream {
    one: TcpStream,
    other: TcpStream,
    _buffers: Buffers,
    memory: Vec<u8>,
}

impl Stream {
    fn new(ring: &Ring, group: u16) -> Stream {
        let (one, other) = tcp_pair();
        one.set_nodelay(true).unwrap();
        let (mut buffers, mut memory) = (Buffers::of(ring, 64, group, 0), vec![0; 64 * 16]);
        buffers.fill(&mut memory, 16, 0, 1);
        Stream { one, other, _buffers: buffers, memory }
    }

    fn receive(&self, group: u16) -> Sqe {
        multishot(group.into(), &self.other, group)
    }

    /// Sends so many bytes, and waits until they are there.
    fn send(&mut self, count: usize) {
        self.one.write_all(&[b'x'; 1024][..count]).unwrap();
        until("what was sent arrives", || {
            let mut unread = 0i32;
            // SAFETY: writes an integer of ours.
            let asked = unsafe { libc::ioctl(self.other.as_raw_fd(), libc::FIONREAD, &raw mut unread) };
            asked == 0 && unread as usize == count
        });
    }
}

#[both]
fn multishot_receives_that_have_waited_are_what_they_were(engine: Engine) -> impl Answer {
    let mut all = Vec::new();
    let flags = [0, libc::MSG_TRUNC, libc::MSG_NOSIGNAL];
    for (op_flags, in_all, len) in flags.into_iter().flat_map(|flags| [(flags, 0, 0), (flags, 10, 3)]) {
        let mut ring = Ring::new(engine, 16, DEFER);
        let mut stream = Stream::new(&ring, 1);
        let receive = stream.receive(1);
        ring.submit(&[Sqe { op_flags: op_flags as u32, file_index: in_all, len, ..receive }]);
        let mut cqes = Vec::new();
        let mut received = 0;
        for round in 1..=3 {
            stream.send(4);
            while received < 4 * round && cqes.last().is_none_or(|&(_, more)| more != 0) {
                let cqe = wait(&mut ring);
                received += cqe.res;
                cqes.push((cqe.res, cqe.flags & IORING_CQE_F_MORE));
            }
            if cqes.last().unwrap().1 == 0 {
                break;
            }
        }
        // SAFETY: the ring wrote it.
        let first = unsafe { stream.memory.as_ptr().read_volatile() };
        all.push((cqes, first));
        drop(ring);
    }
    all
}

/// In which order the requests of two streams, both with so much to receive, have completions.
fn turns(engine: Engine, change: impl Fn(Sqe) -> Sqe) -> Vec<(u64, i32)> {
    let mut ring = Ring::new(engine, 128, DEFER);
    let mut streams = [Stream::new(&ring, 1), Stream::new(&ring, 2)];
    for (stream, group) in streams.iter().zip(1..) {
        ring.submit(&[change(stream.receive(group))]);
    }
    streams.iter_mut().for_each(|stream| stream.send(40 * 16));
    let mut received = 0;
    let mut order: Vec<(u64, i32)> = Vec::new();
    while received < 2 * 40 * 16 {
        let cqe = wait(&mut ring);
        received += cqe.res;
        match order.last_mut() {
            Some((whose, count)) if *whose == cqe.user_data => *count += 1,
            _ => order.push((cqe.user_data, 1)),
        }
    }
    drop(ring);
    order
}

#[both]
fn multishot_receives_take_turns(engine: Engine) -> impl Answer {
    let plain = turns(engine, |sqe| sqe);
    let limited = turns(engine, |sqe| Sqe { len: 16, ..sqe });
    let bundle = IORING_RECVSEND_BUNDLE as u16;
    let bundles = turns(engine, |sqe| Sqe { ioprio: sqe.ioprio | bundle, len: 160, ..sqe });
    (plain, limited, bundles)
}
