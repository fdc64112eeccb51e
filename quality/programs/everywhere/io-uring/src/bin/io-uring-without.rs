//! The same without the line.

fn main() {
    everywhere_io_uring::run();
}
