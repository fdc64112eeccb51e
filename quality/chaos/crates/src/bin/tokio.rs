//! Files with tokio's io_uring: written, read as a whole and in pieces, queried, renamed; and opens that are dropped.

use common::{Directory, FILE_BYTES as FILE, assert_holds, descriptors_of, random, retry};
use std::io::SeekFrom;
use std::time::Duration;
use tokio::fs::{self, File};
use tokio::io::{AsyncReadExt, AsyncSeekExt};

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = Directory::new();
        for turn in 0..3 {
            let tasks = (0..4).map(|number| {
                let (path, renamed) =
                    (directory.file(&number.to_string()), directory.file(&format!("{number}-renamed")));
                tokio::spawn(file(path, renamed, turn * 10 + number))
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.unwrap();
            }
        }
        assert_eq!(directory.names(), [""; 0]);
        given_up().await;
    });
}

async fn file(path: std::path::PathBuf, renamed: std::path::PathBuf, seed: u64) {
    let content = random(seed, FILE);
    fs::write(&path, content.clone()).await.expect("write");
    assert_holds(&path, &content);
    assert!(fs::read(&path).await.expect("read") == content, "something else was read");
    assert_eq!(fs::metadata(&path).await.expect("metadata").len(), FILE as u64);
    fs::rename(&path, &renamed).await.expect("rename");
    assert!(!fs::try_exists(&path).await.expect("try_exists"));

    let mut file = File::open(&renamed).await.expect("open");
    file.seek(SeekFrom::Start(1000)).await.expect("seek");
    let mut part = vec![0; FILE / 2];
    file.read_exact(&mut part).await.expect("read_exact");
    assert!(part == content[1000..][..FILE / 2], "something else was read at 1000");
    let mut all = part;
    loop {
        let mut piece = [0; 1234];
        match retry!(file.read(&mut piece).await).expect("read") {
            0 => break,
            count => all.extend_from_slice(&piece[..count]),
        }
    }
    assert!(all == content[1000..], "something else was read at the end");
    fs::remove_file(&renamed).await.expect("remove_file");
}

async fn given_up() {
    let path = std::env::current_exe().unwrap();
    for _ in 0..30 {
        let _ = tokio::time::timeout(Duration::from_millis(1), File::open(&path)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(descriptors_of(&path), 0, "descriptors are left of a file that nobody has open");
}
