//! Files, TCP, timeouts and cancellation with tokio-uring.

use common::{BLOCK, CONNECTIONS, Directory, ECHO_BYTES, FILE_BYTES, SHORT, checksum, random, retry};
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::time::{Duration, Instant};
use tokio_uring::fs::{self, File};
use tokio_uring::net::{TcpListener, TcpStream};

/// Runs all parts, in one thread and in several.
pub fn run() {
    tokio_uring::start(async {
        files(1).await;
        echo().await;
        timeouts_and_drops().await;
    });
    let threads = (2..4).map(|seed| std::thread::spawn(move || tokio_uring::start(files(seed))));
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
}

/// Runs the parts that also run with the faults of `anyring chaos`.
pub fn run_among_faults() {
    tokio_uring::start(async {
        files(1).await;
        echo().await;
    });
}

async fn files(seed: u64) {
    let directory = Directory::new();
    let (path, renamed) = (directory.file("data"), directory.file("renamed"));
    let content = random(seed, FILE_BYTES);
    let file = retry!(File::create(&path).await).unwrap();
    for (index, block) in content.chunks(BLOCK).enumerate() {
        let (result, _) = file.write_all_at(block.to_vec(), (index * BLOCK) as u64).await;
        result.unwrap();
    }
    retry!(file.sync_all().await).unwrap();
    file.close().await.unwrap();
    common::assert_holds(&path, &content);
    assert_eq!(fs::statx(&path).await.unwrap().stx_size, FILE_BYTES as u64);

    fs::rename(&path, &renamed).await.unwrap();
    let file = std::rc::Rc::new(retry!(File::open(&renamed).await).unwrap());
    let blocks = (0..FILE_BYTES / BLOCK).rev().map(|index| {
        let file = file.clone();
        tokio_uring::spawn(async move {
            let (result, block) = file.read_exact_at(Vec::with_capacity(BLOCK), (index * BLOCK) as u64).await;
            result.unwrap();
            (index, block)
        })
    });
    for block in blocks.collect::<Vec<_>>() {
        let (index, block) = block.await.unwrap();
        assert!(block == content[index * BLOCK..][..BLOCK], "block {index} differs");
    }
    assert_eq!(retry!(File::open(&path).await).err().unwrap().kind(), std::io::ErrorKind::NotFound);
    fs::remove_file(&renamed).await.unwrap();
    fs::create_dir(directory.file("below")).await.unwrap();
    assert_eq!(directory.names(), ["below"]);
}

async fn echo() {
    let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    tokio_uring::spawn(async move {
        loop {
            let (connection, _) = retry!(listener.accept().await).unwrap();
            tokio_uring::spawn(serve(connection));
        }
    });
    let clients = (0..CONNECTIONS as u64).map(|seed| tokio_uring::spawn(client(address, seed)));
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
}

async fn read(connection: &TcpStream) -> Vec<u8> {
    let received = retry!({
        let (result, buffer) = connection.read(vec![0; BLOCK]).await;
        result.map(|count| buffer[..count].to_vec())
    });
    received.unwrap()
}

async fn serve(connection: TcpStream) {
    loop {
        let received = read(&connection).await;
        if received.is_empty() {
            return;
        }
        connection.write_all(received).await.0.unwrap();
    }
}

async fn client(address: SocketAddr, seed: u64) {
    let connection = std::rc::Rc::new(TcpStream::connect(address).await.unwrap());
    let content = random(seed + 100, ECHO_BYTES);
    let expected = checksum(0, &content);
    let writer = connection.clone();
    tokio_uring::spawn(async move { writer.write_all(content).await.0.unwrap() });
    let (mut received, mut hash) = (0, 0);
    while received < ECHO_BYTES {
        let part = read(&connection).await;
        assert!(!part.is_empty(), "the connection ended after {received} bytes");
        hash = checksum(hash, &part);
        received += part.len();
    }
    assert_eq!((received, hash), (ECHO_BYTES, expected));
}

async fn timeouts_and_drops() {
    let (reader, mut writer) = common::pipe();
    // SAFETY: `into_raw_fd` gives up the descriptor.
    let reader = File::from_std(unsafe { std::fs::File::from_raw_fd(reader.into_raw_fd()) });
    let begin = Instant::now();
    let expired = tokio::time::timeout(SHORT, reader.read_at(vec![0; 16], 0)).await;
    assert!(expired.is_err() && begin.elapsed() >= SHORT);
    // tokio-uring does not cancel a dropped read, so that it takes the next data.
    writer.write_all(b"lost").unwrap();
    while bytes_in(&writer) > 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "nobody takes what was written");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    writer.write_all(b"kept").unwrap();
    let (count, buffer) = reader.read_at(vec![0; 16], 0).await;
    assert_eq!(&buffer[..count.unwrap()], b"kept");
}

/// Returns the number of bytes in a pipe.
fn bytes_in(pipe: &impl AsRawFd) -> i32 {
    let mut count = 0;
    // SAFETY: writes the count.
    unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &mut count) };
    count
}
