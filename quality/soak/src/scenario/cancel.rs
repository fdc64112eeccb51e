//! Requests that are cancelled, and rings that end with requests in flight.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use io_uring::types::{CancelBuilder, Fd, Timespec};
use io_uring::{opcode, squeue};

use super::Setting;
use crate::ring::Ring;

/// What is waited for in vain. Lives as long as the ring that does.
struct Idle {
    listener: TcpListener,
    datagrams: UdpSocket,
    pair: (UnixStream, UnixStream),
    buffer: Box<[u8; 64]>,
    long: Box<Timespec>,
}

impl Idle {
    fn new() -> Result<Idle> {
        Ok(Idle {
            listener: TcpListener::bind("127.0.0.1:0")?,
            datagrams: UdpSocket::bind("127.0.0.1:0")?,
            pair: UnixStream::pair()?,
            buffer: Box::new([0; 64]),
            long: Box::new(Timespec::new().sec(1000)),
        })
    }

    /// A request that completes only when something else makes it.
    fn request(&mut self, rng: &mut fastrand::Rng) -> (&'static str, squeue::Entry) {
        let null = std::ptr::null_mut();
        let buffer = self.buffer.as_mut_ptr();
        let listener = Fd(self.listener.as_raw_fd());
        let datagrams = Fd(self.datagrams.as_raw_fd());
        let pair = Fd(self.pair.0.as_raw_fd());
        let (what, entry) = match rng.u32(0..7) {
            0 => ("accept", opcode::Accept::new(listener, null, null.cast()).build()),
            1 => ("multishot accept", opcode::AcceptMulti::new(listener).build()),
            2 => ("recv", opcode::Recv::new(datagrams, buffer, 64).build()),
            3 => ("read", opcode::Read::new(pair, buffer, 64).build()),
            4 => ("poll", opcode::PollAdd::new(pair, libc::POLLIN as u32).build()),
            5 => ("multishot poll", opcode::PollAdd::new(datagrams, libc::POLLIN as u32).multi(true).build()),
            _ => ("timeout", opcode::Timeout::new(&raw const *self.long).build()),
        };
        let flags = if rng.u32(0..8) == 0 { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        (what, entry.flags(flags))
    }

    /// Something for each of them.
    fn wake(&mut self, rng: &mut fastrand::Rng) -> Result<Option<TcpStream>> {
        use std::io::Write;
        match rng.u32(0..3) {
            0 => self.pair.1.write_all(b"soak")?,
            1 => drop(self.datagrams.send_to(b"soak", self.datagrams.local_addr()?)?),
            _ => return Ok(Some(TcpStream::connect(self.listener.local_addr()?)?)),
        }
        Ok(None)
    }
}

/// Each of many waiting requests is cancelled, or completes, once; some race with what wakes them.
pub fn cancelled_once(rng: &mut fastrand::Rng, _: &Setting) -> Result<()> {
    let mut idle = Idle::new()?;
    let mut ring = Ring::random(rng)?;
    let mut accepted = Vec::new();
    let mut waiting = Vec::new();
    for _ in 0..rng.usize(1..40) {
        let (what, entry) = idle.request(rng);
        // SAFETY: `idle` outlives the requests: all are finished below.
        let token = unsafe { ring.push(what, entry)? };
        waiting.push(token);
        if what.ends_with("accept") {
            accepted.push(token);
        }
    }
    ring.submit()?;
    let _client = if rng.bool() { idle.wake(rng)? } else { None };
    rng.shuffle(&mut waiting);
    for &token in &waiting {
        // SAFETY: names no memory.
        unsafe { ring.push("cancel", opcode::AsyncCancel::new(token).build())? };
        if ring.pending() > 48 {
            reap(&mut ring, &accepted)?;
        }
    }
    cancel_rest(&mut ring, &accepted)
}

/// Cancels whatever still waits. A request that a worker is just about to let wait evades a cancellation, which
/// says -EALREADY of it: so again, until none is left.
fn cancel_rest(ring: &mut Ring, accepted: &[u64]) -> Result<()> {
    let start = Instant::now();
    while ring.pending() > 0 {
        ensure!(start.elapsed() < Duration::from_secs(20), "not to be cancelled: {ring:?}");
        let all = opcode::AsyncCancel2::new(CancelBuilder::any()).build();
        // SAFETY: names no memory.
        let cancel = unsafe { ring.push("cancel all", all)? };
        while reap(ring, accepted)? != cancel {}
        std::thread::yield_now();
    }
    Ok(())
}

/// Takes one completion, and closes what an accept brought. Returns whose it was.
fn reap(ring: &mut Ring, accepted: &[u64]) -> Result<u64> {
    let completion = ring.wait()?;
    if accepted.contains(&completion.token) && completion.result >= 0 {
        // SAFETY: a descriptor that was made for us; nobody else knows it.
        let closed = unsafe { libc::close(completion.result) };
        ensure!(closed == 0, "accept returned {}, which is not open", completion.result);
    }
    Ok(completion.token)
}

/// A ring that ends with requests in flight takes them along.
pub fn abandoned(rng: &mut fastrand::Rng, _: &Setting) -> Result<()> {
    let mut idle = Idle::new()?;
    let mut ring = Ring::random(rng)?;
    for _ in 0..rng.usize(1..20) {
        let (what, entry) = idle.request(rng);
        // What is accepted after the end would be nobody's to close: nobody connects here.
        // SAFETY: `idle` outlives the ring, which is dropped before it.
        unsafe { ring.push(what, entry)? };
    }
    ring.submit()?;
    drop(ring);
    Ok(())
}
