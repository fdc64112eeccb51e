//! Copies a file, for `copy_tokio` and `copy_block_on`.

use anyring::{AsyncRing, Error, Fd, op};
use futures_util::future::try_join_all;
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of a piece in bytes.
const PIECE: u64 = 128 << 10;
/// The maximum number of pieces in progress.
const MOST: u32 = 8;

/// Copies a file; returns its number of bytes.
pub async fn copy(ring: &AsyncRing, source: &str, target: &str) -> Result<u64, Error> {
    let source = ring.submit(op::open(source)).await??;
    let target = ring.submit(op::open(target).write().create().truncate()).await??;
    let length = ring.submit(op::metadata_of(&source)).await??.len();
    let next = AtomicU64::new(0);
    try_join_all((0..MOST).map(|_| pieces(ring, &source, &target, &next, length))).await?;
    ring.submit(op::fsync(&target)).await??;
    Ok(length)
}

/// Copies one piece after the other. `next` is the offset of the next piece that no task copies yet.
async fn pieces(
    ring: &AsyncRing,
    source: &Fd,
    target: &Fd,
    next: &AtomicU64,
    length: u64,
) -> Result<(), Error> {
    let mut buffer = Vec::with_capacity(PIECE as usize);
    loop {
        let mut at = next.fetch_add(PIECE, Ordering::Relaxed);
        let end = length.min(at.saturating_add(PIECE));
        if at >= end {
            return Ok(());
        }
        while at < end {
            let (count, read) = ring.submit(op::read(source, buffer).at(at)).await?;
            if count? == 0 {
                // The file has become shorter.
                return Ok(());
            }
            let (count, written) = ring.submit(op::write(target, read).at(at)).await?;
            // If a read or write was short, the rest of the piece is read next.
            at += count? as u64;
            buffer = written;
        }
    }
}
