//! `copy_tokio SOURCE TARGET`: copies a file in pieces, several of them concurrently, as a task of tokio.

#[path = "shared/copy.rs"]
mod shared;

use anyring::{AsyncRing, Ring};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(source), Some(target)) = (arguments.next(), arguments.next()) else {
        return Err("usage: copy_tokio SOURCE TARGET".into());
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let (ring, driver) = AsyncRing::with_driver(Ring::new(8)?)?;
        tokio::spawn(driver.run_on_tokio());
        let length = shared::copy(&ring, &source, &target).await?;
        println!("{length} bytes with the {} engine", ring.engine());
        Ok(())
    })
}
