//! Threads that sleep for a ring, and the ends of their sleeps: plain state, without descriptors, clocks and system calls.
#![no_std]

extern crate alloc;

pub mod limits;
pub mod listing;
pub mod loan;
pub mod timers;
pub mod token;

pub use token::{Driver, Token};
