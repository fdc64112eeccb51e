//! The clients: each slot opens one connection after the other, and ends each in a way of its own.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use io_uring::squeue::Flags;
use io_uring::types::{CancelBuilder, Fd, Timespec};
use io_uring::{opcode, types};

use super::{CLOSE, ECHO, QUIT, RESET, close, resets_at_close};
use crate::ring::{Ring, errno};
use crate::scenario::bytes;
use crate::tasks::{Io, Memory, Request, contents, memory};

struct Clients {
    io: Rc<Io>,
    rng: RefCell<fastrand::Rng>,
    /// The server's `sockaddr_in`.
    address: Memory,
    /// Connections to be opened yet.
    left: Cell<usize>,
    /// Slots that have not ended.
    slots: Cell<usize>,
    may_close_early: bool,
}

/// Opens `total` connections to `address`, `slots` at a time, and tells the server to quit.
pub fn run(rng: &mut fastrand::Rng, address: SocketAddr, slots: usize, total: usize) -> Result<()> {
    let ring = Ring::large(rng)?;
    // Whether an SQ thread has taken a request cannot be told, so the request's descriptor must stay.
    let may_close_early = !ring.is_polled();
    let io = Io::new(ring);
    let clients = Rc::new(Clients {
        io: Rc::clone(&io),
        rng: RefCell::new(rng.fork()),
        address: memory(&raw_address(address)?),
        left: Cell::new(total),
        slots: Cell::new(slots),
        may_close_early,
    });
    for _ in 0..slots {
        io.spawn(Rc::clone(&clients).slot());
    }
    io.run()
}

/// A `sockaddr_in`.
fn raw_address(address: SocketAddr) -> Result<Vec<u8>> {
    let IpAddr::V4(ip) = address.ip() else { bail!("an IPv4 address was asked for") };
    let mut raw = (libc::AF_INET as u16).to_ne_bytes().to_vec();
    raw.extend(address.port().to_be_bytes());
    raw.extend(ip.octets());
    raw.extend([0; 8]);
    Ok(raw)
}

impl Clients {
    async fn slot(self: Rc<Self>) -> Result<()> {
        while let Some(left) = self.left.get().checked_sub(1) {
            self.left.set(left);
            let way = self.rng.borrow_mut().u32(0..10);
            match way {
                0 => self.polite().await.context("polite"),
                1 => self.half_closed().await.context("half-closed"),
                2 => self.reset().await.context("reset"),
                3 => self.connect_cancelled().await.context("connect cancelled"),
                4 => self.receive_cancelled().await.context("receive cancelled"),
                5 => self.receive_races().await.context("receive races with its cancellation"),
                6 => self.receive_times_out().await.context("receive times out"),
                7 => self.closed_before_receipt().await.context("closed before receipt"),
                8 => self.ended_by_server(RESET).await.context("reset by the server"),
                _ => self.ended_by_server(CLOSE).await.context("closed by the server"),
            }?;
        }
        self.slots.set(self.slots.get() - 1);
        if self.slots.get() == 0 {
            let fd = self.connect().await?;
            self.send(fd, &[QUIT])?.result().await?;
            self.close(fd).await?;
        }
        Ok(())
    }

    /// Some messages there and back.
    async fn polite(&self) -> Result<()> {
        let fd = self.connect().await?;
        for _ in 0..self.random(1..5) {
            self.echo(fd).await?;
        }
        self.close(fd).await
    }

    /// One side ends, and all comes back on the other.
    async fn half_closed(&self) -> Result<()> {
        let fd = self.connect().await?;
        let data = self.data(ECHO);
        let sent = self.send(fd, &data)?;
        let shutdown = opcode::Shutdown::new(Fd(fd), libc::SHUT_WR).build();
        ensure!(sent.result().await? == data.len() as i32, "not all is sent");
        let shut = self.io.start("shutdown", shutdown, None)?.result().await?;
        ensure!(shut == 0, "shutdown: {}", errno(shut));
        let mut back = Vec::new();
        while self.receive_more(fd, &mut back).await? > 0 {}
        ensure!(back == data, "{} bytes came back of {}", back.len(), data.len());
        self.close(fd).await
    }

    /// The connection is reset with data under way.
    async fn reset(&self) -> Result<()> {
        let fd = self.connect().await?;
        if self.random(0..2) == 0 {
            self.echo(fd).await?;
        }
        let data = self.data(ECHO);
        self.send(fd, &data)?.result().await?;
        resets_at_close(fd)?;
        self.close(fd).await
    }

    async fn connect_cancelled(&self) -> Result<()> {
        let fd = socket()?;
        let connect = self.start_connect(fd)?;
        let cancelled = self.cancel(&connect)?.result().await?;
        let connected = connect.result().await?;
        let consistent = match -cancelled {
            0 => connected == -libc::ECANCELED,
            libc::ENOENT => connected == 0,
            libc::EALREADY => connected == 0 || connected == -libc::ECANCELED,
            _ => false,
        };
        ensure!(consistent, "the cancellation gave {cancelled}, the connect {connected}");
        self.close(fd).await
    }

    /// A receive for which nothing comes is cancelled, by its name or with all of its descriptor.
    async fn receive_cancelled(&self) -> Result<()> {
        let fd = self.connect().await?;
        self.echo(fd).await?;
        let (receive, _) = self.start_receive(fd, 100)?;
        let cancelled = if self.random(0..2) == 0 {
            self.cancel(&receive)?.result().await?
        } else {
            let all = opcode::AsyncCancel2::new(CancelBuilder::fd(Fd(fd)).all()).build();
            let count = self.io.start("cancel all", all, None)?.result().await?;
            ensure!(count == 1, "one receive was to be cancelled: {count}");
            0
        };
        ensure!(matches!(-cancelled, 0 | libc::EALREADY), "cancel: {}", errno(cancelled));
        let received = receive.result().await?;
        ensure!(received == -libc::ECANCELED, "a cancelled receive gave {received}");
        self.close(fd).await
    }

    /// Receives are cancelled while data arrive: none get lost.
    async fn receive_races(&self) -> Result<()> {
        let fd = self.connect().await?;
        let data = self.data(ECHO);
        let sent = self.send(fd, &data)?;
        let mut back = Vec::new();
        while back.len() < data.len() {
            let (receive, memory) = self.start_receive(fd, data.len())?;
            let cancelled = self.cancel(&receive)?.result().await?;
            let received = receive.result().await?;
            ensure!(received > 0 || received == -libc::ECANCELED, "receive: {}", errno(received));
            ensure!(cancelled != 0 || received < 0, "cancelled, and received {received}");
            back.extend(contents(&memory, received.max(0) as usize));
        }
        ensure!(sent.result().await? == data.len() as i32 && back == data, "other data came back");
        self.close(fd).await
    }

    /// A linked timeout ends a receive for which nothing comes.
    async fn receive_times_out(&self) -> Result<()> {
        let fd = self.connect().await?;
        self.echo(fd).await?;
        let keep = Rc::new((memory(&[0; 16]), Timespec::new().nsec(1_000_000)));
        let address = keep.0.as_ptr().cast_mut().cast();
        let receive = opcode::Recv::new(Fd(fd), address, 16).build().flags(Flags::IO_LINK);
        let timeout = opcode::LinkTimeout::new(&raw const keep.1).build();
        let [receive, timeout] = self.io.start_pair("timed receive", [receive, timeout], &keep)?;
        let (received, expired) = (receive.result().await?, timeout.result().await?);
        ensure!(received == -libc::ECANCELED, "a receive in vain gave {received}");
        ensure!(expired == -libc::ETIME, "its timeout gave {expired}");
        self.close(fd).await
    }

    /// The descriptor is closed, and its number used again, under a receive: that has its socket.
    async fn closed_before_receipt(&self) -> Result<()> {
        let fd = self.connect().await?;
        self.echo(fd).await?;
        if !self.may_close_early {
            return self.close(fd).await;
        }
        let data = self.data(ECHO);
        let comes = self.random(0..2) == 0;
        let sent = if comes { Some(self.send(fd, &data)?) } else { None };
        let (receive, memory) = self.start_receive(fd, data.len())?;
        self.io.submit_all()?;
        close(fd)?;
        if let Some(sent) = sent {
            let (sent, received) = (sent.result().await?, receive.result().await?);
            ensure!(sent == data.len() as i32 && received > 0, "{sent} bytes sent, {received} received");
            let same = contents(&memory, received as usize).eq(data[..received as usize].iter().copied());
            ensure!(same, "other data came back");
            return Ok(());
        }
        let cancelled = self.cancel(&receive)?.result().await?;
        ensure!(matches!(-cancelled, 0 | libc::EALREADY), "cancel: {}", errno(cancelled));
        let received = receive.result().await?;
        ensure!(received == -libc::ECANCELED, "a cancelled receive gave {received}");
        Ok(())
    }

    /// The server resets or closes the connection after the first piece.
    async fn ended_by_server(&self, command: u8) -> Result<()> {
        let fd = self.connect().await?;
        let data = self.data(command);
        let sent = self.send(fd, &data)?;
        let mut back = Vec::new();
        let end = loop {
            match self.receive_more(fd, &mut back).await {
                Ok(1..) => {}
                Ok(end) => break end,
                Err(error) => return Err(error),
            }
        };
        ensure!([0, -libc::ECONNRESET, -libc::EPIPE].contains(&end), "receive: {}", errno(end));
        ensure!(data.starts_with(&back), "other data came back");
        ensure!(command == CLOSE || back.is_empty(), "data came back on a connection to be reset");
        sent.result().await?;
        self.close(fd).await
    }

    /// A message there and back.
    async fn echo(&self, fd: RawFd) -> Result<()> {
        let data = self.data(ECHO);
        let sent = self.send(fd, &data)?;
        let mut back = Vec::new();
        while back.len() < data.len() {
            let received = self.receive_more(fd, &mut back).await?;
            ensure!(received > 0, "an echo ended after {} of {} bytes: {received}", back.len(), data.len());
        }
        ensure!(sent.result().await? == data.len() as i32 && back == data, "other data came back");
        Ok(())
    }

    async fn receive_more(&self, fd: RawFd, back: &mut Vec<u8>) -> Result<i32> {
        let length = self.random(1..8192);
        let (receive, memory) = self.start_receive(fd, length)?;
        let received = receive.result().await?;
        back.extend(contents(&memory, received.max(0) as usize));
        Ok(received)
    }

    async fn connect(&self) -> Result<RawFd> {
        let fd = socket()?;
        let connected = self.start_connect(fd)?.result().await?;
        ensure!(connected == 0, "connect: {}", errno(connected));
        Ok(fd)
    }

    fn start_connect(&self, fd: RawFd) -> Result<Request> {
        let (address, length) = (self.address.as_ptr().cast(), self.address.len() as u32);
        let connect = opcode::Connect::new(Fd(fd), address, length).build();
        self.io.start("connect", connect, Some(self.address.clone()))
    }

    fn send(&self, fd: RawFd, data: &[u8]) -> Result<Request> {
        let memory = memory(data);
        let send = opcode::Send::new(Fd(fd), memory.as_ptr().cast(), data.len() as u32);
        self.io.start("send", send.flags(libc::MSG_WAITALL).build(), Some(memory))
    }

    fn start_receive(&self, fd: RawFd, length: usize) -> Result<(Request, Memory)> {
        let memory = memory(&vec![0; length]);
        let receive = opcode::Recv::new(Fd(fd), memory.as_ptr().cast_mut().cast(), length as u32).build();
        Ok((self.io.start("receive", receive, Some(memory.clone()))?, memory))
    }

    fn cancel(&self, request: &Request) -> Result<Request> {
        self.io.start("cancel", opcode::AsyncCancel::new(request.token).build(), None)
    }

    /// Closes a descriptor, by a request or behind the ring's back.
    async fn close(&self, fd: RawFd) -> Result<()> {
        if self.random(0..2) == 0 {
            return close(fd);
        }
        let closed =
            self.io.start("close", opcode::Close::new(types::Fd(fd)).build(), None)?.result().await?;
        ensure!(closed == 0, "close: {}", errno(closed));
        Ok(())
    }

    fn random(&self, range: std::ops::Range<usize>) -> usize {
        self.rng.borrow_mut().usize(range)
    }

    /// A message that begins with `command`; most are short.
    fn data(&self, command: u8) -> Vec<u8> {
        let mut rng = self.rng.borrow_mut();
        let longest = if rng.u32(0..16) == 0 { 60_000 } else { 1500 };
        let length = rng.usize(1..longest);
        let mut data = bytes(&mut rng, length);
        data[0] = command;
        data
    }
}

fn socket() -> Result<RawFd> {
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    ensure!(fd >= 0, "socket: {}", std::io::Error::last_os_error());
    Ok(fd)
}
