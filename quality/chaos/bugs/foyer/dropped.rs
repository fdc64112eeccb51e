//! Reads entries of foyer's cache on disk, and drops reads that take too long.

use std::alloc::{Layout, alloc, dealloc};
use std::sync::Arc;
use std::time::Duration;

use foyer_common::metrics::Metrics;
use foyer_memory::{Cache, CacheBuilder};
use foyer_storage::{
    BlockEngineConfig, DeviceBuilder, FsDeviceBuilder, IoEngineConfig, Load, Store, StoreBuilder,
    UringIoEngineConfig,
};

const ENTRIES: u64 = 16;
const PATIENCE: Duration = Duration::from_millis(50);
const BYTES: usize = 14_000;
/// The memory into which an entry is read: its bytes and a header, in pages.
const PAGES: Layout = match Layout::from_size_align(16 << 10, 4 << 10) {
    Ok(layout) => layout,
    Err(_) => panic!(),
};
const MARK: u8 = 7;

/// Memory of the size of a read, which only this program changes.
struct Other(*mut u8);

impl Other {
    fn new() -> Other {
        // SAFETY: the layout is not empty; the memory is filled before it is read.
        unsafe {
            let memory = alloc(PAGES);
            memory.write_bytes(MARK, PAGES.size());
            Other(memory)
        }
    }

    fn is_unchanged(&self) -> bool {
        // SAFETY: the memory is of this size, and filled.
        unsafe { std::slice::from_raw_parts(self.0, PAGES.size()) }.iter().all(|&byte| byte == MARK)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.0, PAGES) };
    }
}

async fn read(
    store: &Store<u64, Vec<u8>, foyer_common::code::DefaultHasher, foyer_memory::CacheProperties>,
    key: u64,
) {
    match store.load(&key).await.expect("a read") {
        Load::Entry { value, .. } => assert!(value == vec![key as u8; BYTES], "other data"),
        Load::Piece { piece, .. } => assert!(piece.value() == &vec![key as u8; BYTES], "other data"),
        _ => {}
    }
}

async fn run() {
    let directory = std::env::temp_dir().join(format!("foyer-{}", std::process::id()));
    let memory: Cache<u64, Vec<u8>> = CacheBuilder::new(64).build();
    let device = FsDeviceBuilder::new(&directory).with_capacity(16 << 20).build().expect("a device");
    let store = StoreBuilder::new("dropped", memory.clone(), Arc::new(Metrics::noop()))
        .with_io_engine_config(UringIoEngineConfig::new().boxed() as Box<dyn IoEngineConfig>)
        .with_engine_config(BlockEngineConfig::new(device).with_block_size(1 << 20))
        .build()
        .await
        .expect("a store");
    for key in 0..ENTRIES {
        store.enqueue(memory.insert(key, vec![key as u8; BYTES]).piece(), true);
    }
    store.wait().await;
    for round in 0..100 {
        let key = round % ENTRIES;
        // Most loads end before the timeout.
        let is_given_up = tokio::time::timeout(PATIENCE, store.load(&key)).await.is_err();
        let others = [Other::new(), Other::new()];
        if is_given_up {
            tokio::time::sleep(8 * PATIENCE).await;
        }
        read(&store, (key + 1) % ENTRIES).await;
        assert!(others.iter().all(Other::is_unchanged), "foreign memory was changed");
    }
    std::fs::remove_dir_all(directory).expect("a directory");
}

fn main() {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
        .block_on(run());
}
