//! Findings of the differential fuzzer, each as a program of a few lines.

use std::os::unix::fs::OpenOptionsExt;

use crate::common::prelude::*;
use anyring_engine::os::user::{END, FAR_END};

#[both(8, 0)]
fn a_bad_member_does_not_end_the_batch_while_its_chain_goes_on(mut ring: Ring) -> impl Answer {
    ring.push(Sqe { ioprio: 1, flags: LINK, ..sqe(IORING_OP_NOP, 1) });
    ring.push(sqe(IORING_OP_NOP, 2));
    ring.push(sqe(IORING_OP_NOP, 3));
    (ring.enter(3, 3), ring.reap_all())
}

#[both(8, 0)]
fn some_operations_fail_alone(mut ring: Ring) -> impl Answer {
    let file = File::open("/dev/null").unwrap();
    let fd = file.as_raw_fd();
    let socket = UnixStream::pair().unwrap().0;
    let failing = [
        Sqe { fd, ..sqe(IORING_OP_FALLOCATE, 1) },
        Sqe { fd, off: 1 << 63, ..sqe(IORING_OP_FTRUNCATE, 2) },
        Sqe { fd, op_flags: 99, ..sqe(IORING_OP_SYNC_FILE_RANGE, 3) },
        Sqe { addr: 1, len: 4096, op_flags: 4, ..sqe(IORING_OP_MADVISE, 4) },
        Sqe { fd: socket.as_raw_fd(), len: 9, ..sqe(IORING_OP_SHUTDOWN, 5) },
        Sqe { fd, addr: c"".as_ptr() as u64, ..sqe(IORING_OP_MKDIRAT, 6) },
        Sqe { fd, op_flags: 99, ..sqe(IORING_OP_FADVISE, 7) },
    ];
    let mut seen = Vec::new();
    for request in failing {
        ring.push(Sqe { flags: LINK, ..request });
        ring.push(sqe(IORING_OP_NOP, 100));
        seen.push(ring.enter(2, 2));
        seen.extend(ring.reap_all().iter().map(|cqe| cqe.res));
        ring.push(Sqe { flags: LINK | SKIP, ..request });
        ring.push(sqe(IORING_OP_NOP, 100));
        seen.push(ring.enter(2, 1));
        seen.extend(ring.reap_all().iter().map(|cqe| cqe.res));
    }
    seen
}

#[both(8, 0)]
fn the_time_to_wait_may_be_any_numbers(ring: Ring) -> impl Answer {
    [[0i64, 2_000_000_000], [-1, 0], [0, -5]].map(|time| {
        let argument = [0u64, 0, time.as_ptr() as u64];
        let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
        enter(ring.engine, ring.fd, 0, 0, flags, argument.as_ptr().cast(), size_of_val(&argument))
    })
}

#[both(8, 0)]
fn sockets_take_no_offset(mut ring: Ring) -> impl Answer {
    let (a, b) = UnixStream::pair().unwrap();
    let data = [1u8; 8];
    let write = Sqe { fd: b.as_raw_fd(), addr: data.as_ptr() as u64, len: 8, ..sqe(IORING_OP_WRITE, 1) };
    let read = Sqe { opcode: IORING_OP_READ as u8, fd: a.as_raw_fd(), user_data: 2, ..write };
    [0, 5, u64::MAX].map(|off| (ring.run(&[Sqe { off, ..write }]), ring.run(&[Sqe { off, ..read }])))
}

#[both(8, 0)]
fn a_bad_descriptor_comes_before_a_bad_registered_buffer(mut ring: Ring) -> impl Answer {
    let bad = Sqe { fd: 999_999, len: 8, ..sqe(IORING_OP_READ_FIXED, 1) };
    let many = Sqe { opcode: IORING_OP_READV_FIXED as u8, fd: 0, len: 0x8000_0000, ..bad };
    (ring.run(&[bad]), ring.run(&[many]))
}

#[both(8, 0)]
fn sparing_a_chain_needs_a_file(mut ring: Ring) -> impl Answer {
    let path = File::options().read(true).custom_flags(libc::O_PATH).open("/").unwrap();
    [(IORING_OP_FSYNC, 999_999), (IORING_OP_FALLOCATE, path.as_raw_fd()), (IORING_OP_SHUTDOWN, 0)]
        .map(|(opcode, fd)| ring.run(&[Sqe { fd, flags: LINK, ..sqe(opcode, 1) }, sqe(IORING_OP_NOP, 2)]))
}

#[both(8, DEFER)]
fn a_batch_cut_short_fetches_nothing(mut ring: Ring) -> impl Answer {
    ring.push(Sqe { flags: LINK, ..sqe(IORING_OP_NOP, 1) });
    ring.push(sqe(IORING_OP_NOP, 2));
    let submitted = ring.enter(5, 1);
    (submitted, ring.reap_all(), ring.enter_with(0, 0, IORING_ENTER_GETEVENTS), ring.reap_all())
}

#[both(8, 0)]
fn sockets_tell_of_more_after_nothing(mut ring: Ring) -> impl Answer {
    let (a, mut b) = UnixStream::pair().unwrap();
    b.write_all(&[1; 8]).unwrap();
    let header = [0u64; 7];
    let addr = header.as_ptr() as u64;
    ring.run(&[Sqe { fd: a.as_raw_fd(), addr, len: 1, ..sqe(IORING_OP_RECVMSG, 1) }])
}

#[both(8, 0)]
fn the_end_of_a_connection_is_more_to_come(mut ring: Ring) -> impl Answer {
    let (mut b, a) = tcp_pair();
    b.write_all(&[1; 8]).unwrap();
    b.shutdown(std::net::Shutdown::Write).unwrap();
    let mut data = [0u8; 64];
    // A program that polls first by what completions say.
    let ioprio = IORING_RECVSEND_POLL_FIRST as u16;
    ring.run(&[Sqe { len: 64, ioprio, ..reading(IORING_OP_RECV, 1, &a, &mut data) }])
}

#[both(8, IORING_SETUP_SUBMIT_ALL)]
fn sends_take_vectors(mut ring: Ring) -> impl Answer {
    let (a, mut b) = UnixStream::pair().unwrap();
    let data = *b"abcdef";
    let vectors = [data.as_ptr() as u64, 2, data.as_ptr() as u64 + 3, 3];
    let send = Sqe { len: 2, ioprio: 1 << 5, ..writing(IORING_OP_SEND, 1, &a, &vectors) };
    let noise = [u64::MAX / 3; 4];
    let cqes = ring.run(&[send, Sqe { addr: noise.as_ptr() as u64, ..send }, Sqe { addr: 0, ..send }]);
    let mut got = [0u8; 16];
    (cqes, b.read(&mut got).unwrap(), got)
}

#[both(8, 0)]
fn flags_that_a_file_does_not_know_are_refused(mut ring: Ring) -> impl Answer {
    let (a, _b) = UnixStream::pair().unwrap();
    let mut data = [0u8; 8];
    let read = Sqe { len: 8, ..reading(IORING_OP_READ, 1, &a, &mut data) };
    [0x40, 0x80, 1 << 31].map(|op_flags| ring.run(&[Sqe { op_flags, ..read }]))
}

#[both(8, 0)]
fn a_timeout_counts_from_its_submission(mut ring: Ring) -> impl Answer {
    let time = [1000i64, 0];
    let timeout = Sqe { off: 3, addr: time.as_ptr() as u64, len: 1, ..sqe(IORING_OP_TIMEOUT, 1) };
    let nop = sqe(IORING_OP_NOP, 2);
    by_user_data(ring.run(&[nop, timeout, nop, nop]))
}

#[both(8, IORING_SETUP_SUBMIT_ALL)]
fn timeouts_refuse_what_they_do_not_read(mut ring: Ring) -> impl Answer {
    let time = [0i64, 1];
    let timeout = timeout(1, &time);
    let remove = sqe(IORING_OP_TIMEOUT_REMOVE, 2);
    [timeout, remove]
        .map(|request| (ring.run(&[Sqe { addr3: 1, ..request }]), ring.run(&[Sqe { pad: 1, ..request }])))
}

#[both(8, 0)]
fn accept_says_nothing_of_others_where_nobody_listens(mut ring: Ring) -> impl Answer {
    let (mut b, a) = tcp_pair();
    b.write_all(&[1; 8]).unwrap();
    ring.run(&[Sqe { fd: a.as_raw_fd(), file_index: 1, ..sqe(IORING_OP_ACCEPT, 1) }])
}

#[by(ours(8, 0))]
fn a_ring_may_end_while_a_chain_is_being_worked_on(mut ring: Ring) {
    // Only the user engine: what counts is that it lives.
    let (read, _write) = std::io::pipe().unwrap();
    let mut data = [0u8; 8];
    let word = 7u32;
    let futex = Sqe {
        fd: 0x82,
        addr: (&raw const word) as u64,
        off: 7,
        addr3: u64::from(u32::MAX),
        flags: LINK,
        ..sqe(IORING_OP_FUTEX_WAIT, 1)
    };
    ring.submit(&[futex, Sqe { len: 8, ..reading(IORING_OP_READ, 2, &read, &mut data) }]);
    drop(ring);
    // The next ring's first wait comes after the thread has let go of the last one.
    let mut ring = Ring::new(Engine::User, 8, 0);
    assert_eq!(ring.run(&[sqe(IORING_OP_NOP, 3)]).len(), 1);
}

#[both(8, 0)]
fn a_number_that_is_no_descriptor_costs_nothing(mut ring: Ring) -> impl Answer {
    let used_s = || clock(libc::CLOCK_PROCESS_CPUTIME_ID)[0];
    let (before_s, flags) = (used_s(), 1 << 5);
    let cqes = ring.run(&[Sqe { fd: i32::MAX, flags, ..sqe(IORING_OP_READ_MULTISHOT, 1) }]);
    (cqes, used_s() - before_s > 2)
}

#[both(8, 0)]
fn a_peek_leaves_more_to_come(mut ring: Ring) -> impl Answer {
    let (a, mut b) = UnixStream::pair().unwrap();
    b.write_all(&[1; 8]).unwrap();
    let mut data = [0u8; 64];
    let (addr, op_flags) = (data.as_mut_ptr() as u64, libc::MSG_PEEK as u32);
    ring.run(&[Sqe { fd: a.as_raw_fd(), addr, len: 64, op_flags, ..sqe(IORING_OP_RECV, 1) }])
}

/// A number that is never open.
const NOTHING: i32 = 9999;

#[both(8, 0)]
fn the_descriptor_is_looked_at_before_anything_else(mut ring: Ring) -> impl Answer {
    let (pipe, _other) = std::io::pipe().unwrap();
    let (fd, flags) = (pipe.as_raw_fd(), SELECT);
    let cqes = ring.one_by_one(&[
        Sqe { fd: NOTHING, off: u64::MAX, ..sqe(IORING_OP_FTRUNCATE, 1) },
        Sqe { fd: NOTHING, len: 8, flags, ..sqe(IORING_OP_READ, 2) },
        Sqe { fd, len: 8, flags, ..sqe(IORING_OP_RECV, 3) },
    ]);
    cqes.iter().map(|cqe| (cqe.res, cqe.flags)).collect::<Vec<_>>()
}

#[both(8, 0)]
fn a_listener_is_not_waited_for_to_receive_from(mut ring: Ring) -> impl Answer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let fd = listener.as_raw_fd();
    ring.submit(&[Sqe { fd, ..sqe(IORING_OP_ACCEPT, 1) }]);
    let mut data = [0u8; 8];
    ring.entered(&[Sqe { len: 8, ..reading(IORING_OP_RECV, 2, &fd, &mut data) }], 1)
}

#[both(8, 0)]
fn transfers_of_nothing_reach_the_file(mut ring: Ring) -> impl Answer {
    let counter = eventfd(0, libc::EFD_CLOEXEC);
    let (pipe, _other) = std::io::pipe().unwrap();
    let (socket, peer) = UnixStream::pair().unwrap();
    drop(peer);
    let (event, pipe, socket) = (counter.as_raw_fd(), pipe.as_raw_fd(), socket.as_raw_fd());
    let one = [0u8; 8];
    let addr = one.as_ptr() as u64;
    ring.one_by_one(&[
        Sqe { fd: event, addr, ..sqe(IORING_OP_READ, 1) },
        Sqe { fd: pipe, addr, ..sqe(IORING_OP_READ, 2) },
        Sqe { fd: socket, addr, ..sqe(IORING_OP_READ, 3) },
        Sqe { fd: event, addr, len: 1, op_flags: 16, ..sqe(IORING_OP_WRITE, 4) },
        Sqe { fd: event, addr, len: 8, op_flags: 8, ..sqe(IORING_OP_WRITE, 5) },
        Sqe { fd: pipe, addr, len: 8, off: i64::MAX as u64, ..sqe(IORING_OP_READ, 6) },
    ])
}

#[both(8, 0)]
fn a_descriptor_being_closed_is_none_to_what_follows(mut ring: Ring) -> impl Answer {
    // A number that no other test is given between the two closings.
    let fd = numbered(&eventfd(0, libc::EFD_CLOEXEC), 900);
    ring.push(Sqe { fd, ..sqe(IORING_OP_CLOSE, 1) });
    ring.push(writing(IORING_OP_WRITE, 2, &fd, &1u64.to_ne_bytes()));
    ring.push(Sqe { fd, ..sqe(IORING_OP_CLOSE, 3) });
    (ring.enter(3, 3), results(&ring.reap_all()))
}

#[both(8, 0)]
fn a_multishot_request_by_a_thread_waits_before_it_takes_a_buffer(mut ring: Ring) -> impl Answer {
    let (a, mut b) = UnixStream::pair().unwrap();
    ring.push(Sqe { flags: LINK | ASYNC, ..sqe(IORING_OP_NOP, 1) });
    ring.push(Sqe { fd: a.as_raw_fd(), flags: SELECT, ..sqe(IORING_OP_READ_MULTISHOT, 2) });
    let entered = ring.enter(2, 1);
    let first = results(&ring.reap_all());
    b.write_all(b"x").unwrap();
    ring.enter(0, 1);
    (entered, first, results(&ring.reap_all()))
}

#[both(8, 0)]
fn a_message_is_seen_before_a_timeout_that_counts(mut ring: Ring) -> impl Answer {
    let time = [1000i64, 0];
    ring.push(Sqe { fd: ring.fd, len: 7, off: 77, ..sqe(IORING_OP_MSG_RING, 1) });
    let addr = time.as_ptr() as u64;
    ring.push(Sqe { addr, len: 1, off: 2, ..sqe(IORING_OP_TIMEOUT, 2) });
    (ring.enter(2, 2), results(&ring.reap_all()))
}

#[both(8, 0)]
fn a_socket_without_a_slot_does_not_count_as_failed(mut ring: Ring) -> impl Answer {
    let socket = Sqe { fd: libc::AF_UNIX, off: libc::SOCK_STREAM as u64, ..sqe(IORING_OP_SOCKET, 1) };
    ring.answers(&[Sqe { file_index: 1, flags: SKIP | LINK, ..socket }, sqe(IORING_OP_NOP, 2)], 1)
}

#[test]
fn a_shutdown_comes_after_the_chains_before_it() {
    // The kernel's worker may shut the socket down first, where the submitter is preempted.
    let chain_first = |seen: &(i32, Vec<_>)| seen.1.contains(&(3, 0));
    both_where(chain_first, |engine| {
        let mut ring = Ring::new(engine, 8, 0);
        let tcp = socket(libc::AF_INET, libc::SOCK_STREAM);
        let fd = tcp.as_raw_fd();
        ring.push(Sqe { flags: LINK, ..sqe(IORING_OP_NOP, 1) });
        ring.push(Sqe { fd, len: 5, ..sqe(IORING_OP_LISTEN, 2) });
        ring.push(Sqe { fd, len: 1, ..sqe(IORING_OP_SHUTDOWN, 3) });
        (ring.enter(3, 3), results(&ring.reap_all()))
    });
}

#[both(8, 0)]
fn what_waitid_refuses_is_not_told_of(mut ring: Ring) -> impl Answer {
    ring.run(&[Sqe { off: i64::MAX as u64, ..sqe(IORING_OP_WAITID, 1) }])
}

/// Provides buffers of 32 bytes in group 1.
fn provide(ring: &mut Ring, memory: &mut [u8]) {
    assert_eq!(ring.run(&[providing(99, 1, memory, 32)])[0].res, 0);
}

#[both(8, 0)]
fn a_read_names_the_buffer_of_a_list_whatever_comes_of_it(mut ring: Ring) -> impl Answer {
    let mut memory = [0u8; 64];
    provide(&mut ring, &mut memory);
    let (a, _b) = UnixStream::pair().unwrap();
    let fd = a.as_raw_fd();
    let read = Sqe { fd, off: 5, len: 8, flags: SELECT, buf_index: 1, ..sqe(IORING_OP_READ, 1) };
    ring.run(&[read])
}

#[both(8, 0)]
fn a_multishot_read_looks_for_a_buffer_when_there_is_something_to_read(mut ring: Ring) -> impl Answer {
    let mut memory = [0u8; 32];
    provide(&mut ring, &mut memory);
    let (read, mut write) = std::io::pipe().unwrap();
    let fd = read.as_raw_fd();
    let flags = SELECT;
    ring.submit(&[Sqe { fd, flags, buf_index: 1, ..sqe(IORING_OP_READ_MULTISHOT, 1) }]);
    write.write_all(b"abc").unwrap();
    ring.enter(0, 1);
    let first = ring.reap_all();
    write.write_all(b"abc").unwrap();
    ring.enter(0, 1);
    (first, ring.reap_all())
}

#[both(8, 0)]
fn a_multishot_receive_takes_at_most_as_much_as_it_says(mut ring: Ring) -> impl Answer {
    let mut memory = [0u8; 64];
    provide(&mut ring, &mut memory);
    let (a, mut b) = UnixStream::pair().unwrap();
    b.write_all(&[1; 10]).unwrap();
    let fd = a.as_raw_fd();
    let multishot = 2;
    let receive = Sqe { fd, len: 5, ioprio: multishot, flags: SELECT, ..sqe(IORING_OP_RECV, 1) };
    let (_, cqes) = ring.entered(&[Sqe { buf_index: 1, ..receive }], 2);
    cqes.iter().map(|cqe| cqe.res).take(2).collect::<Vec<_>>()
}

#[both(8, 0)]
fn a_drain_in_a_chain_makes_its_head_wait_first(mut ring: Ring) -> impl Answer {
    let (a, mut b) = UnixStream::pair().unwrap();
    let fd = a.as_raw_fd();
    ring.push(Sqe { fd, flags: LINK | SELECT, ..sqe(IORING_OP_READ_MULTISHOT, 1) });
    ring.push(Sqe { flags: DRAIN, ..sqe(IORING_OP_NOP, 2) });
    let entered = ring.enter(2, 0);
    let first = results(&ring.reap_all());
    b.write_all(b"x").unwrap();
    ring.enter(0, 2);
    (entered, first, results(&ring.reap_all()))
}

#[both(8, 0)]
fn a_registered_directory_is_refused_before_unknown_flags(mut ring: Ring) -> impl Answer {
    let addr = c"none".as_ptr() as u64;
    ring.run(&[Sqe { addr, op_flags: 1, flags: 1, ..sqe(IORING_OP_UNLINKAT, 1) }])
}

#[test]
fn memory_that_cannot_be_is_refused_before_anything_else() {
    // What lies between the first and the last may be memory or not: the kernel says.
    for end in [END, END + (64 << 10), 1 << 52, 1 << 56, FAR_END] {
        both(|engine| {
            let mut ring = Ring::new(engine, 8, 0);
            let (read, mut write) = std::io::pipe().unwrap();
            // Nothing waits.
            write.write_all(b"x").unwrap();
            let (socket, _peer) = UnixStream::pair().unwrap();
            let (sends, receives) = (write.as_raw_fd(), read.as_raw_fd());
            let at = |opcode, fd| Sqe { fd, addr: end, len: 7, off: 5, ..sqe(opcode, 1) };
            let mut seen = Vec::new();
            for (opcode, fd) in
                [(IORING_OP_WRITE, sends), (IORING_OP_READ, receives), (IORING_OP_PROVIDE_BUFFERS, 4)]
            {
                seen.push(results(&ring.run(&[at(opcode, fd)])));
            }
            for (opcode, fd) in [(IORING_OP_SEND, sends), (IORING_OP_RECV, receives)] {
                seen.push(results(&ring.run(&[Sqe { off: 0, ..at(opcode, fd) }])));
                seen.push(results(&ring.run(&[Sqe { off: 0, addr: end - 7, ..at(opcode, fd) }])));
            }
            let op_flags = libc::MSG_DONTWAIT as u32;
            let receive = Sqe { off: 0, op_flags, ..at(IORING_OP_RECV, socket.as_raw_fd()) };
            seen.push(results(&ring.run(&[receive])));
            seen
        });
    }
}

#[both(8, 0)]
fn a_splice_looks_at_how_its_files_are_open_first(mut ring: Ring) -> impl Answer {
    let (from, _to) = std::io::pipe().unwrap();
    let (wrong, _other) = std::io::pipe().unwrap();
    results(&ring.run(&[Sqe { off: 0, ..splice(1, &from, &wrong, 10) }]))
}

#[both(8, 0)]
fn flags_of_a_transfer_come_after_how_the_file_is_open(mut ring: Ring) -> impl Answer {
    const RWF_HIPRI: u32 = 1;
    const RWF_SYNC: u32 = 4;
    const RWF_ATOMIC: u32 = 0x40;
    let (read, write) = std::io::pipe().unwrap();
    let directory = File::open("/").unwrap();
    let mut memory = [0u8; 16];
    let base = Sqe { addr: memory.as_mut_ptr() as u64, len: 16, ..sqe(IORING_OP_READ, 1) };
    [
        Sqe { fd: write.as_raw_fd(), op_flags: RWF_ATOMIC, ..base },
        Sqe { fd: read.as_raw_fd(), op_flags: RWF_HIPRI, opcode: IORING_OP_WRITE as u8, ..base },
        Sqe { fd: directory.as_raw_fd(), op_flags: RWF_SYNC, ..base },
    ]
    .map(|sqe| results(&ring.run(&[sqe])))
}

#[both(8, 0)]
fn multishot_reads_refuse_offsets_as_reads_do(mut ring: Ring) -> impl Answer {
    let mut memory = [0u8; 64];
    provide(&mut ring, &mut memory);
    let (a, mut b) = UnixStream::pair().unwrap();
    b.write_all(b"abc").unwrap();
    let (read, _write) = std::io::pipe().unwrap();
    [(a.as_raw_fd(), 5), (read.as_raw_fd(), i64::MAX as u64)].map(|(fd, off)| {
        let flags = SELECT;
        results(&ring.run(&[Sqe { fd, off, flags, buf_index: 1, ..sqe(IORING_OP_READ_MULTISHOT, 1) }]))
    })
}

#[both(8, 0)]
fn a_buffer_at_address_0_is_none(mut ring: Ring) -> impl Answer {
    ring.run(&[Sqe { fd: 1, len: 32, buf_index: 1, ..sqe(IORING_OP_PROVIDE_BUFFERS, 99) }]);
    let (a, mut b) = UnixStream::pair().unwrap();
    b.write_all(b"abc").unwrap();
    let base = Sqe { fd: a.as_raw_fd(), flags: SELECT, buf_index: 1, ..sqe(IORING_OP_RECV, 1) };
    results(&ring.run(&[Sqe { opcode: IORING_OP_READ_MULTISHOT as u8, ..base }]))
}

#[both(8, 0)]
fn options_of_waitid_are_looked_at_when_it_is_issued(mut ring: Ring) -> impl Answer {
    ring.push(Sqe { flags: LINK, ..sqe(IORING_OP_NOP, 1) });
    ring.push(Sqe { fd: 1, len: 1, file_index: u32::MAX - 1, ..sqe(IORING_OP_WAITID, 2) });
    (ring.enter(2, 2), results(&ring.reap_all()))
}

#[both(8, 0)]
fn a_cancelled_futex_wait_has_not_failed(mut ring: Ring) -> impl Answer {
    let word = 5u32;
    let (fd, addr) = (130, (&raw const word) as u64);
    let wait = Sqe { fd, addr, off: 5, addr3: u64::from(u32::MAX), ..sqe(IORING_OP_FUTEX_WAIT, 1) };
    ring.answers(&[Sqe { flags: SKIP | LINK, ..wait }, sqe(IORING_OP_NOP, 2), cancel(3, 1, 0)], 2)
}

#[both(8, 0)]
fn a_link_timeout_that_expires_at_once_does_not_stop_queued_work(mut ring: Ring) -> impl Answer {
    let time = [0u64, 0];
    let file = File::open("/proc/self/exe").unwrap();
    let cqes = ring.run(&[
        Sqe { fd: file.as_raw_fd(), flags: LINK, ..sqe(IORING_OP_FTRUNCATE, 1) },
        Sqe { addr: time.as_ptr() as u64, len: 1, ..sqe(IORING_OP_LINK_TIMEOUT, 2) },
    ]);
    // What the timeout itself says depends on when it was looked at.
    results(&cqes).into_iter().find(|&(user_data, _)| user_data == 1)
}

#[both(8, 0)]
fn recvmsg_looks_for_a_socket_before_it_polls(mut ring: Ring) -> impl Answer {
    const POLL_FIRST: u16 = 1;
    let (read, _write) = std::io::pipe().unwrap();
    let message: libc::msghdr = zeroed();
    let addr = (&raw const message) as u64;
    let fd = read.as_raw_fd();
    results(&ring.run(&[Sqe { fd, addr, len: 1, ioprio: POLL_FIRST, ..sqe(IORING_OP_RECVMSG, 1) }]))
}

#[both(8, 0)]
fn a_bundle_from_no_group_says_so(mut ring: Ring) -> impl Answer {
    const BUNDLE: u16 = 16;
    let (a, mut b) = UnixStream::pair().unwrap();
    let base = Sqe { fd: a.as_raw_fd(), ioprio: BUNDLE, flags: SELECT, ..sqe(IORING_OP_RECV, 1) };
    let empty = results(&ring.run(&[base]));
    b.write_all(b"abc").unwrap();
    (empty, results(&ring.run(&[base])))
}

#[both(8, 0)]
fn a_multishot_accept_by_a_thread_needs_a_file_that_can_be_polled(mut ring: Ring) -> impl Answer {
    const MULTISHOT: u16 = 1;
    let file = File::open("/proc/self/exe").unwrap();
    let accept = Sqe { fd: file.as_raw_fd(), ioprio: MULTISHOT, flags: ASYNC, ..sqe(IORING_OP_ACCEPT, 1) };
    results(&ring.run(&[accept]))
}

#[both(8, 0)]
fn a_connection_that_was_reset_has_no_more_to_read(mut ring: Ring) -> impl Answer {
    let (mut a, mut b) = tcp_pair();
    b.write_all(&[1; 200]).unwrap();
    a.write_all(&[1; 200]).unwrap();
    // With data that nobody read: a reset.
    drop(b);
    let mut memory = [0u8; 1000];
    ring.run(&[Sqe { len: 1000, ..reading(IORING_OP_RECV, 1, &a, &mut memory) }])
}

#[both(8, 0)]
fn an_accept_without_room_for_the_address_tells_of_the_next(mut ring: Ring) -> impl Answer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let _clients = [connect(), connect()];
    let (address, length) = ([0u64; 16], -1i32);
    let (addr, off) = (address.as_ptr() as u64, (&raw const length) as u64);
    ring.run(&[Sqe { fd: listener.as_raw_fd(), addr, off, ..sqe(IORING_OP_ACCEPT, 1) }])
}

#[both(8, 0)]
fn what_polls_first_on_a_socket_that_is_known_waits(mut ring: Ring) -> impl Answer {
    const POLL_FIRST: u16 = 4;
    let (a, _b) = UnixStream::pair().unwrap();
    let mut memory = [0u8; 8];
    let (fd, addr) = (a.as_raw_fd(), memory.as_mut_ptr() as u64);
    ring.push(Sqe { fd, addr, len: 8, ..sqe(IORING_OP_RECV, 1) });
    ring.push(Sqe { fd, ioprio: POLL_FIRST, ..sqe(IORING_OP_ACCEPT, 2) });
    (ring.enter(2, 0), results(&ring.reap_all()))
}

#[both(8, 0)]
fn statx_knows_its_flags_with_an_empty_path_too(mut ring: Ring) -> impl Answer {
    const EMPTY_PATH: u32 = 0x1000;
    let directory = File::open("/").unwrap();
    let mut room = [0u8; 256];
    let (addr, off) = (c"".as_ptr() as u64, room.as_mut_ptr() as u64);
    let statx = Sqe { fd: directory.as_raw_fd(), addr, off, ..sqe(IORING_OP_STATX, 1) };
    [0, 2, 0x200].map(|more| results(&ring.run(&[Sqe { op_flags: EMPTY_PATH | more, ..statx }])))
}

#[both(8, 0)]
fn a_descriptor_that_is_none_is_not_waited_for(mut ring: Ring) -> impl Answer {
    const POLL_FIRST: u16 = 1;
    let op_flags = libc::MSG_DONTWAIT as u32;
    results(&ring.run(&[Sqe { fd: 900_000, op_flags, ioprio: POLL_FIRST, ..sqe(IORING_OP_RECV, 1) }]))
}

#[both(8, 0)]
fn a_message_with_control_data_is_whole_as_it_comes(mut ring: Ring) -> impl Answer {
    let (a, mut b) = UnixStream::pair().unwrap();
    b.write_all(&[1; 300]).unwrap();
    let (data, mut control) = ([0u8; 1000], [0u64; 8]);
    let vectors = [vector(&data)];
    let mut message = message_of(&vectors);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), 64);
    let addr = (&raw const message) as u64;
    let op_flags = libc::MSG_WAITALL as u32;
    ring.push(Sqe { fd: a.as_raw_fd(), addr, len: 1, op_flags, flags: LINK, ..sqe(IORING_OP_RECVMSG, 1) });
    ring.push(sqe(IORING_OP_NOP, 2));
    (ring.enter(2, 2), results(&ring.reap_all()))
}

#[both(8, 0)]
fn what_this_side_has_shut_down_has_no_more_to_read(mut ring: Ring) -> impl Answer {
    let (a, _b) = tcp_pair();
    a.shutdown(std::net::Shutdown::Read).unwrap();
    let mut memory = [0u8; 100];
    ring.run(&[Sqe { len: 100, ..reading(IORING_OP_RECV, 1, &a, &mut memory) }])
}

#[both(8, 0)]
fn a_path_is_no_file_to_name(mut ring: Ring) -> impl Answer {
    const CANCEL_FD: u32 = 2;
    const NOP_FILE: u32 = 2;
    let path = File::options().read(true).custom_flags(libc::O_PATH).open("/").unwrap();
    let fd = path.as_raw_fd();
    [
        Sqe { fd, op_flags: CANCEL_FD, ..sqe(IORING_OP_ASYNC_CANCEL, 1) },
        Sqe { fd, op_flags: NOP_FILE, ..sqe(IORING_OP_NOP, 1) },
        Sqe { fd, ..sqe(IORING_OP_MSG_RING, 1) },
        Sqe { fd, file_index: 0, ..sqe(IORING_OP_SPLICE, 1) },
    ]
    .map(|sqe| results(&ring.run(&[sqe])))
}

#[both(8, 0)]
fn a_priority_comes_before_the_length_of_a_vector(mut ring: Ring) -> impl Answer {
    results(&ring.run(&[Sqe { len: u32::MAX, ioprio: 7 << 13, ..sqe(IORING_OP_WRITEV_FIXED, 1) }]))
}

#[both(8, 0)]
fn waiting_first_for_what_may_not_wait_fails(mut ring: Ring) -> impl Answer {
    const POLL_FIRST: u16 = 1;
    let (read, _write) = std::io::pipe().unwrap();
    let op_flags = libc::MSG_DONTWAIT as u32;
    let fd = read.as_raw_fd();
    results(&ring.run(&[Sqe { fd, op_flags, ioprio: POLL_FIRST, ..sqe(IORING_OP_RECV, 1) }]))
}

#[both(8, 0)]
fn what_follows_is_done_though_nobody_enters(mut ring: Ring) -> impl Answer {
    let file = File::open("/proc/self/exe").unwrap();
    ring.submit_and_wait(
        &[
            Sqe { flags: LINK, ..sqe(IORING_OP_NOP, 1) },
            Sqe { fd: file.as_raw_fd(), ..sqe(IORING_OP_FSYNC, 2) },
        ],
        1,
    );
    let mut seen = Vec::new();
    let begun = Instant::now();
    while seen.len() < 2 && begun.elapsed() < PATIENCE {
        seen.extend(ring.reap_all());
        std::thread::yield_now();
    }
    results(&seen)
}

#[both(8, 0)]
fn the_wrong_end_of_a_pipe_is_not_waited_for(mut ring: Ring) -> impl Answer {
    let (read, _write) = std::io::pipe().unwrap();
    let fd = read.as_raw_fd();
    ring.submit(&[Sqe { fd, op_flags: libc::POLLIN as u32, ..sqe(IORING_OP_POLL_ADD, 1) }]);
    let bytes = [0u8; 8];
    results(&ring.run(&[Sqe { len: 8, ..writing(IORING_OP_WRITE, 2, &fd, &bytes) }]))
}

#[both(8, 0)]
fn what_follows_a_futex_wait_is_not_a_threads(mut ring: Ring) -> impl Answer {
    let (read, _write) = std::io::pipe().unwrap();
    let word = 5u32;
    let (fd, addr) = (130, (&raw const word) as u64);
    let wait = Sqe { fd, addr, off: 5, addr3: u64::from(u32::MAX), ..sqe(IORING_OP_FUTEX_WAIT, 1) };
    ring.push(Sqe { flags: LINK, ..wait });
    // A thread would wait before it looks for a buffer.
    let fd = read.as_raw_fd();
    ring.push(Sqe { fd, flags: SELECT, ..sqe(IORING_OP_READ_MULTISHOT, 2) });
    ring.push(cancel(3, 1, 0));
    (ring.enter(3, 3), {
        let mut seen = results(&ring.reap_all());
        seen.sort_unstable();
        seen
    })
}

/// A listener refuses to receive and to send, and without connections is never ready for either.
#[both(8, 0)]
fn what_polls_first_on_a_listener_that_is_known_waits(mut ring: Ring) -> impl Answer {
    const POLL_FIRST: u16 = 1;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let fd = listener.as_raw_fd();
    let mut memory = [0u8; 8];
    let addr = memory.as_mut_ptr() as u64;
    let message: libc::msghdr = zeroed();
    let of_message =
        Sqe { fd, addr: (&raw const message) as u64, len: 1, ioprio: POLL_FIRST, ..Sqe::default() };
    let of_bytes = Sqe { addr, len: 8, ..of_message };
    let code = |op: io_uring_op| op as u8;
    ring.push(Sqe { fd, op_flags: libc::POLLIN as u32, ..sqe(IORING_OP_POLL_ADD, 1) });
    ring.push(Sqe { opcode: code(IORING_OP_RECV), ..of_bytes });
    ring.push(Sqe { opcode: code(IORING_OP_SEND), ..of_bytes });
    ring.push(Sqe { opcode: code(IORING_OP_RECVMSG), ..of_message });
    ring.push(Sqe { opcode: code(IORING_OP_SENDMSG), ..of_message });
    (ring.enter(5, 0), results(&ring.reap_all()))
}

/// A connection that is refused before the submission ends: CONNECT takes the refusal, before what a later submission or a
/// link sends, and after what the same submission sends.
#[test]
fn a_refusal_is_the_connects() {
    // A port that nobody listens on.
    let address = address_of(UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let byte = [0u8; 1];
    for order in ["later", "link before", "link behind", "at once"] {
        both(|engine| {
            let mut ring = Ring::new(engine, 8, 0);
            let socket = socket(libc::AF_INET, libc::SOCK_STREAM);
            let connect = connect(1, &socket, &address);
            let op_flags = libc::MSG_NOSIGNAL as u32;
            let send = Sqe { op_flags, ..writing(IORING_OP_SEND, 2, &socket, &byte) };
            let nop = Sqe { flags: LINK, ..sqe(IORING_OP_NOP, 3) };
            let submissions: &[&[Sqe]] = match order {
                "later" => &[&[connect], &[send]],
                "link before" => &[&[nop, send, connect]],
                "link behind" => &[&[connect, nop, send]],
                _ => &[&[connect, send]],
            };
            let mut seen = Vec::new();
            for sqes in submissions {
                ring.submit(sqes);
            }
            let count = submissions.iter().map(|sqes| sqes.len()).sum();
            while seen.len() < count {
                ring.enter(0, 1);
                seen.extend(results(&ring.reap_all()));
            }
            seen.sort_unstable();
            (order, seen)
        });
    }
}
