//! Files, TCP, timeouts and cancellation with monoio, its driver for io_uring only.

use common::{BLOCK, CONNECTIONS, Directory, ECHO_BYTES, FILE_BYTES, checksum, random};
use monoio::fs::{self, File};
use monoio::io::{
    AsyncReadRent, AsyncReadRentExt, AsyncWriteRentExt, CancelableAsyncReadRent, Canceller, Splitable,
};
use monoio::net::{TcpListener, TcpStream};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

fn start<F: Future>(body: F) -> F::Output {
    let mut runtime = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().enable_timer().build().unwrap();
    runtime.block_on(body)
}

/// Everything, in one thread and in several.
pub fn run() {
    start(async {
        files(1).await;
        echo().await;
        timeouts_and_drops().await;
    });
    let threads = (2..4).map(|seed| std::thread::spawn(move || start(files(seed))));
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
}

async fn files(seed: u64) {
    let directory = Directory::new();
    let (path, renamed) = (directory.file("data"), directory.file("renamed"));
    let content = random(seed, FILE_BYTES);
    let file = File::create(&path).await.unwrap();
    for (index, block) in content.chunks(BLOCK).enumerate() {
        let (result, _) = file.write_all_at(block.to_vec(), (index * BLOCK) as u64).await;
        result.unwrap();
    }
    file.sync_all().await.unwrap();
    assert_eq!(file.metadata().await.unwrap().len(), FILE_BYTES as u64);
    file.close().await.unwrap();
    common::assert_holds(&path, &content);

    fs::rename(&path, &renamed).await.unwrap();
    let file = std::rc::Rc::new(File::open(&renamed).await.unwrap());
    let blocks = (0..FILE_BYTES / BLOCK).rev().map(|index| {
        let file = file.clone();
        monoio::spawn(async move {
            let (result, block) = file.read_exact_at(vec![0; BLOCK], (index * BLOCK) as u64).await;
            result.unwrap();
            (index, block)
        })
    });
    for block in blocks.collect::<Vec<_>>() {
        let (index, block) = block.await;
        assert!(block == content[index * BLOCK..][..BLOCK], "block {index} differs");
    }
    assert_eq!(File::open(&path).await.err().unwrap().kind(), std::io::ErrorKind::NotFound);
    fs::remove_file(&renamed).await.unwrap();
    fs::create_dir(directory.file("below")).await.unwrap();
    assert_eq!(directory.names(), ["below"]);
}

async fn echo() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    monoio::spawn(async move {
        loop {
            let (connection, _) = listener.accept().await.unwrap();
            monoio::spawn(serve(connection));
        }
    });
    let clients = (0..CONNECTIONS as u64).map(|seed| monoio::spawn(client(address, seed)));
    for client in clients.collect::<Vec<_>>() {
        client.await;
    }
}

async fn serve(mut connection: TcpStream) {
    let mut buffer = Vec::with_capacity(BLOCK);
    loop {
        let (count, full) = connection.read(buffer).await;
        if count.unwrap() == 0 {
            return;
        }
        let (result, mut sent) = connection.write_all(full).await;
        result.unwrap();
        sent.clear();
        buffer = sent;
    }
}

async fn client(address: SocketAddr, seed: u64) {
    let connection = TcpStream::connect(address).await.unwrap();
    let content = random(seed + 100, ECHO_BYTES);
    let expected = checksum(0, &content);
    let (mut reader, mut writer) = connection.into_split();
    let sending = monoio::spawn(async move {
        writer.write_all(content).await.0.unwrap();
        writer
    });
    let (result, received) = reader.read_exact(vec![0; ECHO_BYTES]).await;
    assert_eq!(result.unwrap(), ECHO_BYTES);
    assert_eq!(checksum(0, &received), expected);
    drop(sending.await);
}

async fn timeouts_and_drops() {
    const SHORT: Duration = Duration::from_millis(30);
    let begin = Instant::now();
    monoio::time::sleep(SHORT).await;
    assert!(begin.elapsed() >= SHORT);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (near, far) = (TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let (near, far) = monoio::join!(near, far);
    let (mut near, (mut far, _)) = (near.unwrap(), far.unwrap());
    // The read is dropped, and cancelled, while it waits.
    let expired = monoio::time::timeout(SHORT, near.read(vec![0; 16])).await;
    assert!(expired.is_err());
    // This one is cancelled by name, and says so.
    let canceller = Canceller::new();
    let handle = canceller.handle();
    let cancelling = monoio::spawn(async move {
        monoio::time::sleep(SHORT).await;
        canceller.cancel();
    });
    let (result, _) = near.cancelable_read(vec![0; 16], handle).await;
    assert_eq!(result.unwrap_err().raw_os_error(), Some(125));
    cancelling.await;
    // Nobody has taken what comes now but the read that comes then.
    far.write_all(b"late".to_vec()).await.0.unwrap();
    let (count, buffer) = near.read(vec![0; 16]).await;
    assert_eq!(&buffer[..count.unwrap()], b"late");
}
