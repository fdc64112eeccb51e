//! The echoing that `echo_tokio` and `echo_futures` do for a connection.

use anyring::{AsyncRing, Buffers, Error, Fd, op};

/// Sends back what comes, until the client has nothing more to say.
pub async fn echo(ring: AsyncRing, socket: Fd, buffers: Buffers) -> Result<(), Error> {
    loop {
        let mut received = ring.submit_multi(op::recv_multi(&socket, &buffers));
        while let Some(bytes) = received.next().await {
            match bytes? {
                Ok(bytes) if bytes.is_empty() => return Ok(()),
                // The buffer goes back to its group with the end of the send.
                Ok(bytes) => ring.submit(op::send(&socket, bytes).all()).await?.0.map(drop)?,
                // All buffers were out: once more.
                Err(error) if error.errno() == libc::ENOBUFS => break,
                Err(error) => return Err(error),
            }
        }
    }
}
