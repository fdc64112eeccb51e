//! An echo server of tokio tasks in a single thread; one of the tasks drives the ring.
//!
//! `echo_tokio [ADDRESS [CONNECTIONS]]` listens on 127.0.0.1:7777 by default, and ends when CONNECTIONS connections
//! have ended (by default never).

#[path = "shared/echo.rs"]
mod shared;

use anyring::{AsyncRing, Ring, op};
use std::net::TcpListener;
use tokio::task::JoinSet;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| String::from("127.0.0.1:7777"));
    let most = arguments.next().map_or(Ok(usize::MAX), |count| count.parse())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(serve(TcpListener::bind(address)?, most))
}

async fn serve(listener: TcpListener, most: usize) -> Result<(), Box<dyn std::error::Error>> {
    let (ring, driver) = AsyncRing::with_driver(Ring::new(256)?)?;
    tokio::spawn(driver.run_on_tokio());
    println!("{} with the {} engine", listener.local_addr()?, ring.engine());
    let buffers = ring.buffers(256, 4096).await?;
    let mut accepted = ring.submit_multi(op::accept_multi(&listener.into()));
    let mut connections = JoinSet::new();
    for _ in 0..most {
        let Some(socket) = accepted.next().await else { break };
        connections.spawn(shared::echo(ring.clone(), socket??, buffers.clone()));
    }
    while let Some(ended) = connections.join_next().await {
        if let Err(error) = ended? {
            eprintln!("{error}");
        }
    }
    Ok(())
}
