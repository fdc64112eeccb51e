//! Serves a connection of an echo server, for `echo_tokio` and `echo_futures`.

use anyring::{AsyncRing, Buffers, Error, Fd, op};

/// Sends received data back until the client closes the connection.
pub async fn echo(ring: AsyncRing, socket: Fd, buffers: Buffers) -> Result<(), Error> {
    loop {
        let mut received = ring.submit_multi(op::recv_multi(&socket, &buffers));
        while let Some(bytes) = received.next().await {
            match bytes? {
                Ok(bytes) if bytes.is_empty() => return Ok(()),
                // The end of the send returns the buffer to its group.
                Ok(bytes) => ring.submit(op::send(&socket, bytes).all()).await?.0.map(drop)?,
                // All buffers were in use: the receive is submitted again.
                Err(error) if error.errno() == libc::ENOBUFS => break,
                Err(error) => return Err(error),
            }
        }
    }
}
