//! The program without the line that lets it run everywhere.

fn main() {
    everywhere_monoio::run();
}
