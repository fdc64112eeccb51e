//! Timeouts and cancellation: a read with a time limit, a read that is cancelled, and a repeated timeout.

use anyring::{Ring, op};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut ring = Ring::new(8)?;
    println!("with the {} engine", ring.engine());
    let (reader, _writer) = UnixStream::pair()?;
    let reader = anyring::Fd::from(reader);

    // A time limit for one request.
    let start = Instant::now();
    let read = op::read(&reader, Vec::with_capacity(16));
    let token = ring.push_with_timeout(read, Duration::from_millis(50))?;
    let (result, buffer) = ring.finish(token)?;
    let error = result.expect_err("nobody writes");
    assert_eq!(error.errno(), libc::ECANCELED);
    assert!(start.elapsed() >= Duration::from_millis(50));
    println!("too late: {error}");

    // A read that the program cancels. As above, the buffer comes back with the result.
    let token = ring.push(op::read(&reader, buffer))?;
    let cancel = ring.cancel(&token)?;
    ring.finish(cancel)??;
    let (result, buffer) = ring.finish(token)?;
    assert_eq!(result.expect_err("nobody writes").errno(), libc::ECANCELED);
    println!("given up: {} bytes of room came back", buffer.capacity());

    // A timeout that expires three times.
    let mut ticks = ring.push_multi(op::timeout_multi(Duration::from_millis(10)).count(3))?;
    while let Some(tick) = ring.next(&mut ticks)? {
        tick?;
        println!("tick");
    }
    Ok(())
}
