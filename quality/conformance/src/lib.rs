//! Runs liburing's own test suite, unmodified, over anyring.
//!
//! Every test program runs three times: natively (the oracle), with io_uring denied and without a
//! replacement (to find tests that pass although they do nothing), and with io_uring denied on the user
//! engine. A test counts if the first run passes and the second does not; it scores if the third passes,
//! too, and the engine's log line says that the engine made the rings.

pub mod cli;
pub mod concurrent;
mod coverage;
pub mod differential;
pub mod harness;
mod oracle;
pub mod refusals;
mod report;
pub mod ring;
pub mod rng;
mod run;
mod source;
mod traced;
