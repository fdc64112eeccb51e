//! The echo server on a ring: one accept, and per connection one receive and at most one send in
//! flight. A connection has two buffers, so that the next receive never overwrites what is being sent.

use std::net::TcpListener;
use std::os::fd::AsRawFd;

use linux_raw_sys::io_uring::{IORING_FILE_INDEX_ALLOC, IORING_RECVSEND_POLL_FIRST};

use super::{BUFFER, ServerArgs};
use crate::failure::{Failure, Result};
use crate::workload::ring::{Completion, DEFER, FIXED_FILE, Ring, Sqe, close, io_uring_op, sqe};
use crate::workload::sockets::announce;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Accept,
    Receive,
    Send,
    Close,
}

struct Connection {
    /// File descriptor, or slot of the table of direct descriptors.
    file: u32,
    buffers: Box<[[u8; BUFFER]; 2]>,
    /// The buffer that the receive in flight fills.
    filling: usize,
    receiving: bool,
    sending: bool,
    /// Bytes in the other buffer that wait for the send in flight to end.
    waiting: usize,
    ending: bool,
}

struct Server {
    ring: Ring,
    listener: i32,
    connections: Vec<Connection>,
    fixed: bool,
    file_flags: u8,
    receive_flags: u16,
    expected: usize,
    open: usize,
}

/// Serves until the expected connections have been accepted and closed.
pub fn serve(listener: &TcpListener, args: &ServerArgs) -> Result<()> {
    let mut server = Server::new(listener, args)?;
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
    fn new(listener: &TcpListener, args: &ServerArgs) -> Result<Self> {
        let entries = (args.connections * 2).next_power_of_two().clamp(64, 4096) as u32;
        let flags = if args.defer { DEFER } else { 0 };
        let ring = Ring::new(entries, entries * 2, flags)?;
        if args.fixed {
            ring.register_slots(args.connections as u32)?;
        }
        Ok(Self {
            ring,
            listener: listener.as_raw_fd(),
            connections: Vec::with_capacity(args.connections),
            fixed: args.fixed,
            file_flags: if args.fixed { FIXED_FILE } else { 0 },
            receive_flags: if args.poll_first { IORING_RECVSEND_POLL_FIRST as u16 } else { 0 },
            expected: args.connections,
            open: 0,
        })
    }

    fn completed(&mut self, completion: Completion) -> Result<()> {
        let index = (completion.user_data >> 8) as usize;
        match completion.user_data as u8 {
            tag if tag == Operation::Accept as u8 => self.accepted(completion.result),
            tag if tag == Operation::Receive as u8 => self.received(index, completion.result),
            tag if tag == Operation::Send as u8 => self.sent(index, completion.result),
            _ => {
                self.open -= 1;
                Ok(())
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        let accept = sqe(io_uring_op::IORING_OP_ACCEPT, tag(0, Operation::Accept));
        let accept = Sqe { fd: self.listener, ..accept };
        self.ring.push(match self.fixed {
            true => Sqe { file_index: IORING_FILE_INDEX_ALLOC as u32, ..accept },
            false => Sqe { op_flags: libc::SOCK_CLOEXEC as u32, ..accept },
        })
    }

    fn accepted(&mut self, result: i32) -> Result<()> {
        let Ok(file) = u32::try_from(result) else {
            return Err(Failure::negative_errno("accept on the ring", result.into())
                .advice("raise the limit of open files with `ulimit -n`"));
        };
        self.connections.push(Connection {
            file,
            buffers: Box::new([[0; BUFFER]; 2]),
            filling: 0,
            receiving: false,
            sending: false,
            waiting: 0,
            ending: false,
        });
        self.open += 1;
        self.expected -= 1;
        self.receive(self.connections.len() - 1)?;
        if self.expected > 0 {
            self.accept()?;
        }
        Ok(())
    }

    fn receive(&mut self, index: usize) -> Result<()> {
        let connection = &mut self.connections[index];
        connection.receiving = true;
        self.ring.push(Sqe {
            fd: connection.file as i32,
            flags: self.file_flags,
            ioprio: self.receive_flags,
            addr: connection.buffers[connection.filling].as_mut_ptr() as u64,
            len: BUFFER as u32,
            ..sqe(io_uring_op::IORING_OP_RECV, tag(index, Operation::Receive))
        })
    }

    fn received(&mut self, index: usize, result: i32) -> Result<()> {
        let connection = &mut self.connections[index];
        connection.receiving = false;
        if result <= 0 {
            connection.ending = true;
            return self.close_if_idle(index);
        }
        connection.filling ^= 1;
        connection.waiting = result as usize;
        if connection.sending {
            return Ok(());
        }
        self.send_and_receive(index)
    }

    /// Sends the received bytes, and receives into the other buffer meanwhile.
    fn send_and_receive(&mut self, index: usize) -> Result<()> {
        let connection = &mut self.connections[index];
        connection.sending = true;
        self.ring.push(Sqe {
            fd: connection.file as i32,
            flags: self.file_flags,
            addr: connection.buffers[connection.filling ^ 1].as_ptr() as u64,
            len: std::mem::take(&mut connection.waiting) as u32,
            // With MSG_WAITALL the engine continues after a short send.
            op_flags: (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32,
            ..sqe(io_uring_op::IORING_OP_SEND, tag(index, Operation::Send))
        })?;
        self.receive(index)
    }

    fn sent(&mut self, index: usize, result: i32) -> Result<()> {
        let connection = &mut self.connections[index];
        connection.sending = false;
        connection.ending |= result < 0;
        if connection.ending {
            return self.close_if_idle(index);
        }
        if connection.waiting > 0 {
            return self.send_and_receive(index);
        }
        Ok(())
    }

    fn close_if_idle(&mut self, index: usize) -> Result<()> {
        let connection = &self.connections[index];
        if connection.receiving || connection.sending {
            return Ok(());
        }
        self.ring.push(close(self.fixed, connection.file, tag(index, Operation::Close)))
    }
}

fn tag(index: usize, operation: Operation) -> u64 {
    (index as u64) << 8 | operation as u64
}
