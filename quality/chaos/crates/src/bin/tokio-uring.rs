//! Files and an echo server with tokio-uring.

use chaos_crates::{BLOCK, CONNECTIONS, Directory, ECHO, FILE, assert_holds, content, retry};
use std::net::SocketAddr;
use std::rc::Rc;
use tokio_uring::fs::{self, File};
use tokio_uring::net::{TcpListener, TcpStream};

fn main() {
    tokio_uring::start(async {
        files().await;
        echo().await;
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
    file.close().await.expect("close");
    assert_holds(&path, &content);
    assert_eq!(fs::statx(&path).await.expect("statx").stx_size, FILE as u64);

    fs::rename(&path, &renamed).await.expect("rename");
    let file = Rc::new(retry!(File::open(&renamed).await).expect("open"));
    let blocks = (0..FILE / BLOCK).rev().map(|index| {
        let file = file.clone();
        tokio_uring::spawn(async move {
            let (result, block) = file.read_exact_at(Vec::with_capacity(BLOCK), (index * BLOCK) as u64).await;
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
    let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    tokio_uring::spawn(async move {
        loop {
            let (connection, _) = retry!(listener.accept().await).expect("accept");
            tokio_uring::spawn(serve(connection));
        }
    });
    let clients = (0..CONNECTIONS).map(|seed| tokio_uring::spawn(client(address, seed)));
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
}

async fn read(connection: &TcpStream) -> Vec<u8> {
    let mut buffer = retry!({
        let (result, buffer) = connection.read(vec![0; BLOCK]).await;
        result.map(|count| (count, buffer))
    })
    .map(|(count, mut buffer)| {
        buffer.truncate(count);
        buffer
    })
    .expect("read");
    buffer.shrink_to_fit();
    buffer
}

async fn serve(connection: TcpStream) {
    loop {
        let received = read(&connection).await;
        if received.is_empty() {
            return;
        }
        connection.write_all(received).await.0.expect("write_all");
    }
}

async fn client(address: SocketAddr, seed: u64) {
    let connection = Rc::new(TcpStream::connect(address).await.expect("connect"));
    let content = content(seed + 100, ECHO);
    let (writer, sent) = (connection.clone(), content.clone());
    tokio_uring::spawn(async move { writer.write_all(sent).await.0.expect("write_all") });
    let mut received = Vec::new();
    while received.len() < ECHO {
        let part = read(&connection).await;
        assert!(!part.is_empty(), "the connection ended after {} bytes", received.len());
        received.extend_from_slice(&part);
    }
    assert!(received == content, "something else came back");
}
