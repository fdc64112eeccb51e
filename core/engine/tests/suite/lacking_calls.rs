//! Substitutes of the engine where the system lacks a call, or keeps it from the process: older kernels, sandboxes. Each test runs
//! in a child with a filter; io_uring itself is not concerned.
#![cfg(not(anyring_sanitizer))]

use std::net::Shutdown;

use crate::common::prelude::*;

/// Lets a call with this number fail; where a second and a third argument are named, with these only.
pub fn refuse(number: libc::c_long, second_and_third: Option<[u32; 2]>, errno: i32) {
    let [second, third] = second_and_third.unwrap_or_default();
    // What is loaded there are the lower halves of the arguments.
    let named = [
        code(LOAD, 0, 0, 16 + 8),
        code(EQUAL, 0, 3, second),
        code(LOAD, 0, 0, 16 + 16),
        code(EQUAL, 0, 1, third),
    ];
    let named = if second_and_third.is_some() { &named[..] } else { &[] };
    let mut filter = vec![code(LOAD, 0, 0, 0), code(EQUAL, 0, named.len() as u8 + 1, number as u32)];
    filter.extend(named);
    filter.push(code(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32));
    filter.push(code(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    filter_calls(&mut filter);
}

/// Does this in a child for which such calls fail.
fn without(number: libc::c_long, second_and_third: Option<[u32; 2]>, errno: i32, body: impl FnOnce()) {
    in_child(|| {
        refuse(number, second_and_third, errno);
        body();
    });
}

/// The result of a receive of five bytes after these have been sent to `other`, and `change` has happened.
fn received(engine: Engine, bytes: &[u8], change: impl FnOnce(TcpStream, &TcpStream)) -> (i32, u32) {
    let mut ring = Ring::new(engine, 8, 0);
    let (mut one, other) = tcp_pair();
    one.write_all(bytes).unwrap();
    change(one, &other);
    let mut buffer = [0u8; 5];
    let cqe = ring.run(&[Sqe { len: 5, ..reading(IORING_OP_RECV, 1, &other, &mut buffer) }])[0];
    (cqe.res, cqe.flags)
}

/// Waits until a socket shows these events.
fn shows(socket: &TcpStream, events: i16) {
    until("the socket shows what happened", || shown(socket, events, 0) & events == events);
}

#[test]
fn what_a_connection_holds_is_told_where_the_kernel_has_no_word_for_it() {
    const TCP_ZEROCOPY_RECEIVE: u32 = 35;
    let option = [libc::IPPROTO_TCP as u32, TCP_ZEROCOPY_RECEIVE];
    without(libc::SYS_getsockopt, Some(option), libc::ENOPROTOOPT, || {
        both(|engine| {
            let stays = std::cell::Cell::new(None);
            let stay = |one| stays.set(Some(one));
            [
                received(engine, b"hello", |one, _| stay(one)),
                received(engine, b"hello world", |one, _| stay(one)),
                received(engine, b"hello", |one, other| {
                    drop(one);
                    shows(other, libc::POLLRDHUP);
                }),
                // On which this side does not want to receive any more, or nothing at all.
                received(engine, b"hello", |one, other| {
                    other.shutdown(Shutdown::Read).unwrap();
                    stay(one);
                }),
                received(engine, b"hello", |one, other| {
                    other.shutdown(Shutdown::Both).unwrap();
                    stay(one);
                }),
                received(engine, b"hello", |one, other| {
                    other.shutdown(Shutdown::Write).unwrap();
                    stay(one);
                }),
                // That was reset.
                received(engine, b"hello", |one, other| {
                    let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
                    set_option(&one, libc::SOL_SOCKET, libc::SO_LINGER, at_once);
                    drop(one);
                    shows(other, libc::POLLRDHUP | libc::POLLERR);
                }),
            ]
        });
    });
}

/// Without `futex_waitv`, a wait on several has a thread for each.
#[test]
fn futexes_are_waited_for_one_by_one() {
    const PRIVATE: i32 = 2 | 128;
    without(libc::SYS_futex_waitv, None, libc::ENOSYS, || {
        let mut ring = Ring::new(Engine::User, 8, 0);
        let words = [const { AtomicU32::new(0) }; 3];
        let addr = words[1].as_ptr() as u64;
        let wake = Sqe { fd: PRIVATE, addr, off: 1, addr3: u32::MAX.into(), ..sqe(IORING_OP_FUTEX_WAKE, 2) };
        let elements = words.each_ref().map(|word| [0u64, word.as_ptr() as u64, PRIVATE as u64]);
        ring.submit(&[Sqe {
            addr: elements.as_ptr() as u64,
            len: 3,
            fd: 0,
            ..sqe(IORING_OP_FUTEX_WAITV, 1)
        }]);
        ring.submit(&[wake]);
        assert_eq!(results(&ring.collect(2)), [(1, 1), (2, 1)]);
    });
}

/// An open that says nothing of how a path is to be resolved is made by the older call, and refused as by the newer one.
#[test]
fn files_are_opened_where_the_kernel_has_one_call_only() {
    without(libc::SYS_openat2, None, libc::ENOSYS, || {
        let open = |ring: &mut Ring, flags: i32, more: u64, mode: u64, resolve: u64| {
            let how = [flags as u64 | more, mode, resolve];
            let open = at_path(IORING_OP_OPENAT2, 1, c"/dev/null");
            let open = Sqe { off: how.as_ptr() as u64, len: 24, ..open };
            let result = ring.run(&[open])[0].res;
            if result >= 0 {
                close_number(result);
            }
            result.min(0)
        };
        both(|engine| {
            let mut ring = Ring::new(engine, 8, 0);
            [
                (libc::O_RDWR, 0, 0),
                (libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC, 0, 0o600),
                (libc::O_PATH | libc::O_NOFOLLOW, 0, 0),
                (libc::O_PATH | libc::O_RDWR, 0, 0),
                (libc::O_RDONLY, 1 << 40, 0),
                (libc::O_RDONLY, 1 << 29, 0),
                (libc::O_RDONLY, 0, 0o600),
                (libc::O_RDWR | libc::O_CREAT, 0, 0o10600),
                (libc::O_DIRECTORY, 0, 0),
            ]
            .map(|(flags, more, mode)| open(&mut ring, flags, more, mode, 0))
        });
        // As rings that do not know the operation.
        let mut ring = Ring::new(Engine::User, 8, 0);
        assert_eq!(open(&mut ring, libc::O_RDWR, 0, 0, libc::RESOLVE_NO_SYMLINKS), -libc::EINVAL);
    });
}

/// A ring whose descriptor is closed where nobody sees it, and for which there was no watch, ends when another is made.
#[test]
fn a_ring_ends_without_inotify() {
    without(libc::SYS_inotify_init1, None, libc::EMFILE, || {
        both(|engine| {
            let ring = Ring::new(engine, 8, 0);
            let (mut one, other) = tcp_pair();
            ring.register_files(&[other.as_raw_fd()]);
            drop(other);
            close_number(ring.forget());
            // It has another number, lest that tells of the close.
            let _taken = File::open("/dev/null").unwrap();
            let _another = Ring::new(engine, 8, 0);
            // Only the ring had it still.
            one.set_nonblocking(true).unwrap();
            until("the connection ends", || one.read(&mut [0]).is_ok());
        });
    });
}

/// True if this process has an inotify instance.
fn watches() -> bool {
    let mut open = std::fs::read_dir("/proc/self/fd").unwrap();
    open.any(|one| {
        std::fs::read_link(one.unwrap().path()).is_ok_and(|path| path.ends_with("anon_inode:inotify"))
    })
}

/// A user has few inotify instances: none is taken where a front end tells of closes.
#[by(in_child)]
fn no_ring_is_watched_whose_close_is_told() {
    let mut told = Ring::told(8, 0);
    assert_eq!(told.run(&[sqe(IORING_OP_NOP, 7)])[0].user_data, 7);
    assert!(!watches());
    let _unseen = Ring::new(Engine::User, 8, 0);
    assert!(watches());
}
