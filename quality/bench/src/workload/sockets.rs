//! TCP on the loopback interface: code that the servers and their clients share.

use std::io::Read;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use serde::{Deserialize, Serialize};

use super::ring::Engine;
use crate::failure::{Doing, Failure, Result};

/// Files that a process has beside its sockets: standard streams, a ring, descriptors of anyring.
const OTHER_FILES: libc::rlim_t = 128;

/// The address that a server prints when it listens, and that its clients read: one line of JSON.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Address {
    /// TCP port on the loopback interface.
    pub port: u16,
    /// The server's process ID.
    pub process: u32,
    /// The implementation of the server's ring, if it has one.
    pub engine: Option<Engine>,
}

/// Listens on a free port of the loopback interface. Accepted sockets inherit `TCP_NODELAY`.
pub fn listen() -> Result<TcpListener> {
    let listener = TcpListener::bind("127.0.0.1:0").doing(|| "listening on the loopback interface".into())?;
    set_nodelay(listener.as_raw_fd())?;
    // SAFETY: a plain call on a socket of our own; it only raises the backlog.
    if unsafe { libc::listen(listener.as_raw_fd(), 4096) } != 0 {
        return Err(Failure::errno("raising the listen backlog"));
    }
    Ok(listener)
}

/// Prints the server's address for the clients. The server calls it when it is ready.
pub fn announce(listener: &TcpListener, engine: Option<Engine>) -> Result<()> {
    let address = listener.local_addr().doing(|| "reading the server's port".into())?;
    let address = Address { port: address.port(), process: std::process::id(), engine };
    let line = serde_json::to_string(&address).doing(|| "writing the server's address".into())?;
    println!("{line}");
    Ok(())
}

/// Raises the limit of open files to `sockets` sockets beside the process's other files.
pub fn raise_file_limit(sockets: usize) -> Result<()> {
    let wanted = sockets as libc::rlim_t + OTHER_FILES;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives through both calls.
    let result = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        let hard = limit.rlim_max;
        // Raising the hard limit takes CAP_SYS_RESOURCE.
        limit.rlim_max = hard.max(wanted);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit)
    };
    if result != 0 {
        return Err(Failure::errno(format!("raising the limit of open files to {wanted}")).advice(format!(
            "run with CAP_SYS_RESOURCE, or raise the hard limit with `ulimit -Hn {wanted}` (in a container: --ulimit nofile={wanted})"
        )));
    }
    Ok(())
}

/// Accepts without blocking; returns `None` if no connection is pending.
pub fn accept(listener: i32) -> Result<Option<i32>> {
    let (flags, none) = (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, std::ptr::null_mut());
    // SAFETY: no address is asked for.
    let socket = unsafe { libc::accept4(listener, none, std::ptr::null_mut(), flags) };
    match last_errno() {
        _ if socket >= 0 => Ok(Some(socket)),
        libc::EAGAIN => Ok(None),
        _ => Err(Failure::errno("accept4").advice("raise the limit of open files with `ulimit -n`")),
    }
}

/// Returns a non-blocking socket that is connecting to the server.
pub fn connect_later(port: u16) -> Result<i32> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: plain numbers.
    let socket = unsafe { libc::socket(libc::AF_INET, kind, 0) };
    if socket < 0 {
        return Err(Failure::errno("socket"));
    }
    set_nodelay(socket)?;
    let address = loopback(0, port);
    let bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: `address` lives through the call and has the size given.
    let result = unsafe { libc::connect(socket, std::ptr::from_ref(&address).cast(), bytes) };
    if result != 0 && last_errno() != libc::EINPROGRESS {
        return Err(Failure::errno("connecting to the server"));
    }
    Ok(socket)
}

/// Connects to the server from the loopback address 127.0.0.1 plus `address`.
pub fn connect_from(address: u32, port: u16) -> Result<OwnedFd> {
    // SAFETY: plain numbers.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(Failure::errno("socket"));
    }
    // SAFETY: the descriptor is new, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let on: libc::c_int = 1;
    let (own, server) = (loopback(address, 0), loopback(0, port));
    let bytes = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: what is named lives through the calls and has the size given.
    let result = unsafe {
        let on = std::ptr::from_ref(&on).cast();
        // The port is chosen at connect, so that several destinations can share it.
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, on, 4);
        match libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&own).cast(), bytes) {
            0 => libc::connect(socket.as_raw_fd(), std::ptr::from_ref(&server).cast(), bytes),
            error => error,
        }
    };
    if result == 0 { Ok(socket) } else { Err(Failure::errno("connecting to the server")) }
}

/// Returns the loopback address 127.0.0.1 plus `number`.
fn loopback(number: u32, port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: (u32::from(std::net::Ipv4Addr::LOCALHOST) + number).to_be() },
        sin_zero: [0; 8],
    }
}

/// Sets `TCP_NODELAY`, so that every message is sent immediately.
pub fn set_nodelay(socket: i32) -> Result<()> {
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

/// Reads the address that the server printed, from the standard input.
pub fn server_address() -> Result<Address> {
    let mut line = String::new();
    std::io::stdin()
        .read_to_string(&mut line)
        .doing(|| "reading the server's address from the standard input".into())?;
    serde_json::from_str(&line).doing(|| "understanding the server's address".into())
}

/// An epoll instance, for the server on epoll and for the clients.
pub struct Epoll {
    descriptor: i32,
    /// The events of the last wait.
    pub events: Vec<libc::epoll_event>,
}

impl Epoll {
    /// Creates an epoll instance.
    pub fn new() -> Result<Self> {
        // SAFETY: takes a flag, returns a descriptor.
        let descriptor = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if descriptor < 0 {
            return Err(Failure::errno("epoll_create1"));
        }
        let events = vec![libc::epoll_event { events: 0, u64: 0 }; 512];
        Ok(Self { descriptor, events })
    }

    /// Registers a descriptor until it is closed.
    pub fn add(&self, descriptor: i32, interest: i32, token: u64) -> Result<()> {
        let mut event = libc::epoll_event { events: interest as u32, u64: token };
        // SAFETY: `event` lives through the call.
        let result = unsafe { libc::epoll_ctl(self.descriptor, libc::EPOLL_CTL_ADD, descriptor, &mut event) };
        if result != 0 {
            return Err(Failure::errno("epoll_ctl"));
        }
        Ok(())
    }

    /// Waits, without a timeout if `timeout_ms` is -1, and returns the number of new `events`.
    pub fn wait(&mut self, timeout_ms: i32) -> Result<usize> {
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

/// The result of a non-blocking receive or send.
pub enum Transfer {
    /// The number of bytes transferred.
    Bytes(usize),
    /// The other end has closed, or the connection is broken.
    Over,
    /// The call would block, or was interrupted.
    Later,
}

/// Receives without waiting.
pub fn receive(socket: i32, buffer: &mut [u8]) -> Transfer {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: the buffer has the length given.
    let result = unsafe { libc::recv(socket, buffer.as_mut_ptr().cast(), buffer.len(), flags) };
    if result == 0 {
        return Transfer::Over;
    }
    outcome(result)
}

/// Sends without waiting.
pub fn send(socket: i32, bytes: &[u8]) -> Transfer {
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

/// Closes a descriptor of the caller's own.
pub fn close(descriptor: i32) {
    // SAFETY: the callers close each of their own descriptors once.
    unsafe { libc::close(descriptor) };
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
