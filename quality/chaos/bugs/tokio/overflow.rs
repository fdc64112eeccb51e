//! Opens files with tokio through io_uring, several concurrently.

use tokio::fs::File;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for _ in 0..50 {
            let openings = [(); 4].map(|()| tokio::spawn(File::open("/dev/null")));
            for opening in openings {
                opening.await.unwrap().expect("a file cannot be opened");
            }
        }
    });
}
