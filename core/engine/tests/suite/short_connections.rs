//! A server of short connections: it accepts however many wait, and sends with the close linked behind.

use std::net::Shutdown;

use crate::common::prelude::*;

/// Around the number after which a multishot accept asks no more whether others wait.
const WAITING: [usize; 7] = [0, 1, 2, 7, 8, 9, 20];

fn accept(user_data: u64, listener: &TcpListener, multishot: bool) -> Sqe {
    let ioprio = if multishot { IORING_ACCEPT_MULTISHOT as u16 } else { 0 };
    Sqe { fd: listener.as_raw_fd(), ioprio, ..sqe(IORING_OP_ACCEPT, user_data) }
}

fn send(user_data: u64, socket: &TcpStream, text: &'static [u8]) -> Sqe {
    Sqe { op_flags: libc::MSG_NOSIGNAL as u32, ..writing(IORING_OP_SEND, user_data, socket, text) }
}

fn recv(user_data: u64, socket: &TcpStream, buffer: &mut [u8]) -> Sqe {
    reading(IORING_OP_RECV, user_data, socket, buffer)
}

/// A close of a descriptor of its own.
fn close(user_data: u64, socket: &TcpStream) -> Sqe {
    Sqe { fd: socket.try_clone().unwrap().into_raw_fd(), ..sqe(IORING_OP_CLOSE, user_data) }
}

fn linked(sqe: Sqe) -> Sqe {
    Sqe { flags: sqe.flags | LINK, ..sqe }
}

/// An accepted connection is closed and becomes 0.
fn comparable(mut cqe: Cqe) -> Cqe {
    if cqe.res >= 0 {
        drop(owned(cqe.res));
        cqe.res = 0;
    }
    cqe
}

/// Accepts those who wait and then some more, one by one; all that the CQEs say.
fn accept_all(engine: Engine, waiting: usize, multishot: bool, armed_first: bool) -> Vec<Cqe> {
    let mut ring = Ring::new(engine, 32, DEFER);
    let (listener, address) = listening();
    let mut clients = Vec::new();
    let mut all = Vec::new();
    let arm = |ring: &mut Ring| {
        ring.submit(&[accept(1, &listener, multishot)]);
    };
    if armed_first {
        arm(&mut ring);
        // Now it waits.
        ring.enter_with(0, 0, IORING_ENTER_GETEVENTS);
    }
    clients.extend((0..waiting).map(|_| TcpStream::connect(address).unwrap()));
    if !armed_first {
        arm(&mut ring);
    }
    for round in 0..waiting + 3 {
        if round >= waiting {
            clients.push(TcpStream::connect(address).unwrap());
        }
        if multishot && round < waiting {
            continue;
        }
        let wanted = if multishot && round == waiting { waiting + 1 } else { 1 };
        all.extend(ring.collect(wanted));
        if !multishot && all.len() < waiting + 3 {
            arm(&mut ring);
        }
    }
    assert_eq!(all.len(), waiting + 3, "each connection once, none twice");
    all.into_iter().map(comparable).collect()
}

#[test]
fn all_that_wait_are_accepted() {
    for waiting in WAITING {
        for multishot in [false, true] {
            both(|engine| (waiting, multishot, accept_all(engine, waiting, multishot, false)));
        }
    }
}

#[test]
fn all_that_come_are_accepted() {
    for waiting in WAITING {
        for multishot in [false, true] {
            both(|engine| (waiting, multishot, accept_all(engine, waiting, multishot, true)));
        }
    }
}

/// Clients who come while others are being accepted are neither lost nor accepted twice.
#[test]
fn nobody_is_lost_in_a_crowd() {
    const CROWD: usize = 12;
    const CLIENTS: usize = 250 * CROWD;
    for multishot in [false, true] {
        let mut ring = Ring::new(Engine::User, 32, DEFER);
        let (listener, address) = listening();
        // Each waits for its end, so that never more wait than the listener has room for.
        let visit = move || {
            let mut client = TcpStream::connect(address).unwrap();
            assert!(std::io::Read::read(&mut client, &mut [0]).is_ok_and(|count| count == 0));
        };
        let crowd: Vec<_> = (0..CROWD)
            .map(|_| std::thread::spawn(move || (0..CLIENTS / CROWD).for_each(|_| visit())))
            .collect();
        let mut accepted = 0;
        let mut armed = false;
        while accepted < CLIENTS {
            if !armed {
                ring.push(accept(1, &listener, multishot));
            }
            let fresh = u32::from(!armed);
            assert_eq!(ring.enter_with(fresh, 1, IORING_ENTER_GETEVENTS), fresh as i32);
            armed = true;
            for cqe in ring.reap_all() {
                assert!(cqe.res >= 0, "{cqe:?}");
                armed = cqe.flags & IORING_CQE_F_MORE != 0;
                comparable(cqe);
                accepted += 1;
            }
        }
        crowd.into_iter().for_each(|clients| clients.join().unwrap());
        assert_eq!(accepted, CLIENTS);
    }
}

/// The completions of a pair of linked requests on both engines, on rings that defer and on others.
fn pairs(body: impl Fn(&mut Ring, TcpStream, TcpStream) -> Vec<Cqe>) {
    for flags in [0, DEFER] {
        both(|engine| {
            let mut ring = Ring::new(engine, 16, flags);
            let (a, b) = tcp_pair();
            (flags, body(&mut ring, a, b))
        });
    }
}

#[by(pairs)]
fn a_close_follows_an_answer(ring: &mut Ring, a: TcpStream, b: TcpStream) -> Vec<Cqe> {
    let cqes = ring.run(&[linked(send(1, &a, b"hello")), close(2, &a)]);
    let mut buffer = [0; 16];
    [cqes, ring.run(&[linked(recv(3, &b, &mut buffer)), close(4, &b)])].concat()
}

#[by(pairs)]
fn an_answer_follows_a_question(ring: &mut Ring, a: TcpStream, b: TcpStream) -> Vec<Cqe> {
    let mut buffer = [0; 16];
    ring.submit(&[linked(recv(1, &b, &mut buffer)), send(2, &b, b"answer")]);
    assert_eq!(ring.reap(), None);
    let mut cqes = ring.run(&[send(3, &a, b"question")]);
    cqes.extend(ring.collect(3 - cqes.len()));
    // Which of the two ends of the connection comes first is the network's affair.
    by_user_data(cqes)
}

#[by(pairs)]
fn what_follows_a_failure_is_cancelled(ring: &mut Ring, a: TcpStream, _b: TcpStream) -> Vec<Cqe> {
    a.shutdown(Shutdown::Write).unwrap();
    ring.run(&[
        linked(send(1, &a, b"hello")),
        close(2, &a),
        linked(Sqe { fd: 9999, ..send(3, &a, b"hello") }),
        close(4, &a),
    ])
}

#[by(pairs)]
fn what_is_wrong_behind_it_stops_an_answer(ring: &mut Ring, a: TcpStream, b: TcpStream) -> Vec<Cqe> {
    let wrong = Sqe { addr: 1, ..close(2, &a) };
    let cqes = ring.run(&[linked(send(1, &a, b"hello")), wrong]);
    b.set_nonblocking(true).unwrap();
    let nothing = std::io::Read::read(&mut &b, &mut [0; 8]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock, "nothing was sent");
    cqes
}

#[by(pairs)]
fn a_pair_that_waits_is_cancelled_as_a_whole(ring: &mut Ring, _a: TcpStream, b: TcpStream) -> Vec<Cqe> {
    let mut buffer = [0; 16];
    ring.submit(&[linked(recv(1, &b, &mut buffer)), close(2, &b)]);
    ring.submit(&[cancel(3, 1, 0)]);
    by_user_data(ring.collect(3))
}

#[by(pairs)]
fn pairs_and_longer_chains_keep_their_order(ring: &mut Ring, a: TcpStream, b: TcpStream) -> Vec<Cqe> {
    let mut buffer = [0; 64];
    let mut cqes = by_user_data(ring.run(&[
        linked(send(1, &a, b"one")),
        send(2, &a, b"two"),
        linked(send(3, &a, b"three")),
        linked(send(4, &a, b"four")),
        send(5, &a, b"five"),
        send(6, &a, b"six"),
        // A chain that ends with the submission.
        linked(send(7, &a, b"seven")),
    ]));
    drop(a);
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut &b, &mut text).unwrap();
    let all = String::from_utf8(text).unwrap();
    let at = |word: &str| all.find(word).expect(word);
    assert!(at("one") < at("two") && at("three") < at("four") && at("four") < at("five"), "{all}");
    cqes.extend(ring.run(&[linked(recv(8, &b, &mut buffer)), close(9, &b)]));
    cqes
}

#[by(pairs)]
fn pairs_on_registered_files(ring: &mut Ring, a: TcpStream, b: TcpStream) -> Vec<Cqe> {
    ring.register_files(&[a.as_raw_fd(), b.as_raw_fd()]);
    let mut buffer = [0; 16];
    let in_slot = |slot: i32, sqe: Sqe| Sqe { fd: slot, flags: sqe.flags | FIXED, ..sqe };
    let empties = |user_data, slot: u32| Sqe { file_index: slot + 1, ..sqe(IORING_OP_CLOSE, user_data) };
    let cqes = ring.run(&[linked(in_slot(0, send(1, &a, b"hello"))), empties(2, 0)]);
    let gone = ring.run(&[linked(in_slot(0, send(3, &a, b"hello"))), empties(4, 0)]);
    [cqes, gone, ring.run(&[linked(in_slot(1, recv(5, &b, &mut buffer))), empties(6, 1)])].concat()
}
