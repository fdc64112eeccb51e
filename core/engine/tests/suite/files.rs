//! Reads and writes of files that are neither storage nor streams, in all lengths, at all offsets, with flags: what waits,
//! what is refused, and with what.

use crate::common::prelude::*;

const NOWAIT: u32 = 8;
const DSYNC: u32 = 2;
const ATOMIC: u32 = 0x40;
const DONTCACHE: u32 = 0x80;

fn eventfd(count: u64, flags: i32) -> OwnedFd {
    // SAFETY: makes a descriptor, and writes to it.
    unsafe {
        let event = libc::eventfd(0, flags);
        assert_eq!(libc::eventfd_write(event, count), 0);
        owned(event)
    }
}

fn signalfd() -> OwnedFd {
    // SAFETY: a set of ours. The signal is none that a test sends.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGUSR2);
        owned(libc::signalfd(-1, &set, libc::SFD_CLOEXEC))
    }
}

fn timerfd() -> OwnedFd {
    // SAFETY: makes a descriptor.
    owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) })
}

/// A pipe, full where that is wanted.
fn pipe(flags: i32, full: bool) -> [OwnedFd; 2] {
    let mut ends = [0; 2];
    // SAFETY: two descriptors of ours; writes bytes of ours.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), flags | libc::O_NONBLOCK), 0);
        if full {
            while libc::write(ends[1], [0u8; 4096].as_ptr().cast(), 4096) > 0 {}
        }
        for end in ends {
            assert_eq!(libc::fcntl(end, libc::F_SETFL, flags), 0);
        }
    }
    ends.map(owned)
}

/// A descriptor that is looked at, and those that have to stay open meanwhile.
type Made = (OwnedFd, Vec<OwnedFd>);

/// Files of which nothing can be read or to which nothing can be written for now, with the direction.
fn idle() -> Vec<(&'static str, io_uring_op, Made)> {
    let [reader, writer] = pipe(0, false);
    let [full_reader, full_writer] = pipe(0, true);
    let [packets, packet_writer] = pipe(libc::O_DIRECT, false);
    let [held_reader, held_writer] = pipe(0, true);
    let [other_reader, other_writer] = pipe(0, false);
    let (one, other) = tcp_pair();
    let (datagram, peer) = UnixDatagram::pair().unwrap();
    vec![
        ("counter of 0", IORING_OP_READ, (eventfd(0, 0), vec![])),
        ("counter of 0, never blocking", IORING_OP_READ, (eventfd(0, libc::EFD_NONBLOCK), vec![])),
        ("counter at its limit", IORING_OP_WRITE, (eventfd(u64::MAX - 1, 0), vec![])),
        (
            "counter at its limit, never blocking",
            IORING_OP_WRITE,
            (eventfd(u64::MAX - 1, libc::EFD_NONBLOCK), vec![]),
        ),
        ("signals", IORING_OP_READ, (signalfd(), vec![])),
        ("timer", IORING_OP_READ, (timerfd(), vec![])),
        ("empty pipe", IORING_OP_READ, (reader, vec![writer])),
        ("full pipe", IORING_OP_WRITE, (full_writer, vec![full_reader])),
        ("pipe of packets", IORING_OP_READ, (packets, vec![packet_writer])),
        ("wrong end of a pipe", IORING_OP_READ, (held_writer, vec![held_reader])),
        ("other wrong end of a pipe", IORING_OP_WRITE, (other_reader, vec![other_writer])),
        ("connection", IORING_OP_READ, (one.into(), vec![other.into()])),
        ("listener", IORING_OP_READ, (TcpListener::bind("127.0.0.1:0").unwrap().into(), vec![])),
        ("datagrams", IORING_OP_READ, (datagram.into(), vec![peer.into()])),
    ]
}

/// Submits a request and one that cancels it; returns the results of both.
///
/// The call waits for both: before others the engine looks at what is ready.
fn attempt(ring: &mut Ring, sqe: Sqe) -> (i32, i32) {
    let cancel = Sqe { addr: sqe.user_data, ..crate::common::sqe(IORING_OP_ASYNC_CANCEL, sqe.user_data + 1) };
    let cqes = by_user_data(ring.run(&[sqe, cancel]));
    (cqes[0].res, cqes[1].res)
}

#[both(8, IORING_SETUP_SUBMIT_ALL)]
fn idle_files(mut ring: Ring) -> impl Answer {
    let mut results = Vec::new();
    let mut buffer = [1u64; 16];
    for (name, opcode, (file, _held)) in idle() {
        let fd = file.as_raw_fd();
        let events = if opcode == IORING_OP_READ { libc::POLLIN } else { libc::POLLOUT };
        for known in [false, true] {
            if known {
                // From here on the engine knows that it is not ready.
                let poll = Sqe { fd, op_flags: events as u32, ..sqe(IORING_OP_POLL_ADD, 1) };
                results.push((Case(format!("{name} poll")), vec![attempt(&mut ring, poll)]));
            }
            for len in [0, 4, 8, 64, 128] {
                for off in [0, 5, u64::MAX] {
                    let by_flags = [0, NOWAIT, DSYNC, DONTCACHE, ATOMIC].map(|op_flags| {
                        let addr = buffer.as_mut_ptr() as u64;
                        attempt(&mut ring, Sqe { fd, addr, len, off, op_flags, ..sqe(opcode, 1) })
                    });
                    let known = if known { "known " } else { "" };
                    let case = format!("{known}{name} {len} at {}", off as i64);
                    results.push((Case(case), by_flags.to_vec()));
                }
            }
        }
    }
    by_outcome(results)
}

#[both(8, IORING_SETUP_SUBMIT_ALL)]
fn directories_are_not_read(mut ring: Ring) -> impl Answer {
    let directory = File::open("/tmp").unwrap();
    let mut buffer = [0u8; 64];
    let mut results = Vec::new();
    for flags in [0, ASYNC] {
        for op_flags in [0, NOWAIT, DSYNC, DONTCACHE, NOWAIT | DSYNC, DSYNC | DONTCACHE] {
            for off in [0, 5, u64::MAX] {
                let read = Sqe {
                    len: 64,
                    off,
                    op_flags,
                    flags,
                    ..reading(IORING_OP_READ, 1, &directory, &mut buffer)
                };
                results.push((flags, op_flags, off, ring.run(&[read])[0].res));
            }
        }
    }
    results
}
