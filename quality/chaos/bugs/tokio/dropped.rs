//! Opens a file with tokio through io_uring many times, drops opens that take too long, and checks that no descriptor
//! of the file remains.

use std::path::Path;
use std::time::Duration;
use tokio::fs::File;
use tokio::time::{sleep, timeout};

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let path = std::env::current_exe().unwrap();
    runtime.block_on(async {
        for _ in 0..200 {
            let _ = timeout(Duration::from_millis(1), File::open(&path)).await;
        }
        // The opens that were dropped have ended after this time.
        sleep(Duration::from_millis(50)).await;
    });
    let left = descriptors_of(&path);
    assert!(left == 0, "{left} descriptors are left of a file that nobody has open");
}

fn descriptors_of(path: &Path) -> usize {
    let names =
        std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| std::fs::read_link(entry.unwrap().path()));
    names.filter(|name| name.as_ref().is_ok_and(|name| name == path)).count()
}
