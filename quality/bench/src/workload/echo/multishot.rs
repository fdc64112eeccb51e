//! The echo server on a ring with multishot requests: one accept for all connections, one receive for all messages of
//! a connection, into provided buffers that are sent and then returned.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::os::fd::AsRawFd;

use linux_raw_sys::io_uring::{IORING_ACCEPT_MULTISHOT, IORING_CQE_F_MORE, IORING_RECV_MULTISHOT};

use super::ServerArgs;
use crate::failure::{Failure, Result};
use crate::workload::provided::{Provided, enough_for};
use crate::workload::ring::{Completion, DEFER, Ring, SELECT, Sqe, close, io_uring_op, sqe};
use crate::workload::sockets::announce;

/// Bytes of a provided buffer.
const BUFFER: usize = 1024;

#[derive(Clone, Copy)]
enum Operation {
    Accept,
    Receive,
    Send,
    Close,
}

struct Connection {
    socket: i32,
    /// Received messages not sent yet: buffers and their numbers of bytes. The first is being sent.
    messages: VecDeque<(u16, u32)>,
    receiving: bool,
    ending: bool,
}

struct Server {
    ring: Ring,
    buffers: Provided,
    listener: i32,
    connections: Vec<Connection>,
    /// Connections whose receive ended for lack of a buffer.
    starved: Vec<usize>,
    expected: usize,
    open: usize,
}

/// Serves until the expected connections have been accepted and closed.
pub fn serve(listener: &TcpListener, args: &ServerArgs) -> Result<()> {
    let entries = (args.connections * 2).next_power_of_two().clamp(64, 4096) as u32;
    let ring = Ring::new(entries, entries * 2, DEFER)?;
    let buffers = Provided::new(&ring, enough_for(args.connections), BUFFER)?;
    let mut server = Server {
        ring,
        buffers,
        listener: listener.as_raw_fd(),
        connections: Vec::with_capacity(args.connections),
        starved: Vec::new(),
        expected: args.connections,
        open: 0,
    };
    server.accept()?;
    announce(listener, Some(server.ring.engine()))?;
    while server.expected > 0 || server.open > 0 {
        server.ring.submit_and_wait(1)?;
        while let Some(completion) = server.ring.completion() {
            server.completed(completion)?;
        }
    }
    Ok(())
}

impl Server {
    fn completed(&mut self, completion: Completion) -> Result<()> {
        let index = (completion.user_data >> 8) as usize;
        match completion.user_data as u8 {
            tag if tag == Operation::Accept as u8 => self.accepted(completion),
            tag if tag == Operation::Receive as u8 => self.received(index, completion),
            tag if tag == Operation::Send as u8 => self.sent(index, completion.result),
            _ => {
                self.open -= 1;
                Ok(())
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        self.ring.push(Sqe {
            fd: self.listener,
            ioprio: IORING_ACCEPT_MULTISHOT as u16,
            op_flags: libc::SOCK_CLOEXEC as u32,
            ..sqe(io_uring_op::IORING_OP_ACCEPT, tag(0, Operation::Accept))
        })
    }

    fn accepted(&mut self, completion: Completion) -> Result<()> {
        if completion.result < 0 {
            return Err(Failure::negative_errno("accept on the ring", completion.result.into()));
        }
        self.connections.push(Connection {
            socket: completion.result,
            messages: VecDeque::new(),
            receiving: false,
            ending: false,
        });
        self.open += 1;
        self.expected -= 1;
        self.receive(self.connections.len() - 1)?;
        if completion.flags & IORING_CQE_F_MORE == 0 && self.expected > 0 {
            self.accept()?;
        }
        Ok(())
    }

    fn receive(&mut self, index: usize) -> Result<()> {
        let connection = &mut self.connections[index];
        connection.receiving = true;
        let receive = sqe(io_uring_op::IORING_OP_RECV, tag(index, Operation::Receive));
        let ioprio = IORING_RECV_MULTISHOT as u16;
        self.ring.push(Sqe { fd: connection.socket, ioprio, flags: SELECT, ..receive })
    }

    fn received(&mut self, index: usize, completion: Completion) -> Result<()> {
        let connection = &mut self.connections[index];
        connection.receiving = completion.flags & IORING_CQE_F_MORE != 0;
        if completion.result == -libc::ENOBUFS {
            self.starved.push(index);
            return Ok(());
        }
        if completion.result <= 0 {
            connection.ending = true;
            return self.close_if_idle(index);
        }
        let number = Provided::number(&completion)
            .ok_or_else(|| Failure::new("a receive brought data and no buffer"))?;
        connection.messages.push_back((number, completion.result as u32));
        let (first, receiving) = (connection.messages.len() == 1, connection.receiving);
        if !receiving {
            self.receive(index)?;
        }
        if first { self.send(index) } else { Ok(()) }
    }

    fn send(&mut self, index: usize) -> Result<()> {
        let connection = &self.connections[index];
        let Some(&(number, bytes)) = connection.messages.front() else { return Ok(()) };
        self.ring.push(Sqe {
            fd: connection.socket,
            addr: self.buffers.address(number) as u64,
            len: bytes,
            // With MSG_WAITALL the engine continues after a short send.
            op_flags: (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32,
            ..sqe(io_uring_op::IORING_OP_SEND, tag(index, Operation::Send))
        })
    }

    fn sent(&mut self, index: usize, result: i32) -> Result<()> {
        let connection = &mut self.connections[index];
        connection.ending |= result < 0;
        if let Some((number, _)) = connection.messages.pop_front() {
            self.buffers.give_back(number);
        }
        if let Some(starved) = self.starved.pop() {
            self.receive(starved)?;
        }
        self.send(index)?;
        self.close_if_idle(index)
    }

    fn close_if_idle(&mut self, index: usize) -> Result<()> {
        let connection = &self.connections[index];
        if !connection.ending || connection.receiving || !connection.messages.is_empty() {
            return Ok(());
        }
        self.ring.push(close(false, connection.socket as u32, tag(index, Operation::Close)))
    }
}

fn tag(index: usize, operation: Operation) -> u64 {
    (index as u64) << 8 | operation as u64
}
