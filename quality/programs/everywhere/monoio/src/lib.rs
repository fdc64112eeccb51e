//! Files, TCP, timeouts and cancellation with monoio, with no driver but that for io_uring.

use common::{BLOCK, CONNECTIONS, Directory, ECHO_BYTES, FAULTS, FILE_BYTES, SHORT, checksum, random, retry};
use monoio::fs::{self, File};
use monoio::io::{
    AsyncReadRent, AsyncReadRentExt, AsyncWriteRentExt, CancelableAsyncReadRent, Canceller, Splitable,
};
use monoio::net::{TcpListener, TcpStream};
use std::net::SocketAddr;
use std::time::Instant;

fn start<F: Future>(body: F) -> F::Output {
    let mut runtime = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().enable_timer().build().unwrap();
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
    let file = retry!(File::create(&path).await).unwrap();
    for (index, block) in content.chunks(BLOCK).enumerate() {
        let (result, _) = file.write_all_at(block.to_vec(), (index * BLOCK) as u64).await;
        result.unwrap();
    }
    retry!(file.sync_all().await).unwrap();
    assert_eq!(file.metadata().await.unwrap().len(), FILE_BYTES as u64);
    file.close().await.unwrap();
    common::assert_holds(&path, &content);

    fs::rename(&path, &renamed).await.unwrap();
    let file = std::rc::Rc::new(retry!(File::open(&renamed).await).unwrap());
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
    assert_eq!(retry!(File::open(&path).await).err().unwrap().kind(), std::io::ErrorKind::NotFound);
    fs::remove_file(&renamed).await.unwrap();
    fs::create_dir(directory.file("below")).await.unwrap();
    assert_eq!(directory.names(), ["below"]);
}

async fn echo() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    monoio::spawn(async move {
        loop {
            let (connection, _) = retry!(listener.accept().await).unwrap();
            monoio::spawn(serve(connection));
        }
    });
    let clients = (0..CONNECTIONS as u64).map(|seed| monoio::spawn(client(address, seed)));
    for client in clients.collect::<Vec<_>>() {
        client.await;
    }
}

async fn serve(mut connection: TcpStream) {
    loop {
        let received = retry!({
            let (result, buffer) = connection.read(Vec::with_capacity(BLOCK)).await;
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
    let begin = Instant::now();
    monoio::time::sleep(SHORT).await;
    assert!(begin.elapsed() >= SHORT);
    given_up().await;
}

/// Checks that a waiting read that is dropped or cancelled takes no data.
async fn given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connecting = monoio::spawn(TcpStream::connect(listener.local_addr().unwrap()));
    let (mut far, _) = retry!(listener.accept().await).unwrap();
    let mut near = connecting.await.unwrap();
    if !FAULTS {
        // A read that is cancelled explicitly has a result.
        let canceller = Canceller::new();
        let handle = canceller.handle();
        let cancelling = monoio::spawn(async move {
            monoio::time::sleep(SHORT).await;
            canceller.cancel();
        });
        let (result, _) = near.cancelable_read(vec![0; 16], handle).await;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(125));
        cancelling.await;
    }
    for turn in 0..5_u8 {
        match monoio::time::timeout(SHORT, near.read(vec![0; 16])).await {
            Err(_) => {}
            Ok((result, _)) => assert!(FAULTS && result.is_err(), "{result:?} before there was anything"),
        }
        monoio::time::sleep(SHORT).await;
        far.write_all(vec![turn; 4]).await.0.unwrap();
        let (result, buffer) = near.read_exact(vec![0; 4]).await;
        assert_eq!((result.unwrap(), buffer), (4, vec![turn; 4]));
    }
}
