//! The anyring command.
fn main() {}
