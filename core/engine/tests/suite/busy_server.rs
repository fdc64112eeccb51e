//! A server with data on nearly every connection receives without asking epoll first
//! (`core/engine/src/wait/readiness/guesses.rs`): nothing may be lost by it, and nothing made up.

use std::net::Shutdown;

use crate::common::prelude::*;

const CONNECTIONS: usize = 100;
const ROOM: usize = 64;
/// Marks the polls among the completions.
const POLL: u64 = 1 << 32;
const POLLIN: u32 = libc::POLLIN as u32;

struct Server {
    ring: Ring,
    peers: Vec<Option<TcpStream>>,
    sockets: Vec<TcpStream>,
    buffers: Vec<[u8; ROOM]>,
    /// The bytes that were sent to each connection, those that it has brought, and how it ended.
    sent: Vec<Vec<u8>>,
    received: Vec<Vec<u8>>,
    ends: Vec<Option<i32>>,
    polled: Vec<(u64, i32)>,
    /// Receives and polls that have not completed.
    pending: u32,
    /// Requests to be submitted.
    queued: u32,
}

impl Server {
    fn new(engine: Engine, flags: u32) -> Server {
        let (listener, address) = listening();
        let (peers, sockets) = (0..CONNECTIONS)
            .map(|_| (Some(TcpStream::connect(address).unwrap()), listener.accept().unwrap().0))
            .unzip();
        let mut server = Server {
            ring: Ring::new(engine, 256, flags),
            peers,
            sockets,
            buffers: vec![[0; ROOM]; CONNECTIONS],
            sent: vec![Vec::new(); CONNECTIONS],
            received: vec![Vec::new(); CONNECTIONS],
            ends: vec![None; CONNECTIONS],
            polled: Vec::new(),
            pending: 0,
            queued: 0,
        };
        (0..CONNECTIONS).for_each(|index| server.receive(index));
        server.submit();
        server
    }

    fn receive(&mut self, index: usize) {
        let buffer = &mut self.buffers[index];
        self.ring.push(reading(IORING_OP_RECV, index as u64, &self.sockets[index], buffer));
        (self.pending, self.queued) = (self.pending + 1, self.queued + 1);
    }

    fn poll(&mut self, index: usize) {
        let fd = self.sockets[index].as_raw_fd();
        self.ring.push(Sqe { fd, op_flags: POLLIN, ..sqe(IORING_OP_POLL_ADD, POLL | index as u64) });
        (self.pending, self.queued) = (self.pending + 1, self.queued + 1);
        self.submit();
    }

    fn submit(&mut self) {
        let queued = std::mem::take(&mut self.queued);
        assert_eq!(self.ring.enter(queued, 0), queued as i32);
    }

    /// Takes completions, and receives again on each connection that goes on, until `done`.
    fn serve_until(&mut self, done: impl Fn(&Server) -> bool) {
        while !done(self) {
            let queued = std::mem::take(&mut self.queued);
            assert_eq!(self.ring.enter(queued, 1), queued as i32);
            for cqe in self.ring.reap_all() {
                self.completed(cqe);
            }
        }
        self.submit();
    }

    fn completed(&mut self, cqe: Cqe) {
        self.pending -= 1;
        let index = cqe.user_data as u32 as usize;
        if cqe.user_data & POLL != 0 {
            self.polled.push((cqe.user_data & !POLL, cqe.res));
            return;
        }
        assert_eq!(self.ends[index], None, "connection {index} has ended");
        match cqe.res {
            1.. => {
                self.received[index].extend_from_slice(&self.buffers[index][..cqe.res as usize]);
                self.receive(index);
            }
            end => self.ends[index] = Some(end),
        }
    }

    fn send(&mut self, index: usize, bytes: &[u8]) {
        self.sent[index].extend_from_slice(bytes);
        self.peers[index].as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Every connection brings message after message, as fast as they can be sent: whoever takes them is busy. The
    /// first `quiet` bring half as many; when these are there, `and_then`.
    fn be_busy(&mut self, quiet: usize, and_then: impl FnOnce(&mut Server)) {
        const ROUNDS: u8 = 200;
        let peers = std::mem::take(&mut self.peers);
        for round in 0..ROUNDS {
            for index in if round < ROUNDS / 2 { 0 } else { quiet }..CONNECTIONS {
                self.sent[index].extend([round, index as u8, b'.']);
            }
        }
        let half = self.received[0].len() + 3 * usize::from(ROUNDS / 2);
        let all = half + 3 * usize::from(ROUNDS / 2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let skipped = if round < ROUNDS / 2 { 0 } else { quiet };
                    for (mut peer, index) in peers.iter().flatten().zip(0..).skip(skipped) {
                        peer.write_all(&[round, index, b'.']).unwrap();
                    }
                }
            });
            self.serve_until(|server| server.received[..quiet].iter().all(|bytes| bytes.len() == half));
            and_then(self);
            self.serve_until(|server| server.received[quiet..].iter().all(|bytes| bytes.len() == all));
        });
        self.peers = peers;
    }

    fn lengths(&self) -> Vec<usize> {
        self.received.iter().map(Vec::len).collect()
    }
}

#[both]
fn every_message_comes_whoever_is_quiet(engine: Engine) -> impl Answer {
    let mut all = Vec::new();
    for flags in [0, DEFER] {
        let mut server = Server::new(engine, flags);
        server.be_busy(0, |_| {});
        // From now on some are quiet, others in each round.
        for round in 0..40usize {
            let mut expected = server.lengths();
            for index in (0..CONNECTIONS).filter(|index| (index * 7 + round * 13) % 5 < 1 + round % 5) {
                server.send(index, &vec![round as u8; 1 + (index + round) % 100]);
                expected[index] += 1 + (index + round) % 100;
            }
            server.serve_until(|server| server.lengths() == expected);
        }
        assert_eq!(server.pending as usize, CONNECTIONS);
        assert!(server.ends.iter().all(Option::is_none));
        assert!(server.received == server.sent);
        all.push(server.lengths());
    }
    all
}

#[both]
fn ends_and_urgent_data_are_seen_behind_data(engine: Engine) -> impl Answer {
    let mut server = Server::new(engine, DEFER);
    server.be_busy(0, |_| {});
    let mut expected = server.lengths();
    for (index, expected) in expected.iter_mut().enumerate() {
        server.send(index, b"last");
        *expected += 4;
        match index % 4 {
            0 => drop(server.peers[index].take()),
            1 => server.peers[index].as_ref().unwrap().shutdown(Shutdown::Write).unwrap(),
            2 => {
                let peer = server.peers[index].as_ref().unwrap().as_raw_fd();
                // SAFETY: sends two bytes of ours, the second of which is urgent.
                assert_eq!(unsafe { libc::send(peer, b"+!".as_ptr().cast(), 2, libc::MSG_OOB) }, 2);
                server.sent[index].push(b'+');
                *expected += 1;
            }
            _ => {}
        }
    }
    let ended = |server: &Server| server.ends.iter().filter(|end| end.is_some()).count();
    server.serve_until(|server| server.lengths() == expected && ended(server) == CONNECTIONS / 2);
    assert!(server.received == server.sent);
    (server.lengths(), server.ends)
}

#[both]
fn a_poll_beside_a_receive_hears_of_data_only(engine: Engine) -> impl Answer {
    let mut server = Server::new(engine, DEFER);
    server.be_busy(10, |server| (0..10).for_each(|index| server.poll(index)));
    assert_eq!(server.polled, []);
    (0..10).for_each(|index| server.send(index, b"now"));
    server.serve_until(|server| server.polled.len() == 10);
    server.polled.sort_unstable();
    server.polled
}
