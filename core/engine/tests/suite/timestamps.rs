//! When packets were sent: `SOCKET_URING_OP_TX_TIMESTAMP`.

use crate::common::prelude::*;

const MIXED: u32 = 1 << 18;
/// The software's own clock, a key for each packet, no copies of packets.
const REPORT: u32 = 1 << 4 | 1 << 7 | 1 << 11;
const ON_SENDING: u32 = 1 << 1;
const ON_QUEUEING: u32 = 1 << 8;

fn stamps(user_data: u64, fd: RawFd) -> Sqe {
    Sqe {
        fd,
        off: io_uring_socket_op::SOCKET_URING_OP_TX_TIMESTAMP as u64,
        ..sqe(IORING_OP_URING_CMD, user_data)
    }
}

fn stamped(events: u32) -> (UdpSocket, UdpSocket) {
    let (to, from) = udp_connected();
    set_option(&from, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, events);
    (from, to)
}

/// One more completion: all but the time, and whether there is one.
fn next(ring: &mut Ring) -> (Cqe, bool) {
    loop {
        if let Some((cqe, [seconds, nanoseconds])) = ring.reap_big() {
            return (cqe, seconds > 1_000_000_000 && nanoseconds < 1_000_000_000);
        }
        assert_eq!(ring.enter(0, 1), 0);
    }
}

fn until_cancelled(engine: Engine, setup: u32) -> Vec<(Cqe, bool)> {
    let mut ring = Ring::new(engine, 16, setup);
    let (from, _to) = stamped(REPORT | ON_SENDING | ON_QUEUEING);
    let fd = from.as_raw_fd();
    from.send(b"a").unwrap();
    from.send(b"b").unwrap();
    ring.submit(&[stamps(1, fd)]);
    let mut seen: Vec<_> = (0..4).map(|_| next(&mut ring)).collect();
    from.send(b"c").unwrap();
    seen.extend((0..2).map(|_| next(&mut ring)));
    ring.submit(&[cancel(2, 1, 0)]);
    let last = by_user_data(vec![next(&mut ring).0, next(&mut ring).0]);
    seen.extend(last.into_iter().map(|cqe| (cqe, false)));
    seen
}

#[test]
fn time_stamps_come_until_cancelled() {
    both(|engine| until_cancelled(engine, IORING_SETUP_CQE32));
}

#[test]
fn time_stamps_come_to_rings_that_mix_sizes() {
    both(|engine| until_cancelled(engine, MIXED));
}

#[both]
fn refusals(engine: Engine) -> impl Answer {
    let mut big = Ring::new(engine, 4, IORING_SETUP_CQE32);
    let mut small = Ring::new(engine, 4, 0);
    let (from, _to) = stamped(REPORT);
    let (unix, _peer) = UnixDatagram::pair().unwrap();
    let null = File::open("/proc/self/exe").unwrap();
    [
        small.run(&[stamps(1, from.as_raw_fd())]),
        // It has none, so the request waits.
        big.run(&[stamps(2, unix.as_raw_fd()), cancel(5, 2, 0)]),
        big.run(&[stamps(3, null.as_raw_fd())]),
        big.run(&[stamps(4, 900_000)]),
    ]
}

/// The kernel picks the time stamps; we would take the error away that the program waits for.
#[by(ours(4, IORING_SETUP_CQE32))]
fn sockets_that_queue_errors_are_refused(mut ring: Ring) {
    let (from, _to) = stamped(REPORT);
    set_option(&from, libc::IPPROTO_IP, libc::IP_RECVERR, 1);
    assert_eq!(ring.run(&[stamps(1, from.as_raw_fd())])[0].res, -libc::EOPNOTSUPP);
    let (from, _to) = stamped(REPORT & !(1 << 11));
    assert_eq!(ring.run(&[stamps(1, from.as_raw_fd())])[0].res, -libc::EOPNOTSUPP);
}

/// The kernel leaves what finds no room in the queue. We have taken it by then: the request ends with it.
#[by(ours(1, IORING_SETUP_CQE32))]
fn no_time_stamp_is_lost_where_the_ring_is_full(mut ring: Ring) {
    let (from, _to) = stamped(REPORT | ON_SENDING);
    for _ in 0..4 {
        from.send(b"a").unwrap();
    }
    ring.submit(&[stamps(1, from.as_raw_fd())]);
    let keys: Vec<i32> = (0..3).map(|_| next(&mut ring).0.res).collect();
    assert_eq!(keys, [0, 1, 2]);
    ring.submit(&[stamps(2, from.as_raw_fd())]);
    assert_eq!(next(&mut ring).0.res, 3);
}
