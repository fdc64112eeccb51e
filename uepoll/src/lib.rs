//! epoll whose events a program takes from a ring in shared memory, without a system call.
//!
//! [`layout`] is what the program maps; [`insert`] is how events get into the ring, by many threads and without a
//! lock; [`Ring`] is both over a memfd.
#![no_std]

pub mod insert;
pub mod layout;
mod ring;

pub use ring::{Event, Ring};
