//! io_uring that runs anywhere.
//!
//! A [`Ring`] is the kernel's `io_uring` where that works, and anyring's own, in this process and by ordinary
//! system calls, where it is denied: in containers, under `kernel.io_uring_disabled`, on old kernels. The
//! program is the same; [`Ring::engine`] tells which it has.
#![deny(missing_docs, rustdoc::broken_intra_doc_links)]

mod builder;
mod engine;
mod error;
pub mod everywhere;
pub mod low;
mod ring;

pub use builder::Builder;
pub use engine::Engine;
pub use error::{Error, What};
pub use ring::Ring;
