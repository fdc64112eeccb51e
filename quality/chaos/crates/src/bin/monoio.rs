//! The parts of the program in `quality/programs/everywhere/monoio` that run with injected faults.

fn main() {
    everywhere_monoio::run_among_faults();
}
