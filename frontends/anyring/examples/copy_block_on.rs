//! `copy_block_on SOURCE TARGET`: copies a file in pieces, several of them concurrently, without a runtime: the ring has a
//! thread of its own, and the main thread sleeps until its future is woken.

#[path = "shared/copy.rs"]
mod shared;

use anyring::AsyncRing;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(source), Some(target)) = (arguments.next(), arguments.next()) else {
        return Err("usage: copy_block_on SOURCE TARGET".into());
    };
    let ring = AsyncRing::new(8)?;
    let length = block_on(shared::copy(&ring, &source, &target))?;
    println!("{length} bytes with the {} engine", ring.engine());
    Ok(())
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

/// The smallest executor: polls one future until it is ready.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
