//! liburing's C interface, over the kernel engine if it works, and over the user engine otherwise.
//!
//! The libraries have the symbols and symbol versions of liburing, which `symbols.tsv` lists. The structures are
//! those of `liburing.h`, because the inline functions in programs read and write them. Results are negative
//! errnos. `scripts/link-liburing` links `liburing.so.2` and `liburing-ffi.so.2` from this crate: the second has the
//! inline functions, too ([`ffi`]).
#![no_std]

extern crate alloc;

pub mod buffers;
pub mod call;
pub mod extended;
pub mod ffi;
pub mod memory;
pub mod plain;
pub mod queue;
pub mod register;
pub mod ring;
pub mod setup;
pub mod size;
pub mod types;
pub mod uepoll;
pub mod user;
pub mod wait;

anyring_runtime::runtime!();
