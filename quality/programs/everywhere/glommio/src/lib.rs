//! Files, also with `O_DIRECT`, TCP, timeouts and dropped reads with glommio. Each executor of glommio has three rings.

use common::{BLOCK, CONNECTIONS, Directory, ECHO_BYTES, FILE_BYTES, SHORT, checksum, random, retry};
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::io::{self, BufferedFile, DmaFile};
use glommio::net::{TcpListener, TcpStream};
use glommio::timer::{sleep, timeout};
use glommio::{GlommioError, LocalExecutorBuilder, Placement};
use std::net::SocketAddr;
use std::time::Instant;

fn start<F: Future<Output = ()> + 'static>(body: impl FnOnce() -> F + Send + 'static) {
    LocalExecutorBuilder::new(Placement::Unbound).spawn(body).unwrap().join().unwrap();
}

/// Repeats a future like [`retry`], and converts glommio's errors.
macro_rules! again {
    ($what:expr) => {
        retry!($what.await.map_err(|error: GlommioError<()>| std::io::Error::from(error)))
    };
}

/// Runs all parts, in one thread and in several.
pub fn run() {
    start(|| async {
        files(1).await;
        direct().await;
        echo().await;
        timeouts_and_drops().await;
    });
    let threads = (2..4).map(|seed| std::thread::spawn(move || start(move || files(seed))));
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
}

/// Runs the parts that also run with the faults of `anyring chaos`.
pub fn run_among_faults() {
    start(|| async {
        files(1).await;
        direct().await;
        echo().await;
    });
}

async fn files(seed: u64) {
    let directory = Directory::new();
    let (path, renamed) = (directory.file("data"), directory.file("renamed"));
    let content = random(seed, FILE_BYTES);
    let file = BufferedFile::create(&path).await.unwrap();
    let mut written = 0;
    while written < FILE_BYTES {
        let block = content[written..FILE_BYTES.min(written + BLOCK)].to_vec();
        let count = again!(file.write_at(block.clone(), written as u64)).unwrap();
        assert!(count > 0);
        written += count;
    }
    file.fdatasync().await.unwrap();
    assert_eq!(file.file_size().await.unwrap(), FILE_BYTES as u64);
    file.close().await.unwrap();
    common::assert_holds(&path, &content);

    io::rename(&path, &renamed).await.unwrap();
    let file = std::rc::Rc::new(BufferedFile::open(&renamed).await.unwrap());
    let blocks = (0..FILE_BYTES / BLOCK).rev().map(|index| {
        let file = file.clone();
        glommio::spawn_local(async move {
            let mut block = Vec::new();
            while block.len() < BLOCK {
                let at = (index * BLOCK + block.len()) as u64;
                let part = again!(file.read_at(at, BLOCK - block.len())).unwrap();
                assert!(!part.is_empty(), "the file ends at {at}");
                block.extend_from_slice(&part);
            }
            (index, block)
        })
    });
    for block in blocks.collect::<Vec<_>>() {
        let (index, block) = block.await;
        assert!(block[..] == content[index * BLOCK..][..BLOCK], "block {index} differs");
    }
    assert!(BufferedFile::open(&path).await.is_err());
    io::remove(&renamed).await.unwrap();
    assert!(directory.names().is_empty());
}

/// Transfers with registered buffers, and with `O_DIRECT` if the file system has it.
async fn direct() {
    let directory = Directory::new();
    let path = directory.file("direct");
    let content = random(9, FILE_BYTES);
    let file = DmaFile::create(&path).await.unwrap();
    let mut written = 0;
    while written < FILE_BYTES {
        let block = &content[written..FILE_BYTES.min(written + BLOCK)];
        let fill = || {
            let mut buffer = file.alloc_dma_buffer(block.len());
            buffer.as_bytes_mut().copy_from_slice(block);
            buffer
        };
        written += again!(file.write_at(fill(), written as u64)).unwrap();
    }
    file.close().await.unwrap();
    common::assert_holds(&path, &content);
    let file = DmaFile::open(&path).await.unwrap();
    let mut read = 0;
    while read < FILE_BYTES {
        let part = again!(file.read_at_aligned(read as u64, BLOCK)).unwrap();
        assert!(
            !part.is_empty() && part[..] == content[read..][..part.len()],
            "something else was read at {read}"
        );
        read += part.len();
    }
    file.close().await.unwrap();
}

async fn echo() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = glommio::spawn_local(async move {
        for _ in 0..CONNECTIONS {
            glommio::spawn_local(serve(again!(listener.accept()).unwrap())).detach();
        }
    });
    let clients = (0..CONNECTIONS as u64).map(|seed| glommio::spawn_local(client(address, seed)));
    for client in clients.collect::<Vec<_>>() {
        client.await;
    }
    server.await;
}

async fn serve(mut connection: TcpStream) {
    let mut buffer = vec![0; BLOCK];
    loop {
        match retry!(connection.read(&mut buffer).await).unwrap() {
            0 => return,
            count => connection.write_all(&buffer[..count]).await.unwrap(),
        }
    }
}

/// Sends and receives alternately, because a stream of glommio has only one owner.
async fn client(address: SocketAddr, seed: u64) {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let content = random(seed + 100, ECHO_BYTES);
    let mut hash = 0;
    for block in content.chunks(BLOCK) {
        connection.write_all(block).await.unwrap();
        let mut buffer = vec![0; block.len()];
        connection.read_exact(&mut buffer).await.unwrap();
        hash = checksum(hash, &buffer);
    }
    assert_eq!(hash, checksum(0, &content));
}

async fn timeouts_and_drops() {
    let begin = Instant::now();
    sleep(SHORT).await;
    assert!(begin.elapsed() >= SHORT);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connecting = glommio::spawn_local(async move { TcpStream::connect(address).await.unwrap() });
    let mut far = again!(listener.accept()).unwrap();
    let mut near = connecting.await;
    // The timeout drops the read while it waits.
    let expired = timeout(SHORT, async {
        let mut buffer = [0; 16];
        near.read(&mut buffer).await.map_err(GlommioError::<()>::from)
    });
    assert!(matches!(expired.await, Err(GlommioError::TimedOut(_))));
    // The dropped read must not take this data.
    far.write_all(b"late").await.unwrap();
    let mut buffer = [0; 4];
    near.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"late");
}
