//! Threads that sleep for a ring, and until when.

pub mod limits;
pub mod listing;
pub mod loan;
pub mod timers;
pub mod token;

pub use token::{Driver, Token};
