//! Closing a connection that lingers (`SO_LINGER`) with data on their way: it waits for those, and nobody else does.
//!
//! Its host sees every close, so the engine may note that a socket does not linger.

use crate::common::prelude::*;

/// Longer than the test may take.
static LINGER: libc::linger = libc::linger { l_onoff: 1, l_linger: 3600 };

/// On what lingering is turned on, and how.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Lingers {
    /// On the listener, of which another connection was accepted before.
    Listener,
    /// On the connection.
    Connection,
    /// On the connection, by the ring.
    ByRing,
}

fn set_linger(fd: i32) {
    assert!(!frontend::sets_option(fd, libc::SOL_SOCKET, libc::SO_LINGER), "no ring has to know");
    let (value, length) = ((&raw const LINGER).cast(), size_of_val(&LINGER) as u32);
    // SAFETY: a structure of ours.
    let result = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value, length) };
    assert_eq!(result, 0);
}

fn set_linger_by_ring(ring: &mut Ring, fd: i32) {
    let command = Sqe {
        fd,
        off: io_uring_socket_op::SOCKET_URING_OP_SETSOCKOPT as u64,
        addr: libc::SOL_SOCKET as u64 | (libc::SO_LINGER as u64) << 32,
        file_index: size_of_val(&LINGER) as u32,
        addr3: (&raw const LINGER) as u64,
        ..sqe(IORING_OP_URING_CMD, 9)
    };
    assert_eq!(ring.run(&[command])[0].res, 0);
}

fn accepted(ring: &mut Ring, listener: &TcpListener) -> (i32, TcpStream) {
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let fd = ring.run(&[Sqe { fd: listener.as_raw_fd(), ..sqe(IORING_OP_ACCEPT, 1) }])[0].res;
    assert!(fd >= 0, "a connection, not error {fd}");
    (fd, client)
}

/// Sends until the connection takes no more.
fn fill(fd: i32) {
    let data = [7u8; 1 << 16];
    // SAFETY: memory of ours.
    while unsafe { libc::send(fd, data.as_ptr().cast(), data.len(), libc::MSG_DONTWAIT) } > 0 {}
}

/// Asked by whether another file gets the number: a call on the file itself holds it, and closes it where it is the last to do so.
fn is_open(fd: i32, other: &impl AsRawFd) -> bool {
    // SAFETY: takes numbers; the new descriptor is nobody else's.
    unsafe {
        let free = libc::fcntl(other.as_raw_fd(), libc::F_DUPFD, fd);
        libc::close(free);
        free != fd
    }
}

/// One thread closes a connection that lingers; another goes on with the same ring meanwhile.
fn nobody_else_waits(lingers: Lingers, waits: u32) {
    let mut ring = Ring::new(Engine::User, 8, 0);
    anyring_engine::install(&SEEING);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // An accept that waits makes the listener known.
    let ring_fd = ring.fd;
    ring.submit(&[Sqe { fd: listener.as_raw_fd(), ..sqe(IORING_OP_ACCEPT, 1) }]);
    let first_client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let first = ring.collect(1)[0].res;
    let (second, second_client) = accepted(&mut ring, &listener);
    for fd in [first, second] {
        assert_eq!(ring.run(&[Sqe { fd, ..sqe(IORING_OP_CLOSE, 2) }])[0].res, 0);
    }
    drop((first_client, second_client));
    if lingers == Lingers::Listener {
        set_linger(listener.as_raw_fd());
    }
    let (fd, mut client) = accepted(&mut ring, &listener);
    fill(fd);
    match lingers {
        Lingers::Listener => {}
        Lingers::Connection => set_linger(fd),
        Lingers::ByRing => set_linger_by_ring(&mut ring, fd),
    }
    ring.push(Sqe { fd, ..sqe(IORING_OP_CLOSE, 3) });
    ring.push(sqe(IORING_OP_NOP, 4));
    std::thread::scope(|scope| {
        let flags = if waits > 0 { IORING_ENTER_GETEVENTS } else { 0 };
        let closer = scope.spawn(move || enter(Engine::User, ring_fd, 1, waits, flags, std::ptr::null(), 8));
        while is_open(fd, &listener) {
            std::thread::yield_now();
        }
        assert_eq!(ring.enter(1, 0), 1);
        let data = std::iter::repeat_with(|| client.read(&mut [0; 1 << 16]).unwrap());
        assert!(data.take_while(|&count| count > 0).sum::<usize>() > 0);
        assert_eq!(closer.join().unwrap(), 1);
    });
    let order: Vec<_> = ring.collect(2).iter().map(|cqe| (cqe.user_data, cqe.res)).collect();
    assert_eq!(order, [(4, 0), (3, 0)], "{lingers:?}, waiting for {waits}");
}

#[test]
fn a_lingering_close_holds_nobody_up() {
    for lingers in [Lingers::Listener, Lingers::Connection, Lingers::ByRing] {
        for waits in [0, 1] {
            nobody_else_waits(lingers, waits);
        }
    }
}

/// The ways in which a ring closes the last descriptor of a connection, beside a CLOSE of the descriptor.
#[derive(Clone, Copy, PartialEq, Debug)]
enum LastClose {
    /// A slot of the file table is emptied.
    Slot,
    /// A request has ended whose descriptor the program had closed.
    Request,
    /// The ring ends.
    Ring,
}

#[test]
fn no_last_close_of_a_ring_holds_anybody_up() {
    for sees in [false, true] {
        for last in [LastClose::Slot, LastClose::Request, LastClose::Ring] {
            let mut ring = Ring::new(Engine::User, 8, 0);
            if sees {
                anyring_engine::install(&SEEING);
            }
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (fd, mut client) = accepted(&mut ring, &listener);
            set_linger(fd);
            match last {
                LastClose::Request => {
                    ring.submit(&[Sqe { fd, op_flags: libc::POLLPRI as u32, ..sqe(IORING_OP_POLL_ADD, 2) }]);
                }
                _ => ring.register_files(&[fd]),
            }
            fill(fd);
            close(Engine::User, fd);
            match last {
                LastClose::Slot => {
                    assert_eq!(
                        ring.run(&[Sqe { fd: 0, file_index: 1, ..sqe(IORING_OP_CLOSE, 3) }])[0].res,
                        0
                    );
                }
                LastClose::Request => drop(ring.collect_from(&[cancel(3, 2, 0)], 2)),
                LastClose::Ring => drop(ring),
            }
            // The data arrive, and then the end.
            let data = std::iter::repeat_with(|| client.read(&mut [0; 1 << 16]).unwrap());
            assert!(data.take_while(|&count| count > 0).sum::<usize>() > 0, "{last:?}");
        }
    }
}

/// A child of `fork` gets the descriptors that threads are about to close, and does not keep the connections open.
#[test]
fn a_child_keeps_no_connection_that_lingers() {
    for _ in 0..10 {
        let mut ring = Ring::new(Engine::User, 8, 0);
        anyring_engine::install(&SEEING);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (fd, mut client) = accepted(&mut ring, &listener);
        set_linger(fd);
        ring.register_files(&[fd]);
        close(Engine::User, fd);
        let close_slot = Sqe { fd: 0, file_index: 1, ..sqe(IORING_OP_CLOSE, 3) };
        assert_eq!(ring.run(&[close_slot])[0].res, 0);
        let pid = child(|| {
            // SAFETY: ends it if the parent does not.
            unsafe {
                libc::alarm(60);
                libc::pause() == 0
            }
        });
        client.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
        assert_eq!(client.read(&mut [0]).expect("the end of the connection"), 0);
        // SAFETY: a child of ours.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        assert_ne!(ended(pid), 0);
    }
}
