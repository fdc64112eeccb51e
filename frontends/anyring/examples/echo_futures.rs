//! An echo server without a runtime: the ring has a thread of its own, and the futures are polled by the small executor of
//! the crate `futures-executor`, which has no support for I/O.
//!
//! `echo_futures [ADDRESS [CONNECTIONS]]` listens on 127.0.0.1:7777 by default, and ends when CONNECTIONS connections have
//! ended (by default never).

#[path = "shared/echo.rs"]
mod shared;

use anyring::{AsyncRing, op};
use futures_executor::{LocalPool, LocalSpawner};
use futures_util::task::LocalSpawnExt;
use std::net::TcpListener;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| String::from("127.0.0.1:7777"));
    let most = arguments.next().map_or(Ok(usize::MAX), |count| count.parse())?;
    let mut pool = LocalPool::new();
    let tasks = pool.spawner();
    pool.run_until(serve(TcpListener::bind(address)?, most, tasks))?;
    // Waits for the remaining connections.
    pool.run();
    Ok(())
}

async fn serve(
    listener: TcpListener,
    most: usize,
    tasks: LocalSpawner,
) -> Result<(), Box<dyn std::error::Error>> {
    let ring = AsyncRing::new(256)?;
    println!("{} with the {} engine", listener.local_addr()?, ring.engine());
    let buffers = ring.buffers(256, 4096).await?;
    let mut accepted = ring.submit_multi(op::accept_multi(&listener.into()));
    for _ in 0..most {
        let Some(socket) = accepted.next().await else { break };
        let connection = shared::echo(ring.clone(), socket??, buffers.clone());
        tasks.spawn_local(async {
            if let Err(error) = connection.await {
                eprintln!("{error}");
            }
        })?;
    }
    Ok(())
}
