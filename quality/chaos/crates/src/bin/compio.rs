//! The parts of the program in `quality/programs/everywhere/compio` that run with injected faults.

fn main() {
    everywhere_compio::run_among_faults();
}
