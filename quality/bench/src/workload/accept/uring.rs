//! The server on a ring: a receive per accepted connection, then the answer with the close linked to it.

use std::net::TcpListener;
use std::os::fd::AsRawFd;

use linux_raw_sys::io_uring::{IORING_ACCEPT_MULTISHOT, IORING_CQE_F_MORE, IORING_FILE_INDEX_ALLOC};

use super::{MESSAGE, ROOM, ServerArgs};
use crate::failure::{Failure, Result};
use crate::workload::ring::{Completion, DEFER, FIXED_FILE, LINK, Ring, Sqe, close, io_uring_op, sqe};
use crate::workload::sockets::announce;

/// The number of other open files.
const OTHER_FILES: usize = 256;

/// The upper half of a completion's user data; the lower half is the file.
#[derive(Clone, Copy)]
enum Operation {
    Accept,
    Receive,
    Send,
    Close,
}

struct Server {
    ring: Ring,
    listener: i32,
    multishot: bool,
    fixed: bool,
    /// Buffers by file; never moved, because requests have their addresses.
    buffers: Vec<[u8; ROOM]>,
    /// Connections still to be accepted, and those that are open.
    left: usize,
    open: usize,
}

/// Serves as many connections as the arguments say.
pub fn serve(listener: &TcpListener, args: &ServerArgs) -> Result<()> {
    let entries = (args.at_once as u32 * 2).next_power_of_two().clamp(64, 4096);
    let ring = Ring::new(entries, entries * 2, DEFER)?;
    if args.fixed {
        ring.register_slots(args.at_once as u32 * 2)?;
    }
    let mut server = Server {
        ring,
        listener: listener.as_raw_fd(),
        multishot: args.multishot,
        fixed: args.fixed,
        buffers: vec![[0; ROOM]; args.at_once * 2 + OTHER_FILES],
        left: args.connections,
        open: 0,
    };
    server.accept()?;
    announce(listener, Some(server.ring.engine()))?;
    while server.left > 0 || server.open > 0 {
        server.ring.submit_and_wait(1)?;
        while let Some(completion) = server.ring.completion() {
            server.completed(completion)?;
        }
    }
    Ok(())
}

impl Server {
    fn completed(&mut self, completion: Completion) -> Result<()> {
        let file = completion.user_data as u32;
        match completion.user_data >> 32 {
            tag if tag == Operation::Accept as u64 => self.accepted(completion),
            tag if tag == Operation::Receive as u64 => self.received(file, completion.result),
            tag if tag == Operation::Send as u64 => whole(completion.result, "the answer on the ring"),
            _ => {
                self.open -= 1;
                Ok(())
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        let ioprio = if self.multishot { IORING_ACCEPT_MULTISHOT as u16 } else { 0 };
        let accept = sqe(io_uring_op::IORING_OP_ACCEPT, tag(Operation::Accept, 0));
        let accept = Sqe { fd: self.listener, ioprio, ..accept };
        self.ring.push(match self.fixed {
            true => Sqe { file_index: IORING_FILE_INDEX_ALLOC as u32, ..accept },
            false => Sqe { op_flags: libc::SOCK_CLOEXEC as u32, ..accept },
        })
    }

    fn accepted(&mut self, completion: Completion) -> Result<()> {
        let Ok(file) = u32::try_from(completion.result) else {
            return Err(Failure::negative_errno("accept on the ring", completion.result.into()));
        };
        self.open += 1;
        self.left -= 1;
        let receive = self.request(io_uring_op::IORING_OP_RECV, Operation::Receive, file)?;
        self.ring.push(Sqe { len: ROOM as u32, ..receive })?;
        if completion.flags & IORING_CQE_F_MORE == 0 && self.left > 0 {
            self.accept()?;
        }
        Ok(())
    }

    fn received(&mut self, file: u32, result: i32) -> Result<()> {
        whole(result, "a client's message on the ring")?;
        // Both requests go in one submission, because a chain ends at the end of a submission.
        if self.ring.room() < 2 {
            self.ring.submit_and_wait(0)?;
        }
        let send = self.request(io_uring_op::IORING_OP_SEND, Operation::Send, file)?;
        let op_flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
        self.ring.push(Sqe { len: MESSAGE as u32, op_flags, flags: send.flags | LINK, ..send })?;
        self.close(file)
    }

    /// Returns a request that transfers the file's message.
    fn request(&mut self, opcode: io_uring_op, operation: Operation, file: u32) -> Result<Sqe> {
        let Some(buffer) = self.buffers.get_mut(file as usize).map(|buffer| buffer.as_mut_ptr()) else {
            return Err(Failure::new(format!("file {file} is one too many")));
        };
        let flags = if self.fixed { FIXED_FILE } else { 0 };
        Ok(Sqe { fd: file as i32, flags, addr: buffer as u64, ..sqe(opcode, tag(operation, file)) })
    }

    fn close(&mut self, file: u32) -> Result<()> {
        self.ring.push(close(self.fixed, file, tag(Operation::Close, file)))
    }
}

fn whole(result: i32, what: &str) -> Result<()> {
    match usize::try_from(result) {
        Ok(MESSAGE) => Ok(()),
        Ok(bytes) => Err(Failure::new(format!("{what} was {bytes} bytes long, not {MESSAGE}"))),
        Err(_) => Err(Failure::negative_errno(what, result.into())),
    }
}

fn tag(operation: Operation, file: u32) -> u64 {
    (operation as u64) << 32 | u64::from(file)
}
