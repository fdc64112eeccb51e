//! Futexes: waits and wake-ups by requests.

pub mod ops;
pub mod waits;
