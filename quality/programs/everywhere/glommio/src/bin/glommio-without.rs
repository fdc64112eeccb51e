//! The same without the line.

fn main() {
    everywhere_glommio::run();
}
