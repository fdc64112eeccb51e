//! Requests that became ready before a call are completed by it, not cancelled: the kernel completes them when it happens.

use crate::common::prelude::*;

const WAITS: u64 = 1;
const OTHER: u64 = 2;
const SETUPS: [u32; 3] = [0, IORING_SETUP_COOP_TASKRUN, DEFER];
static SOON: [i64; 2] = [0, 1_000_000];

/// A ring with a request that waits for data of a socket.
struct Waiting {
    ring: Ring,
    peer: UnixStream,
    _own: UnixStream,
    _buffer: Box<[u8; 8]>,
}

/// Which request waits.
const KINDS: [io_uring_op; 3] = [IORING_OP_RECV, IORING_OP_READ, IORING_OP_POLL_ADD];

/// Each of them in each kind of ring.
fn rings_and_kinds() -> impl Iterator<Item = (u32, io_uring_op)> {
    SETUPS.into_iter().flat_map(|setup| KINDS.map(|kind| (setup, kind)))
}

fn waiting(engine: Engine, setup: u32, kind: io_uring_op, behind: Option<Sqe>) -> Waiting {
    let mut waiting = submitted(engine, setup, kind, behind);
    assert_eq!(waiting.ring.reap(), None);
    waiting
}

/// A request in a ring, perhaps over already where a timeout is behind it.
fn submitted(engine: Engine, setup: u32, kind: io_uring_op, behind: Option<Sqe>) -> Waiting {
    let mut ring = Ring::new(engine, 8, setup);
    let (own, peer) = UnixStream::pair().unwrap();
    let mut buffer = Box::new([0; 8]);
    let polls = kind == IORING_OP_POLL_ADD;
    let (addr, len) = if polls { (0, 0) } else { (buffer.as_mut_ptr() as u64, 8) };
    let op_flags = if polls { libc::POLLIN as u32 } else { 0 };
    let flags = if behind.is_some() { LINK } else { 0 };
    let waits = Sqe { fd: own.as_raw_fd(), addr, len, op_flags, flags, ..sqe(kind, WAITS) };
    ring.submit(&[&[waits][..], behind.as_slice()].concat());
    Waiting { ring, peer, _own: own, _buffer: buffer }
}

#[test]
fn cancellations_come_too_late() {
    let by_name = Sqe { addr: WAITS, ..sqe(IORING_OP_ASYNC_CANCEL, OTHER) };
    let all = Sqe { op_flags: IORING_ASYNC_CANCEL_ANY, ..sqe(IORING_OP_ASYNC_CANCEL, OTHER) };
    let remove = Sqe { addr: WAITS, ..sqe(IORING_OP_POLL_REMOVE, OTHER) };
    for (setup, kind) in rings_and_kinds() {
        for end in [by_name, all, remove] {
            both(|engine| {
                let mut waiting = waiting(engine, setup, kind, None);
                waiting.peer.write_all(b"data").unwrap();
                waiting.ring.submit_and_wait(&[end], 1);
                by_user_data(waiting.ring.collect(2))
            });
        }
    }
}

#[test]
fn synchronous_cancellations_come_too_late() {
    for (setup, kind) in rings_and_kinds() {
        both(|engine| {
            let mut waiting = waiting(engine, setup, kind, None);
            waiting.peer.write_all(b"data").unwrap();
            (waiting.ring.sync_cancel(WAITS), waiting.ring.collect(1))
        });
    }
}

/// A request that a submission itself makes ready is completed when the submission ends: its cancellations still find it.
#[test]
fn a_submission_cancels_what_it_made_ready() {
    for setup in SETUPS {
        both(|engine| {
            let mut waiting = waiting(engine, setup, IORING_OP_RECV, None);
            let (fd, addr) = (waiting.peer.as_raw_fd(), b"data".as_ptr() as u64);
            waiting.ring.submit_and_wait(
                &[
                    Sqe { fd, addr, len: 4, ..sqe(IORING_OP_SEND, 3) },
                    Sqe { addr: WAITS, ..sqe(IORING_OP_ASYNC_CANCEL, OTHER) },
                ],
                3,
            );
            by_user_data(waiting.ring.collect(3))
        });
    }
}

/// Neither does a timeout that has run out since.
#[test]
fn link_timeouts_come_too_late() {
    for (setup, kind) in rings_and_kinds() {
        both(|engine| {
            // Where the machine was so busy or slow that the time was over before the data were there, once more, with a longer one.
            let mut soon = Duration::from_nanos(SOON[1] as u64);
            loop {
                let time = [0, soon.as_nanos() as i64];
                let timeout =
                    Sqe { addr: time.as_ptr() as u64, len: 1, ..sqe(IORING_OP_LINK_TIMEOUT, OTHER) };
                let begin = Instant::now();
                let mut waiting = submitted(engine, setup, kind, Some(timeout));
                waiting.peer.write_all(b"data").unwrap();
                if begin.elapsed() < soon {
                    std::thread::sleep(20 * soon);
                    return by_user_data(waiting.ring.collect(2));
                }
                soon *= 2;
            }
        });
    }
}

#[test]
fn calls_that_do_not_wait_complete_it() {
    for (setup, kind) in rings_and_kinds() {
        for submits in [0, 1] {
            both(|engine| {
                let mut waiting = waiting(engine, setup, kind, None);
                waiting.peer.write_all(b"data").unwrap();
                (0..submits).for_each(|_| waiting.ring.push(sqe(IORING_OP_NOP, OTHER)));
                assert_eq!(waiting.ring.enter(submits, 0), submits as i32);
                by_user_data(waiting.ring.reap_all())
            });
        }
    }
}

/// And what is of their own doing.
#[test]
fn calls_that_do_not_wait_complete_what_they_made_ready() {
    for setup in SETUPS {
        both(|engine| {
            let mut ring = Ring::new(engine, 8, setup);
            let (own, peer) = UnixStream::pair().unwrap();
            let mut buffer = [0u8; 8];
            let (fd, addr) = (own.as_raw_fd(), buffer.as_mut_ptr() as u64);
            ring.push(Sqe { fd, addr, len: 8, ..sqe(IORING_OP_RECV, WAITS) });
            let (fd, addr) = (peer.as_raw_fd(), b"data".as_ptr() as u64);
            ring.push(Sqe { fd, addr, len: 4, ..sqe(IORING_OP_SEND, OTHER) });
            assert_eq!(ring.enter(2, 0), 2);
            by_user_data(ring.reap_all())
        });
    }
}
