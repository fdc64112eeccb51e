//! The program without the line.

fn main() {
    everywhere_monoio::run();
}
