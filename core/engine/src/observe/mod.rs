//! Observers of the engine: the trace of requests, injected faults, the record of results in tests.

pub mod chaos;
pub mod coverage;
pub mod trace;
