//! Accept, receive, send and close, one after the other: what the kernel's part of a connection costs when
//! nothing is waited for in a clever way.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::MESSAGE;
use crate::failure::{Doing, Result};
use crate::workload::sockets::announce;

/// Serves so many connections.
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
