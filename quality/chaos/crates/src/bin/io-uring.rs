//! The parts of the program in `quality/programs/everywhere/io-uring` that run with injected faults.

fn main() {
    everywhere_io_uring::run_among_faults();
}
