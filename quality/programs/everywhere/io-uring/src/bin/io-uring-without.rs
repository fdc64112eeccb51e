//! The program without the line.

fn main() {
    everywhere_io_uring::run();
}
