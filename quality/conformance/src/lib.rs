//! Runs liburing's own test suite, unmodified, over anyring.
//!
//! Every test program runs three times: natively (the oracle), with io_uring denied and nothing in its
//! place (which tests pass although they can do nothing?), and with io_uring denied over the user engine.
//! A test counts where the first passes and the second does not; it scores where the third passes too and
//! the engine's own log line says that it made the rings.

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
