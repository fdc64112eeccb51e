//! Sockets: echoes whose every byte is checked; multishot accept and receive with provided buffers.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use io_uring::{cqueue, opcode, types};

use super::{Setting, bytes};
use crate::ring::{Completion, Ring, errno};

/// A client writes and shuts down its side; the ring's side sends back what it receives.
pub fn echo(rng: &mut fastrand::Rng, _: &Setting) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let clients: Vec<_> = (0..rng.usize(1..8))
        .map(|_| {
            let length = rng.usize(1..200_000);
            bytes(rng, length)
        })
        .collect();
    let mut ring = Ring::random(rng)?;
    thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter()
            .map(|data| scope.spawn(move || echoes(TcpStream::connect(address)?, data)))
            .collect();
        for _ in &clients {
            serve(&mut ring, &listener)?;
        }
        threads.into_iter().try_for_each(|thread| thread.join().expect("a client does not panic"))
    })
}

/// The client: sends all of `data`, and wants it back.
fn echoes(mut stream: TcpStream, data: &[u8]) -> Result<()> {
    let mut sender = stream.try_clone()?;
    thread::scope(|scope| {
        let sent = scope.spawn(move || {
            sender.write_all(data)?;
            sender.shutdown(Shutdown::Write)
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back).context("a client reads")?;
        sent.join().expect("a sender does not panic").context("a client writes")?;
        ensure!(back == data, "an echo of {} bytes came back as {} other ones", data.len(), back.len());
        Ok(())
    })
}

/// The server's side of one connection.
fn serve(ring: &mut Ring, listener: &TcpListener) -> Result<()> {
    let accept =
        opcode::Accept::new(types::Fd(listener.as_raw_fd()), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: names no memory.
    unsafe { ring.push("accept", accept.build())? };
    let accepted = ring.wait()?.count("accept")?;
    // SAFETY: a descriptor that was just made for us.
    let socket = unsafe { OwnedFd::from_raw_fd(accepted as i32) };
    let fd = types::Fd(socket.as_raw_fd());
    let mut buffer = vec![0u8; 16 << 10];
    loop {
        // SAFETY: the buffer lives until this request has completed.
        unsafe {
            ring.push("recv", opcode::Recv::new(fd, buffer.as_mut_ptr(), buffer.len() as u32).build())?
        };
        let received = ring.wait()?.count("recv")?;
        if received == 0 {
            return Ok(());
        }
        let mut sent = 0;
        while sent < received {
            let rest = &buffer[sent..received];
            // SAFETY: as above.
            unsafe { ring.push("send", opcode::Send::new(fd, rest.as_ptr(), rest.len() as u32).build())? };
            sent += ring.wait()?.count("send")?;
        }
    }
}

const GROUP: u16 = 7;
const BUFFER_SIZE: usize = 512;
const BUFFERS: u16 = 8;

/// Multishot accept, and multishot receive into provided buffers that run out and are given back.
pub fn multishot(rng: &mut fastrand::Rng, setting: &Setting) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let mut sent: Vec<_> = (0..rng.usize(1..5))
        .map(|_| {
            let length = rng.usize(1..20_000);
            bytes(rng, length)
        })
        .collect();
    let mut server = Server::new(Ring::random(rng)?, &listener, setting.among_faults)?;
    let mut received = Vec::new();
    thread::scope(|scope| {
        let clients: Vec<_> = sent
            .iter()
            .map(|data| scope.spawn(move || TcpStream::connect(address)?.write_all(data)))
            .collect();
        for _ in &clients {
            let socket = server.accepted()?;
            received.push(server.receive_all(&socket)?);
        }
        for client in clients {
            client.join().expect("a client does not panic").context("a client writes")?;
        }
        anyhow::Ok(())
    })?;
    // The order of connections is the kernel's.
    sent.sort();
    received.sort();
    ensure!(sent == received, "multishot receive lost or changed data");
    server.stop()
}

/// A listener under multishot accept, and buffers for what arrives.
struct Server<'a> {
    ring: Ring,
    listener: &'a TcpListener,
    /// The accept may end.
    among_faults: bool,
    buffers: Vec<u8>,
    accept: u64,
    backlog: VecDeque<OwnedFd>,
}

impl<'a> Server<'a> {
    fn new(ring: Ring, listener: &'a TcpListener, among_faults: bool) -> Result<Server<'a>> {
        let buffers = vec![0u8; BUFFER_SIZE * usize::from(BUFFERS)];
        let mut server =
            Server { ring, listener, among_faults, buffers, accept: 0, backlog: VecDeque::new() };
        server.arm()?;
        server.provide(0, BUFFERS)?;
        Ok(server)
    }

    fn arm(&mut self) -> Result<()> {
        let entry = opcode::AcceptMulti::new(types::Fd(self.listener.as_raw_fd())).build();
        // SAFETY: names no memory.
        self.accept = unsafe { self.ring.push("accept", entry)? };
        Ok(())
    }

    /// The next connection.
    fn accepted(&mut self) -> Result<OwnedFd> {
        while self.backlog.is_empty() {
            let completion = self.ring.wait()?;
            ensure!(completion.token == self.accept, "completed unasked: {completion:?}");
            self.accept_one(&completion)?;
        }
        Ok(self.backlog.pop_front().expect("there is one"))
    }

    fn accept_one(&mut self, completion: &Completion) -> Result<()> {
        let fd = completion.count("accept")?;
        // SAFETY: a descriptor that was just made for us.
        self.backlog.push_back(unsafe { OwnedFd::from_raw_fd(fd as i32) });
        if completion.more() {
            return Ok(());
        }
        // A CQE that is kept as overflow ends it.
        ensure!(self.among_faults, "multishot accept ended");
        self.arm()
    }

    /// The next completion of `token`, connections put by.
    fn wait_for(&mut self, token: u64) -> Result<Completion> {
        loop {
            let completion = self.ring.wait()?;
            if completion.token == token {
                return Ok(completion);
            }
            ensure!(completion.token == self.accept, "completed unasked: {completion:?}");
            self.accept_one(&completion)?;
        }
    }

    /// Gives `count` buffers from `first` on to the ring.
    fn provide(&mut self, first: u16, count: u16) -> Result<()> {
        let start = self.buffers[usize::from(first) * BUFFER_SIZE..].as_mut_ptr();
        let entry = opcode::ProvideBuffers::new(start, BUFFER_SIZE as i32, count, GROUP, first).build();
        // SAFETY: the buffers live as long as the ring.
        let token = unsafe { self.ring.push("provide", entry)? };
        self.wait_for(token)?.count("provide").map(drop)
    }

    /// Receives until the end of the connection.
    fn receive_all(&mut self, socket: &OwnedFd) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let entry = opcode::RecvMulti::new(types::Fd(socket.as_raw_fd()), GROUP).build();
            // SAFETY: the provided buffers live as long as the ring.
            let token = unsafe { self.ring.push("recv", entry)? };
            let mut used = Vec::new();
            let last = loop {
                let completion = self.wait_for(token)?;
                if let Some(buffer) = cqueue::buffer_select(completion.flags) {
                    let start = usize::from(buffer) * BUFFER_SIZE;
                    all.extend_from_slice(&self.buffers[start..start + completion.count("recv")?]);
                    used.push(buffer);
                }
                if !completion.more() {
                    break completion;
                }
            };
            for buffer in used {
                self.provide(buffer, 1)?;
            }
            match last.result {
                0 => return Ok(all),
                error if error < 0 && error != -libc::ENOBUFS => bail!("recv: {}", errno(error)),
                _ => {}
            }
        }
    }

    /// Ends the accept.
    fn stop(mut self) -> Result<()> {
        // SAFETY: names no memory.
        unsafe { self.ring.push("cancel", opcode::AsyncCancel::new(self.accept).build())? };
        self.ring.finish(|_| Ok(()))
    }
}
