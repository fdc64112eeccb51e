//! What safe code does to the safe ring breaks no memory and touches no file of others, on both engines.

mod common;

use anyring::low::{Cqe, Sqe};
use anyring::{BufferExt, BufferMut, Builder, Fd, Ring, op};
use common::{both, ring};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

fn pair() -> (Fd, UnixStream) {
    let (one, other) = UnixStream::pair().unwrap();
    (one.into(), other)
}

#[test]
fn a_read_into_a_cloned_part_stays_within_the_clone() {
    both(|engine| {
        let mut ring = ring(engine);
        let mut whole = Vec::with_capacity(4096);
        whole.extend_from_slice(b"0123456789");
        let clone = whole.spare().clone();
        let room = clone.get().capacity() - clone.get().len();
        assert_eq!(clone.capacity(), room, "checked before anything is written");
        let file = ring.run(op::open("/dev/zero")).unwrap().unwrap();
        let (count, clone) = ring.run(op::read(&file, clone)).unwrap();
        assert_eq!(count.unwrap(), room);
        assert_eq!(clone.into_inner().len(), 10 + room);
    });
}

/// Which file standard input is.
fn standard_input() -> (u64, u64) {
    // SAFETY: integers only, written by the call.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: whole.
    assert_eq!(unsafe { libc::fstat(std::io::stdin().as_raw_fd(), &mut stat) }, 0, "it is open");
    (stat.st_dev, stat.st_ino)
}

#[test]
fn what_was_never_submitted_opens_nothing() {
    both(|engine| {
        let before = standard_input();
        let mut ring = ring(engine);
        ring.push(op::open("/dev/null")).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        ring.push(op::accept(&listener.into())).unwrap();
        ring.push_multi(op::timeout_multi(Duration::from_secs(3600))).unwrap();
        let (one, mut other) = pair();
        let mut chain = ring.chain(2).unwrap();
        chain.push(op::socket(libc::AF_UNIX, libc::SOCK_STREAM)).unwrap();
        // What is to be closed is closed all the same.
        chain.push(op::close(one).unwrap()).unwrap();
        drop(chain);
        drop(ring);
        assert_eq!(standard_input(), before, "a no-op's result is no descriptor");
        assert_eq!(other.read(&mut [0]).unwrap(), 0, "its peer was closed");
    });
}

/// A completion cannot be made up by writing into the ring's memory.
#[test]
fn the_memory_of_a_ring_is_not_written_by_its_descriptor() {
    both(|engine| {
        for builder in [Ring::builder(8), Ring::builder(8).pollable()] {
            let mut ring = builder.engine(engine).build().unwrap();
            let (socket, mut other) = pair();
            let token = ring.push(op::recv(&socket, vec![0_u8; 64])).unwrap();
            ring.submit().unwrap();
            let own = ring.as_fd().try_clone_to_owned().unwrap();
            let zeros = [0; 64];
            let reopened =
                std::fs::File::options().write(true).open(format!("/proc/self/fd/{}", ring.as_raw_fd()));
            for file in reopened.into_iter().chain([std::fs::File::from(own.try_clone().unwrap())]) {
                for offset in [0, 128, 4096] {
                    file.write_at(&zeros, offset).unwrap_err();
                }
            }
            let file = Fd::from(own);
            for offset in [0, 128, 4096] {
                ring.run(op::write(&file, zeros.to_vec()).at(offset)).unwrap().0.unwrap_err();
            }
            other.write_all(b"true").unwrap();
            assert_eq!(ring.finish(token).unwrap().0.unwrap(), 4);
        }
    });
}

/// What a flag that is not known here would do to a ring's memory is not known either.
#[test]
fn unknown_flags_of_rings_are_refused() {
    const KNOWN: u32 = 0x3_33ff;
    both(|engine| {
        for bit in (0..32).map(|bit| 1 << bit).filter(|bit| KNOWN & bit == 0) {
            let error = Builder::new(8).engine(engine).setup_flags(bit).build().unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL, "{bit:#x}");
            assert!(Builder::new(8).engine(engine).setup_flags(bit).build_low::<Sqe, Cqe>().is_err());
        }
    });
}

#[test]
fn a_place_in_the_table_is_not_put_into_it() {
    both(|engine| {
        let mut ring = ring(engine);
        ring.register_files(2).unwrap();
        let fixed = ring.fix(&pair().0).unwrap();
        assert_eq!(ring.fix(&fixed).unwrap_err().errno(), libc::EBADF);
        ring.slot().expect("the other place is free");
    });
}
