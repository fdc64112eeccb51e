//! The program without the line.

fn main() {
    everywhere_tokio_uring::run();
}
