//! The harness runs the workloads: processes with a time limit, interleaved rounds, medians, the machine.

pub mod hole;
pub mod launch;
pub mod machine;
pub mod process;
pub mod rounds;
pub mod stats;
pub mod syscalls;
