//! The program with the line that lets it run everywhere.

anyring::everywhere!(trap);

fn main() {
    everywhere_direct::run();
}
