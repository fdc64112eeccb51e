//! The program without the line.

fn main() {
    everywhere_compio::run();
}
