//! Many connections at a time, opened, used and ended in every way: by clients on one ring, and a server on another.
//!
//! The first byte of a connection tells the server what to do with it, so that the client knows what to expect.

mod buffers;
mod client;
mod server;

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};

use super::Setting;

/// The server sends back whatever comes, until the client ends its side.
const ECHO: u8 = b'e';
/// The server resets the connection after the first piece.
const RESET: u8 = b'r';
/// The server sends the first piece back and closes.
const CLOSE: u8 = b'c';
/// The server accepts nobody any more.
const QUIT: u8 = b'q';

/// Several times as many connections as may be open at a time.
pub fn churn(rng: &mut fastrand::Rng, setting: &Setting) -> Result<()> {
    let slots = setting.connections.max(1);
    let total = slots * rng.usize(1..4);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    // SAFETY: a socket of ours, which listens already: with a longer queue from now on.
    let longer = unsafe { libc::listen(listener.as_raw_fd(), 4096) };
    ensure!(longer == 0, "listen: {}", io::Error::last_os_error());
    let address = listener.local_addr()?;
    let mut server_rng = rng.fork();
    let fd = listener.as_raw_fd();
    thread::scope(|scope| {
        let server = scope.spawn(move || server::run(&mut server_rng, &listener, total).context("server"));
        client::run(rng, address, slots, total).context("client").inspect_err(|_| {
            // SAFETY: a socket of ours; the server's accept, and so the server, ends by this.
            unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
        })?;
        server.join().map_err(|_| anyhow!("the server panicked"))?
    })
}

/// Closing this socket will reset its connection.
fn resets_at_close(fd: RawFd) -> Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: reads a structure of ours.
    let set = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of_val(&linger) as u32,
        )
    };
    ensure!(set == 0, "SO_LINGER: {}", io::Error::last_os_error());
    Ok(())
}

/// Closes a descriptor behind the ring's back.
fn close(fd: RawFd) -> Result<()> {
    // SAFETY: a descriptor of the caller's, which does not use it again.
    ensure!(unsafe { libc::close(fd) } == 0, "close of {fd}: {}", io::Error::last_os_error());
    Ok(())
}
