//! Observers of the engine: the trace of requests, injected faults, the record of what tests have seen.

pub mod chaos;
pub mod coverage;
pub mod trace;
