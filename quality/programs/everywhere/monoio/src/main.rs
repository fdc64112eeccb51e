//! The program with the line that lets it run everywhere.

anyring::everywhere!();

fn main() {
    everywhere_monoio::run();
}
