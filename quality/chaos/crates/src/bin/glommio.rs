//! Files, direct ones too, and an echo server with glommio, whose executor has three rings.

use chaos_crates::{BLOCK, CONNECTIONS, Directory, ECHO, FILE, assert_holds, content, retry};
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::io::{self, BufferedFile, DmaFile};
use glommio::net::{TcpListener, TcpStream};
use glommio::{GlommioError, LocalExecutorBuilder, Placement};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

fn main() {
    let executor = LocalExecutorBuilder::new(Placement::Unbound).make().unwrap();
    executor.run(async {
        let directory = Directory::new();
        buffered(&directory).await;
        direct(&directory.file("direct")).await;
        drop(directory);
        echo().await;
    });
}

/// Does it again while it is interrupted, as [`retry`], with the errors of glommio.
macro_rules! again {
    ($what:expr) => {
        retry!($what.await.map_err(|error: GlommioError<()>| std::io::Error::from(error)))
    };
}

async fn buffered(directory: &Directory) {
    let (path, renamed) = (directory.file("data"), directory.file("renamed"));
    let content = content(1, FILE);
    let file = BufferedFile::create(&path).await.expect("create");
    let mut written = 0;
    while written < FILE {
        let block = content[written..FILE.min(written + BLOCK)].to_vec();
        let count = again!(file.write_at(block.clone(), written as u64)).expect("write_at");
        assert!(count > 0);
        written += count;
    }
    file.fdatasync().await.expect("fdatasync");
    assert_eq!(file.file_size().await.expect("file_size"), FILE as u64);
    file.close().await.expect("close");
    assert_holds(&path, &content);

    io::rename(&path, &renamed).await.expect("rename");
    let file = Rc::new(BufferedFile::open(&renamed).await.expect("open"));
    let blocks = (0..FILE / BLOCK).rev().map(|index| {
        let file = file.clone();
        glommio::spawn_local(async move {
            let mut block = Vec::new();
            while block.len() < BLOCK {
                let at = (index * BLOCK + block.len()) as u64;
                let part = again!(file.read_at(at, BLOCK - block.len())).expect("read_at");
                assert!(!part.is_empty(), "the file ends at {at}");
                block.extend_from_slice(&part);
            }
            (index, block)
        })
    });
    for block in blocks.collect::<Vec<_>>() {
        let (index, block) = block.await;
        assert!(block == content[index * BLOCK..][..BLOCK], "block {index} differs");
    }
    io::remove(&renamed).await.expect("remove");
}

/// With O_DIRECT and registered buffers.
async fn direct(path: &Path) {
    let content = content(9, FILE);
    let file = DmaFile::create(path).await.expect("create");
    let mut written = 0;
    while written < FILE {
        let block = &content[written..FILE.min(written + BLOCK)];
        let fill = || {
            let mut buffer = file.alloc_dma_buffer(block.len());
            buffer.as_bytes_mut().copy_from_slice(block);
            buffer
        };
        written += again!(file.write_at(fill(), written as u64)).expect("write_at");
    }
    file.close().await.expect("close");
    assert_holds(path, &content);
    let file = DmaFile::open(path).await.expect("open");
    let mut read = 0;
    while read < FILE {
        let part = again!(file.read_at_aligned(read as u64, BLOCK)).expect("read_at_aligned");
        assert!(
            !part.is_empty() && part[..] == content[read..][..part.len()],
            "something else was read at {read}"
        );
        read += part.len();
    }
    file.close().await.expect("close");
}

async fn echo() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = glommio::spawn_local(async move {
        for _ in 0..CONNECTIONS {
            glommio::spawn_local(serve(again!(listener.accept()).expect("accept"))).detach();
        }
    });
    let clients = (0..CONNECTIONS).map(|seed| glommio::spawn_local(client(address, seed)));
    for client in clients.collect::<Vec<_>>() {
        client.await;
    }
    server.await;
}

async fn serve(mut connection: TcpStream) {
    let mut buffer = vec![0; BLOCK];
    loop {
        match retry!(connection.read(&mut buffer).await).expect("read") {
            0 => return,
            count => connection.write_all(&buffer[..count]).await.expect("write_all"),
        }
    }
}

/// Sends and receives in turns: a stream of glommio's has one owner.
async fn client(address: SocketAddr, seed: u64) {
    let mut connection = TcpStream::connect(address).await.expect("connect");
    for block in content(seed + 100, ECHO).chunks(BLOCK) {
        connection.write_all(block).await.expect("write_all");
        let mut buffer = vec![0; block.len()];
        connection.read_exact(&mut buffer).await.expect("read_exact");
        assert!(buffer == block, "something else came back");
    }
}
