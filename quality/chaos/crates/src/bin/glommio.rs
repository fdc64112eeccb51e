//! The parts of the program in `quality/programs/everywhere/glommio` that run with injected faults.

fn main() {
    everywhere_glommio::run_among_faults();
}
