//! An echo server with a multishot accept, and its clients. Server and clients have separate rings.

use crate::{next, push};
use common::{BLOCK, CONNECTIONS, ECHO_BYTES, checksum, random};
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;

const ACCEPT: u64 = u64::MAX;

/// The step of a connection's request.
#[derive(Clone, Copy)]
enum Step {
    Receive = 0,
    Send = 1,
}

fn data(connection: usize, step: Step) -> u64 {
    (connection as u64) << 1 | step as u64
}

pub fn run() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let clients = std::thread::spawn(move || clients(address));
    serve(&listener);
    clients.join().unwrap();
}

struct Connection {
    fd: i32,
    buffer: Vec<u8>,
    sent: usize,
    received: usize,
}

impl Connection {
    fn new(fd: i32, length: usize) -> Self {
        Self { fd, buffer: vec![0; length], sent: 0, received: 0 }
    }

    fn receive(&mut self, ring: &mut IoUring, index: usize) {
        let entry = opcode::Recv::new(Fd(self.fd), self.buffer.as_mut_ptr(), BLOCK as u32).build();
        push(ring, entry, data(index, Step::Receive));
    }

    fn send(&mut self, ring: &mut IoUring, index: usize, end: usize) {
        let rest = &self.buffer[self.sent..end];
        let length = rest.len().min(BLOCK) as u32;
        push(ring, opcode::Send::new(Fd(self.fd), rest.as_ptr(), length).build(), data(index, Step::Send));
    }

    fn close(&mut self) {
        // SAFETY: the descriptor was created by a request, and has no other owner.
        unsafe { libc::close(self.fd) };
    }
}

/// Sends received data back until every connection has ended.
fn serve(listener: &TcpListener) {
    let mut ring = IoUring::new(32).unwrap();
    push(&mut ring, opcode::AcceptMulti::new(Fd(listener.as_raw_fd())).build(), ACCEPT);
    let mut connections: Vec<Connection> = Vec::new();
    let mut ended = 0;
    while ended < CONNECTIONS {
        let (data, result) = next(&mut ring);
        assert!(result >= 0, "the server's {data} failed: {result}");
        if data == ACCEPT {
            connections.push(Connection::new(result, BLOCK));
            let index = connections.len() - 1;
            connections[index].receive(&mut ring, index);
            continue;
        }
        let index = (data >> 1) as usize;
        let connection = &mut connections[index];
        if data & 1 == Step::Send as u64 {
            connection.sent += result as usize;
        } else {
            (connection.received, connection.sent) = (result as usize, 0);
        }
        match connection.received {
            0 => {
                connection.close();
                ended += 1;
            }
            count if connection.sent < count => connection.send(&mut ring, index, count),
            _ => connection.receive(&mut ring, index),
        }
    }
}

/// Runs all clients concurrently, and checks that each gets back what it has sent.
fn clients(address: SocketAddr) {
    let mut ring = IoUring::new(32).unwrap();
    let SocketAddr::V4(address) = address else { panic!("not asked for") };
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    };
    let mut connections = Vec::new();
    let mut echoed = Vec::new();
    for seed in 0..CONNECTIONS {
        let socket = opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        let fd = crate::one(&mut ring, socket.build());
        assert!(fd >= 0, "socket: {fd}");
        let length = size_of::<libc::sockaddr_in>() as u32;
        let connect = opcode::Connect::new(Fd(fd), (&raw const address).cast(), length);
        assert_eq!(crate::one(&mut ring, connect.build()), 0);
        let mut connection = Connection::new(fd, 0);
        connection.buffer = random(seed as u64 + 100, ECHO_BYTES);
        connections.push(connection);
        echoed.push(Connection::new(fd, BLOCK));
    }
    let mut hashes = [0; CONNECTIONS];
    for index in 0..CONNECTIONS {
        connections[index].send(&mut ring, index, ECHO_BYTES);
        echoed[index].receive(&mut ring, index);
    }
    let mut left = CONNECTIONS;
    while left > 0 {
        let (data, result) = next(&mut ring);
        assert!(result > 0, "the client's {data} failed: {result}");
        let (index, count) = ((data >> 1) as usize, result as usize);
        if data & 1 == Step::Send as u64 {
            connections[index].sent += count;
            if connections[index].sent < ECHO_BYTES {
                connections[index].send(&mut ring, index, ECHO_BYTES);
            }
            continue;
        }
        let connection = &mut echoed[index];
        hashes[index] = checksum(hashes[index], &connection.buffer[..count]);
        connection.received += count;
        if connection.received < ECHO_BYTES {
            connection.receive(&mut ring, index);
        } else {
            connection.close();
            left -= 1;
        }
    }
    for (connection, hash) in connections.iter().zip(hashes) {
        assert_eq!(hash, checksum(0, &connection.buffer));
    }
}

/// Sends and receives concurrently on a socket pair. The peer is a thread that makes plain calls.
pub fn over_a_pair(ring: &mut IoUring) {
    let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
    let echoing = std::thread::spawn(move || {
        let mut buffer = [0; 1000];
        loop {
            match far.read(&mut buffer).unwrap() {
                0 => return,
                count => far.write_all(&buffer[..count]).unwrap(),
            }
        }
    });
    let content = random(2, ECHO_BYTES);
    let (mut sent, mut received, mut buffer) = (0, Vec::new(), vec![0_u8; BLOCK]);
    let fd = Fd(near.as_raw_fd());
    let send = |sent: usize| {
        opcode::Send::new(fd, content[sent..].as_ptr(), (ECHO_BYTES - sent).min(BLOCK) as u32).build()
    };
    let receive = opcode::Recv::new(fd, buffer.as_mut_ptr(), BLOCK as u32).build();
    push(ring, send(0), 0);
    push(ring, receive.clone(), 1);
    while received.len() < ECHO_BYTES {
        let (which, result) = next(ring);
        let count = match result {
            _ if result == -libc::EINTR => 0,
            1.. => result as usize,
            _ => panic!("{} answers {result}", ["send", "receive"][which as usize]),
        };
        if which == 0 {
            sent += count;
            if sent < ECHO_BYTES {
                push(ring, send(sent), 0);
            }
        } else {
            received.extend_from_slice(&buffer[..count]);
            if received.len() < ECHO_BYTES {
                push(ring, receive.clone(), 1);
            }
        }
    }
    assert!(received == content, "something else came back");
    drop(near);
    echoing.join().unwrap();
}
