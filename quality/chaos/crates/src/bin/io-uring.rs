//! The program of `quality/programs/everywhere`, as far as it is for faults.

fn main() {
    everywhere_io_uring::run_among_faults();
}
