//! Reads from a file with tokio-uring, with several concurrent reads.

use tokio_uring::fs::File;

fn main() {
    tokio_uring::start(async {
        let file = std::rc::Rc::new(File::open("/dev/zero").await.unwrap());
        for _ in 0..50 {
            let readings = [(); 4].map(|()| {
                let file = file.clone();
                tokio_uring::spawn(async move { file.read_at(vec![1; 100], 0).await })
            });
            for reading in readings {
                let (count, buffer) = reading.await.unwrap();
                assert!(buffer[..count.unwrap()].iter().all(|&byte| byte == 0), "something else was read");
            }
        }
    });
}
