//! Futexes: waits and wake-ups as requests.

pub mod ops;
pub mod waits;
