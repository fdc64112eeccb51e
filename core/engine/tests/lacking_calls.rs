//! What the engine does where the system lacks a call, or keeps it from the process: older kernels, sandboxes. Each test runs
//! in a child with a filter; io_uring itself is not concerned.
#![cfg(not(anyring_sanitizer))]

mod common;

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;

use anyring_engine::abi::Sqe;
use common::*;
use io_uring_op::*;

/// One instruction of a filter for system calls.
const fn code(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Lets a call with this number, and with this second and third argument if any are named, fail with `ENOPROTOOPT`.
fn refuse(number: libc::c_long, second_and_third: [u32; 2]) {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        code(LOAD, 0, 0, 0),
        code(EQUAL, 0, 5, number as u32),
        code(LOAD, 0, 0, 16 + 8),
        code(EQUAL, 0, 3, second_and_third[0]),
        code(LOAD, 0, 0, 16 + 16),
        code(EQUAL, 0, 1, second_and_third[1]),
        code(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOPROTOOPT as u32),
        code(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: reads a filter of ours; of this process alone.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

/// What a receive of five bytes says after these have been sent to `other`, and `change` has happened.
fn received(engine: Engine, bytes: &[u8], change: impl FnOnce(TcpStream, &TcpStream)) -> (i32, u32) {
    let mut ring = Ring::new(engine, 8, 0);
    let (mut one, other) = tcp_pair();
    one.write_all(bytes).unwrap();
    change(one, &other);
    let mut buffer = [0u8; 5];
    let (fd, addr) = (other.as_raw_fd(), buffer.as_mut_ptr() as u64);
    let cqe = ring.run(&[Sqe { fd, addr, len: 5, ..sqe(IORING_OP_RECV, 1) }])[0];
    (cqe.res, cqe.flags)
}

/// Waits until a socket shows these events.
fn shows(socket: &TcpStream, events: i16) {
    until("the socket shows what happened", || {
        let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&mut poll, 1, 0) };
        poll.revents & events == events
    });
}

#[test]
fn what_a_connection_holds_is_told_where_the_kernel_has_no_word_for_it() {
    const TCP_ZEROCOPY_RECEIVE: u32 = 35;
    let pid = child(|| {
        refuse(libc::SYS_getsockopt, [libc::IPPROTO_TCP as u32, TCP_ZEROCOPY_RECEIVE]);
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
                    let (at, length) = ((&raw const at_once).cast(), size_of_val(&at_once) as u32);
                    // SAFETY: reads a structure of ours.
                    let set = unsafe {
                        libc::setsockopt(one.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, length)
                    };
                    assert_eq!(set, 0);
                    drop(one);
                    shows(other, libc::POLLRDHUP | libc::POLLERR);
                }),
            ]
        });
        true
    });
    assert_eq!(ended(pid), 0);
}
