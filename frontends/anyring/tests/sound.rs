//! What safe code does to the safe ring breaks no memory and touches no file of others, on both engines.

mod common;

use anyring::{BufferExt, BufferMut, Fd, op};
use common::{both, ring};
use std::io::Read;
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
    use std::os::fd::AsRawFd;
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
