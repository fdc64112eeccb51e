//! What the differential fuzzer found, each as a program of a few lines.

mod common;

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use anyring_engine::memory::Sqe;
use common::*;
use io_uring_op::*;

const LINK: u8 = 1 << 2;
const SKIP: u8 = 1 << 6;

#[test]
fn a_bad_member_does_not_end_the_batch_while_its_chain_goes_on() {
    both(|engine| {
        let mut ring = Ring::new(engine, 8, 0);
        ring.push(Sqe { ioprio: 1, flags: LINK, ..sqe(IORING_OP_NOP, 1) });
        ring.push(sqe(IORING_OP_NOP, 2));
        ring.push(sqe(IORING_OP_NOP, 3));
        (ring.enter(3, 3), ring.reap_all())
    });
}

#[test]
fn some_operations_fail_alone() {
    both(|engine| {
        let mut ring = Ring::new(engine, 8, 0);
        let file = std::fs::File::open("/dev/null").unwrap();
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
    });
}

#[test]
fn the_time_to_wait_may_be_any_numbers() {
    both(|engine| {
        let ring = Ring::new(engine, 8, 0);
        [[0i64, 2_000_000_000], [-1, 0], [0, -5]].map(|time| {
            let argument = [0u64, 0, time.as_ptr() as u64];
            let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
            enter(engine, ring.fd, 0, 0, flags, argument.as_ptr().cast(), size_of_val(&argument))
        })
    });
}

#[test]
fn sockets_take_no_offset() {
    both(|engine| {
        let mut ring = Ring::new(engine, 8, 0);
        let (a, b) = UnixStream::pair().unwrap();
        let data = [1u8; 8];
        let write = Sqe { fd: b.as_raw_fd(), addr: data.as_ptr() as u64, len: 8, ..sqe(IORING_OP_WRITE, 1) };
        let read = Sqe { opcode: IORING_OP_READ as u8, fd: a.as_raw_fd(), user_data: 2, ..write };
        [0, 5, u64::MAX].map(|off| (ring.run(&[Sqe { off, ..write }]), ring.run(&[Sqe { off, ..read }])))
    });
}
