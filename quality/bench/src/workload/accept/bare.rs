//! Accept, receive, send and close, one after the other: the kernel's cost of a connection without epoll
//! or a ring.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::MESSAGE;
use crate::failure::{Doing, Result};
use crate::workload::sockets::announce;

/// Serves `connections` connections.
pub fn serve(listener: &TcpListener, connections: usize) -> Result<()> {
    announce(listener, None)?;
    let mut buffer = [0; MESSAGE];
    for _ in 0..connections {
        let (mut stream, _) = listener.accept().doing(|| "accept4".into())?;
        stream.read_exact(&mut buffer).doing(|| "receiving a client's message".into())?;
        stream.write_all(&buffer).doing(|| "answering a client".into())?;
    }
    Ok(())
}
