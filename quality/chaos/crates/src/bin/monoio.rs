//! Files and an echo server with monoio; a receive that is given up.

use chaos_crates::{BLOCK, CONNECTIONS, Directory, ECHO, FILE, assert_holds, content, retry};
use monoio::fs::{self, File};
use monoio::io::{AsyncReadRent, AsyncReadRentExt, AsyncWriteRentExt, Splitable};
use monoio::net::{TcpListener, TcpStream};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

fn main() {
    let mut runtime = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().enable_timer().build().unwrap();
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
    let file = retry!(File::create(&path).await).expect("create");
    for (index, block) in content.chunks(BLOCK).enumerate() {
        file.write_all_at(block.to_vec(), (index * BLOCK) as u64).await.0.expect("write_all_at");
    }
    retry!(file.sync_all().await).expect("sync_all");
    assert_eq!(file.metadata().await.expect("metadata").len(), FILE as u64);
    file.close().await.expect("close");
    assert_holds(&path, &content);

    fs::rename(&path, &renamed).await.expect("rename");
    let file = Rc::new(retry!(File::open(&renamed).await).expect("open"));
    let blocks = (0..FILE / BLOCK).rev().map(|index| {
        let file = file.clone();
        monoio::spawn(async move {
            let (result, block) = file.read_exact_at(vec![0; BLOCK], (index * BLOCK) as u64).await;
            result.expect("read_exact_at");
            (index, block)
        })
    });
    for block in blocks.collect::<Vec<_>>() {
        let (index, block) = block.await;
        assert!(block == content[index * BLOCK..][..BLOCK], "block {index} differs");
    }
    fs::remove_file(&renamed).await.expect("remove_file");
    assert_eq!(directory.names(), [""; 0]);
}

async fn echo() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    monoio::spawn(async move {
        loop {
            let (connection, _) = retry!(listener.accept().await).expect("accept");
            monoio::spawn(serve(connection));
        }
    });
    let clients = (0..CONNECTIONS).map(|seed| monoio::spawn(client(address, seed)));
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
        let received = received.expect("read");
        if received.is_empty() {
            return;
        }
        connection.write_all(received).await.0.expect("write_all");
    }
}

async fn client(address: SocketAddr, seed: u64) {
    let connection = TcpStream::connect(address).await.expect("connect");
    let content = content(seed + 100, ECHO);
    let sent = content.clone();
    let (mut reader, mut writer) = connection.into_split();
    let sending = monoio::spawn(async move {
        writer.write_all(sent).await.0.expect("write_all");
        writer
    });
    let (result, received) = reader.read_exact(vec![0; ECHO]).await;
    result.expect("read_exact");
    assert!(received == content, "something else came back");
    drop(sending.await);
}

async fn given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connecting = monoio::spawn(TcpStream::connect(listener.local_addr().unwrap()));
    let (mut far, _) = retry!(listener.accept().await).expect("accept");
    let mut near = connecting.await.expect("connect");
    for turn in 0..5_u8 {
        let given_up = monoio::time::timeout(Duration::from_millis(2), near.read(vec![0; 16])).await;
        assert!(!matches!(given_up, Ok((Ok(_), _))), "something was read before it was sent");
        monoio::time::sleep(Duration::from_millis(10)).await;
        far.write_all(vec![turn; 4]).await.0.expect("write_all");
        let (result, buffer) = near.read_exact(vec![0; 4]).await;
        assert_eq!((result.expect("read_exact"), buffer), (4, vec![turn; 4]));
    }
}
