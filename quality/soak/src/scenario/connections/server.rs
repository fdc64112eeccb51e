//! The server: accepts, receives and sends in the way that it chose at its beginning, until a client says QUIT.

use std::cell::{Cell, RefCell};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::null_mut;
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use io_uring::{cqueue, opcode, squeue, types};

use super::buffers::{Buffers, GROUP};
use super::{CLOSE, ECHO, QUIT, RESET, resets_at_close};
use crate::ring::{Completion, Ring, errno};
use crate::tasks::{Io, Request, contents, memory};

/// Which request accepts.
#[derive(Clone, Copy, PartialEq)]
enum Accepts {
    Once,
    Multishot,
    /// Multishot, into the table of registered files.
    Direct,
}

struct Server {
    // Before the buffers, so that the ring ends before their memory does.
    io: Rc<Io>,
    buffers: Rc<Buffers>,
    listener: RawFd,
    accepts: Accepts,
    rng: RefCell<fastrand::Rng>,
    /// The request that accepts.
    accepting: Cell<u64>,
    quits: Cell<bool>,
}

/// Serves `listener` until told to quit; no more than `total` connections come.
pub fn run(rng: &mut fastrand::Rng, listener: &TcpListener, total: usize) -> Result<()> {
    let accepts = [Accepts::Once, Accepts::Multishot, Accepts::Direct][rng.usize(0..3)];
    let io = Io::new(Ring::large(rng)?);
    if accepts == Accepts::Direct {
        io.with_ring(|ring| ring.submitter().register_files_sparse(total as u32 + 1))
            .context("register_files")?;
    }
    let buffers = Buffers::new(rng, &io)?;
    let server = Rc::new(Server {
        io: Rc::clone(&io),
        buffers,
        listener: listener.as_raw_fd(),
        accepts,
        rng: RefCell::new(rng.fork()),
        accepting: Cell::new(0),
        quits: Cell::new(false),
    });
    io.spawn(Rc::clone(&server).accept());
    io.run()
}

/// One side of a connection.
#[derive(Clone, Copy)]
enum Socket {
    Plain(RawFd),
    Direct(u32),
}

/// The entry of an operation on a socket of either kind.
macro_rules! on {
    ($socket:expr, $target:ident => $operation:expr) => {
        match $socket {
            Socket::Plain(fd) => {
                let $target = types::Fd(fd);
                $operation.build()
            }
            Socket::Direct(slot) => {
                let $target = types::Fixed(slot);
                $operation.build()
            }
        }
    };
}

impl Server {
    async fn accept(self: Rc<Self>) -> Result<()> {
        self.buffers.provide_all(&self.io).await?;
        while !self.quits.get() {
            let mut request = self.io.start("accept", self.accept_entry(), None)?;
            self.accepting.set(request.token);
            loop {
                let completion = request.next().await;
                match completion.result {
                    accepted @ 0.. => self.io.spawn(Rc::clone(&self).serve(self.socket(accepted))),
                    error if error == -libc::ECANCELED && self.quits.get() => {}
                    error => bail!("accept: {}", errno(error)),
                }
                if !completion.more() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn accept_entry(&self) -> squeue::Entry {
        let fd = types::Fd(self.listener);
        match self.accepts {
            Accepts::Once => opcode::Accept::new(fd, null_mut(), null_mut()).build(),
            Accepts::Multishot => opcode::AcceptMulti::new(fd).build(),
            Accepts::Direct => opcode::AcceptMulti::new(fd).allocate_file_index(true).build(),
        }
    }

    fn socket(&self, accepted: i32) -> Socket {
        match self.accepts {
            Accepts::Direct => Socket::Direct(accepted as u32),
            _ => Socket::Plain(accepted),
        }
    }

    async fn serve(self: Rc<Self>, socket: Socket) -> Result<()> {
        let mut receiver = self.receiver(socket);
        let mut command = None;
        while let Some(piece) = receiver.next(&self).await? {
            match *command.get_or_insert(piece[0]) {
                ECHO if self.send(socket, &piece).await? => {}
                ECHO => break,
                CLOSE => {
                    self.send(socket, &piece).await?;
                    break;
                }
                RESET => {
                    if let Socket::Plain(fd) = socket {
                        resets_at_close(fd)?;
                    }
                    break;
                }
                QUIT => self.quit().await?,
                other => bail!("a connection began with {other}"),
            }
        }
        receiver.stop(&self).await?;
        let closed =
            self.io.start("close", on!(socket, fd => opcode::Close::new(fd)), None)?.result().await?;
        ensure!(closed == 0, "close: {}", errno(closed));
        Ok(())
    }

    /// The accept ends, by this cancellation or by itself.
    async fn quit(&self) -> Result<()> {
        self.quits.set(true);
        let cancel = opcode::AsyncCancel::new(self.accepting.get()).build();
        let result = self.io.start("cancel accept", cancel, None)?.result().await?;
        ensure!(matches!(-result, 0 | libc::ENOENT | libc::EALREADY), "cancel: {}", errno(result));
        Ok(())
    }

    /// Sends all of `data`; `false` if the client is gone.
    async fn send(&self, socket: Socket, data: &[u8]) -> Result<bool> {
        let memory = memory(data);
        let (address, length) = (memory.as_ptr().cast(), data.len() as u32);
        let zero_copy = self.rng.borrow_mut().bool();
        let entry = if zero_copy {
            on!(socket, fd => opcode::SendZc::new(fd, address, length).flags(libc::MSG_WAITALL))
        } else {
            on!(socket, fd => opcode::Send::new(fd, address, length).flags(libc::MSG_WAITALL))
        };
        let mut request = self.io.start("send", entry, Some(memory))?;
        let sent = request.next().await;
        if sent.more() {
            let notification = request.next().await;
            ensure!(zero_copy && cqueue::notif(notification.flags), "after a send: {notification:?}");
        }
        match sent.result {
            count if count == data.len() as i32 => Ok(true),
            0.. => Ok(false),
            error if matches!(-error, libc::EPIPE | libc::ECONNRESET) => Ok(false),
            error => bail!("send: {}", errno(error)),
        }
    }

    fn receiver(&self, socket: Socket) -> Receiver {
        let mut rng = self.rng.borrow_mut();
        match rng.u32(0..3) {
            0 => Receiver { socket, way: Way::Own(rng.usize(1..4096)), armed: None },
            1 => Receiver { socket, way: Way::Provided, armed: None },
            _ => Receiver { socket, way: Way::Multishot, armed: None },
        }
    }
}

/// How a connection is received from.
enum Way {
    /// Into a buffer of so many bytes.
    Own(usize),
    /// Into a provided buffer each time.
    Provided,
    /// Into provided buffers, by one request.
    Multishot,
}

struct Receiver {
    socket: Socket,
    way: Way,
    /// The request that goes on.
    armed: Option<Request>,
}

impl Receiver {
    /// The next piece, or none at the end of the connection.
    async fn next(&mut self, server: &Server) -> Result<Option<Vec<u8>>> {
        loop {
            let (completion, received) = match self.way {
                Way::Own(length) => self.receive(server, length).await?,
                _ => self.receive_provided(server).await?,
            };
            match completion.result {
                1.. => return Ok(Some(received)),
                error if error == -libc::ENOBUFS => {}
                0 => return Ok(None),
                error if error == -libc::ECONNRESET => return Ok(None),
                error => bail!("receive: {}", errno(error)),
            }
        }
    }

    async fn receive(&self, server: &Server, length: usize) -> Result<(Completion, Vec<u8>)> {
        let memory = memory(&vec![0; length]);
        let address = memory.as_ptr().cast_mut().cast();
        let entry = on!(self.socket, fd => opcode::Recv::new(fd, address, length as u32));
        let completion = server.io.start("receive", entry, Some(memory.clone()))?.next().await;
        Ok((completion, contents(&memory, completion.result.max(0) as usize).collect()))
    }

    async fn receive_provided(&mut self, server: &Server) -> Result<(Completion, Vec<u8>)> {
        let mut request = match self.armed.take() {
            Some(request) => request,
            None => self.arm(server)?,
        };
        let completion = request.next().await;
        if completion.more() {
            self.armed = Some(request);
        }
        let received = match cqueue::buffer_select(completion.flags) {
            Some(id) => server.buffers.take(&server.io, id, completion.result.max(0) as usize).await?,
            None => Vec::new(),
        };
        Ok((completion, received))
    }

    fn arm(&self, server: &Server) -> Result<Request> {
        let entry = if let Way::Multishot = self.way {
            on!(self.socket, fd => opcode::RecvMulti::new(fd, GROUP))
        } else {
            on!(self.socket, fd => opcode::Recv::new(fd, null_mut(), 0).buf_group(GROUP))
                .flags(squeue::Flags::BUFFER_SELECT)
        };
        server.io.start("receive", entry, None)
    }

    /// Ends the request that goes on, if one does.
    async fn stop(&mut self, server: &Server) -> Result<()> {
        let Some(request) = &self.armed else { return Ok(()) };
        let cancel = opcode::AsyncCancel::new(request.token).build();
        let result = server.io.start("cancel receive", cancel, None)?.result().await?;
        ensure!(matches!(-result, 0 | libc::ENOENT | libc::EALREADY), "cancel: {}", errno(result));
        while self.armed.is_some() {
            let (completion, _) = self.receive_provided(server).await?;
            let ends = [0, -libc::ECANCELED, -libc::ENOBUFS, -libc::ECONNRESET];
            ensure!(completion.result > 0 || ends.contains(&completion.result), "ended: {completion:?}");
        }
        Ok(())
    }
}
