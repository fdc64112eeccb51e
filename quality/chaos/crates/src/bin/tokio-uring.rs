//! The parts of the program in `quality/programs/everywhere/tokio-uring` that run with injected faults.

fn main() {
    everywhere_tokio_uring::run_among_faults();
}
