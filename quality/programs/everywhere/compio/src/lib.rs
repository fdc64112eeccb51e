//! Files, TCP, timeouts and cancellation with compio, with no driver but that for io_uring.

use common::{BLOCK, CONNECTIONS, Directory, ECHO_BYTES, FAULTS, FILE_BYTES, SHORT, checksum, random, retry};
use compio::buf::BufResult;
use compio::driver::DriverType;
use compio::fs::{self, File};
use compio::io::{AsyncRead, AsyncReadAtExt, AsyncReadExt, AsyncWriteAtExt, AsyncWriteExt};
use compio::net::{TcpListener, TcpStream};
use compio::runtime::Runtime;
use std::net::SocketAddr;
use std::time::Instant;

fn start<F: Future>(body: F) -> F::Output {
    let runtime = Runtime::new().unwrap();
    assert_eq!(runtime.driver_type(), DriverType::IoUring);
    runtime.block_on(body)
}

/// Runs all parts, in one thread and in several.
pub fn run() {
    start(async {
        files(1).await;
        echo().await;
        timeouts_and_drops().await;
    });
    let threads = (2..4).map(|seed| std::thread::spawn(move || start(files(seed))));
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
}

/// Runs the parts that also run with the faults of `anyring chaos`.
pub fn run_among_faults() {
    start(async {
        files(1).await;
        echo().await;
        given_up().await;
    });
}

async fn files(seed: u64) {
    let directory = Directory::new();
    let (path, renamed) = (directory.file("data"), directory.file("renamed"));
    let content = random(seed, FILE_BYTES);
    let mut file = retry!(File::create(&path).await).unwrap();
    for (index, block) in content.chunks(BLOCK).enumerate() {
        let BufResult(result, _) = file.write_all_at(block.to_vec(), (index * BLOCK) as u64).await;
        result.unwrap();
    }
    retry!(file.sync_all().await).unwrap();
    assert_eq!(file.metadata().await.unwrap().len(), FILE_BYTES as u64);
    file.close().await.unwrap();
    common::assert_holds(&path, &content);

    fs::rename(&path, &renamed).await.unwrap();
    let file = retry!(File::open(&renamed).await).unwrap();
    let blocks = (0..FILE_BYTES / BLOCK).rev().map(|index| {
        let file = file.clone();
        compio::runtime::spawn(async move {
            let BufResult(result, block) =
                file.read_exact_at(Vec::with_capacity(BLOCK), (index * BLOCK) as u64).await;
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
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    compio::runtime::spawn(async move {
        loop {
            let (connection, _) = retry!(listener.accept().await).unwrap();
            compio::runtime::spawn(serve(connection)).detach();
        }
    })
    .detach();
    let clients = (0..CONNECTIONS as u64).map(|seed| compio::runtime::spawn(client(address, seed)));
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
}

async fn serve(mut connection: TcpStream) {
    loop {
        let received = retry!({
            let BufResult(result, buffer) = connection.read(Vec::with_capacity(BLOCK)).await;
            result.map(|_| buffer)
        });
        let received = received.unwrap();
        if received.is_empty() {
            return;
        }
        connection.write_all(received).await.0.unwrap();
    }
}

async fn client(address: SocketAddr, seed: u64) {
    let mut reader = TcpStream::connect(address).await.unwrap();
    let mut writer = reader.clone();
    let content = random(seed + 100, ECHO_BYTES);
    let expected = checksum(0, &content);
    let sending = compio::runtime::spawn(async move { writer.write_all(content).await.0.unwrap() });
    let BufResult(result, received) = reader.read_exact(Vec::with_capacity(ECHO_BYTES)).await;
    result.unwrap();
    assert_eq!((received.len(), checksum(0, &received)), (ECHO_BYTES, expected));
    sending.await.unwrap();
}

async fn timeouts_and_drops() {
    let begin = Instant::now();
    compio::time::sleep(SHORT).await;
    assert!(begin.elapsed() >= SHORT);
    given_up().await;
}

/// Checks that a waiting read that is dropped or cancelled takes no data.
async fn given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connecting = compio::runtime::spawn(async move { TcpStream::connect(address).await.unwrap() });
    let (mut far, _) = retry!(listener.accept().await).unwrap();
    let mut near = connecting.await.unwrap();
    for turn in 0..5_u8 {
        match compio::time::timeout(SHORT, near.read(Vec::with_capacity(16))).await {
            Err(_) => {}
            Ok(BufResult(result, _)) => {
                assert!(FAULTS && result.is_err(), "{result:?} before there was anything")
            }
        }
        compio::time::sleep(SHORT).await;
        far.write_all(vec![turn; 4]).await.0.unwrap();
        let BufResult(result, buffer) = near.read_exact(Vec::with_capacity(4)).await;
        result.unwrap();
        assert_eq!(buffer, [turn; 4]);
    }
}
