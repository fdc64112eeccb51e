//! Features of the newest kernels, Linux 6.19 to 7.2. Each answer here was that of Linux 7.2's own io_uring, too: on a kernel as
//! new as that, both engines are asked where `ANYRING_ORACLE` says so (`quality/conformance/refusals/record sid TEST` boots one).

use std::ptr::null;

use crate::common::{each_of_the_newest as each, prelude::*};
use anyring_engine::ops;
use io_uring_register_op as Register;

/// `IORING_REGISTER_BPF_FILTER`, `IORING_REGISTER_RESTRICTIONS`.
const FILTER: u32 = 37;
const RESTRICT: u32 = 11;

fn results(cqes: &[Cqe]) -> Vec<(u64, i32)> {
    cqes.iter().map(|cqe| (cqe.user_data, cqe.res)).collect()
}

fn wide(user_data: u64) -> Sqe {
    Sqe { opcode: IORING_OP_NOP128, user_data, ..Sqe::default() }
}

/// A big SQE takes two places, where the ring mixes sizes.
#[by(each)]
fn sqes_of_two_sizes(engine: Engine) {
    let mut ring = Ring::new(engine, 8, IORING_SETUP_SQE_MIXED | IORING_SETUP_SUBMIT_ALL);
    let nop = |user_data| sqe(IORING_OP_NOP, user_data);
    // Of the second half nothing is read.
    let rubbish = Sqe { opcode: 250, user_data: 99, ..Sqe::default() };
    ring.submit_all([nop(1), wide(2), rubbish, nop(3)], 0);
    assert_eq!(results(&ring.reap_all()), [(1, 0), (2, 0), (3, 0)]);
    // Its second half is not submitted with it: the entry itself is taken.
    ring.push(wide(4));
    ring.submit(&[rubbish]);
    assert_eq!(results(&ring.reap_all()), [(4, -libc::EINVAL)]);
    assert_eq!(ring.enter(1, 0), 1);
    assert_eq!(results(&ring.reap_all()), [(99, -libc::EINVAL)]);
    // None may wrap around: its halves are neighbours in memory.
    ring.submit(&[nop(5)]);
    ring.submit(&[wide(6), rubbish]);
    assert_eq!(results(&ring.reap_all()), [(5, 0), (6, -libc::EINVAL), (99, -libc::EINVAL)]);
}

/// `io_uring_cmd` polls for a command where its file can do that, and does others at once.
#[test]
fn commands_on_polled_rings() {
    let (socket, _other) = UnixStream::pair().unwrap();
    each(|engine| {
        let mut kind = 0;
        let mut ring = Ring::new(engine, 4, IORING_SETUP_IOPOLL | IORING_SETUP_SQE128);
        let ask = Sqe {
            fd: socket.as_raw_fd(),
            off: io_uring_socket_op::SOCKET_URING_OP_GETSOCKOPT as u64,
            addr: libc::SOL_SOCKET as u64 | (libc::SO_TYPE as u64) << 32,
            addr3: (&raw mut kind).expose_provenance() as u64,
            file_index: 4,
            ..sqe(IORING_OP_URING_CMD, 1)
        };
        let big = Sqe { opcode: IORING_OP_URING_CMD128, user_data: 2, ..ask };
        assert_eq!(results(&ring.run(&[ask, big, wide(3)])), [(1, 4), (2, 4), (3, 0)]);
        assert_eq!(kind, libc::SOCK_STREAM);
    });
}

#[by(each)]
fn big_sqes_elsewhere(engine: Engine) {
    let mut small = Ring::new(engine, 4, 0);
    assert_eq!(results(&small.run(&[wide(1)])), [(1, -libc::EINVAL)]);
    let mut big = Ring::new(engine, 4, IORING_SETUP_SQE128);
    assert_eq!(results(&big.run(&[wide(1), wide(2)])), [(1, 0), (2, 0)]);
    let mut params = params(IORING_SETUP_SQE_MIXED);
    assert_eq!(Ring::with_params(engine, 1, params).err(), Some(-libc::EOVERFLOW));
    params.flags |= IORING_SETUP_SQE128;
    assert_eq!(Ring::with_params(engine, 4, params).err(), Some(-libc::EINVAL));
}

/// A big one in a chain, and one that ends it.
#[by(each)]
fn big_sqes_in_chains(engine: Engine) {
    let mut ring = Ring::new(engine, 8, IORING_SETUP_SQE_MIXED);
    let link = 1 << 2;
    let nop = sqe(IORING_OP_NOP, 1);
    for sqe in [Sqe { flags: link, ..nop }, Sqe { flags: link, ..wide(2) }, nop, Sqe { user_data: 3, ..nop }]
    {
        ring.push(sqe);
    }
    assert_eq!(ring.enter(4, 0), 4);
    assert_eq!(results(&ring.reap_all()), [(1, 0), (2, 0), (3, 0)]);
}

/// Each submission begins at the first entry; head and tail mean nothing.
#[by(each)]
fn submissions_that_rewind(engine: Engine) {
    let flags = IORING_SETUP_SQ_REWIND | IORING_SETUP_NO_SQARRAY;
    let mut ring = Ring::new(engine, 4, flags);
    for round in 0..6u64 {
        for (index, user_data) in [10 * round, 10 * round + 1].into_iter().enumerate() {
            // SAFETY: a place of the ring, between two calls.
            unsafe { ring.sqe_slot(index as u32).write(sqe(IORING_OP_NOP, user_data)) };
        }
        assert_eq!(ring.enter(2, 0), 2);
        assert_eq!(results(&ring.reap_all()), [(10 * round, 0), (10 * round + 1, 0)]);
    }
    // As many as there are, at most.
    assert_eq!(ring.enter(9, 0), 4);
    let head = ring.word(ring.params.sq_off.head).load(Ordering::Acquire);
    assert_eq!(head, 0);
    for wrong in [IORING_SETUP_SQ_REWIND, flags | IORING_SETUP_SQPOLL] {
        let params = params(wrong);
        assert_eq!(Ring::with_params(engine, 4, params).err(), Some(-libc::EINVAL));
    }
}

#[by(each)]
fn times_in_the_sqe(engine: Engine) {
    let mut ring = Ring::new(engine, 8, IORING_SETUP_SUBMIT_ALL);
    let flags = IORING_TIMEOUT_IMMEDIATE_ARG;
    let timeout = Sqe { fd: -1, addr: 20_000_000, len: 1, op_flags: flags, ..sqe(IORING_OP_TIMEOUT, 1) };
    let start = Instant::now();
    assert_eq!(results(&ring.run(&[timeout])), [(1, -libc::ETIME)]);
    assert!(start.elapsed() >= Duration::from_millis(20));
    let never = Sqe { addr: i64::MAX as u64, ..timeout };
    let update = Sqe {
        addr: 1,
        off: 1_000,
        op_flags: flags | IORING_TIMEOUT_UPDATE,
        user_data: 2,
        ..sqe(IORING_OP_TIMEOUT_REMOVE, 2)
    };
    let mut both = results(&ring.run(&[never, update]));
    both.sort_unstable();
    assert_eq!(both, [(1, -libc::ETIME), (2, 0)]);
    let wrong = Sqe { addr: 1 << 63, ..timeout };
    assert_eq!(results(&ring.run(&[wrong])), [(1, -libc::EINVAL)]);
    let waits = Sqe { fd: -1, addr: 1, len: 1, op_flags: flags, ..sqe(IORING_OP_LINK_TIMEOUT, 4) };
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let mut byte = [0u8];
    let read = Sqe { flags: 1 << 2, len: 1, ..reading(IORING_OP_RECV, 3, &ours, &mut byte) };
    let mut both = results(&ring.run(&[read, waits]));
    both.sort_unstable();
    assert_eq!(both, [(3, -libc::ECANCELED), (4, -libc::ETIME)]);
}

#[by(each)]
fn names_of_sockets(engine: Engine) {
    let mut ring = Ring::new(engine, 8, IORING_SETUP_SUBMIT_ALL);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (ours, theirs) = tcp_pair();
    let mut port = |fd: i32, peer: u32| {
        let (mut name, mut length) = ([0u8; 16], 16u32);
        let command = Sqe {
            fd,
            off: SOCKET_URING_OP_GETSOCKNAME.into(),
            addr: name.as_mut_ptr() as u64,
            addr3: (&raw mut length) as u64,
            file_index: peer,
            ..sqe(IORING_OP_URING_CMD, 1)
        };
        let res = ring.run(&[command])[0].res;
        (res, u16::from_be_bytes([name[2], name[3]]), length)
    };
    let listens = listener.local_addr().unwrap().port();
    assert_eq!(port(listener.as_raw_fd(), 0), (0, listens, 16));
    assert_eq!(port(listener.as_raw_fd(), 1).0, -libc::ENOTCONN);
    let other = theirs.local_addr().unwrap().port();
    assert_eq!(port(ours.as_raw_fd(), 1), (0, other, 16));
    assert_eq!(port(ours.as_raw_fd(), 2).0, -libc::EINVAL);
}

/// SEND and RECV from and into registered buffers.
#[by(each)]
fn plain_transfers_with_registered_buffers(engine: Engine) {
    let mut ring = Ring::new(engine, 8, IORING_SETUP_SUBMIT_ALL);
    let mut memory = vec![7u8; 8192];
    let vector = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
    ring.register_buffers(&[vector]);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let fixed = IORING_RECVSEND_FIXED_BUF as u16;
    let base = memory.as_ptr() as u64;
    let send = Sqe { fd: ours.as_raw_fd(), ioprio: fixed, addr: base, len: 3, ..sqe(IORING_OP_SEND, 1) };
    let recv = Sqe { addr: base + 100, len: 50, user_data: 2, opcode: IORING_OP_RECV as u8, ..send };
    assert_eq!(results(&ring.run(&[send])), [(1, 3)]);
    let mut got = [0u8; 3];
    theirs.read_exact(&mut got).unwrap();
    assert_eq!(got, [7; 3]);
    // One that has to wait keeps its buffer, whatever happens to the table.
    ring.submit(&[recv]);
    assert_eq!(ring.register(Register::IORING_UNREGISTER_BUFFERS, null(), 0), 0);
    theirs.write_all(b"ab").unwrap();
    assert_eq!(results(&ring.collect(1)), [(2, 2)]);
    assert_eq!(&memory[100..102], b"ab");
    // Nothing is registered any more; beside others; beyond the buffer.
    assert_eq!(results(&ring.run(&[send])), [(1, -libc::EFAULT)]);
    ring.register_buffers(&[vector]);
    let beyond = Sqe { addr: base + 8190, ..send };
    let bundle = Sqe { ioprio: fixed | IORING_RECVSEND_BUNDLE as u16, ..send };
    let multishot = Sqe { ioprio: fixed | IORING_RECV_MULTISHOT as u16, flags: 1 << 5, len: 0, ..recv };
    let message = Sqe { opcode: IORING_OP_SENDMSG as u8, ..send };
    let selecting = Sqe { flags: 1 << 5, ..recv };
    let all = results(&ring.run(&[beyond, bundle, multishot, message, selecting]));
    let invalid = -libc::EINVAL;
    assert_eq!(all, [(1, -libc::EFAULT), (1, invalid), (2, invalid), (1, invalid), (2, invalid)]);
}

/// The notification of a send has user data of its own, if asked.
#[by(each)]
fn notifications_of_another_name(engine: Engine) {
    let mut ring = Ring::new(engine, 8, 0);
    let (ours, _theirs) = tcp_pair();
    let data = [1u8; 64];
    let send = Sqe { fd: ours.as_raw_fd(), addr: data.as_ptr() as u64, len: 64, ..sqe(IORING_OP_SEND_ZC, 1) };
    for (notified, other) in [(0, 1), (77, 77)] {
        ring.submit_and_wait(&[Sqe { addr3: notified, ..send }], 2);
        let mut all: Vec<_> = ring.collect(2).iter().map(|cqe| (cqe.flags, cqe.user_data, cqe.res)).collect();
        all.sort_unstable();
        assert_eq!(all, [(2, 1, 64), (8, other, 0)]);
    }
}

/// `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction(u16, u8, u8, u32);

const LOAD: u16 = 0x20;
const RETURN: u16 = 0x06;
const JUMP_IF_EQUAL: u16 = 0x15;

const ALLOW: [Instruction; 1] = [Instruction(RETURN, 0, 0, 1)];
const DENY: [Instruction; 1] = [Instruction(RETURN, 0, 0, 0)];

/// Allows requests whose context has this word there.
fn only(offset: u32, word: u32) -> [Instruction; 4] {
    [
        Instruction(LOAD, 0, 0, offset),
        Instruction(JUMP_IF_EQUAL, 0, 1, word),
        Instruction(RETURN, 0, 0, 1),
        Instruction(RETURN, 0, 0, 0),
    ]
}

/// Registers a filter; the size of the operation's own context that was said back.
fn filter(engine: Engine, fd: i32, opcode: u32, flags: u32, own: u8, program: &[Instruction]) -> (i32, u8) {
    let mut words = [0u32; 18];
    words[0] = 1;
    words[2..6].copy_from_slice(&[opcode, flags, program.len() as u32, own.into()]);
    let address = program.as_ptr() as u64;
    [words[6], words[7]] = [address as u32, (address >> 32) as u32];
    let result = register(engine, fd, FILTER, words.as_mut_ptr().cast(), 1);
    (result, words[5] as u8)
}

#[by(each)]
fn filters_of_a_ring(engine: Engine) {
    let mut ring = Ring::new(engine, 8, IORING_SETUP_SUBMIT_ALL);
    let nop = IORING_OP_NOP as u32;
    let by_user_data = |ring: &mut Ring| {
        let asked = [sqe(IORING_OP_NOP, 7), sqe(IORING_OP_NOP, 8)];
        ring.run(&asked).iter().map(|cqe| cqe.res).collect::<Vec<_>>()
    };
    assert_eq!(filter(engine, ring.fd, nop, 0, 0, &only(0, 7)), (0, 0));
    assert_eq!(by_user_data(&mut ring), [0, -libc::EACCES]);
    // All that were registered have to allow it.
    assert_eq!(filter(engine, ring.fd, nop, 0, 0, &ALLOW), (0, 0));
    assert_eq!(by_user_data(&mut ring), [0, -libc::EACCES]);
    assert_eq!(filter(engine, ring.fd, nop, 0, 0, &DENY), (0, 0));
    assert_eq!(by_user_data(&mut ring), [-libc::EACCES; 2]);
}

/// A filter of one operation that denies the rest: also what gets a filter later.
#[by(each)]
fn filters_that_deny_the_rest(engine: Engine) {
    let mut ring = Ring::new(engine, 8, IORING_SETUP_SUBMIT_ALL);
    assert_eq!(filter(engine, ring.fd, IORING_OP_NOP as u32, 1, 0, &ALLOW), (0, 0));
    assert_eq!(filter(engine, ring.fd, IORING_OP_CLOSE as u32, 0, 0, &ALLOW), (0, 0));
    let close = Sqe { fd: -1, ..sqe(IORING_OP_CLOSE, 2) };
    assert_eq!(results(&ring.run(&[sqe(IORING_OP_NOP, 1), close])), [(1, 0), (2, -libc::EACCES)]);
}

/// An allow-list need not know of private operations to deny them, and may allow them.
#[by(each)]
fn filters_of_private_operations(engine: Engine) {
    if engine == Engine::Kernel {
        return;
    }
    let getdents = u32::from(anyring_engine::ops::getdents::CODE);
    let asked = Sqe { fd: -1, opcode: getdents as u8, ..sqe(IORING_OP_NOP, 1) };
    for (allowed, answer) in [(false, -libc::EACCES), (true, -libc::EBADF)] {
        let mut ring = Ring::new(engine, 8, 0);
        if allowed {
            assert_eq!(filter(engine, ring.fd, getdents, 0, 0, &ALLOW), (0, 0));
        }
        assert_eq!(filter(engine, ring.fd, IORING_OP_NOP as u32, 1, 0, &ALLOW), (0, 0));
        assert_eq!(results(&ring.run(&[asked])), [(1, answer)]);
        assert_eq!(results(&ring.run(&[Sqe { opcode: 250, ..asked }])), [(1, -libc::EINVAL)]);
    }
}

/// The fields that SOCKET, OPENAT, OPENAT2 and CONNECT show to filters.
#[by(each)]
fn filters_see_what_is_asked(engine: Engine) {
    let mut ring = Ring::new(engine, 8, IORING_SETUP_SUBMIT_ALL);
    let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u64;
    assert_eq!(filter(engine, ring.fd, IORING_OP_SOCKET as u32, 0, 12, &only(20, kind as u32)), (0, 12));
    let stream = Sqe { fd: libc::AF_UNIX, off: kind, ..sqe(IORING_OP_SOCKET, 1) };
    let other = Sqe { off: libc::SOCK_DGRAM as u64, user_data: 2, ..stream };
    let all = ring.run(&[stream, other]);
    assert!(all[0].res >= 0, "{}", all[0].res);
    assert_eq!(all[1].res, -libc::EACCES);
    close_number(all[0].res);

    // Flags as the kernel has them: with O_LARGEFILE, and without what it does not know.
    let large = linux_raw_sys::general::O_LARGEFILE;
    assert_eq!(filter(engine, ring.fd, IORING_OP_OPENAT as u32, 0, 24, &only(16, large)), (0, 24));
    let open = |user_data, flags| Sqe { len: 0, ..open(user_data, c"/dev/null", flags) };
    let mut all =
        ring.run(&[open(3, libc::O_RDONLY), open(4, libc::O_RDONLY | 1 << 28), open(5, libc::O_WRONLY)]);
    all.sort_by_key(|cqe| cqe.user_data);
    assert!(all[0].res >= 0 && all[1].res >= 0, "{all:?}");
    assert_eq!(all[2].res, -libc::EACCES);
    drop([owned(all[0].res), owned(all[1].res)]);

    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_be();
    assert_eq!(filter(engine, ring.fd, IORING_OP_CONNECT as u32, 0, 24, &only(20, port.into())), (0, 24));
    let client = socket(libc::AF_INET, libc::SOCK_STREAM);
    let mut address = address_of(listener.local_addr().unwrap());
    let mut connect = |port: u16| {
        address.sin_port = port;
        ring.run(&[connect(4, &client, &address)])[0].res
    };
    assert_eq!(connect(port ^ 1), -libc::EACCES);
    assert_eq!(connect(port), 0);
}

#[by(each)]
fn filters_that_are_refused(engine: Engine) {
    let ring = Ring::new(engine, 4, 0);
    let tries = |opcode: u32, flags: u32, own: u8, program: &[Instruction]| {
        filter(engine, ring.fd, opcode, flags, own, program).0
    };
    let socket = IORING_OP_SOCKET as u32;
    let invalid = -libc::EINVAL;
    assert_eq!(tries(0, 0, 0, &[]), invalid);
    assert_eq!(tries(0, 4, 0, &ALLOW), invalid);
    assert_eq!(tries(65, 0, 0, &ALLOW), invalid);
    // What the program knows of that the operation does not show; less is fine, unless it is to be the same.
    assert_eq!(filter(engine, ring.fd, socket, 0, 13, &ALLOW), (-libc::EMSGSIZE, 12));
    assert_eq!(filter(engine, ring.fd, socket, 2, 8, &ALLOW), (-libc::EMSGSIZE, 12));
    assert_eq!(filter(engine, ring.fd, socket, 0, 8, &ALLOW), (0, 12));
    let last = Instruction(RETURN, 0, 0, 1);
    let refused: &[&[Instruction]] = &[
        &[Instruction(LOAD, 0, 0, 0)],                             // no return
        &[Instruction(LOAD, 0, 0, 40), last],                      // beyond the context
        &[Instruction(LOAD, 0, 0, 2), last],                       // not aligned
        &[Instruction(0x28, 0, 0, 0), last],                       // half a word
        &[Instruction(0x60, 0, 0, 3), last],                       // a word that was not kept
        &[Instruction(0x60, 0, 0, 16), last],                      // one that there is not
        &[Instruction(0x05, 0, 0, 1), last],                       // a jump beyond the end
        &[Instruction(JUMP_IF_EQUAL, 0, 1, 0), last],              // the same
        &[Instruction(0x34, 0, 0, 0), last],                       // a division by 0
        &[Instruction(0x64, 0, 0, 32), last],                      // a shift of all bits
        &[Instruction(0x94, 0, 0, 3), last],                       // a remainder
        &[Instruction(0x84, 0, 0, 0), Instruction(0x84, 0, 0, 0)], // no return either
    ];
    for (place, program) in refused.iter().enumerate() {
        assert_eq!(tries(0, 0, 0, program), invalid, "{place}");
    }
    let kept = [Instruction(0x02, 0, 0, 3), Instruction(0x60, 0, 0, 3), last];
    assert_eq!(tries(0, 0, 0, &kept), 0);
}

/// Restrictions that a process puts on the rings that it makes from then on, and its children on theirs.
#[by(each)]
fn restrictions_of_a_process(engine: Engine) {
    let before = Ring::new(engine, 4, 0);
    in_child(|| {
        // Only who cannot gain rights may give up some, or who has all.
        // SAFETY: changes the child.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
        // Flags and count; the rules: NOP, and registering an eventfd.
        let rules: [[u32; 4]; 3] = [[2 << 16, 0, 0, 0], [1, 0, 0, 0], [4 << 16, 0, 0, 0]];
        let nobody = register(engine, -1, RESTRICT, null(), 2);
        let done = register(engine, -1, RESTRICT, rules.as_ptr().cast(), 1);
        let again = register(engine, -1, RESTRICT, rules.as_ptr().cast(), 1);
        if (nobody, done, again) != (-libc::EINVAL, 0, -libc::EPERM) {
            eprintln!("{:?}", (nobody, done, again));
            return false;
        }
        let obeys = || {
            let mut ring = Ring::new(engine, 4, IORING_SETUP_SUBMIT_ALL);
            let close = Sqe { fd: -1, ..sqe(IORING_OP_CLOSE, 2) };
            let all = results(&ring.run(&[sqe(IORING_OP_NOP, 1), close]));
            let files = [-1i32];
            let registers = ring.register(Register::IORING_REGISTER_FILES, files.as_ptr().cast(), 1);
            all == [(1, 0), (2, -libc::EACCES)] && registers == -libc::EACCES
        };
        let own = obeys();
        let inherited = ended(crate::common::child(obeys)) == 0;
        own && inherited
    });
    drop(before);
}

/// Rules about registrations say nothing of submissions, and the other way.
#[by(each)]
fn rules_of_one_kind(engine: Engine) {
    for (rule, nop, registers) in [([4u32 << 16, 0, 0, 0], 0, -libc::EACCES), ([1, 0, 0, 0], 0, 0)] {
        let mut ring = Ring::new(engine, 4, IORING_SETUP_R_DISABLED);
        assert_eq!(ring.register(Register::IORING_REGISTER_RESTRICTIONS, rule.as_ptr().cast(), 1), 0);
        assert_eq!(ring.enable(), 0);
        let files = [-1i32];
        assert_eq!(ring.register(Register::IORING_REGISTER_FILES, files.as_ptr().cast(), 1), registers);
        assert_eq!(results(&ring.run(&[sqe(IORING_OP_NOP, 1)])), [(1, nop)]);
    }
}

/// Buffers of more than a gigabyte are registered, up to a terabyte; no transfer is as long.
#[by(each)]
fn large_buffers(engine: Engine) {
    let ring = Ring::new(engine, 4, 0);
    let tries = |length: usize| {
        let vector = libc::iovec { iov_base: 4096 as *mut _, iov_len: length };
        ring.register(Register::IORING_REGISTER_BUFFERS, (&raw const vector).cast(), 1)
    };
    assert_eq!(tries((1 << 40) + 1), -libc::EINVAL);
    // Nothing is there.
    assert_eq!(tries((1 << 30) + 4096), -libc::EFAULT);
}

/// A descriptor that is no socket is not waited for.
#[by(each)]
fn a_receive_looks_whether_it_is_a_socket(engine: Engine) {
    let mut ring = Ring::new(engine, 4, 0);
    let (read, _write) = std::io::pipe().unwrap();
    let mut buffer = [0u8; 4];
    let ioprio = IORING_RECVSEND_POLL_FIRST as u16;
    let receive = Sqe { ioprio, ..reading(IORING_OP_RECV, 1, &read, &mut buffer) };
    for op_flags in [0, libc::MSG_DONTWAIT as u32] {
        assert_eq!(results(&ring.run(&[Sqe { op_flags, ..receive }])), [(1, -libc::ENOTSOCK)]);
    }
}

/// Each number once.
#[by(each)]
fn lists_of_as_many_buffers_as_there_are_numbers(engine: Engine) {
    let mut ring = Ring::new(engine, 4, 0);
    let mut memory = vec![0u8; 1 << 16];
    let addr = memory.as_mut_ptr().expose_provenance() as u64;
    let provide = Sqe { fd: 1 << 16, addr, len: 1, ..sqe(IORING_OP_PROVIDE_BUFFERS, 1) };
    assert_eq!(results(&ring.run(&[provide])), [(1, 0)]);
    assert_eq!(results(&ring.run(&[Sqe { fd: 1, ..provide }])), [(1, -libc::EOVERFLOW)]);
    let remove = Sqe { fd: 1 << 16, ..sqe(IORING_OP_REMOVE_BUFFERS, 2) };
    assert_eq!(results(&ring.run(&[remove])), [(2, 1 << 16)]);
}

/// A zero-copy send of several pieces of one.
#[by(each)]
fn zero_copy_sends_of_vectors_of_registered_buffers(engine: Engine) {
    const FIXED: u16 = IORING_RECVSEND_FIXED_BUF as u16;
    const VECTORIZED: u16 = 1 << 5;
    let (sender, mut receiver) = tcp_pair();
    let mut ring = Ring::new(engine, 4, 0);
    let mut memory = *b"registered";
    let start = memory.as_mut_ptr();
    let whole = libc::iovec { iov_base: start.cast(), iov_len: 10 };
    ring.register_buffers(&[whole]);
    let piece = |from: usize, iov_len| libc::iovec { iov_base: start.wrapping_add(from).cast(), iov_len };
    let ioprio = FIXED | VECTORIZED;
    let send = |pieces: &[libc::iovec]| Sqe { ioprio, ..writing(IORING_OP_SEND_ZC, 1, &sender, pieces) };
    let pieces = [piece(8, 2), piece(0, 3)];
    ring.submit_and_wait(&[send(&pieces)], 2);
    assert_eq!(results(&ring.reap_all()), [(1, 5), (1, 0)]);
    let mut received = [0; 5];
    receiver.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"edreg");
    // Not all of it, or nothing, lies in the buffer.
    for pieces in [[piece(0, 3), piece(8, 3)], [piece(0, 3), piece(8, 0)]] {
        ring.submit_and_wait(&[send(&pieces)], 2);
        assert_eq!(results(&ring.reap_all()), [(1, -libc::EFAULT), (1, 0)]);
    }
}

/// Of a number that is wider than an operation's, not the lowest byte is looked for.
#[by(each)]
fn cancellations_name_an_operation_that_there_is(engine: Engine) {
    let mut ring = Ring::new(engine, 4, 0);
    let never = Sqe {
        addr: i64::MAX as u64,
        len: 1,
        op_flags: IORING_TIMEOUT_IMMEDIATE_ARG,
        ..sqe(IORING_OP_TIMEOUT, 1)
    };
    ring.submit(&[never]);
    let cancel = |len| Sqe { len, op_flags: IORING_ASYNC_CANCEL_OP, ..sqe(IORING_OP_ASYNC_CANCEL, 2) };
    for wrong in [ops::COUNT as u32, 0x100 + IORING_OP_TIMEOUT as u32] {
        ring.push(cancel(wrong));
        ring.push(sqe(IORING_OP_NOP, 3));
        // The submission ends there.
        assert_eq!(ring.enter(2, 0), 1);
        assert_eq!(ring.enter(1, 0), 1);
        assert_eq!(results(&ring.reap_all()), [(2, -libc::EINVAL), (3, 0)]);
    }
    ring.submit_and_wait(&[cancel(IORING_OP_TIMEOUT as u32)], 2);
    let mut both = results(&ring.reap_all());
    both.sort_unstable();
    assert_eq!(both, [(1, -libc::ECANCELED), (2, 0)]);
}
