//! Writes, syncs and reads blobs of commonware's runtime, several at a time, and ends.

use commonware_runtime::{Blob, Runner, Storage};
use futures::future::join_all;

const BLOBS: u8 = 4;
const ROUNDS: u64 = 12;
const BYTES: usize = 6_000;

#[cfg(feature = "first")]
mod version {
    use commonware_runtime::{Blob, Error, IoBufMut, tokio};

    pub fn runner(directory: &std::path::Path) -> tokio::Runner {
        tokio::Runner::new(tokio::Config::new().with_storage_directory(directory).with_worker_threads(1))
    }

    pub async fn write(blob: &impl Blob, offset: u64, data: Vec<u8>) -> Result<(), Error> {
        blob.write_at(offset, data).await
    }

    pub async fn read(blob: &impl Blob, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let read = blob.read_at(offset, IoBufMut::zeroed(length)).await?;
        Ok(read.coalesce().as_ref().to_vec())
    }
}

#[cfg(not(feature = "first"))]
mod version {
    use commonware_runtime::{Blob, Error, IoBuf, ReadOptions, WriteOptions, iouring};

    pub fn runner(directory: &std::path::Path) -> iouring::Runner {
        iouring::Runner::new(iouring::Config::new().with_storage_directory(directory).with_worker_threads(1))
    }

    pub async fn write(blob: &impl Blob, offset: u64, data: Vec<u8>) -> Result<(), Error> {
        blob.write_at(offset, IoBuf::from(data), WriteOptions::default()).await
    }

    pub async fn read(blob: &impl Blob, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let read = blob.read_at(offset, length, ReadOptions::default()).await?;
        Ok(read.coalesce().as_ref().to_vec())
    }
}

async fn fill(storage: &impl Storage, number: u8) {
    let (blob, _) = storage.open("blobs", &[number]).await.expect("a blob");
    for round in 0..ROUNDS {
        let data = vec![number ^ round as u8; BYTES];
        let offset = round * BYTES as u64;
        version::write(&blob, offset, data.clone()).await.expect("a write");
        if round % 4 == 3 {
            blob.sync().await.expect("a sync");
        }
        let read = version::read(&blob, offset, BYTES).await.expect("a read");
        assert!(read == data, "other data");
    }
}

fn main() {
    let directory = std::env::temp_dir().join(format!("commonware-{}", std::process::id()));
    version::runner(&directory).start(|context| async move {
        let context = &context;
        join_all((0..BLOBS).map(|number| fill(context, number))).await;
    });
    std::fs::remove_dir_all(directory).expect("a directory");
}
