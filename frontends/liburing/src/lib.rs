//! liburing's C interface, over the kernel's `io_uring` where it works and over anyring's engine where not.
//!
//! Symbol for symbol and version for version what liburing has, `symbols.tsv` being the list; its structures are
//! those of `liburing.h`, for the inline functions in programs read and write them. Results are negative
//! errnos. `scripts/link-liburing` makes `liburing.so.2` and `liburing-ffi.so.2` of it: the second has the
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
