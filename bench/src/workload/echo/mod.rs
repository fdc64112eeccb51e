//! An echo server, once on epoll and once on a ring, and the clients that load it.
//!
//! The servers carry no measuring code. The client counts what comes back within its window and reads
//! the server's CPU clock at both ends of it.

mod client;
mod epoll;
mod uring;

pub use client::{Args as ClientArgs, run as drive};

use std::net::TcpListener;
use std::os::fd::AsRawFd;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::clock::pin;
use super::ring::Engine;
use crate::failure::{Doing, Failure, Result};

/// The largest message that one receive takes.
const BUFFER: usize = 4096;

/// What a server says when it listens, and what its clients wait for: one line of JSON.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Address {
    /// TCP port on the loopback interface.
    pub port: u16,
    /// The server's process.
    pub process: u32,
    /// Who implements its ring, if it has one.
    pub engine: Option<Engine>,
}

/// Arguments of the server.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// How it waits and moves bytes.
    #[arg(long, value_enum)]
    means: Means,
    /// The server ends when it has accepted this many connections and all are closed again.
    #[arg(long)]
    connections: usize,
    /// Bind to this CPU.
    #[arg(long)]
    cpu: Option<usize>,
    /// Set up the ring with SINGLE_ISSUER and DEFER_TASKRUN.
    #[arg(long)]
    defer: bool,
    /// Accept into direct descriptors.
    #[arg(long)]
    fixed: bool,
    /// Receive with POLL_FIRST.
    #[arg(long)]
    poll_first: bool,
}

/// How the server waits and moves bytes.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Means {
    /// Edge-triggered epoll and plain calls.
    Epoll,
    /// A ring.
    Ring,
}

/// Runs a server until its clients are gone.
pub fn serve(args: &ServerArgs) -> Result<()> {
    raise_file_limit();
    if let Some(cpu) = args.cpu {
        pin(cpu)?;
    }
    let listener = listen()?;
    match args.means {
        Means::Epoll => epoll::serve(&listener, args.connections),
        Means::Ring => uring::serve(&listener, args),
    }
}

/// Listens on a free port of the loopback interface. Accepted sockets inherit `TCP_NODELAY`.
fn listen() -> Result<TcpListener> {
    let listener = TcpListener::bind("127.0.0.1:0").doing(|| "listening on the loopback interface".into())?;
    set_nodelay(listener.as_raw_fd())?;
    // SAFETY: a plain call on a socket of our own; it only raises the backlog.
    if unsafe { libc::listen(listener.as_raw_fd(), 4096) } != 0 {
        return Err(Failure::errno("raising the listen backlog"));
    }
    Ok(listener)
}

/// Tells the clients where the server is. The server calls it when it is ready.
fn announce(listener: &TcpListener, engine: Option<Engine>) -> Result<()> {
    let address = listener.local_addr().doing(|| "reading the server's port".into())?;
    let address = Address { port: address.port(), process: std::process::id(), engine };
    let line = serde_json::to_string(&address).doing(|| "writing the server's address".into())?;
    println!("{line}");
    Ok(())
}

/// Takes as many open files as the hard limit allows; what is still too few shows when one is opened.
fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives through both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

fn set_nodelay(socket: i32) -> Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: `on` lives through the call and has the size given.
    let result = unsafe {
        libc::setsockopt(
            socket,
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            std::ptr::from_ref(&on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if result != 0 {
        return Err(Failure::errno("setting TCP_NODELAY"));
    }
    Ok(())
}

/// An epoll instance, for the server on epoll and for the clients.
struct Epoll {
    descriptor: i32,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    fn new() -> Result<Self> {
        // SAFETY: takes a flag, returns a descriptor.
        let descriptor = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if descriptor < 0 {
            return Err(Failure::errno("epoll_create1"));
        }
        let events = vec![libc::epoll_event { events: 0, u64: 0 }; 512];
        Ok(Self { descriptor, events })
    }

    fn add(&self, descriptor: i32, interest: i32, token: u64) -> Result<()> {
        let mut event = libc::epoll_event { events: interest as u32, u64: token };
        // SAFETY: `event` lives through the call.
        let result = unsafe { libc::epoll_ctl(self.descriptor, libc::EPOLL_CTL_ADD, descriptor, &mut event) };
        if result != 0 {
            return Err(Failure::errno("epoll_ctl"));
        }
        Ok(())
    }

    /// Waits, for ever with a `timeout_ms` of -1, and returns how many of `events` are new.
    fn wait(&mut self, timeout_ms: i32) -> Result<usize> {
        let room = self.events.len() as i32;
        // SAFETY: the events have room for as many as are asked for.
        let count = unsafe { libc::epoll_wait(self.descriptor, self.events.as_mut_ptr(), room, timeout_ms) };
        match usize::try_from(count) {
            Ok(count) => Ok(count),
            Err(_) if last_errno() == libc::EINTR => Ok(0),
            Err(_) => Err(Failure::errno("epoll_wait")),
        }
    }
}

/// What a non-blocking receive or send came to.
enum Transfer {
    /// So many bytes moved.
    Bytes(usize),
    /// The other end has closed, or the connection is broken.
    Over,
    /// Not now.
    Later,
}

fn receive(socket: i32, buffer: &mut [u8]) -> Transfer {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: the buffer has the length given.
    let result = unsafe { libc::recv(socket, buffer.as_mut_ptr().cast(), buffer.len(), flags) };
    if result == 0 {
        return Transfer::Over;
    }
    outcome(result)
}

fn send(socket: i32, bytes: &[u8]) -> Transfer {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the bytes have the length given.
    outcome(unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), flags) })
}

fn outcome(result: isize) -> Transfer {
    match usize::try_from(result) {
        Ok(bytes) => Transfer::Bytes(bytes),
        Err(_) if matches!(last_errno(), libc::EAGAIN | libc::EINTR) => Transfer::Later,
        Err(_) => Transfer::Over,
    }
}

fn close(descriptor: i32) {
    // SAFETY: the callers close each of their own descriptors once.
    unsafe { libc::close(descriptor) };
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
