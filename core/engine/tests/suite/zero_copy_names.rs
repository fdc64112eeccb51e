//! SEND_ZC on sockets that have several descriptors, and that are closed, while peers do not read: over two addresses of the
//! loopback interface, where the engine tries without a copy, and pages are out until the peer takes what they hold.

use crate::common::prelude::*;
use anyring_engine::Host;

pub const LARGE: usize = 256 << 10;

/// A connection whose second end takes little before it is read from.
pub fn unread() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    set_option(&listener, libc::SOL_SOCKET, libc::SO_RCVBUF, 16 << 10);
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert_ne!(near.local_addr().unwrap().ip(), near.peer_addr().unwrap().ip());
    set_option(&near, libc::SOL_SOCKET, libc::SO_SNDBUF, 4 << 20);
    (near, listener.accept().unwrap().0)
}

/// Sends all of it, and returns what is there then.
fn send(ring: &mut Ring, sqe: Sqe) -> Vec<Cqe> {
    let cqes = ring.collect_from(&[sqe], 1);
    assert_eq!((cqes[0].res, cqes[0].flags), (sqe.len as i32, IORING_CQE_F_MORE));
    cqes
}

/// The numbers of the notifications among completions.
fn notified(cqes: &[Cqe]) -> impl Iterator<Item = u64> {
    cqes.iter().filter(|cqe| cqe.flags & IORING_CQE_F_NOTIF != 0).map(|cqe| cqe.user_data)
}

/// The program writes into what it was told to be free again. Whichever descriptor a send named, in whichever order they are
/// closed: the peer gets what was sent.
#[both]
fn sends_by_two_descriptors_of_a_socket_are_told_apart(engine: Engine) -> impl Answer {
    // A millisecond: seconds and nanoseconds.
    let soon = [0i64, 1_000_000];
    [None, Some(false), Some(true)].map(|closed_first| {
        let mut ring = Ring::new(engine, 16, 0);
        let (near, mut far) = unread();
        let mut names = [Some(near.try_clone().unwrap()), Some(near)];
        let mut memories = [vec![0u8; LARGE], vec![1; LARGE]];
        let mut pending = send(&mut ring, send_zc(0, names[0].as_ref().unwrap(), &memories[0]));
        // What lies between them in the stream lets them have notices of their own.
        names[0].as_ref().unwrap().write_all(&[0; 100_000]).unwrap();
        if closed_first == Some(false) {
            close(engine, names[0].take().unwrap(), true);
        }
        pending.extend(send(&mut ring, send_zc(1, names[1].as_ref().unwrap(), &memories[1])));
        if closed_first == Some(true) {
            close(engine, names[1].take().unwrap(), true);
        }
        let (mut received, mut block, mut told) = (Vec::new(), [0; 8192], 0);
        while received.len() < 2 * LARGE + 100_000 {
            let count = far.read(&mut block).unwrap();
            received.extend_from_slice(&block[..count]);
            // Who sleeps is told of all that has come back at once.
            ring.submit_and_wait(&[timeout(9, &soon)], 1);
            pending.extend(ring.reap_all());
            for free in notified(&std::mem::take(&mut pending)) {
                memories[free as usize].fill(9);
                told += 1;
            }
        }
        let (first, second) = received.split_at(LARGE + 100_000);
        assert!(first.iter().all(|&byte| byte == 0), "of the first");
        assert!(second.iter().all(|&byte| byte == 1), "of the second");
        while told < 2 {
            told += notified(&ring.collect(1)).count();
        }
        told
    })
}

/// Closes a descriptor, and says so before, as a front end does, if it is to be `told`.
fn close(engine: Engine, socket: TcpStream, told: bool) {
    if told {
        closes(engine, socket.as_raw_fd());
    }
    drop(socket);
}

/// Waits until a connection is reset.
fn wait_reset(far: &TcpStream) -> std::io::ErrorKind {
    assert_ne!(shown(far, 0, PATIENCE_MS) & libc::POLLERR, 0, "the peer hears of an error");
    far.take_error().unwrap().expect("an error").kind()
}

/// The bytes that come until there are as many.
fn receive(mut far: &TcpStream, length: usize) -> Vec<u8> {
    let mut received = vec![0; length];
    far.read_exact(&mut received).unwrap();
    received
}

const NO_LINGER: [i32; 2] = [1, 0];

/// Of one that is asked not to linger, and of one that left data unread. Where nobody says that the program closes, the engine
/// finds out.
#[both]
fn a_close_resets_a_connection_whose_pages_are_out(engine: Engine) -> impl Answer {
    [(true, true), (true, false), (false, true), (false, false)].map(|(told, unread_data)| {
        let mut ring = Ring::new(engine, 16, 0);
        let (near, mut far) = unread();
        let memory = vec![1; LARGE];
        let mut cqes = send(&mut ring, send_zc(1, &near, &memory));
        if unread_data {
            far.write_all(b"x").unwrap();
            near.peek(&mut [0]).unwrap();
        } else {
            set_option(&near, libc::SOL_SOCKET, libc::SO_LINGER, NO_LINGER);
        }
        close(engine, near, told);
        let error = wait_reset(&far);
        cqes.extend(ring.collect(2 - cqes.len()));
        (error, cqes)
    })
}

/// The end of a connection follows its data, though a descriptor of the engine's own is there until the last of them arrived.
#[both(16, 0)]
fn a_close_ends_a_connection_whose_pages_are_out(mut ring: Ring) -> impl Answer {
    let (near, mut far) = unread();
    let memory = vec![1; LARGE];
    send(&mut ring, send_zc(1, &near, &memory));
    close(ring.engine, near, true);
    // Nobody is there any more who would take it.
    far.write_all(b"x").unwrap();
    wait_reset(&far)
}

/// Whichever of two descriptors a send named, and whichever is closed first: the connection goes on until both are.
#[both]
fn another_descriptor_keeps_a_connection(engine: Engine) -> impl Answer {
    [true, false].map(|told| {
        let mut ring = Ring::new(engine, 16, 0);
        let (near, far) = unread();
        let other = near.try_clone().unwrap();
        if engine == Engine::User && told {
            frontend::duplicated(near.as_raw_fd(), other.as_raw_fd());
        }
        let memory = vec![1; LARGE];
        set_option(&near, libc::SOL_SOCKET, libc::SO_LINGER, NO_LINGER);
        let mut cqes = send(&mut ring, send_zc(1, &near, &memory));
        close(engine, near, told);
        (&other).write_all(b"end").unwrap();
        let received = receive(&far, LARGE + 3);
        assert!(received[..LARGE].iter().all(|&byte| byte == 1));
        assert_eq!(&received[LARGE..], b"end");
        cqes.extend(ring.collect(2 - cqes.len()));
        let mut again = send(&mut ring, send_zc(2, &other, &memory));
        close(engine, other, told);
        let error = wait_reset(&far);
        again.extend(ring.collect(2 - again.len()));
        (cqes, again, error)
    })
}

/// A descriptor that nothing was sent by, when it is the last one to be closed, resets the connection, too.
#[both]
fn a_descriptor_that_no_send_named_is_closed_last(engine: Engine) -> impl Answer {
    [true, false].map(|told| {
        let mut ring = Ring::new(engine, 16, 0);
        let (near, far) = unread();
        let other = near.try_clone().unwrap();
        let memory = vec![1; LARGE];
        set_option(&near, libc::SOL_SOCKET, libc::SO_LINGER, NO_LINGER);
        let mut cqes = send(&mut ring, send_zc(1, &near, &memory));
        close(engine, near, told);
        assert_eq!(ring.enter_with(0, 0, IORING_ENTER_GETEVENTS), 0);
        close(engine, other, told);
        let error = wait_reset(&far);
        cqes.extend(ring.collect(2 - cqes.len()));
        (cqes, error)
    })
}

/// A process that was forked before the send, or after it.
#[both]
fn a_child_keeps_a_connection(engine: Engine) -> impl Answer {
    [false, true].map(|forks_first| {
        let mut ring = Ring::new(engine, 16, 0);
        let (near, far) = unread();
        let memory = vec![1; LARGE];
        set_option(&near, libc::SOL_SOCKET, libc::SO_LINGER, NO_LINGER);
        let (lives, mut waits) = UnixStream::pair().unwrap();
        let fork = |lives: &UnixStream, waits: &mut UnixStream| {
            let lives = lives.as_raw_fd();
            child(|| {
                // SAFETY: the parent's is another one.
                drop(unsafe { OwnedFd::from_raw_fd(lives) });
                waits.read(&mut [0]).unwrap() == 0
            })
        };
        let early = forks_first.then(|| fork(&lives, &mut waits));
        let mut cqes = send(&mut ring, send_zc(1, &near, &memory));
        let child = early.unwrap_or_else(|| fork(&lives, &mut waits));
        close(engine, near, true);
        assert_eq!(ring.enter_with(0, 0, IORING_ENTER_GETEVENTS), 0);
        let received = receive(&far, LARGE);
        assert!(received.iter().all(|&byte| byte == 1));
        cqes.extend(ring.collect(2 - cqes.len()));
        drop(lives);
        (cqes, ended(child))
    })
}

/// A descriptor that lies in a message, or was taken from it.
#[both(16, 0)]
fn a_message_keeps_a_connection(mut ring: Ring) -> impl Answer {
    let (near, far) = unread();
    let memory = vec![1; LARGE];
    set_option(&near, libc::SOL_SOCKET, libc::SO_LINGER, NO_LINGER);
    let mut cqes = send(&mut ring, send_zc(1, &near, &memory));
    let (from, _to) = UnixStream::pair().unwrap();
    let control = rights(near.as_raw_fd());
    let data = [vector(&memory[..1])];
    let header = message(&data, &control);
    let addr = (&raw const header) as u64;
    let sent = Sqe { fd: from.as_raw_fd(), addr, len: 1, ..sqe(IORING_OP_SENDMSG, 2) };
    assert_eq!(ring.run(&[sent])[0].res, 1);
    close(ring.engine, near, true);
    assert_eq!(ring.enter_with(0, 0, IORING_ENTER_GETEVENTS), 0);
    let received = receive(&far, LARGE);
    assert!(received.iter().all(|&byte| byte == 1));
    cqes.extend(ring.collect(2 - cqes.len()));
    cqes
}

/// A slot, by which the sends go, or not.
#[both]
fn a_slot_keeps_a_connection(engine: Engine) -> impl Answer {
    [true, false].map(|by_slot| {
        let mut ring = Ring::new(engine, 16, 0);
        let (near, far) = unread();
        let memory = vec![1; LARGE];
        set_option(&near, libc::SOL_SOCKET, libc::SO_LINGER, NO_LINGER);
        let fd = near.as_raw_fd();
        ring.register_files(&[fd]);
        let plain = send_zc(1, &near, &memory);
        let fixed = Sqe { fd: 0, flags: 1, ..plain };
        let mut cqes = send(&mut ring, if by_slot { fixed } else { plain });
        close(engine, near, true);
        let received = receive(&far, LARGE);
        assert!(received.iter().all(|&byte| byte == 1));
        cqes.extend(ring.collect(2 - cqes.len()));
        let mut again = send(&mut ring, Sqe { user_data: 2, ..fixed });
        assert_eq!(ring.unregister(IORING_UNREGISTER_FILES), 0);
        let error = wait_reset(&far);
        again.extend(ring.collect(2 - again.len()));
        (cqes, again, error)
    })
}

/// A request that waits for data, in the ring that sends, or in another one.
#[both]
fn a_request_keeps_a_connection(engine: Engine) -> impl Answer {
    [true, false].map(|other| {
        let mut ring = Ring::new(engine, 16, 0);
        let mut another = other.then(|| Ring::new(engine, 16, 0));
        let (near, mut far) = unread();
        let memory = vec![1; LARGE];
        let mut byte = [0u8];
        set_option(&near, libc::SOL_SOCKET, libc::SO_LINGER, NO_LINGER);
        let mut cqes = send(&mut ring, send_zc(1, &near, &memory));
        let receive = reading(IORING_OP_RECV, 2, &near, &mut byte);
        another.as_mut().unwrap_or(&mut ring).submit(&[receive]);
        close(engine, near, true);
        far.write_all(b"x").unwrap();
        cqes.extend(another.as_mut().unwrap_or(&mut ring).collect(1));
        let error = wait_reset(&far);
        cqes.extend(ring.collect(3 - cqes.len()));
        cqes.sort_by_key(|cqe| (cqe.user_data, cqe.flags));
        (byte, cqes, error)
    })
}

/// An option of a socket.
fn option(fd: i32, level: i32, name: i32) -> Option<u64> {
    let (mut value, mut length) = (0u64, 8);
    // SAFETY: writes an integer of ours.
    let result = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &mut length) };
    (result == 0).then_some(value)
}

/// The number that a socket has, whatever descriptors there are of it.
fn cookie(fd: i32) -> Option<u64> {
    option(fd, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// The peer may have the socket, too, that it has sent.
#[test]
fn a_socket_that_came_in_a_message_is_left_to_its_sender() {
    both(|engine| {
        let mut ring = Ring::new(engine, 16, 0);
        let (near, far) = unread();
        let memory = vec![1; LARGE];
        set_option(&near, libc::SOL_SOCKET, libc::SO_LINGER, NO_LINGER);
        let (from, to) = UnixStream::pair().unwrap();
        let (lives, mut waits) = UnixStream::pair().unwrap();
        let lives_fd = lives.as_raw_fd();
        let sender = child(|| {
            // SAFETY: the parent's is another one.
            drop(unsafe { OwnedFd::from_raw_fd(lives_fd) });
            hand_over(&from, &near);
            waits.read(&mut [0]).unwrap() == 0
        });
        // The child has it, and from here on this process knows nothing of that.
        if engine == Engine::User {
            anyring_engine::frontend::closed(near.as_raw_fd());
        }
        drop(near);
        let (mut byte, control) = ([0u8], [0u64; 3]);
        let data = [libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 }];
        let header = message(&data, &control);
        let received =
            Sqe { fd: to.as_raw_fd(), addr: (&raw const header) as u64, len: 1, ..sqe(IORING_OP_RECVMSG, 2) };
        assert_eq!(ring.run(&[received])[0].res, 1);
        // SAFETY: it came with the message.
        let near = unsafe { TcpStream::from_raw_fd((&raw const control[2]).read_volatile() as i32) };
        let mut cqes = send(&mut ring, send_zc(1, &near, &memory));
        close(engine, near, true);
        assert_eq!(ring.enter_with(0, 0, IORING_ENTER_GETEVENTS), 0);
        assert!(receive(&far, LARGE).iter().all(|&byte| byte == 1));
        cqes.extend(ring.collect(2 - cqes.len()));
        drop(lives);
        (cqes, ended(sender))
    });
}

/// A thread may have descriptors of its own (`unshare`): what it closes, others have.
#[test]
fn a_thread_with_descriptors_of_its_own_keeps_a_connection() {
    both(|engine| {
        let mut ring = Ring::new(engine, 16, 0);
        let (near, far) = unread();
        let memory = vec![1; LARGE];
        set_option(&near, libc::SOL_SOCKET, libc::SO_LINGER, NO_LINGER);
        let mut cqes = send(&mut ring, send_zc(1, &near, &memory));
        let fd = near.as_raw_fd();
        let closes = move || {
            // SAFETY: this thread has its own.
            unsafe {
                if engine == Engine::User {
                    anyring_engine::frontend::hands_over();
                }
                assert_eq!(libc::unshare(libc::CLONE_FILES), 0);
                if engine == Engine::User {
                    anyring_engine::frontend::hands_over();
                    anyring_engine::frontend::closed(fd);
                }
                libc::close(fd);
            }
        };
        std::thread::spawn(closes).join().unwrap();
        assert_eq!(ring.enter_with(0, 0, IORING_ENTER_GETEVENTS), 0);
        assert!(receive(&far, LARGE).iter().all(|&byte| byte == 1));
        cqes.extend(ring.collect(2 - cqes.len()));
        drop(near);
        cqes
    });
}

/// The kernel does not wait for ever for a peer that takes nothing more.
#[test]
fn a_connection_that_was_closed_ends_though_its_peer_takes_nothing() {
    let mut ring = Ring::new(Engine::User, 16, 0);
    let (near, _far) = unread();
    let memory = vec![1; LARGE];
    send(&mut ring, send_zc(1, &near, &memory));
    let number = cookie(near.as_raw_fd());
    close(Engine::User, near, true);
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = descriptors.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let own = numbers.filter(|&fd| cookie(fd) == number).collect::<Vec<i32>>();
    assert_eq!(own.len(), 1, "the engine's");
    let limit = option(own[0], libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT).unwrap();
    assert!((1..=300_000).contains(&limit), "{limit} milliseconds");
}

/// A descriptor is closed by another thread just when the engine finds that it stands for a socket. The number's next file is
/// another one, of which the engine knows nothing.
#[test]
fn a_descriptor_that_is_closed_as_it_is_found_is_not_believed() {
    let mut ring = Ring::new(Engine::User, 16, 0);
    anyring_engine::install(&SEEING);
    let (near, _far) = unread();
    let other = near.try_clone().unwrap();
    let memory = vec![1; LARGE];
    send(&mut ring, send_zc(1, &near, &memory));
    closes(Engine::User, other.as_raw_fd());
    close(Engine::User, near, true);
    let (next, _far) = unread();
    replace(&other, &next);
    send(&mut ring, send_zc(2, &other, &memory));
    assert_eq!(option(next.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY), Some(1));
}

/// Has descriptors duplicated whenever others are looked through.
struct Busy;

impl Host for Busy {
    as_seeing!();

    fn sees_handovers(&self) -> bool {
        true
    }

    fn has_seen_handovers(&self) -> bool {
        frontend::duplicated(0, 0);
        true
    }
}

/// Descriptors that other threads duplicate meanwhile are none of the socket's.
#[test]
fn a_close_resets_a_connection_while_others_are_busy() {
    let mut ring = Ring::new(Engine::User, 16, 0);
    static BUSY: &dyn Host = &Busy;
    anyring_engine::install(&BUSY);
    let (near, far) = unread();
    let memory = vec![1; LARGE];
    send(&mut ring, send_zc(1, &near, &memory));
    set_option(&near, libc::SOL_SOCKET, libc::SO_LINGER, NO_LINGER);
    close(Engine::User, near, true);
    wait_reset(&far);
}

/// A child in this memory (`vfork`) has descriptors of its own: what it closes, the program goes on to look for errors of.
#[test]
fn a_child_in_this_memory_closes_its_own() {
    let mut ring = Ring::new(Engine::User, 16, 0);
    let (near, far) = unread();
    let fd = near.as_raw_fd();
    anyring_engine::frontend::watches_errors(fd);
    extern "C" fn closes(fd: *mut c_void) -> i32 {
        anyring_engine::frontend::closed(fd.addr() as i32);
        0
    }
    let mut stack = vec![0u128; 16 << 10];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child runs on a stack of its own, and this thread waits for its end.
    let child = unsafe {
        let end = stack.as_mut_ptr().add(stack.len()).cast();
        libc::clone(closes, end, flags, std::ptr::without_provenance_mut(fd as usize))
    };
    assert_eq!(ended(child), 0);
    let memory = vec![1; LARGE];
    let mut cqes = send(&mut ring, send_zc(1, &near, &memory));
    // A send that copies needs nobody to read.
    cqes.extend(ring.collect(2 - cqes.len()));
    drop(far);
}

/// A message of one piece, with a descriptor.
fn message(data: &[libc::iovec; 1], control: &[u64; 3]) -> libc::msghdr {
    let mut header = message_of(data);
    (header.msg_control, header.msg_controllen) = (control.as_ptr().cast_mut().cast(), 24);
    header
}

/// The control data that hand over a descriptor.
fn rights(fd: i32) -> [u64; 3] {
    [20, libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32, fd as u64]
}

/// Sends a socket in a message.
fn hand_over(by: &UnixStream, socket: &TcpStream) {
    let (byte, control) = ([0u8], rights(socket.as_raw_fd()));
    let data = [vector(&byte)];
    // SAFETY: reads what is ours.
    assert_eq!(unsafe { libc::sendmsg(by.as_raw_fd(), &message(&data, &control), 0) }, 1);
}
