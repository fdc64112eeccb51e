//! Files and an echo server with compio; a receive that is given up.

use chaos_crates::{BLOCK, CONNECTIONS, Directory, ECHO, FILE, assert_holds, content, retry};
use compio::buf::BufResult;
use compio::driver::DriverType;
use compio::fs::{self, File};
use compio::io::{AsyncRead, AsyncReadAtExt, AsyncReadExt, AsyncWriteAtExt, AsyncWriteExt};
use compio::net::{TcpListener, TcpStream};
use compio::runtime::{Runtime, spawn};
use std::net::SocketAddr;
use std::time::Duration;

fn main() {
    let runtime = Runtime::new().unwrap();
    assert_eq!(runtime.driver_type(), DriverType::IoUring);
    runtime.block_on(async {
        files().await;
        echo().await;
        given_up().await;
    });
}

async fn files() {
    let directory = Directory::new();
    let (path, renamed) = (directory.file("data"), directory.file("renamed"));
    let content = content(1, FILE);
    let mut file = retry!(File::create(&path).await).expect("create");
    for (index, block) in content.chunks(BLOCK).enumerate() {
        file.write_all_at(block.to_vec(), (index * BLOCK) as u64).await.0.expect("write_all_at");
    }
    retry!(file.sync_all().await).expect("sync_all");
    assert_eq!(file.metadata().await.expect("metadata").len(), FILE as u64);
    file.close().await.expect("close");
    assert_holds(&path, &content);

    fs::rename(&path, &renamed).await.expect("rename");
    let file = retry!(File::open(&renamed).await).expect("open");
    let blocks = (0..FILE / BLOCK).rev().map(|index| {
        let file = file.clone();
        spawn(async move {
            let BufResult(result, block) =
                file.read_exact_at(Vec::with_capacity(BLOCK), (index * BLOCK) as u64).await;
            result.expect("read_exact_at");
            (index, block)
        })
    });
    for block in blocks.collect::<Vec<_>>() {
        let (index, block) = block.await.unwrap();
        assert!(block == content[index * BLOCK..][..BLOCK], "block {index} differs");
    }
    fs::remove_file(&renamed).await.expect("remove_file");
    assert_eq!(directory.names(), [""; 0]);
}

async fn echo() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = spawn(async move {
        loop {
            let (connection, _) = retry!(listener.accept().await).expect("accept");
            spawn(serve(connection)).detach();
        }
    });
    let clients = (0..CONNECTIONS).map(|seed| spawn(client(address, seed)));
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    drop(server);
}

async fn serve(mut connection: TcpStream) {
    loop {
        let received = retry!({
            let BufResult(result, buffer) = connection.read(Vec::with_capacity(BLOCK)).await;
            result.map(|_| buffer)
        });
        let received = received.expect("read");
        if received.is_empty() {
            return;
        }
        connection.write_all(received).await.0.expect("write_all");
    }
}

async fn client(address: SocketAddr, seed: u64) {
    let mut reader = TcpStream::connect(address).await.expect("connect");
    let mut writer = reader.clone();
    let content = content(seed + 100, ECHO);
    let sent = content.clone();
    let sending = spawn(async move { writer.write_all(sent).await.0.expect("write_all") });
    let BufResult(result, received) = reader.read_exact(Vec::with_capacity(ECHO)).await;
    result.expect("read_exact");
    assert!(received == content, "something else came back");
    sending.await.unwrap();
}

async fn given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connecting = spawn(async move { TcpStream::connect(address).await });
    let (mut far, _) = retry!(listener.accept().await).expect("accept");
    let mut near = connecting.await.unwrap().expect("connect");
    for turn in 0..5_u8 {
        let given_up =
            compio::time::timeout(Duration::from_millis(2), near.read(Vec::with_capacity(16))).await;
        assert!(!matches!(given_up, Ok(BufResult(Ok(_), _))), "something was read before it was sent");
        compio::time::sleep(Duration::from_millis(10)).await;
        far.write_all(vec![turn; 4]).await.0.expect("write_all");
        let BufResult(result, buffer) = near.read_exact(Vec::with_capacity(4)).await;
        result.expect("read_exact");
        assert_eq!(buffer, [turn; 4]);
    }
}
